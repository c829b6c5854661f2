/* Conversions, zeros, copies and ordered sums on the CUDA device: every bit as on the CPU, over odd sizes and addresses. */
#include "tests/ops/op_parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Values at the edges of the types, then random ones. */
static op_tensor edge_values(tr_dtype dtype, int64_t n, int64_t begin)
{
    const float edges[] = {0.0f,      -0.0f,       1.0f,        -1.0f,         INFINITY,
                           -INFINITY, NAN,         65504.0f,    65519.9f,      65520.0f,
                           1e-8f,     6e-8f,       3.05e-5f,    1e-40f,        3.4e38f,
                           -3.39e38f, 1.00390625f, 1.01171875f, 1.00048828125f};
    const int64_t num_edges = sizeof edges / sizeof edges[0];
    op_tensor tensor = op_random(dtype, n, begin, 3, 0.0, 4.0);
    if (dtype != TR_F32)
        return tensor;
    float *values = malloc((size_t)n * sizeof *values + 1);
    op_download(&tensor, values);
    for (int64_t i = 0; i < n; i += 2)
        values[i] = edges[i / 2 % num_edges];
    op_tensor with_edges = op_from(dtype, n, begin, values);
    free(values);
    return with_edges;
}

static void test_convert(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 7, 8, 255, 2048, 4099};
    for (int from = 0; from < OP_DTYPES; from++) {
        for (int to = 0; to < OP_DTYPES; to++) {
            for (int s = 0; s < 7; s++) {
                for (int begin = 0; begin < 2; begin++) {
                    op_tensor src = edge_values(op_dtypes[from], sizes[s], begin);
                    op_tensor dst = op_new(op_dtypes[to], sizes[s], 2 * begin);
                    op_both(convert, sizes[s], op_dtypes[from], src.data[side], op_dtypes[to],
                            dst.data[side]);
                    op_expect_equal("convert", &dst);
                    op_release();
                }
            }
        }
    }
}

static void test_fill_zero(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 15, 16, 17, 31, 100, 16384, 70001};
    for (int s = 0; s < 9; s++) {
        for (int64_t begin = 0; begin < 18; begin += s < 7 ? 1 : 17) {
            op_tensor dst = op_new(TR_U8, sizes[s], begin);
            op_both(fill_zero, dst.data[side], sizes[s]);
            op_expect_equal("fill_zero", &dst);
            op_release();
        }
    }
}

/* Copies of many sizes and alignments out of one array into another, whose other bytes stay. */
static void copies_case(int count, int64_t longest)
{
    op_tensor src = op_random(TR_F32, count * (longest + 16) / 4 + 64, 0, 5, 0.0, 1e6);
    op_tensor dst = op_new(TR_U8, 4 * src.n, 0);
    tr_copy *copies[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++) {
        copies[side] = calloc((size_t)count + 1, sizeof *copies[side]);
        for (int i = 0; i < count; i++) {
            int64_t at = i * (longest + 16);
            copies[side][i] = (tr_copy){(char *)dst.data[side] + at + i % 17,
                                        (const char *)src.data[side] + at + i * 7 % 19 % 16,
                                        (size_t)(i == 3 ? 0 : longest - i * 5 % longest)};
        }
    }
    op_both(copy_many, count, copies[side]);
    op_expect_equal("copy_many", &dst);
    for (int side = 0; side < OP_SIDES; side++)
        free(copies[side]);
    op_release();
}

static void test_copy_many(void **state)
{
    (void)state;
    copies_case(0, 1);
    copies_case(1, 1);
    copies_case(5, 40000);
    copies_case(131, 100); /* more than one launch takes */
}

/* count arrays of n elements, each at its own address. */
static void tree_case(int count, int64_t n, int begin, bool into_source)
{
    op_tensor src = op_random(TR_F32, count * (n + 8) + 8, 0, 7, 0.5, 1000.0);
    op_tensor dst = op_new(TR_F32, n, begin);
    const float **sources[OP_SIDES];
    float *sum[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++) {
        sources[side] = calloc((size_t)count, sizeof *sources[side]);
        for (int k = 0; k < count; k++)
            sources[side][k] = (const float *)src.data[side] + k * (n + 8) / 4 * 4 + begin * k % 4;
        sum[side] = into_source ? (float *)src.data[side] + (count - 1) * (n + 8) / 4 * 4 +
                                      begin * (count - 1) % 4
                                : dst.data[side];
    }
    op_both(tree_sum, n, count, sources[side], sum[side]);
    op_expect_equal("tree_sum", &dst);
    op_expect_equal("tree_sum in place", &src);
    for (int side = 0; side < OP_SIDES; side++)
        free(sources[side]);
    op_release();
}

static void test_tree_sum(void **state)
{
    (void)state;
    const tr_workspace_need need = {
        .dtype = TR_F32, .B = 1, .T = 1, .H = 1, .A = 1, .K = 1, .D = 1, .max_matmul = 1};
    op_workspace(&need);
    for (int count = 1; count <= 17; count++) {
        tree_case(count, 130, 0, false);
        tree_case(count, 67, 1, count % 2 == 0);
    }
    const int counts[] = {31, 63, 64, 65, 100, 127, 128, 129, 256, 300, 511, 1000};
    for (int i = 0; i < 12; i++) {
        tree_case(counts[i], 9, 0, false);
        tree_case(counts[i], 5, 1, false);
    }
    tree_case(TR_REDUCE_MAX, 5, 0, false);
    tree_case(TR_REDUCE_MAX - 1, 3, 1, false);
    tree_case(3, 0, 0, false);
    tree_case(8, 3000, 0, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_fill_zero),
        cmocka_unit_test(test_copy_many),
        cmocka_unit_test(test_tree_sum),
    };
    return op_parity_main("cuda convert", tests, sizeof tests / sizeof tests[0]);
}
