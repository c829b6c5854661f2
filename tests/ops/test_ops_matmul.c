/* Matrix products against double: forms, dtypes, odd sizes, row strides, bias, accumulation, GELU's backward behind them; bits on 1, 2 and 3 threads at shapes
 * where a product split over K would show (DESIGN section 1). */
#include "tests/ops/op_test_util.h"

#include <math.h>

typedef struct shape {
    tr_matmul_form form;
    int64_t M, N, K, padding; /* padding: what row strides are longer than rows */
} shape;

/* Row r, column c of a matrix stored with rows of `ld` elements. */
static double at(const op_tensor *tensor, int64_t ld, int64_t r, int64_t c)
{
    return op_get(tensor, r * ld + c);
}

typedef struct operands {
    const shape *s;
    int64_t lda, ldb, ldc;
    op_tensor a, b, bias, c, before;
    op_tensor gelu_input; /* data NULL: without it */
    bool with_bias, accumulate;
} operands;

static operands make_operands(op_env *env, const shape *s, tr_dtype dtype, tr_dtype c_dtype,
                              bool with_bias, bool accumulate)
{
    const tr_workspace_need need = {.dtype = dtype, .max_matmul = s->N > s->K ? s->N : s->K};
    op_workspace(env, &need);
    operands o = {.s = s, .with_bias = with_bias, .accumulate = accumulate};
    bool a_turned = s->form == TR_MATMUL_TN, b_turned = s->form != TR_MATMUL_NT;
    o.lda = (a_turned ? s->M : s->K) + s->padding;
    o.ldb = (b_turned ? s->N : s->K) + s->padding;
    o.ldc = s->N + s->padding;
    /* The last row ends with its last element: reading or writing a stride further meets the guards. */
    o.a = op_tensor_random(env, dtype, (a_turned ? s->K : s->M) * o.lda - s->padding, 1, 0.0, 1.0);
    o.b = op_tensor_random(env, dtype, (b_turned ? s->K : s->N) * o.ldb - s->padding, 2, 0.0, 1.0);
    o.bias = op_tensor_random(env, dtype, s->N, 3, 0.0, 1.0);
    o.c = accumulate ? op_tensor_random(env, c_dtype, s->M * o.ldc - s->padding, 4, 0.0, 1.0)
                     : op_tensor_new(env, c_dtype, s->M * o.ldc - s->padding);
    o.before = op_tensor_copy(env, &o.c);
    return o;
}

static void multiply(op_env *env, const operands *o, tr_dtype dtype, bool parts)
{
    const shape *s = o->s;
    const tr_matmul args = {.form = s->form,
                            .M = s->M,
                            .N = s->N,
                            .K = s->K,
                            .dtype = dtype,
                            .c_dtype = o->c.dtype,
                            .A = o->a.data,
                            .lda = o->lda,
                            .B = o->b.data,
                            .ldb = o->ldb,
                            .bias = o->with_bias ? o->bias.data : NULL,
                            .gelu_input = o->gelu_input.data,
                            .C = o->c.data,
                            .ldc = o->ldc,
                            .accumulate = o->accumulate,
                            .parts = parts};
    assert_int_equal(env->ops.matmul(env->device, &args), TR_OK);
    op_record(env, &o->c);
}

static double element(const operands *o, int64_t m, int64_t n)
{
    const shape *s = o->s;
    double sum = o->with_bias ? op_get(&o->bias, n) : 0.0;
    if (o->accumulate)
        sum += at(&o->before, o->ldc, m, n);
    for (int64_t k = 0; k < s->K; k++)
        sum += (s->form == TR_MATMUL_TN ? at(&o->a, o->lda, k, m) : at(&o->a, o->lda, m, k)) *
               (s->form == TR_MATMUL_NT ? at(&o->b, o->ldb, n, k) : at(&o->b, o->ldb, k, n));
    return sum;
}

static double half_unit(tr_dtype dtype)
{
    return dtype == TR_BF16 ? 0x1p-9 : dtype == TR_F16 ? 0x1p-12 : 0x1p-25;
}

/* Partial sums of K products of numbers in [-1, 1) are about sqrt(K)/3; K roundings of half a unit each add up like a random walk to
 * 2^-25 K/3. Sixteen times that, and the output's own rounding. */
static void expect_element(const operands *o, int64_t m, int64_t n)
{
    double expected = element(o, m, n), actual = at(&o->c, o->ldc, m, n);
    double allowed = 16.0 * 0x1p-25 * ((double)o->s->K / 3.0 + 4.0) +
                     2.02 * half_unit(o->c.dtype) * fabs(expected);
    if (!(fabs(actual - expected) <= allowed))
        fail_msg(
            "form %d, %lld x %lld x %lld, element (%lld, %lld): %.9g, expected %.9g within %.3g",
            (int)o->s->form, (long long)o->s->M, (long long)o->s->N, (long long)o->s->K,
            (long long)m, (long long)n, actual, expected, allowed);
}

static void expect_product(const operands *o)
{
    for (int64_t m = 0; m < o->s->M; m++)
        for (int64_t n = 0; n < o->s->N; n++)
            expect_element(o, m, n);
    for (int64_t m = 0; m + 1 < o->s->M; m++) /* between rows nothing is touched */
        for (int64_t n = o->s->N; n < o->ldc; n++) {
            double left = at(&o->c, o->ldc, m, n), was = at(&o->before, o->ldc, m, n);
            assert_true(left == was || (isnan(left) && isnan(was)));
        }
}

static void check_variants(op_env *env, const shape *s)
{
    for (int d = 0; d < OP_NUM_DTYPES; d++)
        for (int variant = 0; variant < 5; variant++) {
            bool accumulate = variant == 1 || variant == 3,
                 with_bias = variant == 2 || variant == 3;
            tr_dtype c_dtype = variant == 4 ? op_dtypes[d] : TR_F32;
            int mark = env->num_memory;
            operands o = make_operands(env, s, op_dtypes[d], c_dtype, with_bias, accumulate);
            multiply(env, &o, op_dtypes[d], false);
            expect_product(&o);
            if (variant == 4) {
                operands biased = make_operands(env, s, op_dtypes[d], c_dtype, true, false);
                multiply(env, &biased, op_dtypes[d], false);
                expect_product(&biased);
            }
            op_release(env, mark);
        }
}

static void small_case(op_env *env, void *context)
{
    const shape *s = context;
    check_variants(env, s);
}

static void test_small(void **state)
{
    static const int64_t sizes[][4] = {
        {1, 1, 1, 0},   {1, 5, 3, 2},    {7, 1, 9, 0},     {5, 17, 2, 1},    {6, 16, 8, 0},
        {13, 33, 1, 5}, {31, 50, 67, 3}, {1, 130, 300, 0}, {12, 31, 257, 1}, {67, 5, 513, 0}};
    (void)state;
    for (int form = TR_MATMUL_NT; form <= TR_MATMUL_TN; form++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            shape s = {(tr_matmul_form)form, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]};
            op_run_case(small_case, &s);
        }
}

/* More than one piece in each direction, with tails: a sample of elements against double, all bits over threads. */
static void large_case(op_env *env, void *context)
{
    const shape *s = context;
    for (int d = 0; d < 2; d++) {
        int mark = env->num_memory;
        operands o = make_operands(env, s, op_dtypes[d], op_dtypes[d], d == 1, d == 0);
        multiply(env, &o, op_dtypes[d], false);
        for (uint64_t i = 0; i < 64; i++)
            expect_element(&o, (int64_t)(op_random(5, i) * (double)s->M),
                           (int64_t)(op_random(6, i) * (double)s->N));
        expect_element(&o, s->M - 1, s->N - 1);
        op_release(env, mark);
    }
}

static void test_large(void **state)
{
    static const shape shapes[] = {
        {TR_MATMUL_TN, 768, 768, 2048, 0}, {TR_MATMUL_TN, 64, 64, 8192, 0},
        {TR_MATMUL_TN, 16, 16, 16384, 0},  {TR_MATMUL_NT, 530, 1601, 77, 3},
        {TR_MATMUL_NN, 1, 2000, 512, 0},   {TR_MATMUL_NT, 700, 3, 1000, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        shape s = shapes[i];
        op_run_case(large_case, &s);
    }
}

/* A sum is rounded once: bf16 and fp16 outputs are the rounded fp32 output, bit for bit. */
static void rounding_case(op_env *env, void *context)
{
    const shape *s = context;
    for (int d = 1; d < OP_NUM_DTYPES; d++) {
        operands wide = make_operands(env, s, op_dtypes[d], TR_F32, true, false);
        operands narrow = make_operands(env, s, op_dtypes[d], op_dtypes[d], true, false);
        multiply(env, &wide, op_dtypes[d], false);
        multiply(env, &narrow, op_dtypes[d], false);
        op_tensor rounded = op_tensor_new(env, op_dtypes[d], wide.c.n);
        for (int64_t i = 0; i < wide.c.n; i++)
            op_set(&rounded, i, op_get(&wide.c, i));
        op_expect_same_bits("rounded product", &narrow.c, &rounded);
    }
}

static void test_one_rounding(void **state)
{
    shape s = {TR_MATMUL_NT, 45, 70, 600, 0};
    (void)state;
    op_run_case(rounding_case, &s);
}

/* With `parts`, the bits of a product do not depend on how wide the tensors are that its operands are parts of. */
static void parts_case(op_env *env, void *context)
{
    const shape *dense = context;
    for (int d = 0; d < OP_NUM_DTYPES; d++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            int mark = env->num_memory;
            shape wide_shape = *dense;
            wide_shape.padding = 1024; /* a stride that libraries treat with care */
            operands o = make_operands(env, dense, op_dtypes[d], TR_F32, false, accumulate != 0);
            operands wide =
                make_operands(env, &wide_shape, op_dtypes[d], TR_F32, false, accumulate != 0);
            const int64_t rows[3] = {o.a.n / o.lda, o.b.n / o.ldb, dense->M};
            const int64_t cols[3] = {o.lda, o.ldb, o.ldc};
            op_tensor *from[3] = {&o.a, &o.b, &o.c}, *to[3] = {&wide.a, &wide.b, &wide.c};
            for (int t = 0; t < (accumulate ? 3 : 2); t++)
                for (int64_t i = 0; i < rows[t] * cols[t]; i++)
                    op_set(to[t], i / cols[t] * (cols[t] + wide_shape.padding) + i % cols[t],
                           op_get(from[t], i));
            multiply(env, &o, op_dtypes[d], true);
            multiply(env, &wide, op_dtypes[d], true);
            for (int64_t m = 0; m < dense->M; m++)
                for (int64_t n = 0; n < dense->N; n++)
                    if (at(&o.c, o.ldc, m, n) != at(&wide.c, wide.ldc, m, n))
                        fail_msg("element (%lld, %lld) depends on strides", (long long)m,
                                 (long long)n);
            op_release(env, mark);
        }
}

static void test_parts(void **state)
{
    (void)state;
    for (int form = TR_MATMUL_NT; form <= TR_MATMUL_TN; form++) {
        shape s = {(tr_matmul_form)form, 70, 96, 300, 0};
        op_run_case(parts_case, &s);
    }
}

/* GELU's backward behind a product has the bits of the two operations one after the other. */
static void gelu_case(op_env *env, void *context)
{
    const shape *s = context;
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        int mark = env->num_memory;
        tr_dtype dtype = op_dtypes[d];
        operands o = make_operands(env, s, dtype, dtype, false, false);
        multiply(env, &o, dtype, s->padding != 0);
        op_tensor product = op_tensor_copy(env, &o.c), expected = op_tensor_copy(env, &o.c);
        o.gelu_input = op_tensor_random(env, dtype, o.c.n, 5, 0.2, 3.0);
        multiply(env, &o, dtype, s->padding != 0);
        for (int64_t m = 0; m < s->M; m++) {
            size_t row = (size_t)(m * o.ldc) * tr_dtype_size(dtype);
            const tr_ops *ops = env->device->ops;
            ops->gelu_backward(env->device, dtype, s->N, (char *)o.gelu_input.data + row,
                               (char *)product.data + row, (char *)expected.data + row);
        }
        op_expect_same_bits("gelu behind the product", &o.c, &expected);
        op_release(env, mark);
    }
}

static void test_gelu(void **state)
{
    static const shape shapes[] = {{TR_MATMUL_NN, 37, 70, 50, 0},
                                   {TR_MATMUL_NN, 5, 31, 64, 33},
                                   {TR_MATMUL_NN, 300, 200, 16, 0},
                                   {TR_MATMUL_NT, 6, 64, 7, 64}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        shape s = shapes[i];
        op_run_case(gelu_case, &s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small), cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_one_rounding),
                                       cmocka_unit_test(test_parts), cmocka_unit_test(test_gelu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
