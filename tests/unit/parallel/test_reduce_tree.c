/* What ranks sum, combine like a binary counter, and exchange comes to the recorded order of additions; and the sum over arrays adds in
 * exactly the order of the tree. Trees are compared as texts such as "((0+1)+2)". */
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

/* What a rank's microbatches of one exchange come to, leaf by leaf. */
static void rank_text(const tr_reduce_plan *plan, int rank, int exchange, char *out)
{
    char slots[8][TEXT];
    int each = tr_reduce_per_exchange(plan);
    for (int l = 0; l < plan->local_leaves; l++) {
        tr_leaf_step step = tr_leaf_step_make(l, plan->local_leaves);
        assert_true(step.slot < tr_leaf_num_slots(plan->local_leaves));
        for (int i = 0; i < plan->per_leaf; i++) {
            char number[16];
            int local = exchange * each + l * plan->per_leaf + i;
            snprintf(number, sizeof number, "%d", tr_reduce_microbatch(plan, rank, local));
            if (i == 0)
                snprintf(slots[step.slot], TEXT, "%s", number);
            else
                join(slots[step.slot], number);
        }
        for (int merge = 1; merge <= step.num_merges; merge++)
            join(slots[step.slot - merge], slots[step.slot - merge + 1]);
    }
    memcpy(out, slots[0], TEXT);
}

/* The plan's result: exchanges are trees over ranks, combined by a counter that merges what arrives. */
static void plan_text(const tr_reduce_plan *plan, char *out)
{
    static char ranks[MAX_LEAVES][TEXT], kept[8][TEXT];
    for (int e = 0; e < tr_reduce_num_exchanges(plan); e++) {
        int part = e % plan->parts;
        tr_leaf_step step = tr_leaf_step_make(part, plan->parts);
        char sum[TEXT];
        for (int r = 0; r < plan->data_size; r++)
            rank_text(plan, r, e, ranks[r]);
        tree_text(ranks, plan->data_size, sum);
        for (int k = 1; k <= step.num_merges; k++) {
            join(kept[step.slot - k], sum);
            memcpy(sum, kept[step.slot - k], TEXT);
        }
        if (part < plan->parts - 1) {
            assert_true(step.slot - step.num_merges < tr_leaf_num_kept(plan->parts));
            memcpy(kept[step.slot - step.num_merges], sum, TEXT);
        } else if (e < plan->parts) {
            memcpy(out, sum, TEXT);
        } else {
            join(out, sum);
        }
    }
}

/* The recorded mathematics, as docs/design.md says it. */
static void order_text(tr_reduction_order order, int M, int R, char *out)
{
    static char things[MAX_LEAVES][TEXT];
    int per_leaf = M / R;
    if (order == TR_REDUCTION_BLOCKS) {
        for (int m = 0; m < M; m++) {
            char number[16];
            snprintf(number, sizeof number, "%d", m);
            if (m % per_leaf == 0)
                snprintf(things[m / per_leaf], TEXT, "%s", number);
            else
                join(things[m / per_leaf], number);
        }
        tree_text(things, R, out);
        return;
    }
    for (int j = 0; j < M / R; j++) {
        char round[TEXT];
        for (int i = 0; i < R; i++)
            snprintf(things[i], TEXT, "%d", j * R + i);
        tree_text(things, R, round);
        if (j == 0)
            memcpy(out, round, TEXT);
        else
            join(out, round);
    }
}

/* Every order, batch, tree and data size up to 24 microbatches: the plan adds in exactly the recorded order, each microbatch once. */
static void test_plans_follow_the_order(void **state)
{
    (void)state;
    int num_checked[3] = {0};
    for (int order = TR_REDUCTION_BLOCKS; order <= TR_REDUCTION_ROUNDS; order++)
        for (int M = 1; M <= MAX_LEAVES; M++)
            for (int R = 1; R <= M; R++) {
                char expected[TEXT], found[TEXT];
                if (M % R != 0)
                    continue;
                order_text((tr_reduction_order)order, M, R, expected);
                for (int d = 1; d <= R; d++) {
                    if (!tr_reduce_covers((tr_reduction_order)order, R, d))
                        continue;
                    tr_reduce_plan plan = tr_reduce_plan_make((tr_reduction_order)order, M, R, d);
                    assert_int_equal(
                        tr_reduce_per_exchange(&plan) * tr_reduce_num_exchanges(&plan) * d, M);
                    plan_text(&plan, found);
                    assert_string_equal(found, expected);
                    num_checked[order]++;
                }
            }
    assert_true(num_checked[TR_REDUCTION_BLOCKS] > 150);
    assert_true(num_checked[TR_REDUCTION_ROUNDS] > num_checked[TR_REDUCTION_BLOCKS]);
}

static void test_who_follows(void **state)
{
    (void)state;
    const tr_reduction_order blocks = TR_REDUCTION_BLOCKS, rounds = TR_REDUCTION_ROUNDS;
    for (int order = TR_REDUCTION_BLOCKS; order <= TR_REDUCTION_ROUNDS; order++) {
        assert_true(tr_reduce_covers((tr_reduction_order)order, 12, 3));
        assert_true(tr_reduce_covers((tr_reduction_order)order, 12, 6));
        assert_true(tr_reduce_covers((tr_reduction_order)order, 12, 1));
        assert_true(tr_reduce_covers((tr_reduction_order)order, 12, 12));
        assert_false(tr_reduce_covers((tr_reduction_order)order, 12, 5));
        assert_false(tr_reduce_covers((tr_reduction_order)order, 12, 24));
        assert_false(tr_reduce_covers((tr_reduction_order)order, 36, 3)); /* twelve leaves each */
    }
    /* Three leaves each: in rounds an exchange is a subtree of four. */
    assert_false(tr_reduce_covers(blocks, 12, 4));
    assert_true(tr_reduce_covers(rounds, 12, 4));
}

/* Accumulators are extra memory: one buffer for an order that the layout follows naturally. */
static void test_what_a_plan_costs(void **state)
{
    (void)state;
    tr_reduce_plan plan = tr_reduce_plan_make(TR_REDUCTION_BLOCKS, 32, 8, 8);
    assert_true(plan.per_leaf == 4 && plan.local_leaves == 1 &&
                tr_reduce_num_exchanges(&plan) == 1);
    plan = tr_reduce_plan_make(TR_REDUCTION_BLOCKS, 32, 8, 2);
    assert_true(plan.local_leaves == 4 && tr_leaf_num_slots(plan.local_leaves) == 3);
    plan = tr_reduce_plan_make(TR_REDUCTION_ROUNDS, 32, 8, 8);
    assert_true(tr_reduce_per_exchange(&plan) == 1 && plan.rounds == 4 && plan.parts == 1);
    plan = tr_reduce_plan_make(TR_REDUCTION_ROUNDS, 32, 8, 2);
    assert_true(tr_reduce_per_exchange(&plan) == 1 && plan.rounds == 4 && plan.parts == 4);
    assert_int_equal(tr_leaf_num_kept(plan.parts), 2);
    plan = tr_reduce_plan_make(TR_REDUCTION_ROUNDS, 24, 12, 3);
    assert_true(plan.local_leaves == 4 && plan.parts == 1 && plan.rounds == 2);
}

static void test_slots(void **state)
{
    (void)state;
    const int expected[] = {1, 2, 2, 3, 3, 3, 3, 4};
    for (int n = 1; n <= 8; n++)
        assert_int_equal(tr_leaf_num_slots(n), expected[n - 1]);
    const int kept[] = {0, 1, 1, 2, 2, 2, 2, 3};
    for (int n = 1; n <= 8; n++)
        assert_int_equal(tr_leaf_num_kept(n), kept[n - 1]);
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
        cmocka_unit_test(test_plans_follow_the_order),
        cmocka_unit_test(test_who_follows),
        cmocka_unit_test(test_what_a_plan_costs),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_sum_order),
        cmocka_unit_test(test_sum_into_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
