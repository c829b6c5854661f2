/* base/exact_sum: exact against wide integers, independent of order, of threads and of ranks. */
#include "base/exact_sum.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 88172645463325252u;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double square_sum(const float *values, size_t count, bool *finite)
{
    static tr_square_sum sum;
    int64_t limbs[TR_SQUARE_SUM_LIMBS];
    tr_square_sum_init(&sum);
    tr_square_sum_add(&sum, values, count);
    tr_square_sum_to_limbs(&sum, limbs);
    return tr_square_sum_from_limbs(limbs, finite);
}

static void test_single_squares_are_exact(void **state)
{
    (void)state;
    static const float edges[] = {
        0.0f,         -0.0f, 1.0f, -1.5f, FLT_MAX, -FLT_MAX, FLT_MIN, 0x1p-149f, 0x1.fffffcp-127f,
        0x1.fffffep0f};
    bool finite;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        double expected =
            (double)edges[i] * edges[i]; /* exact: 48 bits, exponents from -298 to 256 */
        assert_true(square_sum(&edges[i], 1, &finite) == expected);
        assert_true(finite);
    }
    for (int i = 0; i < 100000; i++) {
        float value = float_of((uint32_t)random_next());
        double result = square_sum(&value, 1, &finite);
        assert_true(finite == (isfinite(value) != 0));
        assert_true(finite ? result == (double)value * value : isnan(result));
    }
}

/* Integers: the sum of squares is exact in 128 bits, its conversion to double by the compiler is correctly rounded. */
static void test_sums_are_rounded_once(void **state)
{
    (void)state;
    static float values[3000];
    for (int round = 0; round < 300; round++) {
        size_t count = 1 + random_next() % 3000;
        unsigned __int128 expected = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t integer = random_next() % ((uint64_t)1 << (1 + random_next() % 24));
            int shift = (int)(random_next() % 20);
            values[i] = ldexpf((float)integer, shift);
            expected += (unsigned __int128)(integer << shift) * (integer << shift);
        }
        bool finite;
        assert_true(square_sum(values, count, &finite) == (double)expected);
        assert_true(finite);
    }
}

/* Ties and what decides them far below: 2^54 + 2 is half way; one more denormal's square rounds it up. */
static void test_rounding_sees_every_bit(void **state)
{
    (void)state;
    bool finite;
    const float tie_even[] = {0x1p27f, 1.0f};               /* 2^54 + 1: below half of the step 4 */
    const float half[] = {0x1p27f, 1.0f, 1.0f};             /* 2^54 + 2: a tie, to even */
    const float above[] = {0x1p27f, 1.0f, 1.0f, 0x1p-149f}; /* just above the tie */
    const float odd_half[] = {0x1p27f, 2.0f, 1.0f, 1.0f};   /* 2^54 + 6: a tie, up to even */
    const float wide[] = {FLT_MAX, 0x1p-149f};
    assert_true(square_sum(tie_even, 2, &finite) == 0x1p54);
    assert_true(square_sum(half, 3, &finite) == 0x1p54);
    assert_true(square_sum(above, 4, &finite) == 0x1p54 + 4);
    assert_true(square_sum(odd_half, 4, &finite) == 0x1p54 + 8);
    assert_true(square_sum(wide, 2, &finite) == (double)FLT_MAX * FLT_MAX);
}

static void test_bins_do_not_overflow(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20 };
    float *values = malloc(COUNT * sizeof *values);
    assert_non_null(values);
    static tr_square_sum sum;
    tr_square_sum_init(&sum);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = FLT_MAX;
    for (int round = 0; round < 4; round++)
        tr_square_sum_add(&sum, values, COUNT);
    int64_t limbs[TR_SQUARE_SUM_LIMBS];
    tr_square_sum_to_limbs(&sum, limbs);
    bool finite;
    assert_true(tr_square_sum_from_limbs(limbs, &finite) == (double)FLT_MAX * FLT_MAX * 0x1p22);
    assert_true(finite);
    free(values);
}

static void test_order_threads_and_ranks_do_not_matter(void **state)
{
    (void)state;
    enum { COUNT = 20011, PARTS = 7 };
    static float values[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        do
            values[i] = float_of((uint32_t)random_next());
        while (!isfinite(values[i]));
    bool finite;
    double forward = square_sum(values, COUNT, &finite);
    static tr_square_sum parts[PARTS];
    int64_t total[TR_SQUARE_SUM_LIMBS] = {0}, limbs[TR_SQUARE_SUM_LIMBS];
    for (int p = 0; p < PARTS; p++)
        tr_square_sum_init(&parts[p]);
    for (size_t i = 0; i < COUNT; i++) /* one at a time, dealt out to the parts */
        tr_square_sum_add(&parts[i % PARTS], &values[COUNT - 1 - i], 1);
    for (int p = 0; p < PARTS; p++) { /* as ranks: limbs are added */
        tr_square_sum_to_limbs(&parts[p], limbs);
        for (int l = 0; l < TR_SQUARE_SUM_LIMBS; l++)
            total[l] += limbs[l];
    }
    assert_true(tr_square_sum_from_limbs(total, &finite) == forward && finite);
    for (int p = 1; p < PARTS; p++) /* as threads: parts are merged */
        tr_square_sum_merge(&parts[0], &parts[p]);
    tr_square_sum_to_limbs(&parts[0], limbs);
    assert_true(tr_square_sum_from_limbs(limbs, &finite) == forward && finite);
}

static void test_many_ranks_do_not_overflow(void **state)
{
    (void)state;
    static tr_square_sum sum;
    const float value = FLT_MAX;
    int64_t limbs[TR_SQUARE_SUM_LIMBS];
    tr_square_sum_init(&sum);
    tr_square_sum_add(&sum, &value, 1);
    tr_square_sum_to_limbs(&sum, limbs);
    for (int l = 0; l < TR_SQUARE_SUM_LIMBS; l++) {
        assert_in_range(limbs[l], 0, 0xffffffff);
        limbs[l] *= TR_EXACT_SUM_MAX_RANKS;
    }
    bool finite;
    assert_true(tr_square_sum_from_limbs(limbs, &finite) == (double)FLT_MAX * FLT_MAX * 0x1p20);
}

static void test_not_finite_is_flagged(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001};
    static float values[1000];
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++)
        for (size_t at = 0; at < 1000; at += 333) {
            for (size_t i = 0; i < 1000; i++)
                values[i] = 1.0f;
            bool finite;
            assert_true(square_sum(values, 1000, &finite) == 1000.0 && finite);
            values[at] = float_of(bad[b]);
            assert_true(isnan(square_sum(values, 1000, &finite)));
            assert_false(finite);
            static tr_square_sum whole, part;
            int64_t limbs[TR_SQUARE_SUM_LIMBS];
            tr_square_sum_init(&whole);
            tr_square_sum_init(&part);
            tr_square_sum_add(&part, values, 1000);
            tr_square_sum_merge(&whole, &part);
            tr_square_sum_to_limbs(&whole, limbs);
            assert_true(isnan(tr_square_sum_from_limbs(limbs, &finite)));
            assert_false(finite);
        }
}

static double fixed_value(const tr_fixed_sum *sum, bool *finite)
{
    int64_t limbs[TR_FIXED_SUM_LIMBS];
    tr_fixed_sum_to_limbs(sum, limbs);
    return tr_fixed_sum_from_limbs(limbs, finite);
}

static void test_fixed_sum_is_exact(void **state)
{
    (void)state;
    bool finite;
    for (int i = 0; i < 100000; i++) {
        /* 53 bits, the lowest not below 2^-64 */
        double value =
            ldexp((double)(int64_t)(random_next() >> 11), (int)(random_next() % 40) - 64);
        if (random_next() & 1)
            value = -value;
        tr_fixed_sum sum;
        tr_fixed_sum_init(&sum);
        tr_fixed_sum_add(&sum, value);
        assert_true(fixed_value(&sum, &finite) == value && finite);
    }
    tr_fixed_sum sum;
    tr_fixed_sum_init(&sum);
    tr_fixed_sum_add(&sum, 0x1p31);
    tr_fixed_sum_add(&sum, 0x1p-64);
    tr_fixed_sum_add(&sum, -0x1p31);
    assert_true(fixed_value(&sum, &finite) == 0x1p-64);
    tr_fixed_sum_add(&sum, 0x1.8p-65 + 0x1p-64); /* 1.75 units: to 2 */
    assert_true(fixed_value(&sum, &finite) == 0x1.8p-63);
}

static void test_fixed_sum_order_and_ranks(void **state)
{
    (void)state;
    enum { COUNT = 5000, PARTS = 5 };
    static double values[COUNT];
    __int128 expected = 0; /* in units of 2^-40 */
    for (size_t i = 0; i < COUNT; i++) {
        int64_t units = (int64_t)(random_next() >> 12);
        units = random_next() & 1 ? -units : units;
        values[i] = (double)units * 0x1p-40;
        expected += units;
    }
    tr_fixed_sum parts[PARTS], merged;
    int64_t total[TR_FIXED_SUM_LIMBS] = {0};
    for (int p = 0; p < PARTS; p++)
        tr_fixed_sum_init(&parts[p]);
    for (size_t i = 0; i < COUNT; i++)
        tr_fixed_sum_add(&parts[i % PARTS], values[COUNT - 1 - i]);
    tr_fixed_sum_init(&merged);
    for (int p = 0; p < PARTS; p++) {
        int64_t limbs[TR_FIXED_SUM_LIMBS];
        tr_fixed_sum_to_limbs(&parts[p], limbs);
        for (int l = 0; l < TR_FIXED_SUM_LIMBS; l++)
            total[l] += limbs[l];
        tr_fixed_sum_merge(&merged, &parts[p]);
    }
    bool finite;
    assert_true(tr_fixed_sum_from_limbs(total, &finite) == (double)expected * 0x1p-40 && finite);
    assert_true(fixed_value(&merged, &finite) == (double)expected * 0x1p-40 && finite);
    int64_t limbs[TR_FIXED_SUM_LIMBS];
    tr_fixed_sum_to_limbs(&merged, limbs);
    tr_fixed_sum_limbs_carry(total);
    assert_memory_equal(total, limbs, sizeof limbs);
}

/* Added-up limbs keep a negative value, and say when it no longer fits. */
static void test_fixed_sum_carry(void **state)
{
    (void)state;
    tr_fixed_sum sum;
    tr_fixed_sum_init(&sum);
    tr_fixed_sum_add(&sum, -0x1.fffffp31);
    int64_t one[TR_FIXED_SUM_LIMBS], total[TR_FIXED_SUM_LIMBS] = {0};
    tr_fixed_sum_to_limbs(&sum, one);
    bool finite;
    for (int doubling = 0; doubling <= 32; doubling++) {
        for (int l = 0; l < TR_FIXED_SUM_LIMBS; l++)
            total[l] += doubling == 0 ? one[l] : total[l];
        tr_fixed_sum_limbs_carry(total);
        for (int l = 0; l < TR_FIXED_SUM_LIMBS - 2; l++)
            assert_true(total[l] >= 0 && total[l] >> 32 == 0);
        double value = tr_fixed_sum_from_limbs(total, &finite);
        if (doubling < 32)
            assert_true(finite && value == ldexp(-0x1.fffffp31, doubling));
        else
            assert_true(!finite && total[TR_FIXED_SUM_LIMBS - 1] == 1);
    }
}

static void test_fixed_sum_flags(void **state)
{
    (void)state;
    const double bad[] = {INFINITY, -INFINITY, NAN, 0x1p32, -0x1p32, 1e300};
    bool finite;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tr_fixed_sum sum, other;
        tr_fixed_sum_init(&sum);
        tr_fixed_sum_add(&sum, 1.0);
        other = sum;
        tr_fixed_sum_add(&sum, bad[i]);
        assert_true(isnan(fixed_value(&sum, &finite)));
        assert_false(finite);
        assert_true(fixed_value(&other, &finite) == 1.0 && finite);
        tr_fixed_sum_merge(&other, &sum);
        fixed_value(&other, &finite);
        assert_false(finite);
    }
    tr_fixed_sum full;
    tr_fixed_sum_init(&full);
    tr_fixed_sum_add(&full, 0x1.fffffp31);
    for (int i = 0; i < 32; i++) { /* doubled until 2^63 is passed */
        tr_fixed_sum copy = full;
        tr_fixed_sum_merge(&full, &copy);
    }
    fixed_value(&full, &finite);
    assert_false(finite);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_squares_are_exact),
        cmocka_unit_test(test_sums_are_rounded_once),
        cmocka_unit_test(test_rounding_sees_every_bit),
        cmocka_unit_test(test_bins_do_not_overflow),
        cmocka_unit_test(test_order_threads_and_ranks_do_not_matter),
        cmocka_unit_test(test_many_ranks_do_not_overflow),
        cmocka_unit_test(test_not_finite_is_flagged),
        cmocka_unit_test(test_fixed_sum_is_exact),
        cmocka_unit_test(test_fixed_sum_order_and_ranks),
        cmocka_unit_test(test_fixed_sum_carry),
        cmocka_unit_test(test_fixed_sum_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
