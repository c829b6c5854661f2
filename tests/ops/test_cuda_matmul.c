/* Products on the CUDA device beside the CPU's: every form and type, bias, GELU's backward, accumulation, operands that are parts of wider
 * tensors, TF32. */
#include "tests/ops/op_parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_device.h"

typedef struct product_case {
    tr_matmul_form form;
    tr_dtype dtype, c_dtype;
    int64_t M, N, K;
    bool bias, gelu, accumulate, parts;
    int64_t num_parts, part; /* of the rows of wider tensors; the one that the operands are */
} product_case;

/* A matrix whose rows are `parts` times as long as `columns`. */
typedef struct operand {
    op_tensor all;
    int64_t rows, columns, ld;
    size_t begin; /* bytes before the part */
} operand;

/* The values of a part are a function of seed, rows and columns; beside it there are other ones. */
static operand operand_make(const product_case *c, tr_dtype dtype, int64_t rows, int64_t columns,
                            uint64_t seed, double center)
{
    size_t row = (size_t)columns * tr_dtype_size(dtype);
    int64_t parts = c->parts ? c->num_parts : 1;
    operand o = {.rows = rows, .columns = columns, .ld = parts * columns};
    o.begin = c->parts ? (size_t)c->part * row : 0;
    op_tensor part = op_random(dtype, rows * columns, 0, seed, center, 1.0);
    op_tensor beside = op_random(dtype, rows * o.ld, 0, seed + 100, center, 1.0);
    char *narrow = malloc((size_t)rows * row), *wide = malloc((size_t)rows * (size_t)parts * row);
    assert_true(narrow != NULL && wide != NULL);
    op_download(&part, narrow);
    op_download(&beside, wide);
    for (size_t r = 0; r < (size_t)rows; r++)
        memcpy(wide + r * (size_t)parts * row + o.begin, narrow + r * row, row);
    o.all = op_from(dtype, rows * o.ld, 0, wide);
    free(narrow);
    free(wide);
    return o;
}

static void *operand_at(const operand *o, int side)
{
    return (char *)o->all.data[side] + o->begin;
}

/* The device's part, dense; free. */
static void *operand_download(const operand *o)
{
    size_t size = tr_dtype_size(o->all.dtype), row = (size_t)o->columns * size;
    char *wide = malloc((size_t)(o->rows * o->ld) * size), *narrow = malloc((size_t)o->rows * row);
    assert_true(narrow != NULL && wide != NULL);
    op_download(&o->all, wide);
    for (size_t r = 0; r < (size_t)o->rows; r++)
        memcpy(narrow + r * row, wide + r * (size_t)o->ld * size + o->begin, row);
    free(wide);
    return narrow;
}

/* No product here has a larger size. */
enum { MOST = 600 };

static void workspace_make(void)
{
    const tr_workspace_need need = {
        .dtype = TR_F32, .B = 1, .T = MOST, .H = MOST, .A = 1, .K = 1, .D = 1, .max_matmul = MOST};
    op_workspace(&need);
}

typedef struct operands {
    operand A, B, C, bias, gelu_input;
} operands;

static operands operands_make(const product_case *c)
{
    bool a_by_k = c->form != TR_MATMUL_TN, b_by_k = c->form == TR_MATMUL_NT;
    return (operands){
        .A = operand_make(c, c->dtype, a_by_k ? c->M : c->K, a_by_k ? c->K : c->M, 1, 0.1),
        .B = operand_make(c, c->dtype, b_by_k ? c->N : c->K, b_by_k ? c->K : c->N, 2, 0.0),
        .C = operand_make(c, c->c_dtype, c->M, c->N, 3, 0.0),
        .bias = operand_make(c, c->dtype, 1, c->N, 4, 0.0),
        .gelu_input = operand_make(c, c->dtype, c->M, c->N, 5, 0.2)};
}

static tr_matmul args_of(const product_case *c, const operands *o, int side)
{
    return (tr_matmul){.form = c->form,
                       .M = c->M,
                       .N = c->N,
                       .K = c->K,
                       .dtype = c->dtype,
                       .c_dtype = c->c_dtype,
                       .A = operand_at(&o->A, side),
                       .lda = o->A.ld,
                       .B = operand_at(&o->B, side),
                       .ldb = o->B.ld,
                       .bias = c->bias ? operand_at(&o->bias, side) : NULL,
                       .gelu_input = c->gelu ? operand_at(&o->gelu_input, side) : NULL,
                       .C = operand_at(&o->C, side),
                       .ldc = o->C.ld,
                       .accumulate = c->accumulate,
                       .parts = c->parts};
}

static operands multiply(const product_case *c)
{
    tr_matmul args[OP_SIDES];
    operands o = operands_make(c);
    for (int side = 0; side < OP_SIDES; side++)
        args[side] = args_of(c, &o, side);
    op_both(matmul, &args[side]);
    return o;
}

static void product_run(const product_case *c)
{
    operands o = multiply(c);
    op_expect_close("matmul", &o.C.all, 0); /* also what must stay */
    op_release();
}

/* The bits of C; free. */
static void *product_bits(const product_case *c)
{
    operands o = multiply(c);
    void *bits = operand_download(&o.C);
    op_release();
    return bits;
}

static void test_products(void **state)
{
    (void)state;
    workspace_make();
    const int64_t shapes[][3] = {{1, 1, 1},   {3, 7, 31},  {31, 3, 65},
                                 {16, 64, 8}, {65, 63, 7}, {40, 257, 96}};
    int number = 0;
    for (int d = 0; d < OP_DTYPES; d++)
        for (int form = 0; form < 3; form++)
            for (int s = 0; s < 6; s++, number++) {
                product_case c = {.form = (tr_matmul_form)form,
                                  .dtype = op_dtypes[d],
                                  .c_dtype = number % 2 == 0 ? TR_F32 : op_dtypes[d],
                                  .M = shapes[s][0],
                                  .N = shapes[s][1],
                                  .K = shapes[s][2],
                                  .bias = form == TR_MATMUL_NT && s % 2 == 1,
                                  .parts = (number + number / 6) % 3 == 1,
                                  .num_parts = 3,
                                  .part = 1};
                c.accumulate = c.c_dtype == TR_F32 && form == TR_MATMUL_TN && s % 3 != 0;
                product_run(&c);
            }
}

/* Rows that the library's epilogue takes, rows that it does not, and a depth that it has no algorithm for. */
static void test_gelu(void **state)
{
    (void)state;
    workspace_make();
    const int64_t shapes[][3] = {{1, 1, 1},  {5, 8, 33},  {31, 64, 65}, {7, 24, 1},
                                 {40, 7, 9}, {33, 20, 6}, {9, 257, 96}};
    for (int d = 0; d < OP_DTYPES; d++)
        for (int s = 0; s < 7; s++)
            for (int parts = 0; parts < 2; parts++) {
                product_case c = {.form = s == 2 ? TR_MATMUL_NT : TR_MATMUL_NN,
                                  .dtype = op_dtypes[d],
                                  .c_dtype = op_dtypes[d],
                                  .M = shapes[s][0],
                                  .N = shapes[s][1],
                                  .K = shapes[s][2],
                                  .gelu = true,
                                  .parts = parts != 0,
                                  .num_parts = s % 2 == 0 ? 8 : 2,
                                  .part = 1};
                product_run(&c);
            }
}

static double gelu_slope(double x)
{
    const double scale = sqrt(2.0 / acos(-1.0)), t = tanh(scale * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * scale * (1.0 + 3.0 * 0.044715 * x * x);
}

/* The error of GELU's backward behind a bf16 product, over the error of rounding it once, in the L2 norm. */
static double gelu_error(int64_t N)
{
    const product_case c = {.form = TR_MATMUL_NN,
                            .dtype = TR_BF16,
                            .c_dtype = TR_BF16,
                            .M = 64,
                            .N = N,
                            .K = 96,
                            .gelu = true};
    product_case exact = c;
    exact.c_dtype = TR_F32;
    exact.gelu = false;
    double error = 0, least = 0;
    uint16_t *bits = product_bits(&c);
    operands o = multiply(&exact);
    float *product = operand_download(&o.C);
    uint16_t *x = operand_download(&o.gelu_input);
    for (int64_t i = 0; i < c.M * N; i++) {
        double expected = gelu_slope((double)tr_f32_from_bf16(x[i])) * (double)product[i];
        double once = (double)tr_f32_from_bf16(tr_bf16_from_f32((float)expected));
        error += pow((double)tr_f32_from_bf16(bits[i]) - expected, 2);
        least += pow(once - expected, 2);
    }
    op_release();
    free(bits);
    free(product);
    free(x);
    return sqrt(error / least);
}

/* The fused form rounds once, two passes round twice: by the square root of 2 further away. */
static void test_gelu_rounds_once(void **state)
{
    (void)state;
    workspace_make();
    double fused = gelu_error(256), apart = gelu_error(257);
    if (fused > 1.15)
        fail_msg("rows of 256: %.3f times the error of one rounding", fused);
    if (apart < 1.25)
        fail_msg("rows of 257: %.3f times the error of one rounding", apart);
}

/* Runs the product as the only part, and as parts of eight, and compares bits. */
static void parts_compare(const product_case *c)
{
    product_case wide = *c;
    wide.num_parts = 8;
    void *one = product_bits(c);
    for (wide.part = 0; wide.part < 2; wide.part++) {
        void *other = product_bits(&wide);
        if (memcmp(one, other, (size_t)(c->M * c->N) * tr_dtype_size(c->c_dtype)) != 0)
            fail_msg("%s form %d, %lld columns,%s%s: part %lld of 8 has other bits",
                     tr_dtype_name(c->dtype), (int)c->form, (long long)c->N, c->bias ? " bias" : "",
                     c->gelu ? " gelu" : "", (long long)wide.part);
        free(other);
    }
    free(one);
}

/* The bits of a part do not depend on how many parts the tensors have, nor on which one it is. */
static void test_parts(void **state)
{
    (void)state;
    workspace_make();
    const int64_t widths[] = {64, 24, 7};
    for (int d = 0; d < OP_DTYPES; d++)
        for (int form = 0; form < 3; form++)
            for (int w = 0; w < 3; w++) {
                product_case c = {.form = (tr_matmul_form)form,
                                  .dtype = op_dtypes[d],
                                  .c_dtype = TR_F32,
                                  .M = widths[w],
                                  .N = widths[w],
                                  .K = 96,
                                  .accumulate = w == 0,
                                  .parts = true,
                                  .num_parts = 1};
                parts_compare(&c);
                c.accumulate = false;
                c.c_dtype = c.dtype;
                c.bias = true;
                parts_compare(&c);
                c.bias = false;
                c.gelu = true;
                parts_compare(&c);
            }
}

/* fp32 products are as near as inputs of TF32 allow, and no nearer; others have the same bits as without it. */
static void test_tf32(void **state)
{
    (void)state;
    const tr_cuda_options options = {.local_rank = 0, .local_size = 1, .tf32 = true};
    product_case c = {.form = TR_MATMUL_NT, .M = 70, .N = 96, .K = 200, .bias = true};
    tr_device *plain = op_device[OP_CUDA], *tf32;
    void *bits[3][2];
    op_check_status("device", tr_cuda_device_create(&tf32, &options));
    for (int with = 0; with < 2; with++) {
        op_device[OP_CUDA] = with ? tf32 : plain;
        workspace_make();
        for (int d = 0; d < OP_DTYPES; d++) {
            c.dtype = c.c_dtype = op_dtypes[d];
            bits[d][with] = product_bits(&c);
        }
    }
    c.dtype = c.c_dtype = TR_F32;
    operands o = multiply(&c);
    op_expect_close("matmul in TF32", &o.C.all, 0x1p-10);
    op_release();
    op_device[OP_CUDA] = plain;
    workspace_make();
    tr_device_destroy(tf32);
    double difference = 0, norm = 0;
    const float *without = bits[0][0], *with = bits[0][1];
    for (int64_t i = 0; i < c.M * c.N; i++) {
        difference += pow((double)with[i] - (double)without[i], 2);
        norm += pow((double)without[i], 2);
    }
    assert_true(sqrt(difference) > 0x1p-14 * sqrt(norm));
    for (int d = 1; d < OP_DTYPES; d++)
        assert_memory_equal(bits[d][0], bits[d][1], (size_t)(c.M * c.N) * 2);
    for (int d = 0; d < OP_DTYPES; d++)
        for (int i = 0; i < 2; i++)
            free(bits[d][i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_gelu),
                                       cmocka_unit_test(test_gelu_rounds_once),
                                       cmocka_unit_test(test_parts), cmocka_unit_test(test_tf32)};
    return op_parity_main("cuda matmul", tests, sizeof tests / sizeof tests[0]);
}
