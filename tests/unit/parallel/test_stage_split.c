/* Splits of layers into chunks: the automatic one against all splits, explicit lists against their
 * numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/stage_split.h"

enum { MAX_CHUNKS = 16 };

/* The load of the slowest stage. */
static double slowest(const int *layers, tr_placement placement, int p, int v, double embedding,
                      double head)
{
    double loads[MAX_CHUNKS] = {0}, worst = 0;
    for (int c = 0; c < p * v; c++) {
        double *load = &loads[tr_chunk_stage(placement, p, c)];
        *load += layers[c] + (c == 0 ? embedding : 0) + (c == p * v - 1 ? head : 0);
        worst = *load > worst ? *load : worst;
    }
    return worst;
}

typedef struct trial {
    tr_placement placement;
    int p, v;
    double embedding, head;
    int layers[MAX_CHUNKS];
} trial;

/* The smallest slowest stage over all splits with a layer in each chunk from `chunk` on. */
static double best_of_all(trial *t, int chunk, int num_left)
{
    if (chunk == t->p * t->v - 1) {
        t->layers[chunk] = num_left;
        return slowest(t->layers, t->placement, t->p, t->v, t->embedding, t->head);
    }
    double best = 1e30;
    int after = t->p * t->v - 1 - chunk;
    for (t->layers[chunk] = 1; t->layers[chunk] <= num_left - after; t->layers[chunk]++) {
        double one = best_of_all(t, chunk + 1, num_left - t->layers[chunk]);
        best = one < best ? one : best;
    }
    return best;
}

static void check_split(trial *t, int num_layers)
{
    int layers[MAX_CHUNKS], sum = 0;
    assert_int_equal(
        tr_stage_split_auto(num_layers, t->placement, t->p, t->v, t->embedding, t->head, layers),
        TR_OK);
    for (int c = 0; c < t->p * t->v; c++) {
        assert_true(layers[c] >= 1);
        sum += layers[c];
    }
    assert_int_equal(sum, num_layers);
    assert_float_equal(slowest(layers, t->placement, t->p, t->v, t->embedding, t->head),
                       best_of_all(t, 0, num_layers), 1e-9);
    assert_int_equal(tr_stage_split_check(layers, t->p * t->v, num_layers, t->p, t->v), TR_OK);
}

static void automatic_split_is_the_best_of_all(void **state)
{
    (void)state;
    static const double costs[][2] = {{0, 0}, {0.2, 0.4}, {0.5, 1.5}, {3.25, 0}, {0, 7}};
    for (size_t k = 0; k < sizeof costs / sizeof *costs; k++)
        for (int p = 1; p <= 3; p++)
            for (int v = 1; v <= 2; v++)
                for (int num_layers = p * v; num_layers <= 13; num_layers++)
                    for (int place = 0; place <= (v == 2); place++) {
                        trial t = {place ? TR_PLACEMENT_V : TR_PLACEMENT_LOOP,
                                   p,
                                   v,
                                   costs[k][0],
                                   costs[k][1],
                                   {0}};
                        check_split(&t, num_layers);
                    }
}

static void assert_split(int num_layers, tr_placement placement, int p, int v, double embedding,
                         double head, const int *expected)
{
    int layers[MAX_CHUNKS];
    assert_int_equal(tr_stage_split_auto(num_layers, placement, p, v, embedding, head, layers),
                     TR_OK);
    assert_memory_equal(layers, expected, sizeof(int) * (size_t)(p * v));
}

static void ties_help_slow_ranks_then_early_ones(void **state)
{
    (void)state;
    assert_split(10, TR_PLACEMENT_LOOP, 4, 1, 0.1, 0.3, (const int[]){2, 3, 3, 2});
    assert_split(10, TR_PLACEMENT_LOOP, 4, 1, 0, 0, (const int[]){2, 2, 3, 3});
    /* Chunks 1 and 3, with the head, share a rank: both spare layers go to the other one. */
    assert_split(6, TR_PLACEMENT_LOOP, 2, 2, 0, 2, (const int[]){2, 1, 2, 1});
    /* Both chunks of stage 1 of a loop, and the first and last of stage 0 of a V, share a stage. */
    assert_split(8, TR_PLACEMENT_V, 2, 2, 0, 2, (const int[]){2, 2, 3, 1});
    assert_split(5, TR_PLACEMENT_LOOP, 4, 1, 0, 0, (const int[]){1, 1, 1, 2});
    assert_split(4, TR_PLACEMENT_LOOP, 4, 1, 0, 9, (const int[]){1, 1, 1, 1});
}

static void assert_says(const char *part)
{
    if (strstr(tr_error_message(), part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), part);
}

static void refusals_show_the_numbers(void **state)
{
    (void)state;
    int layers[MAX_CHUNKS];
    assert_int_equal(tr_stage_split_auto(3, TR_PLACEMENT_LOOP, 2, 2, 0, 0, layers),
                     TR_ERR_SETTINGS);
    assert_says("model.layers 3 is fewer than the 4 chunks");
    assert_int_equal(tr_stage_split_check((const int[]){1, 1, 1, 1}, 4, 3, 4, 1), TR_ERR_SETTINGS);
    assert_says("model.layers 3 is fewer than the 4 chunks");
    assert_int_equal(tr_stage_split_check((const int[]){5, 5}, 2, 10, 2, 2), TR_ERR_SETTINGS);
    assert_says("2 entries");
    assert_says("needs 4");
    assert_int_equal(tr_stage_split_check((const int[]){3, 0, 7}, 3, 10, 3, 1), TR_ERR_SETTINGS);
    assert_says("0 layers to chunk 1");
    assert_int_equal(tr_stage_split_check((const int[]){3, 3, 3}, 3, 10, 3, 1), TR_ERR_SETTINGS);
    assert_says("sums to 9 layers, but model.layers is 10");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(automatic_split_is_the_best_of_all),
        cmocka_unit_test(ties_help_slow_ranks_then_early_ones),
        cmocka_unit_test(refusals_show_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
