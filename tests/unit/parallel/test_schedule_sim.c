/* Step times against the formulas of the papers, and against a small case worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "parallel/schedule.h"

enum { MAX_CHUNKS = 128, MAX_STAGES = 16 };

static tr_schedule_times simulate(tr_schedule_kind kind, int p, int v, int m, double forward,
                                  double backward, double weight, double transfer, double *busy)
{
    double costs[3][MAX_CHUNKS];
    for (int c = 0; c < p * v; c++) {
        costs[0][c] = forward;
        costs[1][c] = backward;
        costs[2][c] = weight;
    }
    const tr_schedule_costs all = {
        .forward = costs[0], .backward = costs[1], .weight = costs[2], .transfer = transfer};
    tr_schedule *schedule;
    assert_int_equal(tr_schedule_create(&schedule, kind, p, v, m), TR_OK);
    tr_schedule_times times = {.busy = busy};
    assert_int_equal(tr_schedule_simulate(schedule, &all, &times), TR_OK);
    tr_schedule_destroy(schedule);
    return times;
}

/* Idle time of a device: (p - 1)(F + B + W) / v. */
static void assert_formula(tr_schedule_kind kind, int p, int v, int m, double forward,
                           double backward, double weight)
{
    double busy[MAX_STAGES];
    tr_schedule_times times = simulate(kind, p, v, m, forward, backward, weight, 0, busy);
    double unit = forward + backward + weight;
    assert_float_equal(times.total, (m * v + p - 1) * unit, 1e-9 * times.total);
    double ahead = (p - 1.0) / v;
    assert_float_equal(times.idle_share, ahead / (m + ahead), 1e-9);
    for (int r = 0; r < p; r++)
        assert_float_equal(busy[r], m * v * unit, 1e-9 * busy[r]);
}

static void gpipe_and_1f1b_idle_as_published(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 33; m += 2) {
            assert_formula(TR_SCHEDULE_GPIPE, p, 1, m, 1, 1, 1);
            assert_formula(TR_SCHEDULE_1F1B, p, 1, m, 1, 1, 1);
            assert_formula(TR_SCHEDULE_1F1B, p, 1, m, 1, 1.5, 0.75);
        }
}

static void interleaved_idles_less_by_the_number_of_chunks(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int v = 2; v <= 4; v++)
            for (int m = p; m <= 4 * p; m++) {
                assert_formula(TR_SCHEDULE_INTERLEAVED, p, v, m, 1, 1, 1);
                assert_formula(TR_SCHEDULE_GPIPE, p, v, m, 1, 1, 1);
            }
}

/* Qi et al. 2023: a device idles (p - 1)(F + B - W), where W is no longer than F. */
static void zb_h1_idles_as_published(void **state)
{
    (void)state;
    static const double costs[][3] = {{1, 1, 1}, {1, 1.25, 0.75}, {1, 1.5, 1}, {1, 2, 1}};
    double busy[MAX_STAGES];
    for (size_t k = 0; k < sizeof costs / sizeof *costs; k++)
        for (int p = 1; p <= 8; p++)
            for (int m = 2 * p; m <= 4 * p; m++) {
                double f = costs[k][0], b = costs[k][1], w = costs[k][2];
                tr_schedule_times times = simulate(TR_SCHEDULE_ZB_H1, p, 1, m, f, b, w, 0, busy);
                assert_float_equal(times.total, m * (f + b + w) + (p - 1) * (f + b - w), 1e-9);
            }
}

/* With F = B = W nothing but the way down to the last rank: one chunk time for each rank. */
static void zb_v_waits_for_the_first_microbatch_only(void **state)
{
    (void)state;
    double busy[MAX_STAGES];
    for (int p = 1; p <= 8; p++)
        for (int m = 2 * p - 1; m <= 4 * p; m++) {
            tr_schedule_times times = simulate(TR_SCHEDULE_ZB_V, p, 2, m, 1, 1, 1, 0, busy);
            assert_float_equal(times.total, 6 * m + p - 1, 1e-9);
        }
}

/* The anchor of published measurements: 8 stages, 32 microbatches: 18% idle, 5.2% with 4 chunks. */
static void known_example(void **state)
{
    (void)state;
    double busy[MAX_STAGES];
    tr_schedule_times times = simulate(TR_SCHEDULE_1F1B, 8, 1, 32, 1, 1, 1, 0, busy);
    assert_float_equal(times.idle_share, 0.18, 0.005);
    times = simulate(TR_SCHEDULE_INTERLEAVED, 8, 4, 32, 1, 1, 1, 0, busy);
    assert_float_equal(times.idle_share, 0.052, 0.0005);
    times = simulate(TR_SCHEDULE_ZB_H1, 8, 1, 32, 1, 1, 1, 0, busy);
    assert_float_equal(times.idle_share, 0.068, 0.0005);
}

static void large_schedule(void **state)
{
    (void)state;
    assert_formula(TR_SCHEDULE_INTERLEAVED, 16, 8, 512, 1, 1, 1);
}

/* Two stages, F 1, B 2, W 4, one send 0.5. One microbatch: rank 0 F 0..1, send to 1.5, rank 1 F..W
 * to 8.5 (the gradient leaves after W), send to 9, rank 0 B, W to 15. */
static void transfers_take_time(void **state)
{
    (void)state;
    double busy[2];
    tr_schedule_times times = simulate(TR_SCHEDULE_1F1B, 2, 1, 1, 1, 2, 4, 0.5, busy);
    assert_float_equal(times.total, 15, 1e-12);
    assert_float_equal(times.idle_share, 1 - 14.0 / 30, 1e-12);
    /* Evaluation of two: the second send leaves at 2; its receive is posted when rank 1 is done
     * with the first, at 2.5. */
    times = simulate(TR_SCHEDULE_FORWARD_ONLY, 2, 1, 2, 1, 0, 0, 0.5, busy);
    assert_float_equal(times.total, 4, 1e-12);
    /* Chunks of one rank hand over without a send. */
    times = simulate(TR_SCHEDULE_INTERLEAVED, 1, 2, 3, 1, 1, 1, 0.5, busy);
    assert_float_equal(times.total, 18, 1e-12);
}

/* Unequal chunks: the slow one sets the pace. Rank 1 is busy from 1 to 1 + 5 * 9; then rank 0 still
 * does its last B and W. */
static void slow_chunk_sets_the_pace(void **state)
{
    (void)state;
    const double forward[] = {1, 3}, backward[] = {1, 3}, weight[] = {1, 3};
    const tr_schedule_costs costs = {.forward = forward, .backward = backward, .weight = weight};
    tr_schedule *schedule;
    assert_int_equal(tr_schedule_create(&schedule, TR_SCHEDULE_1F1B, 2, 1, 5), TR_OK);
    double busy[2];
    tr_schedule_times times = {.busy = busy};
    assert_int_equal(tr_schedule_simulate(schedule, &costs, &times), TR_OK);
    assert_float_equal(times.total, 1 + 45 + 2, 1e-12);
    assert_float_equal(busy[0], 15, 1e-12);
    assert_float_equal(busy[1], 45, 1e-12);
    assert_float_equal(times.idle_share, 1 - 60.0 / 96, 1e-12);
    tr_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_and_1f1b_idle_as_published),
        cmocka_unit_test(interleaved_idles_less_by_the_number_of_chunks),
        cmocka_unit_test(zb_h1_idles_as_published),
        cmocka_unit_test(zb_v_waits_for_the_first_microbatch_only),
        cmocka_unit_test(known_example),
        cmocka_unit_test(large_schedule),
        cmocka_unit_test(transfers_take_time),
        cmocka_unit_test(slow_chunk_sets_the_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
