/* The plane codec: which bytes are stored, whatever instruction set stored them; what is worth
 * compressing. That values come back and that any bytes may be decoded is in test_shard.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/plane_codec.h"
#include "io/plane_split.h"
#include "tests/unit/io/io_scratch.h"

static uint64_t random_state = 88172645463325252u;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* Every number of values around the vectors' sizes, at every alignment. */
static void test_planes_are_the_bytes_of_rotated_bits(void **state)
{
    (void)state;
    enum { MOST = 200 };
    float values[MOST + 8], back[MOST + 8];
    unsigned char planes[TR_NUM_PLANES][MOST + 16];
    for (size_t n = 1; n <= MOST; n++) {
        size_t shift = n % 8;
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = random_bits();
            memcpy(&values[shift + i], &bits, sizeof bits);
        }
        memset(planes, 0xa5, sizeof planes);
        memset(back, 0x5a, sizeof back);
        tr_plane_take_exponents(values + shift, n, planes[3] + shift);
        tr_plane_take_mantissas(values + shift, n, planes[0] + shift, planes[1] + shift,
                                planes[2] + shift);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &values[shift + i], sizeof bits);
            uint32_t rotated = bits << 1 | bits >> 31;
            for (int p = 0; p < TR_NUM_PLANES; p++)
                assert_int_equal(planes[p][shift + i], rotated >> 8 * p & 255);
        }
        for (int p = 0; p < TR_NUM_PLANES; p++)
            assert_int_equal(planes[p][shift + n], 0xa5); /* and nothing behind */
        const unsigned char *const from[] = {planes[0] + shift, planes[1] + shift,
                                             planes[2] + shift, planes[3] + shift};
        tr_plane_join(from, n, back + 1);
        assert_memory_equal(back + 1, values + shift, n * sizeof(float));
        assert_memory_equal(&back[1 + n], "\x5a\x5a\x5a\x5a", 4);
    }
}

enum { COUNT = 50000, ROOM = 4 * COUNT + TR_PLANE_HEADER };

/* The stored sizes of planes 3, 2, 1, 0; what comes back is compared. */
static void sizes_get(const float *values, int level, size_t sizes[TR_NUM_PLANES])
{
    static float back[COUNT];
    unsigned char *stored = malloc(ROOM);
    tr_plane_codec *codec = tr_plane_codec_create(COUNT);
    size_t used = tr_plane_encode(codec, level, values, COUNT, stored, ROOM), sum = 0;
    assert_true(used > 0);
    for (int p = 0; p < TR_NUM_PLANES; p++) {
        sizes[p] = (size_t)stored[4 * p] | (size_t)stored[4 * p + 1] << 8 |
                   (size_t)stored[4 * p + 2] << 16 | (size_t)stored[4 * p + 3] << 24;
        sum += sizes[p];
    }
    assert_int_equal(used, TR_PLANE_HEADER + sum);
    assert_true(tr_plane_decode(codec, stored, used, back, COUNT));
    assert_memory_equal(back, values, sizeof back);
    tr_plane_codec_destroy(codec);
    free(stored);
}

/* Sums of uniform numbers: weights as they are initialised, nearly. */
static void weights_fill(float *values)
{
    for (int i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++)
            sum += random_bits() * 0x1p-32 - 0.5;
        values[i] = (float)(sum * 0.02);
    }
}

static void test_exponents_shrink_and_noise_stays(void **state)
{
    (void)state;
    static float values[COUNT];
    size_t sizes[TR_NUM_PLANES];
    weights_fill(values);
    for (int level = 1; level <= 3; level++) {
        sizes_get(values, level, sizes);
        assert_in_range(sizes[0], COUNT / 4, COUNT * 42 / 100); /* 2.5 bits of entropy */
        for (int p = 1; p < TR_NUM_PLANES; p++)
            assert_int_equal(sizes[p], COUNT);
    }
}

static void test_mantissas_shrink_where_they_can(void **state)
{
    (void)state;
    static float values[COUNT];
    size_t sizes[TR_NUM_PLANES];
    weights_fill(values);
    for (int i = 0; i < COUNT;
         i++) { /* rounded to bf16: 7 bits in plane 2, none in 1, the sign in 0 */
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&values[i], &bits, sizeof bits);
    }
    sizes_get(values, 1, sizes);
    assert_in_range(sizes[1], COUNT / 2, COUNT * 9 / 10);
    assert_in_range(sizes[2], 1, COUNT / 100);
    assert_in_range(sizes[3], COUNT / 10, COUNT / 4);
    weights_fill(values);
    memset(values, 0, sizeof values / 2); /* rows without a gradient, in front */
    sizes_get(values, 1, sizes);
    for (int p = 1; p < TR_NUM_PLANES; p++)
        assert_in_range(sizes[p], COUNT / 2, COUNT * 6 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planes_are_the_bytes_of_rotated_bits),
        cmocka_unit_test(test_exponents_shrink_and_noise_stays),
        cmocka_unit_test(test_mantissas_shrink_where_they_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
