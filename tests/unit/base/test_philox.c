/* base/philox: the authors' known answers; normals against Box-Muller in long double; moments; cuts. */
#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Random123, tests/kat_vectors, lines of philox4x32 with 10 rounds. */
static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        tr_philox4x32(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].expected, sizeof out);
        uint64_t key = (uint64_t)rows[i].key[1] << 32 | rows[i].key[0];
        const uint32_t *c = rows[i].counter;
        tr_philox_block(key, c[0], c[1], c[2], c[3], out);
        assert_memory_equal(out, rows[i].expected, sizeof out);
    }
}

static void test_uniform_edges(void **state)
{
    (void)state;
    assert_true(tr_philox_uniform(0) == 0.0f);
    assert_true(tr_philox_uniform(0xffffffffu) == 1.0f - 0x1p-24f);
    assert_true(tr_philox_uniform(0x80000000u) == 0.5f);
}

/* The formula of philox.h, by the C library in long double. */
static long double normal_reference(uint64_t key, uint64_t index)
{
    uint64_t block = index / 4;
    uint32_t lanes[4];
    tr_philox_block(key, (uint32_t)block, (uint32_t)(block >> 32), 0, 0, lanes);
    const uint32_t *pair = lanes + (index % 4 / 2) * 2;
    long double u = ((long double)pair[0] + 0.5L) / 4294967296.0L;
    long double angle =
        2 * 3.14159265358979323846264338327950288L * ((long double)pair[1] + 0.5L) / 4294967296.0L;
    long double r = sqrtl(-2 * logl(u));
    return r * (index % 2 ? sinl(angle) : cosl(angle));
}

static void test_normals_follow_the_formula(void **state)
{
    (void)state;
    for (uint64_t key = 1; key <= 3; key++)
        for (uint64_t i = 0; i < 40000; i++) {
            uint64_t index = i < 20000 ? i : i * 0x9e3779b97f4a7c15u; /* also far ones, past 2^34 */
            long double error =
                fabsl((long double)tr_philox_normal(key, index) - normal_reference(key, index));
            assert_true(error <= 4e-15L);
        }
}

/* Frozen: recorded mathematics, whatever the compiler and the processor. */
static void test_normals_keep_their_bits(void **state)
{
    (void)state;
    static const uint64_t expected[6] = {
        0x3fbc2d7daa3400d9u, 0xbfe9b2fd81b8f4bcu, 0xc001c9b6796f3150u,
        0x3fd341f6747c7f9cu, 0x3ff50ba1585d2b71u, 0x3fd5f53c2623cae3u,
    };
    for (uint64_t i = 0; i < 6; i++) {
        double value = tr_philox_normal(0x0123456789abcdefu, i < 4 ? i : ((uint64_t)1 << 40) + i);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (bits != expected[i])
            fprintf(stderr, "element %d: 0x%016llx\n", (int)i, (unsigned long long)bits);
        assert_true(bits == expected[i]);
    }
}

static void test_any_cut_gives_the_same_values(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    const uint64_t first =
        ((uint64_t)1 << 34) - 501; /* the counter's second word changes on the way */
    static float whole[COUNT], parts[COUNT];
    tr_philox_normal_fill(7, first, first + COUNT, 0.02, whole);
    for (uint64_t at = 0, step = 1; at < COUNT; at += step, step = step % 7 + 1) {
        if (step > COUNT - at)
            step = COUNT - at;
        tr_philox_normal_fill(7, first + at, first + at + step, 0.02, parts + at);
    }
    assert_memory_equal(whole, parts, sizeof whole);
    for (uint64_t i = 0; i < COUNT; i++)
        assert_true(whole[i] == (float)(0.02 * tr_philox_normal(7, first + i)));
    tr_philox_normal_fill(7, 5, 5, 1.0, parts); /* an empty range writes nothing */
    assert_memory_equal(whole, parts, sizeof whole);
}

static void test_moments(void **state)
{
    (void)state;
    enum { COUNT = 400000 };
    double sum[5] = {0}, neighbours = 0, before = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double z = tr_philox_normal(42, i);
        for (int power = 1; power <= 4; power++)
            sum[power] += pow(z, power);
        neighbours += z * before;
        before = z;
    }
    /* Five standard deviations of each estimate: sqrt(Var z^k / n), Var = 1, 2, 15, 96. */
    double unit = 5 / sqrt(COUNT);
    assert_true(fabs(sum[1] / COUNT) < unit);
    assert_true(fabs(sum[2] / COUNT - 1) < unit * sqrt(2));
    assert_true(fabs(sum[3] / COUNT) < unit * sqrt(15));
    assert_true(fabs(sum[4] / COUNT - 3) < unit * sqrt(96));
    assert_true(fabs(neighbours / COUNT) < unit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_uniform_edges),
        cmocka_unit_test(test_normals_follow_the_formula),
        cmocka_unit_test(test_normals_keep_their_bits),
        cmocka_unit_test(test_any_cut_gives_the_same_values),
        cmocka_unit_test(test_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
