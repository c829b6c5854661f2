/* memory/box: intervals, intersections and copies against element-by-element counting. */
#include "memory/box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_interval_is_at_most_three_boxes(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 5; rows++)
        for (int64_t columns = 1; columns <= 5; columns++)
            for (int64_t lo = 0; lo <= rows * columns; lo++)
                for (int64_t hi = lo; hi <= rows * columns; hi++) {
                    tr_box cut = tr_box_2d(10, rows, 20, columns), pieces[TR_BOX_MAX_PIECES];
                    int count = tr_box_from_interval(&cut, lo, hi, pieces);
                    assert_in_range(count, lo == hi ? 0 : 1, lo == hi ? 0 : 3);
                    int64_t at = lo; /* pieces are the elements lo .. hi - 1, in order */
                    for (int p = 0; p < count; p++) {
                        assert_true(tr_box_volume(&pieces[p]) > 0);
                        assert_true(tr_box_contains(&cut, &pieces[p]));
                        for (int64_t r = 0; r < pieces[p].extent[0]; r++)
                            for (int64_t c = 0; c < pieces[p].extent[1]; c++, at++) {
                                assert_int_equal(pieces[p].start[0] + r, 10 + at / columns);
                                assert_int_equal(pieces[p].start[1] + c, 20 + at % columns);
                            }
                    }
                    assert_int_equal(at, hi);
                }
}

static void test_interval_of_rows_is_one_box(void **state)
{
    (void)state;
    tr_box cut = tr_box_2d(3, 8, 64, 32), pieces[TR_BOX_MAX_PIECES];
    assert_int_equal(tr_box_from_interval(&cut, 32, 128, pieces), 1);
    tr_box expected = tr_box_2d(4, 3, 64, 32);
    assert_true(tr_box_equal(&pieces[0], &expected));
    tr_box line = tr_box_1d(100, 50);
    assert_int_equal(tr_box_from_interval(&line, 7, 9, pieces), 1);
    expected = tr_box_1d(107, 2);
    assert_true(tr_box_equal(&pieces[0], &expected));
    tr_box empty = tr_box_2d(0, 4, 0, 0);
    assert_int_equal(tr_box_from_interval(&empty, 0, 0, pieces), 0);
}

static uint32_t random_state = 12345;

static int64_t random_below(int64_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int64_t)(random_state >> 8) % n;
}

static bool box_has(const tr_box *box, const int64_t at[3])
{
    for (int d = 0; d < box->num_dims; d++)
        if (at[d] < box->start[d] || at[d] >= box->start[d] + box->extent[d])
            return false;
    return true;
}

enum { SIDE = 7 };

static tr_box random_box(int num_dims)
{
    tr_box box = {.num_dims = num_dims};
    for (int d = 0; d < num_dims; d++) {
        box.start[d] = random_below(SIDE);
        box.extent[d] = random_below(SIDE - box.start[d] + 1);
    }
    return box;
}

/* Number of points of the SIDE^3 grid (as many dimensions as the boxes have) that are in both. */
static int64_t points_in_both(const tr_box *a, const tr_box *b)
{
    int64_t count = 0, at[3];
    for (at[0] = 0; at[0] < SIDE; at[0]++)
        for (at[1] = 0; at[1] < (a->num_dims > 1 ? SIDE : 1); at[1]++)
            for (at[2] = 0; at[2] < (a->num_dims > 2 ? SIDE : 1); at[2]++)
                count += box_has(a, at) && box_has(b, at);
    return count;
}

static void test_intersection(void **state)
{
    (void)state;
    for (int i = 0; i < 30000; i++) {
        tr_box a = random_box(i % 3 + 1), b = random_box(i % 3 + 1), common;
        int64_t points = points_in_both(&a, &b);
        assert_int_equal(tr_box_intersect(&a, &b, &common), points > 0);
        assert_int_equal(tr_box_volume(&common), points);
        assert_int_equal(points_in_both(&a, &common), points);
        assert_int_equal(points_in_both(&b, &common), points);
        assert_int_equal(tr_box_contains(&a, &b), points == tr_box_volume(&b));
    }
}

/* Each element of a buffer says where it is; after a copy every common element says its own place, the others are untouched. */
static void test_copy(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 4};
    for (int i = 0; i < 6000; i++) {
        int num_dims = i % 3 + 1;
        size_t size = sizes[i / 3 % 3];
        tr_box src = random_box(num_dims), dst = random_box(num_dims), box;
        unsigned char from[SIDE * SIDE * SIDE * 4], to[SIDE * SIDE * SIDE * 4];
        memset(to, 0xee, sizeof to);
        for (int side = 0; side < 2; side++) {
            box = side == 0 ? src : dst;
            int64_t index = 0, at[3] = {0};
            if (tr_box_volume(&box) == 0)
                continue;
            if (side == 1) {
                int64_t copied = tr_box_copy(size, &src, from, &dst, to);
                assert_int_equal(copied, points_in_both(&src, &dst));
            }
            int64_t extent1 = num_dims > 1 ? box.extent[1] : 1,
                    extent2 = num_dims > 2 ? box.extent[2] : 1;
            for (int64_t x = 0; x < box.extent[0]; x++)
                for (int64_t y = 0; y < extent1; y++)
                    for (int64_t z = 0; z < extent2; z++, index++) {
                        at[0] = box.start[0] + x;
                        at[1] = box.start[1] + y;
                        at[2] = box.start[2] + z;
                        int64_t place = (at[0] * SIDE + at[1]) * SIDE + at[2];
                        for (size_t byte = 0; byte < size; byte++) {
                            unsigned char mark = (unsigned char)(place * 7 + (int64_t)byte);
                            if (side == 0)
                                from[(size_t)index * size + byte] = mark;
                            else
                                assert_int_equal(to[(size_t)index * size + byte],
                                                 box_has(&src, at) ? mark : 0xee);
                        }
                    }
            if (side == 1)
                for (size_t rest = (size_t)index * size; rest < sizeof to; rest++)
                    assert_int_equal(to[rest], 0xee);
        }
    }
}

static void test_offset(void **state)
{
    (void)state;
    tr_box outer = {.num_dims = 3, .start = {10, 20, 30}, .extent = {4, 5, 6}};
    tr_box inner = {.num_dims = 3, .start = {12, 23, 34}, .extent = {1, 1, 1}};
    assert_int_equal(tr_box_offset(&outer, &inner), (2 * 5 + 3) * 6 + 4);
    assert_int_equal(tr_box_offset(&outer, &outer), 0);
}

static void test_large_numbers(void **state)
{
    (void)state;
    const int64_t shape[] = {(int64_t)1 << 40, 1 << 20};
    tr_box all = tr_box_of_shape(2, shape), pieces[TR_BOX_MAX_PIECES];
    assert_true(tr_box_volume(&all) == (int64_t)1 << 60);
    assert_int_equal(
        tr_box_from_interval(&all, ((int64_t)1 << 59) + 5, ((int64_t)1 << 60) - 7, pieces), 3);
    assert_true(tr_box_offset(&all, &pieces[1]) == ((int64_t)1 << 59) + (1 << 20));
    assert_true(tr_box_offset(&all, &pieces[2]) == ((int64_t)1 << 60) - (1 << 20));
}

static void test_fits(void **state)
{
    (void)state;
    const int64_t shape[] = {10, 20};
    const int64_t huge[] = {INT64_MAX, INT64_MAX};
    tr_box good = tr_box_2d(9, 1, 0, 20), empty = tr_box_2d(10, 0, 0, 20);
    assert_true(tr_box_fits(&good, 2, shape));
    assert_true(tr_box_fits(&empty, 2, shape));
    assert_false(tr_box_fits(&good, 1, shape));
    const tr_box bad[] = {
        tr_box_2d(10, 1, 0, 20), tr_box_2d(-1, 1, 0, 20),       tr_box_2d(0, -1, 0, 20),
        tr_box_2d(0, 1, 1, 20),  tr_box_2d(0, INT64_MAX, 0, 1), tr_box_2d(INT64_MAX, 1, 0, 1),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(tr_box_fits(&bad[i], 2, shape));
    tr_box all = tr_box_of_shape(2, huge);
    assert_false(tr_box_fits(&all, 2, huge)); /* volume passes 2^63 */
    tr_box none = {.num_dims = 0};
    assert_false(tr_box_fits(&none, 0, shape));
}

static void test_text(void **state)
{
    (void)state;
    char text[TR_BOX_TEXT];
    tr_box box = tr_box_2d(0, 768, 128, 128);
    assert_string_equal(tr_box_format(&box, text), "[0:768, 128:256]");
    tr_box wide = {
        .num_dims = 3, .start = {INT64_MAX - 1, INT64_MAX - 1, INT64_MAX - 1}, .extent = {1, 1, 1}};
    assert_true(strlen(tr_box_format(&wide, text)) < TR_BOX_TEXT - 1);
    assert_int_equal(text[strlen(text) - 1], ']');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interval_is_at_most_three_boxes),
        cmocka_unit_test(test_interval_of_rows_is_one_box),
        cmocka_unit_test(test_intersection),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_offset),
        cmocka_unit_test(test_large_numbers),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
