/* Puts the transfers, slots and buffers into lists of compute actions.
 *
 * A send stands right after the action that makes its data; where W directly follows B it stands
 * after W, so that the two stay one call, unless the schedule splits. Receives of a channel stand in the order of its sends, which the
 * sender's compute list fixes. Each stands as late as its user and the order allow, but one call
 * ahead of that where this takes no activation slot more than the latest place would: so the peak
 * of live activations stays the generator's. Within a rank a receive follows its send. Slots and
 * gradient buffers are the smallest free ones; send buffers take turns: two in each direction, one
 * sent from while the next is written, or as many more as let no rank wait for one when all actions
 * take equally long. */
#include "parallel/schedule_int.h"

#include <limits.h>
#include <string.h>

#include "base/alloc.h"

/* The receives of one channel into a rank, in the order of the sends. */
typedef struct incoming {
    tr_action *actions;
    int *deadlines; /* the call before which it must be posted */
    int num_actions, num_placed;
} incoming;

typedef struct placement {
    const tr_schedule *schedule;
    const tr_action_list *compute; /* [num_stages] */
    int rank;
    int num_channels;
    incoming channels[2]; /* from the previous and the next rank; one where both are the same */
    tr_action_list *list;
    int *live, *peak; /* [num_virtual] activations of each local chunk */
} placement;

/* True when action i + 1 belongs to the same call as action i. */
static bool is_one_call(const tr_schedule *schedule, const tr_action_list *list, int i)
{
    bool sent_between = schedule->splits && list->actions[i].chunk > 0;
    return !sent_between && tr_schedule_is_pair(list, i);
}

/* The send that follows this compute action; false when its result stays in the chunk. */
static bool send_of(const tr_schedule *schedule, const tr_action *action, tr_action *send)
{
    *send = *action;
    if (action->kind == TR_ACTION_FORWARD) {
        send->kind = TR_ACTION_SEND_FORWARD;
        return action->chunk < tr_schedule_num_chunks(schedule) - 1;
    }
    send->kind = TR_ACTION_SEND_BACKWARD;
    return action->kind == TR_ACTION_BACKWARD && action->chunk > 0;
}

/* The receive at the other end of a send. */
static tr_action recv_of(const tr_action *send)
{
    tr_action recv = *send;
    recv.kind =
        send->kind == TR_ACTION_SEND_FORWARD ? TR_ACTION_RECV_FORWARD : TR_ACTION_RECV_BACKWARD;
    recv.chunk = tr_action_peer_chunk(send);
    return recv;
}

/* The call that uses each (local chunk, microbatch)'s input (F) and output gradient (B). */
static void number_calls(const placement *place, int *forward_call, int *backward_call)
{
    const tr_schedule *schedule = place->schedule;
    const tr_action_list *compute = &place->compute[place->rank];
    for (int i = 0, call = 0; i < compute->num_actions; i++, call++) {
        const tr_action *action = &compute->actions[i];
        int index = tr_schedule_local_index(schedule, action);
        if (action->kind == TR_ACTION_FORWARD)
            forward_call[index] = call;
        if (action->kind == TR_ACTION_BACKWARD)
            backward_call[index] = call;
        if (is_one_call(schedule, compute, i))
            i++;
    }
}

/* All receives of this rank from rank `from`; a receive must be posted before the user of any later
 * one. */
static void find_incoming(placement *place, int from, const int *forward_call,
                          const int *backward_call)
{
    const tr_schedule *schedule = place->schedule;
    const tr_action_list *sender = &place->compute[from];
    incoming *channel = &place->channels[place->num_channels++];
    channel->actions = TR_NEW_ARRAY(tr_action, sender->num_actions);
    channel->deadlines = TR_NEW_ARRAY(int, sender->num_actions);
    for (int i = 0; i < sender->num_actions; i++) {
        tr_action send;
        if (!send_of(schedule, &sender->actions[i], &send))
            continue;
        tr_action recv = recv_of(&send);
        if (tr_schedule_stage(schedule, recv.chunk) != place->rank)
            continue;
        int index = tr_schedule_local_index(schedule, &recv);
        channel->deadlines[channel->num_actions] =
            recv.kind == TR_ACTION_RECV_FORWARD ? forward_call[index] : backward_call[index];
        channel->actions[channel->num_actions++] = recv;
    }
    for (int i = channel->num_actions - 2; i >= 0; i--)
        if (channel->deadlines[i] > channel->deadlines[i + 1])
            channel->deadlines[i] = channel->deadlines[i + 1];
}

static void append(placement *place, tr_action action)
{
    place->list->actions[place->list->num_actions++] = action;
}

static void take_slot(placement *place, int chunk)
{
    int local = tr_chunk_local(place->schedule->num_stages, chunk);
    if (++place->live[local] > place->peak[local])
        place->peak[local] = place->live[local];
}

/* Posts the receives that call number `call` or earlier ones need, and those that the call `ahead`
 * later needs where that raises no peak. */
static void place_receives(placement *place, int call, int ahead)
{
    for (int i = 0; i < place->num_channels; i++) {
        incoming *channel = &place->channels[i];
        while (channel->num_placed < channel->num_actions) {
            const tr_action *recv = &channel->actions[channel->num_placed];
            int local = tr_chunk_local(place->schedule->num_stages, recv->chunk);
            int deadline = channel->deadlines[channel->num_placed];
            bool is_forward = recv->kind == TR_ACTION_RECV_FORWARD;
            bool fits = !is_forward || place->live[local] < place->peak[local];
            if (deadline > call + ahead || (deadline > call && !fits))
                break;
            append(place, *recv);
            if (is_forward)
                take_slot(place, recv->chunk);
            channel->num_placed++;
        }
    }
}

static void place_send(placement *place, const tr_action *action)
{
    tr_action send;
    if (!send_of(place->schedule, action, &send))
        return;
    append(place, send);
    if (tr_schedule_stays(place->schedule, &send)) {
        append(place, recv_of(&send));
        if (send.kind == TR_ACTION_SEND_FORWARD)
            take_slot(place, send.chunk + 1);
    }
}

/* Makes place->list, with receives up to `ahead` calls early, and place->peak, which early receives
 * never raise. */
static void place_list(placement *place, int ahead)
{
    const tr_schedule *schedule = place->schedule;
    const tr_action_list *compute = &place->compute[place->rank];
    place->list->num_actions = 0;
    memset(place->live, 0, sizeof *place->live * schedule->num_virtual);
    for (int i = 0; i < place->num_channels; i++)
        place->channels[i].num_placed = 0;
    for (int i = 0, call = 0; i < compute->num_actions; i++, call++) {
        place_receives(place, call, ahead);
        const tr_action *action = &compute->actions[i];
        append(place, *action);
        if (action->kind == TR_ACTION_FORWARD && action->chunk == 0)
            take_slot(place, 0);
        if (is_one_call(schedule, compute, i))
            append(place, compute->actions[++i]);
        place_send(place, action);
        if (compute->actions[i].kind == TR_ACTION_WEIGHT || !schedule->trains)
            place->live[tr_chunk_local(schedule->num_stages, action->chunk)]--;
    }
}

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
    int num_microbatches = schedule->num_microbatches;
    size_t size = (size_t)schedule->num_virtual * num_microbatches;
    bool *taken = TR_NEW_ARRAY(bool, size); /* [local chunk, slot] */
    int *slot_of = TR_NEW_ARRAY(int, size); /* [local chunk, microbatch] */
    for (int i = 0; i < schedule->ranks[rank].num_actions; i++) {
        tr_action *action = &schedule->ranks[rank].actions[i];
        int local = tr_chunk_local(schedule->num_stages, action->chunk);
        int index = tr_schedule_local_index(schedule, action);
        bool *chunk_taken = &taken[local * num_microbatches];
        if (action->kind == TR_ACTION_RECV_FORWARD ||
            (action->kind == TR_ACTION_FORWARD && action->chunk == 0))
            slot_of[index] = take_smallest(chunk_taken, &schedule->num_slots[action->chunk]);
        action->slot = slot_of[index];
        if (action->kind == TR_ACTION_WEIGHT ||
            (action->kind == TR_ACTION_FORWARD && !schedule->trains))
            chunk_taken[action->slot] = false;
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

/* Gives sends their buffers: those of each direction take turns among `ring`. Returns the sends of
 * the busier direction. */
static int assign_send_buffers(tr_schedule *schedule, int rank, int ring)
{
    const tr_action_list *list = &schedule->ranks[rank];
    int num_forward = count_actions(list, TR_ACTION_SEND_FORWARD);
    int num_backward = count_actions(list, TR_ACTION_SEND_BACKWARD);
    int forward_ring = num_forward < ring ? num_forward : ring;
    int backward_ring = num_backward < ring ? num_backward : ring;
    schedule->num_send_buffers[rank] = forward_ring + backward_ring;
    int forward_turn = 0, backward_turn = 0;
    for (int i = 0; i < list->num_actions; i++) {
        tr_action *action = &list->actions[i];
        if (action->kind == TR_ACTION_SEND_FORWARD)
            action->buffer = forward_turn++ % forward_ring;
        if (action->kind == TR_ACTION_SEND_BACKWARD)
            action->buffer = forward_ring + backward_turn++ % backward_ring;
    }
    return num_forward > num_backward ? num_forward : num_backward;
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

/* Gives all sends buffers in rings of this size; false when the lists then deadlock. *total: the
 * time of a step in which each F, B and W takes 1; *most: sends of the busiest direction. */
static bool try_rings(tr_schedule *schedule, int ring, const tr_schedule_costs *costs,
                      double *total, int *most)
{
    double *end = TR_NEW_ARRAY(double, schedule->num_stages);
    *most = 0;
    *total = 0;
    for (int r = 0; r < schedule->num_stages; r++) {
        int sends = assign_send_buffers(schedule, r, ring);
        *most = sends > *most ? sends : *most;
    }
    bool runs = tr_schedule_replay(schedule, costs, end, NULL) == TR_OK;
    for (int r = 0; r < schedule->num_stages; r++)
        *total = end[r] > *total ? end[r] : *total;
    tr_free(end);
    return runs;
}

/* The smallest rings, among 2, 4, 8 ..., that cost no time. Lists that deadlock whatever the
 * buffers are left to the checker. */
static void find_rings(tr_schedule *schedule)
{
    int num_chunks = tr_schedule_num_chunks(schedule), most;
    double *ones = TR_NEW_ARRAY(double, num_chunks), best, total;
    for (int c = 0; c < num_chunks; c++)
        ones[c] = 1;
    const tr_schedule_costs costs = {.forward = ones, .backward = ones, .weight = ones};
    int ring = 2;
    if (try_rings(schedule, INT_MAX, &costs, &best, &most)) {
        while (ring < most && !(try_rings(schedule, ring, &costs, &total, &most) && total <= best))
            ring *= 2;
        if (ring >= most)
            try_rings(schedule, INT_MAX, &costs, &total, &most);
    }
    tr_free(ones);
}

/* Makes the full list of one rank from everyone's compute list. */
static void place_rank(tr_schedule *schedule, const tr_action_list *compute, int rank)
{
    int num_stages = schedule->num_stages, num_virtual = schedule->num_virtual;
    size_t size = (size_t)num_virtual * schedule->num_microbatches;
    tr_action_list *list = &schedule->ranks[rank];
    /* With each compute action there are at most one receive and one send, with W none. */
    list->actions = TR_NEW_ARRAY(tr_action, 7 * size);
    placement place = {.schedule = schedule,
                       .compute = compute,
                       .rank = rank,
                       .list = list,
                       .live = TR_NEW_ARRAY(int, num_virtual),
                       .peak = TR_NEW_ARRAY(int, num_virtual)};
    if (num_stages > 1) {
        int *forward_call = TR_NEW_ARRAY(int, size), *backward_call = TR_NEW_ARRAY(int, size);
        number_calls(&place, forward_call, backward_call);
        int previous = (rank + num_stages - 1) % num_stages, next = (rank + 1) % num_stages;
        find_incoming(&place, previous, forward_call, backward_call);
        if (next != previous)
            find_incoming(&place, next, forward_call, backward_call);
        tr_free(backward_call);
        tr_free(forward_call);
    }
    place_list(&place, 0);
    place_list(&place, 1);
    for (int i = 0; i < place.num_channels; i++) {
        tr_free(place.channels[i].deadlines);
        tr_free(place.channels[i].actions);
    }
    tr_free(place.peak);
    tr_free(place.live);
    list->actions = tr_realloc(list->actions, list->num_actions, sizeof *list->actions);
    assign_slots(schedule, rank);
    assign_grad_buffers(schedule, rank);
}

void tr_schedule_place(tr_schedule *schedule)
{
    tr_action_list *compute = schedule->ranks;
    schedule->ranks = TR_NEW_ARRAY(tr_action_list, schedule->num_stages);
    for (int r = 0; r < schedule->num_stages; r++)
        place_rank(schedule, compute, r);
    for (int r = 0; r < schedule->num_stages; r++)
        tr_free(compute[r].actions);
    tr_free(compute);
    find_rings(schedule);
}
