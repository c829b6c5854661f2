/* Proves a schedule: first each rank's list for itself, then each channel, then all lists together
 * (deadlock). */
#include "parallel/schedule_int.h"

#include <string.h>

#include "base/alloc.h"

enum { NUM_KINDS = TR_ACTION_RECV_BACKWARD + 1, ABSENT = -1 };

typedef struct checker {
    const tr_schedule *schedule;
    int num_chunks, last_chunk;
    bool training;
    bool compute_only; /* lists before transfers are placed */
    int *places;       /* [num_chunks * num_microbatches, NUM_KINDS] index in the rank's list */
} checker;

static int *places_of(const checker *check, int chunk, int microbatch)
{
    return &check
                ->places[(size_t)NUM_KINDS * tr_schedule_index(check->schedule, chunk, microbatch)];
}

static int rank_of(const checker *check, int chunk)
{
    return tr_schedule_stage(check->schedule, chunk);
}

/* Whether the schedule's kind has this action for this chunk. */
static bool belongs(const checker *check, tr_action_kind kind, int chunk)
{
    if (check->compute_only && (tr_action_is_send(kind) || tr_action_is_recv(kind)))
        return false;
    switch (kind) {
    case TR_ACTION_FORWARD:
        return true;
    case TR_ACTION_SEND_FORWARD:
        return chunk < check->last_chunk;
    case TR_ACTION_RECV_FORWARD:
        return chunk > 0;
    case TR_ACTION_BACKWARD:
    case TR_ACTION_WEIGHT:
        return check->training;
    case TR_ACTION_SEND_BACKWARD:
        return check->training && chunk > 0;
    case TR_ACTION_RECV_BACKWARD:
        return check->training && chunk < check->last_chunk;
    }
    return false;
}

/* Enters every action of a rank into the table of places. */
static tr_status check_actions(checker *check, int rank)
{
    const tr_schedule *schedule = check->schedule;
    const tr_action_list *list = &schedule->ranks[rank];
    char text[TR_ACTION_TEXT];
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        if ((int)action->kind < 0 || (int)action->kind >= NUM_KINDS || action->chunk < 0 ||
            action->chunk > check->last_chunk || action->microbatch < 0 ||
            action->microbatch >= schedule->num_microbatches)
            return tr_fail(TR_ERR_INTERNAL,
                           "schedule: rank %d: action %d is kind %d of chunk %d, microbatch %d; "
                           "there are %d kinds, %d chunks and %d microbatches",
                           rank, i, (int)action->kind, action->chunk, action->microbatch, NUM_KINDS,
                           check->num_chunks, schedule->num_microbatches);
        tr_action_text(action, text);
        if (rank_of(check, action->chunk) != rank)
            return tr_fail(TR_ERR_INTERNAL, "schedule: rank %d: %s belongs to rank %d", rank, text,
                           rank_of(check, action->chunk));
        if (!belongs(check, action->kind, action->chunk))
            return tr_fail(TR_ERR_INTERNAL,
                           "schedule: rank %d: %s has no place in this schedule of %d chunks%s",
                           rank, text, check->num_chunks, check->training ? "" : ", forward only");
        int *places = places_of(check, action->chunk, action->microbatch);
        if (places[action->kind] != ABSENT)
            return tr_fail(TR_ERR_INTERNAL,
                           "schedule: rank %d: %s stands twice, as action %d and action %d", rank,
                           text, places[action->kind], i);
        places[action->kind] = i;
    }
    return TR_OK;
}

/* Names a missing action by what needs it: a transfer by its other end, a compute action by its
 * chunk. */
static tr_status fail_missing(const checker *check, const tr_action *missing)
{
    char text[TR_ACTION_TEXT], other_text[TR_ACTION_TEXT];
    tr_action_text(missing, text);
    int rank = rank_of(check, missing->chunk);
    if (missing->kind == TR_ACTION_WEIGHT)
        return tr_fail(
            TR_ERR_INTERNAL,
            "schedule: rank %d: %s is missing; B is the input gradient alone, its weight "
            "gradient W follows at once or later",
            rank, text);
    if (!tr_action_is_send(missing->kind) && !tr_action_is_recv(missing->kind))
        return tr_fail(TR_ERR_INTERNAL, "schedule: rank %d: %s is missing", rank, text);
    static const tr_action_kind other_ends[NUM_KINDS] = {
        [TR_ACTION_SEND_FORWARD] = TR_ACTION_RECV_FORWARD,
        [TR_ACTION_RECV_FORWARD] = TR_ACTION_SEND_FORWARD,
        [TR_ACTION_SEND_BACKWARD] = TR_ACTION_RECV_BACKWARD,
        [TR_ACTION_RECV_BACKWARD] = TR_ACTION_SEND_BACKWARD,
    };
    tr_action other = {.kind = other_ends[missing->kind],
                       .chunk = tr_action_peer_chunk(missing),
                       .microbatch = missing->microbatch};
    return tr_fail(TR_ERR_INTERNAL,
                   "schedule: rank %d: %s is missing, and rank %d has %s, which it never meets",
                   rank, text, rank_of(check, other.chunk), tr_action_text(&other, other_text));
}

/* `first`, of (chunk, microbatch), stands before `second`, of a chunk of the same rank. */
static tr_status check_before(const checker *check, int microbatch, int first_chunk,
                              tr_action_kind first, int second_chunk, tr_action_kind second)
{
    if (!belongs(check, first, first_chunk) || !belongs(check, second, second_chunk))
        return TR_OK;
    if (places_of(check, first_chunk, microbatch)[first] <
        places_of(check, second_chunk, microbatch)[second])
        return TR_OK;
    char first_text[TR_ACTION_TEXT], second_text[TR_ACTION_TEXT];
    tr_action a = {.kind = first, .chunk = first_chunk, .microbatch = microbatch};
    tr_action b = {.kind = second, .chunk = second_chunk, .microbatch = microbatch};
    return tr_fail(TR_ERR_INTERNAL, "schedule: rank %d: %s stands before %s, which must come first",
                   rank_of(check, first_chunk), tr_action_text(&b, second_text),
                   tr_action_text(&a, first_text));
}

/* Everything once, and what one (chunk, microbatch) says about the order of its own actions. */
static tr_status check_pair(const checker *check, int chunk, int microbatch)
{
    static const tr_action_kind orders[][2] = {
        {TR_ACTION_RECV_FORWARD, TR_ACTION_FORWARD}, {TR_ACTION_FORWARD, TR_ACTION_SEND_FORWARD},
        {TR_ACTION_FORWARD, TR_ACTION_BACKWARD},     {TR_ACTION_RECV_BACKWARD, TR_ACTION_BACKWARD},
        {TR_ACTION_BACKWARD, TR_ACTION_WEIGHT},      {TR_ACTION_BACKWARD, TR_ACTION_SEND_BACKWARD},
    };
    const int *places = places_of(check, chunk, microbatch);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        tr_action action = {.kind = (tr_action_kind)kind, .chunk = chunk, .microbatch = microbatch};
        if (belongs(check, action.kind, chunk) && places[kind] == ABSENT)
            return fail_missing(check, &action);
    }
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        TR_TRY(check_before(check, microbatch, chunk, orders[i][0], chunk, orders[i][1]));
    if (!check->training || microbatch == 0)
        return TR_OK;
    if (places_of(check, chunk, microbatch - 1)[TR_ACTION_WEIGHT] < places[TR_ACTION_WEIGHT])
        return TR_OK;
    return tr_fail(TR_ERR_INTERNAL,
                   "schedule: rank %d: %dW%d stands before %dW%d; weight gradients of a chunk run "
                   "in microbatch order",
                   rank_of(check, chunk), chunk, microbatch, chunk, microbatch - 1);
}

/* A copy within a rank stands after the send that says where from. */
static tr_status check_copies(const checker *check)
{
    for (int c = 0; c < check->last_chunk; c++)
        for (int m = 0; m < check->schedule->num_microbatches; m++) {
            if (rank_of(check, c) != rank_of(check, c + 1))
                break;
            TR_TRY(
                check_before(check, m, c, TR_ACTION_SEND_FORWARD, c + 1, TR_ACTION_RECV_FORWARD));
            TR_TRY(
                check_before(check, m, c + 1, TR_ACTION_SEND_BACKWARD, c, TR_ACTION_RECV_BACKWARD));
        }
    return TR_OK;
}

/* Walks a rank's list with the owner (chunk and microbatch) of every activation slot. */
static tr_status check_slots(const checker *check, int rank)
{
    const tr_schedule *schedule = check->schedule;
    const tr_action_list *list = &schedule->ranks[rank];
    int num_slots = schedule->num_slots[rank];
    int num_pairs = schedule->num_virtual * schedule->num_microbatches;
    const tr_action **owners = TR_NEW_ARRAY(const tr_action *, num_slots + 1);
    int *slots = TR_NEW_ARRAY(int, num_pairs); /* [local chunk, microbatch], last taken */
    memset(slots, ABSENT, (size_t)num_pairs * sizeof *slots);
    tr_status status = TR_OK;
    for (int i = 0; i < list->num_actions && status == TR_OK; i++) {
        const tr_action *action = &list->actions[i];
        int *slot = &slots[tr_schedule_local_index(schedule, action)];
        char text[TR_ACTION_TEXT];
        tr_action_text(action, text);
        if (action->slot < 0 || action->slot >= num_slots) {
            status = tr_fail(TR_ERR_INTERNAL, "schedule: rank %d: %s has slot %d of %d", rank, text,
                             action->slot, num_slots);
            continue;
        }
        const tr_action **owner = &owners[action->slot];
        if (action->kind == TR_ACTION_RECV_FORWARD ||
            (action->kind == TR_ACTION_FORWARD && action->chunk == 0)) {
            if (*owner != NULL)
                status = tr_fail(TR_ERR_INTERNAL,
                                 "schedule: rank %d: %s takes slot %d, which is live until %d%c%d",
                                 rank, text, action->slot, (*owner)->chunk,
                                 check->training ? 'W' : 'F', (*owner)->microbatch);
            *owner = action;
            *slot = action->slot;
        } else if (action->kind != TR_ACTION_RECV_BACKWARD && action->slot != *slot) {
            status = tr_fail(TR_ERR_INTERNAL,
                             "schedule: rank %d: %s names slot %d, but %dF%d has slot %d", rank,
                             text, action->slot, action->chunk, action->microbatch, *slot);
        }
        if (action->kind == TR_ACTION_WEIGHT ||
            (!check->training && action->kind == TR_ACTION_FORWARD))
            *owner = NULL;
    }
    tr_free(slots);
    tr_free(owners);
    return status;
}

/* One step of check_buffers: `holder` is what a buffer holds that is still needed, NULL for
 * nothing. */
static tr_status take_buffer(int rank, const tr_action *action, const tr_action **holder)
{
    char text[TR_ACTION_TEXT], held[TR_ACTION_TEXT];
    if (*holder != NULL)
        return tr_fail(TR_ERR_INTERNAL,
                       "schedule: rank %d: %s overwrites buffer %d, which still holds that of %s",
                       rank, tr_action_text(action, text), action->buffer,
                       tr_action_text(*holder, held));
    *holder = action;
    return TR_OK;
}

/* Send buffers: between the action that fills one and its send, within a rank its receive, nothing
 * else fills it (that a send then completes before the next filling is what the filling waits for).
 * Gradient buffers: between the receive and its B. */
static tr_status walk_buffers(const checker *check, int rank, const tr_action **sends,
                              const tr_action **grads)
{
    const tr_schedule *schedule = check->schedule;
    const tr_action_list *list = &schedule->ranks[rank];
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        const int *places = places_of(check, action->chunk, action->microbatch);
        tr_action_kind send =
            action->kind == TR_ACTION_FORWARD ? TR_ACTION_SEND_FORWARD : TR_ACTION_SEND_BACKWARD;
        bool computes = action->kind == TR_ACTION_FORWARD || action->kind == TR_ACTION_BACKWARD;
        if (computes && belongs(check, send, action->chunk)) {
            const tr_action *sending = &list->actions[places[send]];
            TR_TRY(take_buffer(rank, sending, &sends[sending->buffer]));
        }
        if (tr_action_is_send(action->kind) && !tr_schedule_stays(schedule, action))
            sends[action->buffer] = NULL;
        if (tr_action_is_recv(action->kind) && tr_schedule_stays(schedule, action)) {
            tr_action_kind from = action->kind == TR_ACTION_RECV_FORWARD ? TR_ACTION_SEND_FORWARD
                                                                         : TR_ACTION_SEND_BACKWARD;
            int sent = places_of(check, tr_action_peer_chunk(action), action->microbatch)[from];
            sends[list->actions[sent].buffer] = NULL;
        }
        if (action->kind == TR_ACTION_RECV_BACKWARD)
            TR_TRY(take_buffer(rank, action, &grads[action->buffer]));
        if (action->kind == TR_ACTION_BACKWARD && places[TR_ACTION_RECV_BACKWARD] != ABSENT)
            grads[list->actions[places[TR_ACTION_RECV_BACKWARD]].buffer] = NULL;
    }
    return TR_OK;
}

static tr_status check_buffers(const checker *check, int rank)
{
    const tr_schedule *schedule = check->schedule;
    const tr_action_list *list = &schedule->ranks[rank];
    int num_sends = schedule->num_send_buffers[rank], num_grads = schedule->num_grad_buffers[rank];
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        int limit = tr_action_is_send(action->kind)           ? num_sends
                    : action->kind == TR_ACTION_RECV_BACKWARD ? num_grads
                                                              : -1;
        char text[TR_ACTION_TEXT];
        if (limit >= 0 && (action->buffer < 0 || action->buffer >= limit))
            return tr_fail(TR_ERR_INTERNAL, "schedule: rank %d: %s has buffer %d of %d", rank,
                           tr_action_text(action, text), action->buffer, limit);
    }
    const tr_action **sends = TR_NEW_ARRAY(const tr_action *, num_sends + 1);
    const tr_action **grads = TR_NEW_ARRAY(const tr_action *, num_grads + 1);
    tr_status status = walk_buffers(check, rank, sends, grads);
    tr_free(grads);
    tr_free(sends);
    return status;
}

/* The next action at or after *i that sends to, or receives from, `peer`; NULL at the end of the
 * list. */
static const tr_action *next_transfer(const checker *check, int rank, bool sends, int peer, int *i)
{
    const tr_action_list *list = &check->schedule->ranks[rank];
    while (*i < list->num_actions) {
        const tr_action *action = &list->actions[(*i)++];
        bool fits = sends ? tr_action_is_send(action->kind) : tr_action_is_recv(action->kind);
        if (fits && rank_of(check, tr_action_peer_chunk(action)) == peer)
            return action;
    }
    return NULL;
}

/* The n-th receive of a channel is for the n-th send. Each send has its receive somewhere
 * (check_pair). */
static tr_status check_channel(const checker *check, int from, int to)
{
    int i = 0, j = 0;
    for (;;) {
        const tr_action *send = next_transfer(check, from, true, to, &i);
        const tr_action *recv = next_transfer(check, to, false, from, &j);
        if (send == NULL || recv == NULL)
            return TR_OK;
        char send_text[TR_ACTION_TEXT], recv_text[TR_ACTION_TEXT];
        tr_action_text(send, send_text);
        tr_action_text(recv, recv_text);
        bool forward = send->kind == TR_ACTION_SEND_FORWARD;
        if (forward != (recv->kind == TR_ACTION_RECV_FORWARD) ||
            recv->chunk != tr_action_peer_chunk(send) || recv->microbatch != send->microbatch)
            return tr_fail(TR_ERR_INTERNAL,
                           "schedule: rank %d posts %s where rank %d posts %s; the channel from "
                           "rank %d to rank %d is in order",
                           to, recv_text, from, send_text, from, to);
    }
}

/* The rank's live activations never pass the kind's limit; the action that ought to come first is
 * the W of the oldest one. */
static tr_status check_live(const checker *check, int rank)
{
    const tr_schedule *schedule = check->schedule;
    const tr_action_list *list = &schedule->ranks[rank];
    int limit = tr_schedule_live_limit(schedule->kind, schedule->num_stages, schedule->num_virtual,
                                       schedule->num_microbatches, rank);
    tr_action_kind last = check->training ? TR_ACTION_WEIGHT : TR_ACTION_FORWARD;
    int live = 0;
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        if (action->kind == TR_ACTION_FORWARD && ++live > limit) {
            int oldest = 0;
            while (list->actions[oldest].kind != TR_ACTION_FORWARD ||
                   places_of(check, list->actions[oldest].chunk,
                             list->actions[oldest].microbatch)[last] < i)
                oldest++;
            tr_action frees = list->actions[oldest];
            frees.kind = last;
            char text[TR_ACTION_TEXT], frees_text[TR_ACTION_TEXT];
            return tr_fail(TR_ERR_INTERNAL,
                           "schedule: rank %d: %s makes %d live activations, and the schedule "
                           "keeps %d at most; %s must come first",
                           rank, tr_action_text(action, text), live, limit,
                           tr_action_text(&frees, frees_text));
        }
        live -= action->kind == last;
    }
    return TR_OK;
}

/* Everything there once, on its rank, in an order that each rank can run. */
static tr_status check_lists(checker *check)
{
    const tr_schedule *schedule = check->schedule;
    for (int r = 0; r < schedule->num_stages; r++)
        TR_TRY(check_actions(check, r));
    for (int c = 0; c < check->num_chunks; c++)
        for (int m = 0; m < schedule->num_microbatches; m++)
            TR_TRY(check_pair(check, c, m));
    return TR_OK;
}

static tr_status check_all(checker *check)
{
    const tr_schedule *schedule = check->schedule;
    int num_stages = schedule->num_stages;
    TR_TRY(check_lists(check));
    TR_TRY(check_copies(check));
    for (int r = 0; r < num_stages; r++) {
        TR_TRY(check_slots(check, r));
        TR_TRY(check_buffers(check, r));
        int next = (r + 1) % num_stages, previous = (r + num_stages - 1) % num_stages;
        TR_TRY(check_live(check, r));
        if (next != r)
            TR_TRY(check_channel(check, r, next));
        if (previous != next)
            TR_TRY(check_channel(check, r, previous));
    }
    return TR_OK;
}

static checker checker_make(const tr_schedule *schedule)
{
    int num_chunks = tr_schedule_num_chunks(schedule);
    size_t num_places = (size_t)NUM_KINDS * num_chunks * schedule->num_microbatches;
    checker check = {.schedule = schedule,
                     .num_chunks = num_chunks,
                     .last_chunk = num_chunks - 1,
                     .training = schedule->trains,
                     .places = TR_NEW_ARRAY(int, num_places)};
    memset(check.places, ABSENT, num_places * sizeof *check.places);
    return check;
}

tr_status tr_schedule_check_compute(const tr_schedule *schedule)
{
    checker check = checker_make(schedule);
    check.compute_only = true;
    tr_status status = check_lists(&check);
    tr_free(check.places);
    return status;
}

tr_status tr_schedule_check(const tr_schedule *schedule)
{
    checker check = checker_make(schedule);
    double *end = TR_NEW_ARRAY(double, schedule->num_stages);
    tr_status status;
    TR_TRY_GOTO(status, check_all(&check), done);
    TR_TRY_GOTO(status, tr_schedule_replay(schedule, NULL, end, NULL), done);
done:
    tr_free(end);
    tr_free(check.places);
    return status;
}
