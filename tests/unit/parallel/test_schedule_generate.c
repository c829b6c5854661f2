/* What the generators make: the lists of small schedules as texts written by hand, the activations
 * that each kind keeps, and which numbers are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "parallel/schedule.h"

static tr_schedule *create(tr_schedule_kind kind, int num_stages, int num_virtual,
                           int num_microbatches)
{
    tr_schedule *schedule = NULL;
    tr_status status =
        tr_schedule_create(&schedule, kind, num_stages, num_virtual, num_microbatches);
    if (status != TR_OK)
        fail_msg("kind %d, %d stages, %d virtual, %d microbatches: %s", (int)kind, num_stages,
                 num_virtual, num_microbatches, tr_error_message());
    return schedule;
}

static void assert_text(tr_schedule_kind kind, int num_stages, int num_virtual,
                        int num_microbatches, const char *expected)
{
    tr_schedule *schedule = create(kind, num_stages, num_virtual, num_microbatches);
    char *text = tr_schedule_text(schedule);
    assert_string_equal(text, expected);
    tr_free(text);
    tr_schedule_destroy(schedule);
}

static void lists_are_the_published_ones(void **state)
{
    (void)state;
    assert_text(TR_SCHEDULE_GPIPE, 2, 1, 2,
                "0F0,0F1,0B0,0W0,0B1,0W1\n"
                "1F0,1F1,1B0,1W0,1B1,1W1\n");
    assert_text(TR_SCHEDULE_1F1B, 3, 1, 4,
                "0F0,0F1,0F2,0B0,0W0,0F3,0B1,0W1,0B2,0W2,0B3,0W3\n"
                "1F0,1F1,1B0,1W0,1F2,1B1,1W1,1F3,1B2,1W2,1B3,1W3\n"
                "2F0,2B0,2W0,2F1,2B1,2W1,2F2,2B2,2W2,2F3,2B3,2W3\n");
    assert_text(TR_SCHEDULE_INTERLEAVED, 2, 2, 4,
                "0F0,0F1,2F0,2F1,0F2,2B0,2W0,0F3,2B1,2W1,2F2,0B0,0W0,2F3,0B1,0W1,"
                "2B2,2W2,2B3,2W3,0B2,0W2,0B3,0W3\n"
                "1F0,1F1,3F0,3B0,3W0,3F1,3B1,3W1,1F2,1B0,1W0,1F3,1B1,1W1,3F2,3B2,3W2,3F3,3B3,3W3,"
                "1B2,1W2,1B3,1W3\n");
    assert_text(TR_SCHEDULE_FORWARD_ONLY, 2, 2, 3,
                "0F0,0F1,0F2,2F0,2F1,2F2\n"
                "1F0,1F1,1F2,3F0,3F1,3F2\n");
    assert_text(TR_SCHEDULE_FORWARD_V, 2, 2, 3,
                "0F0,0F1,0F2,3F0,3F1,3F2\n"
                "1F0,2F0,1F1,2F1,1F2,2F2\n");
    assert_text(TR_SCHEDULE_ZB_H1, 3, 1, 4,
                "0F0,0F1,0F2,0B0,0W0,0F3,0B1,0W1,0B2,0W2,0B3,0W3\n"
                "1F0,1F1,1B0,1F2,1B1,1W0,1F3,1B2,1W1,1B3,1W2,1W3\n"
                "2F0,2B0,2F1,2B1,2F2,2B2,2W0,2F3,2B3,2W1,2W2,2W3\n");
    assert_text(TR_SCHEDULE_ZB_V, 2, 2, 3,
                "0F0,0F1,0F2,3F0,3B0,3W0,3F1,3B1,3W1,0B0,0W0,3F2,3B2,3W2,0B1,0W1,0B2,0W2\n"
                "1F0,2F0,1F1,2F1,2B0,2W0,1F2,1B0,1W0,2F2,2B1,2W1,1B1,2B2,1B2,1W1,2W2,1W2\n");
}

/* Microbatches that are no multiple of the stages: groups of five instead of four and one. */
static void interleaved_groups_are_never_smaller_than_the_stages(void **state)
{
    (void)state;
    assert_int_equal(tr_schedule_group_most(4, 8), 4);
    assert_int_equal(tr_schedule_group_most(4, 9), 5);
    assert_int_equal(tr_schedule_group_most(4, 7), 7);
    assert_int_equal(tr_schedule_group_most(4, 3), 3);
    assert_text(TR_SCHEDULE_INTERLEAVED, 2, 2, 3,
                "0F0,0F1,0F2,2F0,2F1,2F2,2B0,2W0,2B1,2W1,2B2,2W2,0B0,0W0,0B1,0W1,0B2,0W2\n"
                "1F0,1F1,1F2,3F0,3B0,3W0,3F1,3B1,3W1,3F2,3B2,3W2,1B0,1W0,1B1,1W1,1B2,1W2\n");
}

static void fewer_microbatches_than_stages(void **state)
{
    (void)state;
    assert_text(TR_SCHEDULE_1F1B, 3, 1, 1, "0F0,0B0,0W0\n1F0,1B0,1W0\n2F0,2B0,2W0\n");
}

static void one_stage_runs_its_chunks_in_turn(void **state)
{
    (void)state;
    assert_text(TR_SCHEDULE_INTERLEAVED, 1, 2, 2,
                "0F0,1F0,1B0,1W0,0F1,0B0,0W0,1F1,1B1,1W1,0B1,0W1\n");
    assert_text(TR_SCHEDULE_1F1B, 1, 1, 2, "0F0,0B0,0W0,0F1,0B1,0W1\n");
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Creation proves each list, so that it is enough that it succeeds; and no stage keeps more than
 * its limit, which is reached somewhere. */
static void all_numbers_make_valid_schedules(void **state)
{
    (void)state;
    for (int kind = TR_SCHEDULE_GPIPE; kind <= TR_SCHEDULE_FORWARD_V; kind++)
        for (int p = 1; p <= 8; p++)
            for (int v = 1; v <= 4; v++)
                for (int m = 1; m <= 17; m++) {
                    if (tr_schedule_supported((tr_schedule_kind)kind, p, v, m) != TR_OK)
                        continue;
                    tr_schedule *schedule = create((tr_schedule_kind)kind, p, v, m);
                    for (int s = 0; s < p; s++)
                        assert_true(tr_schedule_live_peak(schedule, s, -1) <=
                                    tr_schedule_live_limit(schedule->kind, p, v, m, s));
                    tr_schedule_destroy(schedule);
                }
}

static void live_activations_follow_the_kind(void **state)
{
    (void)state;
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 40; m += 3) {
            tr_schedule *gpipe = create(TR_SCHEDULE_GPIPE, p, 1, m);
            tr_schedule *one = create(TR_SCHEDULE_1F1B, p, 1, m);
            tr_schedule *zero = create(TR_SCHEDULE_ZB_H1, p, 1, m);
            tr_schedule *forward = create(TR_SCHEDULE_FORWARD_ONLY, p, 2, m);
            tr_schedule *forward_v = create(TR_SCHEDULE_FORWARD_V, p, 2, m);
            for (int s = 0; s < p; s++) {
                assert_int_equal(gpipe->num_slots[s], m);
                assert_int_equal(one->num_slots[s], smaller(m, p - s));
                assert_int_equal(zero->num_slots[s], smaller(m, p));
                assert_int_equal(forward->num_slots[s], 1);
                assert_int_equal(forward_v->num_slots[s], 1);
            }
            tr_schedule_destroy(forward_v);
            tr_schedule_destroy(forward);
            tr_schedule_destroy(zero);
            tr_schedule_destroy(one);
            tr_schedule_destroy(gpipe);
        }
}

/* p * v + p - 1 chunks on the first rank: p (1 + (p - 1) / (p v)) stages' worth. */
static void interleaved_activations_do_not_grow_with_microbatches(void **state)
{
    (void)state;
    for (int p = 2; p <= 5; p++)
        for (int v = 2; v <= 4; v++) {
            tr_schedule *shorter = create(TR_SCHEDULE_INTERLEAVED, p, v, 4 * p);
            tr_schedule *longer = create(TR_SCHEDULE_INTERLEAVED, p, v, 16 * p);
            assert_int_equal(tr_schedule_live_peak(shorter, 0, -1), p * v + p - 1);
            assert_int_equal(tr_schedule_live_peak(longer, 0, -1), p * v + p - 1);
            assert_int_equal(shorter->num_slots[0], p * v + p - 1);
            assert_memory_equal(shorter->num_slots, longer->num_slots, sizeof(int) * (size_t)p);
            tr_schedule_destroy(longer);
            tr_schedule_destroy(shorter);
        }
}

/* 2 p half stages on every rank: as much as 1f1b keeps on the first. */
static void zb_v_keeps_as_much_on_every_stage(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++) {
        tr_schedule *shorter = create(TR_SCHEDULE_ZB_V, p, 2, 2 * p);
        tr_schedule *longer = create(TR_SCHEDULE_ZB_V, p, 2, 9 * p);
        for (int s = 0; s < p; s++) {
            assert_int_equal(tr_schedule_live_peak(shorter, s, -1), 2 * p);
            assert_int_equal(tr_schedule_live_peak(longer, s, -1), 2 * p);
            assert_int_equal(shorter->num_slots[s], 2 * p);
            assert_int_equal(longer->num_slots[s], 2 * p);
        }
        tr_schedule_destroy(longer);
        tr_schedule_destroy(shorter);
    }
}

/* A gradient does not wait for the weight gradient of the same call: B, its send, W. */
static void zero_bubble_kinds_send_before_the_weight_gradient(void **state)
{
    (void)state;
    static const tr_schedule_kind kinds[] = {TR_SCHEDULE_ZB_H1, TR_SCHEDULE_ZB_V, TR_SCHEDULE_1F1B};
    for (int k = 0; k < 3; k++) {
        int v = kinds[k] == TR_SCHEDULE_ZB_V ? 2 : 1, num_followed = 0;
        tr_schedule *schedule = create(kinds[k], 3, v, 6);
        for (int r = 0; r < 3; r++)
            for (int i = 0; i + 1 < schedule->ranks[r].num_actions; i++) {
                const tr_action *action = &schedule->ranks[r].actions[i];
                if (action->kind == TR_ACTION_BACKWARD && action->chunk > 0)
                    num_followed += action[1].kind == TR_ACTION_SEND_BACKWARD;
            }
        assert_int_equal(num_followed, k == 0 ? 12 : k == 1 ? 30 : 0);
        tr_schedule_destroy(schedule);
    }
}

/* Rank 1 uses the activations in the opposite order: they are sent in its order, when the first is
 * there, so that it keeps one at a time. */
static void transfers_follow_their_use(void **state)
{
    (void)state;
    tr_schedule *schedule;
    assert_int_equal(tr_schedule_read(&schedule, "0F0,0F1,0F2\n1F2,1F1,1F0"), TR_OK);
    assert_int_equal(schedule->num_slots[1], 1);
    assert_int_equal(schedule->num_send_buffers[0], 3);
    assert_int_equal(schedule->ranks[0].num_actions, 6);
    for (int m = 0; m < 3; m++) {
        assert_int_equal(schedule->ranks[0].actions[3 + m].kind, TR_ACTION_SEND_FORWARD);
        assert_int_equal(schedule->ranks[0].actions[3 + m].microbatch, 2 - m);
        assert_int_equal(schedule->ranks[1].actions[2 * m].kind, TR_ACTION_RECV_FORWARD);
        assert_int_equal(schedule->ranks[1].actions[2 * m].microbatch, 2 - m);
    }
    tr_schedule_destroy(schedule);
}

static void assert_refused(tr_schedule_kind kind, int num_stages, int num_virtual,
                           int num_microbatches, const char *part)
{
    tr_schedule *schedule = NULL;
    assert_int_equal(tr_schedule_supported(kind, num_stages, num_virtual, num_microbatches),
                     TR_ERR_SETTINGS);
    assert_int_equal(tr_schedule_create(&schedule, kind, num_stages, num_virtual, num_microbatches),
                     TR_ERR_SETTINGS);
    assert_null(schedule);
    if (strstr(tr_error_message(), part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), part);
}

static void refusals_name_what_is_allowed(void **state)
{
    (void)state;
    assert_refused(TR_SCHEDULE_INTERLEAVED, 4, 1, 8, "parallel.virtual 2 or more");
    assert_refused(TR_SCHEDULE_1F1B, 4, 2, 8, "parallel.schedule interleaved");
    assert_refused(TR_SCHEDULE_ZB_H1, 4, 2, 8, "zb-v with 2");
    assert_refused(TR_SCHEDULE_ZB_V, 4, 1, 8, "parallel.virtual 2, got 1");
    assert_refused(TR_SCHEDULE_ZB_V, 4, 3, 8, "parallel.virtual 2, got 3");
    assert_refused(TR_SCHEDULE_GPIPE, 4, 1, 0, "1 or more");
    assert_refused(TR_SCHEDULE_GPIPE, 1 << 20, 1 << 10, 1 << 20, "fewer microbatches");
    assert_refused(TR_SCHEDULE_1F1B, 1, 1, TR_SCHEDULE_MOST + 1, "train.micro_batch");
    assert_int_equal(tr_schedule_supported(TR_SCHEDULE_1F1B, 1, 1, TR_SCHEDULE_MOST), TR_OK);
    assert_int_equal(tr_schedule_supported(TR_SCHEDULE_INTERLEAVED, 4, 2, 5), TR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_the_published_ones),
        cmocka_unit_test(interleaved_groups_are_never_smaller_than_the_stages),
        cmocka_unit_test(fewer_microbatches_than_stages),
        cmocka_unit_test(one_stage_runs_its_chunks_in_turn),
        cmocka_unit_test(all_numbers_make_valid_schedules),
        cmocka_unit_test(live_activations_follow_the_kind),
        cmocka_unit_test(interleaved_activations_do_not_grow_with_microbatches),
        cmocka_unit_test(zb_v_keeps_as_much_on_every_stage),
        cmocka_unit_test(zero_bubble_kinds_send_before_the_weight_gradient),
        cmocka_unit_test(transfers_follow_their_use),
        cmocka_unit_test(refusals_name_what_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
