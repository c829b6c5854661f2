/* The checker refuses lists with a planted fault and names the actions, and agrees with a machine
 * that runs the lists on random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "parallel/schedule.h"
#include "parallel/schedule_int.h"
#include "tests/unit/parallel/schedule_machine.h"

static tr_schedule *create(tr_schedule_kind kind, int num_stages, int num_virtual,
                           int num_microbatches)
{
    tr_schedule *schedule = NULL;
    assert_int_equal(tr_schedule_create(&schedule, kind, num_stages, num_virtual, num_microbatches),
                     TR_OK);
    return schedule;
}

static int place_of(const tr_schedule *schedule, tr_action_kind kind, int chunk, int microbatch)
{
    const tr_action_list *list =
        &schedule->ranks[tr_chunk_stage(schedule->placement, schedule->num_stages, chunk)];
    for (int i = 0; i < list->num_actions; i++)
        if (list->actions[i].kind == kind && list->actions[i].chunk == chunk &&
            list->actions[i].microbatch == microbatch)
            return i;
    fail_msg("no action of kind %d, chunk %d, microbatch %d", (int)kind, chunk, microbatch);
    return -1;
}

static void drop(tr_action_list *list, int at)
{
    list->num_actions--;
    memmove(&list->actions[at], &list->actions[at + 1],
            (size_t)(list->num_actions - at) * sizeof *list->actions);
}

static void insert(tr_action_list *list, int at, tr_action action)
{
    list->actions = tr_realloc(list->actions, (size_t)list->num_actions + 1, sizeof *list->actions);
    memmove(&list->actions[at + 1], &list->actions[at],
            (size_t)(list->num_actions - at) * sizeof *list->actions);
    list->actions[at] = action;
    list->num_actions++;
}

static void move(tr_action_list *list, int from, int to)
{
    tr_action action = list->actions[from];
    drop(list, from);
    insert(list, to, action);
}

static void swap(tr_action_list *list, int a, int b)
{
    tr_action kept = list->actions[a];
    list->actions[a] = list->actions[b];
    list->actions[b] = kept;
}

/* Ends the schedule. */
static void assert_refused(tr_schedule *schedule, const char *first, const char *second)
{
    assert_int_equal(tr_schedule_check(schedule), TR_ERR_INTERNAL);
    if (strstr(tr_error_message(), first) == NULL || strstr(tr_error_message(), second) == NULL)
        fail_msg("\"%s\" does not name \"%s\" and \"%s\"", tr_error_message(), first, second);
    tr_schedule_destroy(schedule);
}

static void dropped_actions(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    drop(&schedule->ranks[0], place_of(schedule, TR_ACTION_SEND_FORWARD, 0, 1));
    assert_refused(schedule, "rank 0: the send of 0F1 is missing",
                   "rank 1 has the receive for 1F1");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    drop(&schedule->ranks[0], place_of(schedule, TR_ACTION_RECV_BACKWARD, 0, 2));
    assert_refused(schedule, "rank 0: the receive for 0B2 is missing",
                   "rank 1 has the send of 1B2");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    drop(&schedule->ranks[1], place_of(schedule, TR_ACTION_WEIGHT, 1, 0));
    assert_refused(schedule, "rank 1", "1W0 is missing");

    schedule = create(TR_SCHEDULE_FORWARD_ONLY, 2, 1, 3);
    drop(&schedule->ranks[1], place_of(schedule, TR_ACTION_FORWARD, 1, 2));
    assert_refused(schedule, "rank 1", "1F2 is missing");
}

static void duplicated_and_strange_actions(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 2);
    int at = place_of(schedule, TR_ACTION_FORWARD, 1, 1);
    insert(&schedule->ranks[1], at, schedule->ranks[1].actions[at]);
    assert_refused(schedule, "rank 1", "1F1 stands twice");

    schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 2);
    insert(&schedule->ranks[1], 0, (tr_action){.kind = TR_ACTION_FORWARD, .chunk = 0});
    assert_refused(schedule, "rank 1", "0F0 belongs to rank 0");

    schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 2);
    insert(&schedule->ranks[0], 0, (tr_action){.kind = TR_ACTION_RECV_FORWARD, .chunk = 0});
    assert_refused(schedule, "rank 0", "the receive for 0F0 has no place");

    schedule = create(TR_SCHEDULE_FORWARD_ONLY, 2, 1, 2);
    insert(&schedule->ranks[0], 1, (tr_action){.kind = TR_ACTION_WEIGHT, .chunk = 0});
    assert_refused(schedule, "0W0 has no place", "forward only");

    schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 2);
    schedule->ranks[0].actions[0].microbatch = 2;
    assert_refused(schedule, "microbatch 2", "2 microbatches");
}

static void uses_before_definitions(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    swap(&schedule->ranks[1], place_of(schedule, TR_ACTION_RECV_FORWARD, 1, 0),
         place_of(schedule, TR_ACTION_FORWARD, 1, 0));
    assert_refused(schedule, "rank 1: 1F0 stands before the receive for 1F0", "must come first");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    swap(&schedule->ranks[0], place_of(schedule, TR_ACTION_SEND_FORWARD, 0, 2),
         place_of(schedule, TR_ACTION_FORWARD, 0, 2));
    assert_refused(schedule, "rank 0: the send of 0F2 stands before 0F2", "must come first");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    swap(&schedule->ranks[1], place_of(schedule, TR_ACTION_BACKWARD, 1, 1),
         place_of(schedule, TR_ACTION_WEIGHT, 1, 1));
    assert_refused(schedule, "1W1 stands before 1B1", "must come first");
}

/* Both backwards are there with all they need, only the sums would round differently. */
static void weight_gradients_out_of_order(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_GPIPE, 1, 1, 3);
    tr_action_list *list = &schedule->ranks[0];
    swap(list, place_of(schedule, TR_ACTION_BACKWARD, 0, 1),
         place_of(schedule, TR_ACTION_BACKWARD, 0, 2));
    swap(list, place_of(schedule, TR_ACTION_WEIGHT, 0, 1),
         place_of(schedule, TR_ACTION_WEIGHT, 0, 2));
    assert_refused(schedule, "0W2 stands before 0W1", "microbatch order");
}

/* Rank 1 takes the second activation first. */
static void receives_in_another_order_than_sends(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 3);
    tr_action_list *list = &schedule->ranks[1];
    int first = place_of(schedule, TR_ACTION_RECV_FORWARD, 1, 0);
    int second = place_of(schedule, TR_ACTION_RECV_FORWARD, 1, 1);
    assert_int_equal(second, first + 1);
    swap(list, first, second);
    assert_refused(schedule, "the receive for 1F1", "rank 0 posts the send of 0F0");
}

/* Each rank waits for the other: rank 0 wants the gradient of microbatch 0 before it sends
 * microbatch 1, rank 1 wants microbatch 1 before it does the backward of 0. Each list and each
 * channel is in order by itself. */
static void cycles_between_ranks(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_1F1B, 2, 1, 3);
    tr_action_list *list = &schedule->ranks[0];
    int backward = place_of(schedule, TR_ACTION_BACKWARD, 0, 0);
    int forward = place_of(schedule, TR_ACTION_FORWARD, 0, 1);
    assert_true(forward < backward);
    move(list, place_of(schedule, TR_ACTION_RECV_BACKWARD, 0, 0), forward);
    move(list, place_of(schedule, TR_ACTION_BACKWARD, 0, 0), forward + 1);
    list = &schedule->ranks[1];
    schedule->kind = TR_SCHEDULE_LISTED; /* which may keep what 1f1b does not */
    schedule->num_slots[1] = 3;
    int at = place_of(schedule, TR_ACTION_BACKWARD, 1, 0);
    move(list, place_of(schedule, TR_ACTION_RECV_FORWARD, 1, 1), at);
    move(list, place_of(schedule, TR_ACTION_FORWARD, 1, 1), at + 1);
    for (int i = 0; i < list->num_actions; i++)
        list->actions[i].slot = list->actions[i].microbatch;
    assert_refused(schedule, "rank 0 at 0B0 waits for the send of 1B0 to complete",
                   "rank 1 stands at 1F1");
}

/* All forwards first on rank 0, one forward and one backward in turn on rank 1: with sends that
 * complete by themselves this works, but with rendezvous rank 0 runs out of free send buffers
 * before it posts its first receive, and then rank 1 does. */
static void deadlocks_on_send_buffers(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 8);
    tr_schedule *other = create(TR_SCHEDULE_1F1B, 2, 1, 8);
    tr_action_list list = schedule->ranks[1];
    schedule->ranks[1] = other->ranks[1];
    other->ranks[1] = list;
    tr_schedule_destroy(other);
    assert_int_equal(tr_schedule_check(schedule), TR_ERR_INTERNAL);
    assert_non_null(strstr(tr_error_message(), "rank 0 at 0F5 waits for the send of 0F3"));
    assert_non_null(strstr(tr_error_message(), "rank 1 stands at 1B2"));

    /* A buffer for each send: nothing waits for one. */
    for (int r = 0; r < 2; r++) {
        schedule->num_send_buffers[r] = 8;
        for (int i = 0; i < schedule->ranks[r].num_actions; i++) {
            tr_action *action = &schedule->ranks[r].actions[i];
            if (action->kind == TR_ACTION_SEND_FORWARD || action->kind == TR_ACTION_SEND_BACKWARD)
                action->buffer = action->microbatch;
        }
    }
    assert_int_equal(tr_schedule_check(schedule), TR_OK);
    tr_schedule_destroy(schedule);
}

static void slots_in_use(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_1F1B, 2, 1, 4);
    tr_action_list *list = &schedule->ranks[0];
    for (int i = 0; i < list->num_actions; i++)
        list->actions[i].slot = 0;
    assert_refused(schedule, "0F1 takes slot 0", "live until 0W0");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 4);
    move(&schedule->ranks[1], place_of(schedule, TR_ACTION_RECV_FORWARD, 1, 1), 0);
    swap(&schedule->ranks[1], 0, 1);
    assert_refused(schedule, "the receive for 1F1 takes slot 0", "live until 1W0");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 4);
    schedule->ranks[0].actions[place_of(schedule, TR_ACTION_BACKWARD, 0, 1)].slot ^= 1;
    assert_refused(schedule, "0B1 names slot 0", "0F1 has slot 1");

    schedule = create(TR_SCHEDULE_1F1B, 2, 1, 4);
    schedule->ranks[0].actions[place_of(schedule, TR_ACTION_WEIGHT, 0, 1)].slot = 2;
    assert_refused(schedule, "0W1", "slot 2 of 2");
}

static void buffers_in_use(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 3);
    for (int i = 0; i < schedule->ranks[0].num_actions; i++)
        if (schedule->ranks[0].actions[i].kind == TR_ACTION_RECV_BACKWARD)
            schedule->ranks[0].actions[i].buffer = 0;
    assert_refused(schedule, "the receive for 0B1 overwrites buffer 0", "the receive for 0B0");

    schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 3);
    for (int i = 0; i < schedule->ranks[0].num_actions; i++)
        if (schedule->ranks[0].actions[i].kind == TR_ACTION_SEND_FORWARD)
            schedule->ranks[0].actions[i].buffer = 1;
    assert_int_equal(tr_schedule_check(schedule), TR_OK);
    move(&schedule->ranks[0], place_of(schedule, TR_ACTION_SEND_FORWARD, 0, 0),
         place_of(schedule, TR_ACTION_FORWARD, 0, 1));
    assert_refused(schedule, "the send of 0F1 overwrites buffer 1", "the send of 0F0");

    schedule = create(TR_SCHEDULE_GPIPE, 2, 1, 3);
    schedule->ranks[0].actions[place_of(schedule, TR_ACTION_SEND_FORWARD, 0, 0)].buffer = 2;
    assert_refused(schedule, "the send of 0F0", "buffer 2 of 2");
}

/* Within a rank a receive copies out of the buffer of its send: after it, and before the buffer is
 * filled again. */
static void copies_within_a_rank(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_GPIPE, 1, 2, 1);
    move(&schedule->ranks[0], place_of(schedule, TR_ACTION_RECV_FORWARD, 1, 0), 0);
    assert_refused(schedule, "the receive for 1F0 stands before the send of 0F0", "come first");

    assert_int_equal(tr_schedule_read(&schedule, "0F0,0F1,1F0,1F1,1B0,1W0,0B0,0W0,1B1,1W1,0B1,0W1"),
                     TR_OK);
    tr_action_list *list = &schedule->ranks[0];
    list->actions[place_of(schedule, TR_ACTION_SEND_FORWARD, 0, 1)].buffer =
        list->actions[place_of(schedule, TR_ACTION_SEND_FORWARD, 0, 0)].buffer;
    assert_refused(schedule, "the send of 0F1 overwrites buffer", "the send of 0F0");
}

static uint64_t random_state = 20240607;

static int draw(int below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)below);
}

static bool is_transfer(tr_action_kind kind)
{
    return kind >= TR_ACTION_SEND_FORWARD;
}

/* One random change of one list. */
static void mutate(tr_schedule *schedule)
{
    int r = draw(schedule->num_stages);
    tr_action_list *list = &schedule->ranks[r];
    int at = draw(list->num_actions), other = draw(list->num_actions);
    tr_action *action = &list->actions[at];
    switch (draw(8)) {
    case 0:
        drop(list, at);
        break;
    case 1:
        insert(list, other, *action);
        break;
    case 2:
        swap(list, at, other);
        break;
    case 3:
        action->microbatch = draw(schedule->num_microbatches);
        break;
    case 4: /* only the actions that use the slot */
        if (!is_transfer(action->kind) || action->kind == TR_ACTION_RECV_FORWARD)
            action->slot = draw(schedule->num_slots[r] + 1);
        break;
    case 5:
        if (is_transfer(action->kind) && action->kind != TR_ACTION_RECV_FORWARD)
            action->buffer = draw(3);
        break;
    case 6: /* small moves leave more lists valid */
        if (at + 1 < list->num_actions)
            swap(list, at, at + 1);
        break;
    default:
        move(list, at, draw(list->num_actions));
        break;
    }
}

static bool machine_accepts(const tr_schedule *schedule)
{
    return schedule_machine_accepts(schedule, SCHEDULE_MACHINE_LAZY, 1) &&
           schedule_machine_accepts(schedule, SCHEDULE_MACHINE_EAGER, 2) &&
           schedule_machine_accepts(schedule, SCHEDULE_MACHINE_RANDOM, 3) &&
           schedule_machine_accepts(schedule, SCHEDULE_MACHINE_RANDOM, random_state);
}

/* A schedule of a random kind with random numbers. */
static tr_schedule *create_any(void)
{
    static const struct {
        tr_schedule_kind kind;
        int num_virtual;
    } kinds[] = {{TR_SCHEDULE_GPIPE, 1},       {TR_SCHEDULE_GPIPE, 2}, {TR_SCHEDULE_1F1B, 1},
                 {TR_SCHEDULE_INTERLEAVED, 2}, {TR_SCHEDULE_ZB_H1, 1}, {TR_SCHEDULE_ZB_V, 2}};
    int i = draw(sizeof kinds / sizeof *kinds);
    return create(kinds[i].kind, 1 + draw(3), kinds[i].num_virtual, 1 + draw(5));
}

/* Whether the checker accepts the schedule, which the machine must do too; destroys it. */
static bool accepted_by_both(tr_schedule *schedule, int round)
{
    bool accepted = tr_schedule_check(schedule) == TR_OK;
    if (accepted != machine_accepts(schedule))
        fail_msg("round %d, kind %d, %d stages, %d virtual, %d microbatches: the checker %s: %s",
                 round, (int)schedule->kind, schedule->num_stages, schedule->num_virtual,
                 schedule->num_microbatches, accepted ? "accepts" : "refuses",
                 accepted ? "the machine does not" : tr_error_message());
    tr_schedule_destroy(schedule);
    return accepted;
}

static void agrees_with_a_machine_on_mutated_lists(void **state)
{
    (void)state;
    int num_valid = 0, num_invalid = 0;
    for (int round = 0; round < 12000; round++) {
        tr_schedule *schedule = create_any();
        assert_true(machine_accepts(schedule));
        for (int changes = 1 + draw(2); changes > 0; changes--)
            mutate(schedule);
        *(accepted_by_both(schedule, round) ? &num_valid : &num_invalid) += 1;
    }
    assert_true(num_valid > 1000);
    assert_true(num_invalid > 5000);
}

/* Compute lists in any order that each rank could run by itself (F before B before W, W in order of
 * the microbatches), with transfers placed: whether the ranks can run them together is for the
 * checker to say. */
static void shuffle_compute(tr_schedule *schedule, int rank)
{
    tr_action_list *list = &schedule->ranks[rank];
    int v = schedule->num_virtual, m = schedule->num_microbatches;
    list->actions = TR_NEW_ARRAY(tr_action, (size_t)(3 * v * m));
    int *done = TR_NEW_ARRAY(int, (size_t)(v * m)), *weights = TR_NEW_ARRAY(int, (size_t)v);
    while (list->num_actions < 3 * v * m) {
        int local = draw(v), microbatch = draw(m), *at = &done[local * m + microbatch];
        int chunk = tr_chunk_number(schedule->placement, schedule->num_stages, rank, local);
        if (*at == 3 || (*at == 2 && weights[local] != microbatch))
            continue;
        weights[local] += *at == 2;
        tr_schedule_add(schedule, rank, (tr_action_kind)(*at)++, chunk, microbatch);
    }
    tr_free(weights);
    tr_free(done);
}

static void agrees_with_a_machine_on_random_orders(void **state)
{
    (void)state;
    int num_valid = 0, num_invalid = 0;
    for (int round = 0; round < 6000; round++) {
        int p = 1 + draw(3), v = 1 + draw(2), m = 1 + draw(3);
        tr_schedule *schedule = tr_schedule_new(TR_SCHEDULE_LISTED, p, v, m);
        schedule->placement = v == 2 && draw(2) ? TR_PLACEMENT_V : TR_PLACEMENT_LOOP;
        schedule->splits = draw(2);
        for (int r = 0; r < p; r++)
            shuffle_compute(schedule, r);
        tr_schedule_place(schedule);
        *(accepted_by_both(schedule, round) ? &num_valid : &num_invalid) += 1;
    }
    assert_true(num_valid > 1000);
    assert_true(num_invalid > 1000);
}

/* One more forward ahead than 1f1b keeps: slots enough, but not what was planned. */
static void too_many_live_activations(void **state)
{
    (void)state;
    tr_schedule *schedule = create(TR_SCHEDULE_1F1B, 2, 1, 4);
    tr_action_list *list = &schedule->ranks[0];
    move(list, place_of(schedule, TR_ACTION_FORWARD, 0, 2),
         place_of(schedule, TR_ACTION_BACKWARD, 0, 0));
    schedule->num_slots[0] = 3;
    for (int i = 0; i < list->num_actions; i++)
        list->actions[i].slot = list->actions[i].microbatch % 3;
    assert_refused(schedule, "0F2 makes 3 live activations", "0W0 must come first");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_actions),
        cmocka_unit_test(duplicated_and_strange_actions),
        cmocka_unit_test(uses_before_definitions),
        cmocka_unit_test(weight_gradients_out_of_order),
        cmocka_unit_test(receives_in_another_order_than_sends),
        cmocka_unit_test(cycles_between_ranks),
        cmocka_unit_test(deadlocks_on_send_buffers),
        cmocka_unit_test(slots_in_use),
        cmocka_unit_test(buffers_in_use),
        cmocka_unit_test(copies_within_a_rank),
        cmocka_unit_test(too_many_live_activations),
        cmocka_unit_test(agrees_with_a_machine_on_mutated_lists),
        cmocka_unit_test(agrees_with_a_machine_on_random_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
