/* Optimizer steps and the exact sum of squares on the CUDA device: every bit as on the CPU. */
#include "tests/ops/op_parity.h"

#include <math.h>
#include <stdlib.h>

static void update_case(tr_dtype dtype, int64_t n, const int64_t begin[5], bool adam, bool compute,
                        bool skipped)
{
    op_tensor master = op_random(TR_F32, n, begin[0], 1, 0.0, 1.0);
    op_tensor m = op_random(TR_F32, n, begin[1], 2, 0.0, 0.01);
    op_tensor v = op_random(TR_F32, n, begin[2], 3, 0.001, 0.001);
    op_tensor grad = op_random(TR_F32, n, begin[3], 4, 0.0, 3.0);
    op_tensor rounded = op_new(dtype, n, begin[4]);
    const tr_step_state decided = {.skipped = skipped,
                                   .grad_scale = 0.37f,
                                   .lr = 3e-3f,
                                   .bias1 = 1.0f - 0.9f * 0.9f,
                                   .bias2 = 1.0f - 0.95f * 0.95f};
    op_tensor step = op_from(TR_I64, sizeof decided / sizeof(int64_t), 0, &decided);
    uint64_t before = op_device_hash(&master);
    tr_adamw args[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++)
        args[side] = (tr_adamw){.n = n,
                                .master = master.data[side],
                                .m = adam ? m.data[side] : NULL,
                                .v = adam ? v.data[side] : NULL,
                                .grad = grad.data[side],
                                .step = step.data[side],
                                .beta1 = 0.9f,
                                .beta2 = 0.95f,
                                .eps = 1e-8f,
                                .weight_decay = 0.1f,
                                .compute = compute ? rounded.data[side] : NULL,
                                .dtype = dtype};
    if (adam)
        op_both(adamw, &args[side]);
    else
        op_both(sgd, &args[side]);
    assert_int_equal(op_device_hash(&master) == before, skipped || n == 0);
    op_expect_equal("master", &master);
    op_expect_equal("m", &m);
    op_expect_equal("v", &v);
    op_expect_equal("compute", &rounded);
    op_release();
}

static void test_updates(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 3, 7, 8, 65, 257, 768, 2051};
    const int64_t begins[][5] = {
        {0, 0, 0, 0, 0}, {4, 8, 12, 0, 8}, {0, 0, 0, 0, 1}, {0, 1, 2, 3, 5}};
    for (int d = 0; d < OP_DTYPES; d++)
        for (int s = 0; s < 9; s++)
            for (int b = 0; b < 4; b++)
                for (int skipped = 0; skipped < 2; skipped++)
                    update_case(op_dtypes[d], sizes[s], begins[b], (s + b) % 3 != 0,
                                (s + d) % 4 != 0, skipped != 0);
}

/* Magnitudes from the smallest denormal to the largest float, most as gradients have them; `bad` is put at the end. */
static op_tensor magnitudes(int64_t n, int64_t begin, double spread, float bad)
{
    float *values = malloc((size_t)n * sizeof *values + 1);
    assert_non_null(values);
    uint32_t word = 99;
    for (int64_t i = 0; i < n; i++) {
        word = word * 1664525u + 1013904223u;
        double exponent = -12.0 + spread * ((double)(word >> 8) / 8388608.0 - 1.0);
        word = word * 1664525u + 1013904223u;
        double mantissa = 1.0 + (double)(word >> 8) / 16777216.0;
        values[i] = (float)ldexp(word & 1 ? mantissa : -mantissa, (int)exponent);
    }
    if (n > 0 && bad != 0.0f)
        values[n - 1] = bad;
    op_tensor tensor = op_from(TR_F32, n, begin, values);
    free(values);
    return tensor;
}

static void square_case(int64_t n, int64_t begin, double spread, float bad)
{
    int64_t start[TR_SQUARE_SUM_LIMBS] = {0};
    start[0] = 0xfffffffe; /* carries have something to do */
    start[1] = 0xffffffff;
    op_tensor x = magnitudes(n, begin, spread, bad);
    op_tensor limbs = op_from(TR_I64, TR_SQUARE_SUM_LIMBS, 0, start);
    op_both(square_sum, n, x.data[side], limbs.data[side]);
    op_expect_equal("square_sum", &limbs);
    op_both(square_sum, n, x.data[side], limbs.data[side]);
    op_expect_equal("square_sum, added", &limbs);
    op_release();
}

static void test_square_sum(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 3, 4, 1023, 1025, 70001};
    for (int s = 0; s < 7; s++) {
        square_case(sizes[s], 0, 12.0, 0.0f);
        square_case(sizes[s], s % 4, 130.0, 0.0f);
    }
    square_case(100, 0, 12.0, INFINITY);
    square_case(100, 1, 12.0, NAN);
    square_case(9, 0, 5.0, 3.4028235e38f);
    square_case(9, 0, 5.0, 1e-45f);
}

/* As many of the largest mantissa as a sum of the device ever holds, of each exponent of a group and outside of the window. */
static void test_square_sum_is_full(void **state)
{
    (void)state;
    const int64_t n = 65536;
    const float values[] = {0x1.fffffep+3f, 0x1.fffffep+4f, 0x1.fffffep+5f, 0x1.fffffep+6f,
                            0x1.fffffep+100f};
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int k = 0; k < 5; k++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = values[k];
        const int64_t zeros[TR_SQUARE_SUM_LIMBS] = {0};
        op_tensor tensor = op_from(TR_F32, n, 0, x),
                  limbs = op_from(TR_I64, TR_SQUARE_SUM_LIMBS, 0, zeros);
        op_both(square_sum, n, tensor.data[side], limbs.data[side]);
        op_expect_equal("square_sum", &limbs);
        op_release();
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_square_sum),
        cmocka_unit_test(test_square_sum_is_full),
    };
    return op_parity_main("cuda optimizer", tests, sizeof tests / sizeof tests[0]);
}
