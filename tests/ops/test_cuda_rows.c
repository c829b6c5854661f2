/* The residual stream on the CUDA device (additions, dropout, rotary positions: the CPU's bits) and column sums. */
#include "tests/ops/op_parity.h"

#include "kernels/rope_table.h"

#include <stdlib.h>

static void residual_case(tr_dtype dtype, int64_t B, int64_t T, int64_t H, float probability,
                          bool bias, bool in_place, int64_t begin)
{
    int64_t first = B > 1 ? T / 2 + 1 : 0, R = B * T - first;
    const uint64_t sample_values[] = {3, 0x900000004u, 77, 5};
    op_tensor samples = op_from(TR_I64, B, 0, sample_values);
    op_tensor x = op_random(dtype, R * H, begin, 1, 0.0, 2.0),
              y = op_random(TR_F32, R * H, 0, 2, 0.0, 1.0);
    op_tensor b = op_random(dtype, H, 0, 3, 0.0, 1.0), out = op_new(dtype, R * H, 0);
    tr_dropout dropout[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++)
        dropout[side] = (tr_dropout){probability, 0xfedcba9876543210u, samples.data[side], T};
    op_both(dropout_backward, dtype, R, H, first, x.data[side], &dropout[side], out.data[side]);
    op_expect_equal("dropout_backward", &out);
    op_both(residual_add, dtype, R, H, first, x.data[side], y.data[side],
            bias ? b.data[side] : NULL, &dropout[side], in_place ? x.data[side] : out.data[side]);
    op_expect_equal("residual_add", in_place ? &x : &out);
    op_both(dropout_backward, dtype, R, H, first, x.data[side], &dropout[side], x.data[side]);
    op_expect_equal("dropout_backward in place", &x);
    op_release();
}

static void test_residual(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int s = 0; s < OP_SIZES; s++) {
            residual_case(op_dtypes[d], 3, 4, op_sizes[s], s % 2 ? 0.2f : 0.0f, s % 3 == 0, s % 2,
                          0);
            residual_case(op_dtypes[d], 2, 3, 8 * (1 + s), 0.4f, s % 2, s % 3 == 0, s % 2);
        }
        residual_case(op_dtypes[d], 1, 3, 2304, 0.4f, true, false, 0);
    }
    /* Without dropout at all. */
    op_tensor x = op_random(TR_BF16, 640, 0, 1, 0.0, 2.0),
              y = op_random(TR_F32, 640, 0, 2, 0.0, 1.0);
    op_both(residual_add, TR_BF16, 10, 64, 0, x.data[side], y.data[side], NULL, NULL, x.data[side]);
    op_expect_equal("residual_add", &x);
    op_release();
}

static void column_case(tr_dtype dtype, int64_t R, int64_t N, int64_t begin, bool accumulate)
{
    const tr_workspace_need need = {
        .dtype = dtype, .B = 1, .T = R, .H = 1, .A = 1, .K = 1, .D = 1, .max_matmul = N};
    op_workspace(&need);
    op_tensor dy = op_random(dtype, R * N, begin, 1, 0.1, 1.0);
    op_tensor out = accumulate ? op_random(TR_F32, N, 0, 2, 0.0, 1.0) : op_new(TR_F32, N, 0);
    op_both(column_sum, dtype, R, N, dy.data[side], out.data[side], accumulate);
    op_expect_close("column_sum", &out, 0);
    op_release();
}

static void test_column_sum(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int s = 0; s < OP_SIZES; s++)
            column_case(op_dtypes[d], 1 + 13 * s, op_sizes[s], s % 2, s % 3 == 0);
        column_case(op_dtypes[d], 700, 264, 0, true);
        column_case(op_dtypes[d], 1100, 24, 1, false);
    }
    column_case(TR_F32, 0, 9, 0, false);
    column_case(TR_F32, 0, 9, 0, true);
}

static void rope_case(tr_dtype dtype, int64_t B, int64_t T, int64_t heads, int64_t D, int64_t begin)
{
    float *angles = malloc((size_t)(T * D) * sizeof *angles);
    assert_non_null(angles);
    tr_rope_table_fill(10000.0, D, T, NULL, angles);
    op_tensor table = op_from(TR_F32, T * D, 0, angles);
    op_tensor x = op_random(dtype, B * T * heads * D, begin, 1, 0.0, 2.0);
    op_both(rope, dtype, B, T, heads, D, table.data[side], false, x.data[side]);
    op_expect_equal("rope", &x);
    op_both(rope, dtype, B, T, heads, D, table.data[side], true, x.data[side]);
    op_expect_equal("rope backward", &x);
    free(angles);
    op_release();
}

static void test_rope(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        rope_case(op_dtypes[d], 1, 1, 1, 2, 0);
        rope_case(op_dtypes[d], 2, 5, 3, 6, 1);
        rope_case(op_dtypes[d], 2, 3, 4, 64, 0);
        rope_case(op_dtypes[d], 2, 3, 5, 64, 1);
        rope_case(op_dtypes[d], 1, 4, 7, 128, 0);
        rope_case(op_dtypes[d], 3, 2, 2, 80, 0);
        rope_case(op_dtypes[d], 3, 2, 9, 48, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residual),
        cmocka_unit_test(test_column_sum),
        cmocka_unit_test(test_rope),
    };
    return op_parity_main("cuda rows", tests, sizeof tests / sizeof tests[0]);
}
