/* The tree over ranks of what each rank combines like a binary counter is the tree over all leaves; and the sum over arrays adds in
 * exactly the order of that tree. Trees are compared as texts such as "((0+1)+2)". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "parallel/reduce_tree.h"

enum { TEXT = 512, MAX_LEAVES = 24 };

static void join(char *left, const char *right)
{
    char text[2 * TEXT + 8];
    snprintf(text, sizeof text, "(%s+%s)", left, right);
    assert_true(strlen(text) < TEXT);
    memcpy(left, text, strlen(text) + 1);
}

/* The definition: split at the largest power of two below n, found by trying. */
static void tree_text(char things[][TEXT], int n, char *out)
{
    if (n == 1) {
        memcpy(out, things[0], TEXT);
        return;
    }
    int split = 1;
    for (int power = 1; power < n; power *= 2)
        split = power;
    char right[TEXT];
    tree_text(things, split, out);
    tree_text(things + split, n - split, right);
    join(out, right);
}

static void rank_text(int first_leaf, int num_leaves, char *out)
{
    char slots[8][TEXT];
    for (int l = 0; l < num_leaves; l++) {
        tr_leaf_step step = tr_leaf_step_make(l, num_leaves);
        assert_true(step.slot < tr_leaf_num_slots(num_leaves));
        snprintf(slots[step.slot], TEXT, "%d", first_leaf + l);
        for (int merge = 1; merge <= step.num_merges; merge++)
            join(slots[step.slot - merge], slots[step.slot - merge + 1]);
    }
    memcpy(out, slots[0], TEXT);
}

static void test_ranks_follow_leaves(void **state)
{
    (void)state;
    static char leaves[MAX_LEAVES][TEXT], ranks[MAX_LEAVES][TEXT];
    int num_checked = 0;
    for (int R = 1; R <= MAX_LEAVES; R++) {
        for (int l = 0; l < R; l++)
            snprintf(leaves[l], TEXT, "%d", l);
        char expected[TEXT];
        tree_text(leaves, R, expected);
        for (int d = 1; d <= R; d++) {
            if (!tr_leaf_follows(R, d))
                continue;
            for (int r = 0; r < d; r++)
                rank_text(r * (R / d), R / d, ranks[r]);
            char found[TEXT];
            tree_text(ranks, d, found);
            assert_string_equal(found, expected);
            num_checked++;
        }
    }
    assert_int_equal(num_checked, 65); /* every (R, d) of powers of two, and d = 1 */
}

static void test_who_follows(void **state)
{
    (void)state;
    assert_true(tr_leaf_follows(12, 3));
    assert_true(tr_leaf_follows(12, 6));
    assert_true(tr_leaf_follows(12, 1));
    assert_false(tr_leaf_follows(12, 4)); /* three leaves each */
    assert_false(tr_leaf_follows(12, 5));
    assert_false(tr_leaf_follows(12, 24));
}

static void test_slots(void **state)
{
    (void)state;
    const int expected[] = {1, 2, 2, 3, 3, 3, 3, 4};
    for (int n = 1; n <= 8; n++)
        assert_int_equal(tr_leaf_num_slots(n), expected[n - 1]);
}

static float reference(const float *const *src, int first, int count, int64_t i)
{
    if (count == 1)
        return src[first][i];
    int split = 1;
    for (int power = 1; power < count; power *= 2)
        split = power;
    return reference(src, first, split, i) + reference(src, first + split, count - split, i);
}

/* Sources of very different sizes, so that another order gives other bits. */
static void test_sum_order(void **state)
{
    (void)state;
    enum { N = 2048 + 77, SOURCES = 40 };
    static float data[SOURCES][N], found[N];
    const float *src[SOURCES];
    for (int k = 0; k < SOURCES; k++) {
        tr_philox_normal_fill((uint64_t)k, 0, N, k % 3 ? 1.0 : 1e3, data[k]);
        src[k] = data[k];
    }
    for (int count = 1; count <= SOURCES; count++) {
        int other_order = 0;
        tr_tree_sum(N, count, src, found);
        for (int i = 0; i < N; i++) {
            float expected = reference(src, 0, count, i);
            assert_memory_equal(&found[i], &expected, sizeof expected);
            float in_order = src[0][i];
            for (int k = 1; k < count; k++)
                in_order += src[k][i];
            other_order += in_order != expected;
        }
        assert_true(count < 4 || other_order > 0);
    }
}

static void test_sum_into_source(void **state)
{
    (void)state;
    enum { N = 5000, SOURCES = 5 };
    static float data[SOURCES][N], expected[N];
    const float *src[SOURCES];
    for (int into = 0; into < SOURCES; into++) {
        for (int k = 0; k < SOURCES; k++) {
            tr_philox_normal_fill((uint64_t)k, 0, N, 1.0, data[k]);
            src[k] = data[k];
        }
        tr_tree_sum(N, SOURCES, src, expected);
        tr_tree_sum(N, SOURCES, src, data[into]);
        assert_memory_equal(data[into], expected, sizeof expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_follow_leaves),
        cmocka_unit_test(test_who_follows),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_sum_order),
        cmocka_unit_test(test_sum_into_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
