/* base/permute: a bijection for every n, keyed, about uniform, frozen. */
#include "base/permute.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void bijection_check(uint64_t key, uint64_t n)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t place = tr_permute(key, n, i);
        assert_true(place < n);
        assert_int_equal(seen[place], 0);
        seen[place] = 1;
    }
    free(seen);
}

static void test_bijection(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        bijection_check(n * 77, n);
    static const uint64_t sizes[] = {1009, 4095, 4096, 4097, 65535, 65536, 65537, 99991, 300007};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        bijection_check(5, sizes[i]);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_large(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static uint64_t places[2 * COUNT];
    static const uint64_t sizes[] = {
        3000000000u,
        ((uint64_t)1 << 32) + 1,
        ((uint64_t)1 << 40) - 1,
        ((uint64_t)1 << 62) + 1,
        (uint64_t)1 << 63,
    };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t n = sizes[s], upper = 0;
        for (uint64_t i = 0; i < COUNT; i++) {
            places[i] = tr_permute(1, n, i);
            places[COUNT + i] = tr_permute(1, n, n - 1 - i);
        }
        for (size_t i = 0; i < 2 * COUNT; i++) {
            assert_true(places[i] < n);
            upper += places[i] >= n / 2;
        }
        /* Half of them in the upper half, within five standard deviations of 100. */
        assert_in_range(upper, COUNT - 500, COUNT + 500);
        qsort(places, 2 * COUNT, sizeof places[0], compare_u64);
        for (size_t i = 1; i < 2 * COUNT; i++)
            assert_true(places[i] != places[i - 1]);
    }
}

static void test_keys_matter(void **state)
{
    (void)state;
    enum { N = 1000 };
    int same_key = 0, fixed = 0, neighbours = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t place = tr_permute(10, N, i);
        same_key += place == tr_permute(11, N, i);
        fixed += place == i;
        neighbours += i + 1 < N && tr_permute(10, N, i + 1) == place + 1;
        assert_true(place == tr_permute(10, N, i));
    }
    /* One each is expected of independent permutations. */
    assert_in_range(same_key, 0, 8);
    assert_in_range(fixed, 0, 8);
    assert_in_range(neighbours, 0, 8);
}

/* Each index goes to each place about equally often over keys: chi-squared of an n x n table of counts. */
static void test_uniform_over_keys(void **state)
{
    (void)state;
    for (uint64_t n = 2; n <= 17; n++) {
        enum { KEYS = 20000 };
        static uint32_t counts[17][17];
        memset(counts, 0, sizeof counts);
        for (uint64_t key = 0; key < KEYS; key++)
            for (uint64_t i = 0; i < n; i++)
                counts[i][tr_permute(key * 0x9e3779b97f4a7c15u, n, i)]++;
        double expected = (double)KEYS / (double)n;
        for (uint64_t i = 0; i < n; i++) {
            double chi2 = 0;
            for (uint64_t j = 0; j < n; j++)
                chi2 += ((double)counts[i][j] - expected) * ((double)counts[i][j] - expected) /
                        expected;
            double freedom = (double)(n - 1);
            double limit = freedom + 12 + 5 * __builtin_sqrt(2 * freedom);
            if (chi2 > limit)
                fprintf(stderr, "n %d index %d: chi-squared %g\n", (int)n, (int)i, chi2);
            assert_true(chi2 < limit);
        }
    }
}

/* Frozen: recorded mathematics, checked once against an implementation in another language. */
static void test_keeps_its_values(void **state)
{
    (void)state;
    static const uint64_t expected[8] = {
        13, 39, 63, 78, 528927906827492, 322279070960865, 223092499299415, 650533419168107,
    };
    for (uint64_t i = 0; i < 8; i++) {
        uint64_t place = tr_permute(0x0123456789abcdefu, i < 4 ? 100 : (uint64_t)1 << 50, i);
        if (place != expected[i])
            fprintf(stderr, "index %d: %llu\n", (int)i, (unsigned long long)place);
        assert_true(place == expected[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijection),        cmocka_unit_test(test_large),
        cmocka_unit_test(test_keys_matter),      cmocka_unit_test(test_uniform_over_keys),
        cmocka_unit_test(test_keeps_its_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
