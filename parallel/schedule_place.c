/* Puts the transfers into lists of compute actions.
 *
 * A channel carries its transfers in the order in which the receiving rank uses them: a receive that
 * had to be posted before another that is used first would hold an activation slot meanwhile. A send
 * stands right after the action that makes its data (where W directly follows B after W, so that the
 * two stay one call, unless the schedule splits), or after the send before it in the channel where
 * that comes later. A receive stands as late as its user allows, but one call ahead of that where
 * this takes no activation slot more than the latest place would: so the peak of live activations
 * stays the generator's. Within a rank receives are copies in front of their user, in any order. */
#include "parallel/schedule_int.h"

#include <stdlib.h>

#include "base/alloc.h"

/* The call of its rank that runs each (chunk, microbatch)'s F and B. */
typedef struct calls {
    int *forward, *backward;
} calls;

typedef struct transfer {
    tr_action send, recv;
    int made; /* the sender's call after which it is sent */
    int used; /* the receiver's call before which it is received */
} transfer;

/* The transfers from one rank to one rank, in order. */
typedef struct channel {
    transfer *transfers;
    int num_transfers, num_placed;
} channel;

/* With this rank, the previous and the next one, as many as differ: at most three channels each
 * way. The first is within the rank. */
typedef struct placement {
    const tr_schedule *schedule;
    const tr_action_list *compute; /* [num_stages] */
    int rank, num_peers;
    channel outgoing[3], incoming[3];
    tr_action_list *list;
    int live, peak; /* activations */
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

static calls number_calls(const tr_schedule *schedule, const tr_action_list *compute)
{
    size_t num_pairs = (size_t)tr_schedule_num_chunks(schedule) * schedule->num_microbatches;
    calls all = {TR_NEW_ARRAY(int, num_pairs), TR_NEW_ARRAY(int, num_pairs)};
    for (int r = 0; r < schedule->num_stages; r++)
        for (int i = 0, call = 0; i < compute[r].num_actions; i++, call++) {
            const tr_action *action = &compute[r].actions[i];
            int index = tr_schedule_index(schedule, action->chunk, action->microbatch);
            if (action->kind == TR_ACTION_FORWARD)
                all.forward[index] = call;
            if (action->kind == TR_ACTION_BACKWARD)
                all.backward[index] = call;
            if (is_one_call(schedule, &compute[r], i))
                i++;
        }
    return all;
}

static int call_of(const tr_schedule *schedule, const calls *all, const tr_action *action)
{
    bool forward = action->kind == TR_ACTION_SEND_FORWARD || action->kind == TR_ACTION_RECV_FORWARD;
    int index = tr_schedule_index(schedule, action->chunk, action->microbatch);
    return forward ? all->forward[index] : all->backward[index];
}

static int compare_used(const void *a, const void *b)
{
    return ((const transfer *)a)->used - ((const transfer *)b)->used;
}

/* All transfers between two ranks. */
static channel find_channel(const placement *place, const calls *all, int from, int to)
{
    const tr_schedule *schedule = place->schedule;
    const tr_action_list *sender = &place->compute[from];
    channel found = {.transfers = TR_NEW_ARRAY(transfer, sender->num_actions + 1)};
    for (int i = 0; i < sender->num_actions; i++) {
        transfer *one = &found.transfers[found.num_transfers];
        if (!send_of(schedule, &sender->actions[i], &one->send))
            continue;
        one->recv = recv_of(&one->send);
        one->made = call_of(schedule, all, &one->send);
        one->used = call_of(schedule, all, &one->recv);
        found.num_transfers += tr_schedule_stage(schedule, one->recv.chunk) == to;
    }
    qsort(found.transfers, found.num_transfers, sizeof *found.transfers, compare_used);
    return found;
}

static int compare_made(const void *a, const void *b)
{
    return ((const transfer *)a)->made - ((const transfer *)b)->made;
}

static void find_channels(placement *place, const calls *all)
{
    int num_stages = place->schedule->num_stages, rank = place->rank;
    const int peers[] = {rank, (rank + num_stages - 1) % num_stages, (rank + 1) % num_stages};
    place->num_peers = num_stages < 3 ? num_stages : 3;
    for (int i = 0; i < place->num_peers; i++) {
        place->outgoing[i] = find_channel(place, all, rank, peers[i]);
        place->incoming[i] = find_channel(place, all, peers[i], rank);
        channel *out = &place->outgoing[i];
        for (int t = 1; t < out->num_transfers && i > 0; t++)
            if (out->transfers[t].made < out->transfers[t - 1].made)
                out->transfers[t].made = out->transfers[t - 1].made;
    }
    qsort(place->outgoing[0].transfers, place->outgoing[0].num_transfers, sizeof(transfer),
          compare_made);
}

static void append(placement *place, tr_action action)
{
    place->list->actions[place->list->num_actions++] = action;
}

static void take_slot(placement *place)
{
    if (++place->live > place->peak)
        place->peak = place->live;
}

/* Posts a channel's receives that are used up to `call`; `room` of 0 or more: only while they leave
 * so many activation slots below the peak. */
static void place_receives(placement *place, channel *from, int call, int room)
{
    for (; from->num_placed < from->num_transfers; from->num_placed++) {
        const transfer *one = &from->transfers[from->num_placed];
        bool is_forward = one->recv.kind == TR_ACTION_RECV_FORWARD;
        bool fits = room < 0 || !is_forward || place->live + room < place->peak;
        if (one->used > call || !fits)
            break;
        append(place, one->recv);
        if (is_forward)
            take_slot(place);
    }
}

/* What a call needs, then what the `ahead` next ones will, from other ranks, where that raises no
 * peak. */
static void place_call_receives(placement *place, int call, int ahead, const tr_action *action)
{
    bool takes_slot = action->kind == TR_ACTION_FORWARD && action->chunk == 0;
    for (int i = 0; i < place->num_peers; i++)
        place_receives(place, &place->incoming[i], call, -1);
    for (int i = 1; i < place->num_peers && ahead > 0; i++)
        place_receives(place, &place->incoming[i], call + ahead, takes_slot);
}

static void place_call_sends(placement *place, int call)
{
    for (int i = 0; i < place->num_peers; i++) {
        channel *to = &place->outgoing[i];
        while (to->num_placed < to->num_transfers && to->transfers[to->num_placed].made <= call)
            append(place, to->transfers[to->num_placed++].send);
    }
}

/* Makes place->list, with receives up to `ahead` calls early, and place->peak, which early receives
 * never raise. */
static void place_list(placement *place, int ahead)
{
    const tr_schedule *schedule = place->schedule;
    const tr_action_list *compute = &place->compute[place->rank];
    place->list->num_actions = 0;
    place->live = 0;
    for (int i = 0; i < place->num_peers; i++)
        place->incoming[i].num_placed = place->outgoing[i].num_placed = 0;
    for (int i = 0, call = 0; i < compute->num_actions; i++, call++) {
        const tr_action *action = &compute->actions[i];
        place_call_receives(place, call, ahead, action);
        append(place, *action);
        if (action->kind == TR_ACTION_FORWARD && action->chunk == 0)
            take_slot(place);
        if (is_one_call(schedule, compute, i))
            append(place, compute->actions[++i]);
        place_call_sends(place, call);
        if (compute->actions[i].kind == TR_ACTION_WEIGHT || !schedule->trains)
            place->live--;
    }
}

/* Makes the full list of one rank from everyone's compute list. */
static void place_rank(tr_schedule *schedule, const tr_action_list *compute, const calls *all,
                       int rank)
{
    size_t size = (size_t)schedule->num_virtual * schedule->num_microbatches;
    tr_action_list *list = &schedule->ranks[rank];
    /* With each compute action there are at most one receive and one send, with W none. */
    list->actions = TR_NEW_ARRAY(tr_action, 7 * size);
    placement place = {.schedule = schedule, .compute = compute, .rank = rank, .list = list};
    find_channels(&place, all);
    place_list(&place, 0);
    place_list(&place, 1);
    for (int i = 0; i < place.num_peers; i++) {
        tr_free(place.incoming[i].transfers);
        tr_free(place.outgoing[i].transfers);
    }
    list->actions = tr_realloc(list->actions, list->num_actions, sizeof *list->actions);
}

void tr_schedule_place(tr_schedule *schedule)
{
    tr_action_list *compute = schedule->ranks;
    schedule->ranks = TR_NEW_ARRAY(tr_action_list, schedule->num_stages);
    calls all = number_calls(schedule, compute);
    for (int r = 0; r < schedule->num_stages; r++)
        place_rank(schedule, compute, &all, r);
    tr_free(all.forward);
    tr_free(all.backward);
    for (int r = 0; r < schedule->num_stages; r++)
        tr_free(compute[r].actions);
    tr_free(compute);
    tr_schedule_number(schedule);
}
