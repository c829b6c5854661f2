/* Numbers what full lists use: activation slots, gradient buffers, send buffers.
 *
 * Slots and gradient buffers are the smallest free ones. Send buffers take turns in the order in
 * which they are filled: two in each direction, one sent from while the next is written, or as many
 * more as let no rank wait for one when all actions take equally long. */
#include "parallel/schedule_int.h"

#include <limits.h>
#include <string.h>

#include "base/alloc.h"

/* Takes the smallest free number and raises *count to hold it. */
static int take_smallest(bool *taken, int *count)
{
    int i = 0;
    while (taken[i])
        i++;
    taken[i] = true;
    if (i >= *count)
        *count = i + 1;
    return i;
}

/* Gives every action its slot. */
static void assign_slots(tr_schedule *schedule, int rank)
{
    size_t size = (size_t)schedule->num_virtual * schedule->num_microbatches;
    bool *taken = TR_NEW_ARRAY(bool, size); /* [slot] */
    int *slot_of = TR_NEW_ARRAY(int, size); /* [local chunk, microbatch] */
    for (int i = 0; i < schedule->ranks[rank].num_actions; i++) {
        tr_action *action = &schedule->ranks[rank].actions[i];
        int index = tr_schedule_local_index(schedule, action);
        if (action->kind == TR_ACTION_RECV_FORWARD ||
            (action->kind == TR_ACTION_FORWARD && action->chunk == 0))
            slot_of[index] = take_smallest(taken, &schedule->num_slots[rank]);
        action->slot = slot_of[index];
        if (action->kind == TR_ACTION_WEIGHT ||
            (action->kind == TR_ACTION_FORWARD && !schedule->trains))
            taken[action->slot] = false;
    }
    tr_free(slot_of);
    tr_free(taken);
}

static int count_actions(const tr_action_list *list, tr_action_kind kind)
{
    int count = 0;
    for (int i = 0; i < list->num_actions; i++)
        count += list->actions[i].kind == kind;
    return count;
}

static bool sends_result(const tr_schedule *schedule, const tr_action *action)
{
    bool forward = action->kind == TR_ACTION_FORWARD;
    bool backward = action->kind == TR_ACTION_BACKWARD;
    return (forward && action->chunk < tr_schedule_num_chunks(schedule) - 1) ||
           (backward && action->chunk > 0);
}

/* Where assign_send_buffers stands. */
typedef struct turns {
    int *forward, *backward; /* [local chunk, microbatch] buffer */
    bool *held;              /* [buffer] filled and not sent, within a rank not copied */
    int rings[2], next[2];   /* forward, backward */
    bool overwrites;         /* a buffer was filled that was held */
} turns;

static int *turn_of(const tr_schedule *schedule, const turns *at, const tr_action *action,
                    bool forward)
{
    return &(forward ? at->forward : at->backward)[tr_schedule_local_index(schedule, action)];
}

static void take_turn(const tr_schedule *schedule, turns *at, tr_action *action)
{
    if (sends_result(schedule, action)) {
        bool back = action->kind == TR_ACTION_BACKWARD;
        int buffer = (back ? at->rings[0] : 0) + at->next[back]++ % at->rings[back];
        *turn_of(schedule, at, action, !back) = buffer;
        at->overwrites |= at->held[buffer];
        at->held[buffer] = true;
    }
    if (tr_action_is_send(action->kind)) {
        action->buffer = *turn_of(schedule, at, action, action->kind == TR_ACTION_SEND_FORWARD);
        if (!tr_schedule_stays(schedule, action))
            at->held[action->buffer] = false;
    }
    if (tr_action_is_recv(action->kind) && tr_schedule_stays(schedule, action)) {
        tr_action send = *action;
        send.chunk = tr_action_peer_chunk(action);
        at->held[*turn_of(schedule, at, &send, action->kind == TR_ACTION_RECV_FORWARD)] = false;
    }
}

/* Buffers that take turns, of each direction. */
typedef struct rings {
    int forward, backward;
} rings;

/* Gives a rank's sends their buffers. False when a buffer is filled again before it is sent. */
static bool assign_send_buffers(tr_schedule *schedule, int rank, rings limit)
{
    const tr_action_list *list = &schedule->ranks[rank];
    size_t size = (size_t)schedule->num_virtual * schedule->num_microbatches;
    int forward = count_actions(list, TR_ACTION_SEND_FORWARD);
    int backward = count_actions(list, TR_ACTION_SEND_BACKWARD);
    turns at = {.forward = TR_NEW_ARRAY(int, size),
                .backward = TR_NEW_ARRAY(int, size),
                .rings = {forward < limit.forward ? forward : limit.forward,
                          backward < limit.backward ? backward : limit.backward}};
    schedule->num_send_buffers[rank] = at.rings[0] + at.rings[1];
    at.held = TR_NEW_ARRAY(bool, schedule->num_send_buffers[rank] + 1);
    for (int i = 0; i < list->num_actions; i++)
        take_turn(schedule, &at, &list->actions[i]);
    tr_free(at.held);
    tr_free(at.forward);
    tr_free(at.backward);
    return !at.overwrites;
}

/* Gives gradient receives their buffers. */
static void assign_grad_buffers(tr_schedule *schedule, int rank)
{
    const tr_action_list *list = &schedule->ranks[rank];
    size_t size = (size_t)schedule->num_virtual * schedule->num_microbatches;
    bool *taken = TR_NEW_ARRAY(bool, size + 1);
    int *buffer_of = TR_NEW_ARRAY(int, size); /* [local chunk, microbatch]; -1 without one */
    memset(buffer_of, -1, size * sizeof *buffer_of);
    for (int i = 0; i < list->num_actions; i++) {
        tr_action *action = &list->actions[i];
        int index = tr_schedule_local_index(schedule, action);
        action->buffer = -1;
        if (action->kind == TR_ACTION_RECV_BACKWARD)
            action->buffer = buffer_of[index] =
                take_smallest(taken, &schedule->num_grad_buffers[rank]);
        if (action->kind == TR_ACTION_BACKWARD && buffer_of[index] >= 0)
            taken[buffer_of[index]] = false;
    }
    tr_free(buffer_of);
    tr_free(taken);
}

/* Gives all sends buffers; false when the lists then cannot run. *total: the time of a step in which
 * each F, B and W takes 1. */
static bool try_rings(tr_schedule *schedule, rings limit, const tr_schedule_costs *ones,
                      double *total)
{
    double *end = TR_NEW_ARRAY(double, schedule->num_stages);
    bool runs = true;
    for (int r = 0; r < schedule->num_stages; r++)
        runs &= assign_send_buffers(schedule, r, limit);
    runs = runs && tr_schedule_replay(schedule, ones, end, NULL) == TR_OK;
    *total = 0;
    for (int r = 0; r < schedule->num_stages; r++)
        *total = end[r] > *total ? end[r] : *total;
    tr_free(end);
    return runs;
}

/* The smallest rings, among 2, 4, 8 ... of each direction, that cost no time. Lists that deadlock
 * whatever the buffers are left to the checker. */
static void find_rings(tr_schedule *schedule)
{
    int num_chunks = tr_schedule_num_chunks(schedule);
    double *costs = TR_NEW_ARRAY(double, num_chunks), best, total;
    for (int c = 0; c < num_chunks; c++)
        costs[c] = 1;
    const tr_schedule_costs ones = {.forward = costs, .backward = costs, .weight = costs};
    rings limit = {INT_MAX, INT_MAX};
    int most = schedule->num_virtual * schedule->num_microbatches;
    if (try_rings(schedule, limit, &ones, &best)) {
        int *sizes[] = {&limit.forward, &limit.backward};
        for (int d = 0; d < 2; d++)
            for (*sizes[d] = 2; !try_rings(schedule, limit, &ones, &total) || total > best;)
                *sizes[d] = *sizes[d] < most ? 2 * *sizes[d] : INT_MAX;
    }
    tr_free(costs);
}

void tr_schedule_number(tr_schedule *schedule)
{
    for (int r = 0; r < schedule->num_stages; r++) {
        assign_slots(schedule, r);
        assign_grad_buffers(schedule, r);
    }
    find_rings(schedule);
}
