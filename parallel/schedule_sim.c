/* Runs the lists of all ranks against each other, without data: finds deadlocks and step times.
 *
 * Time is a maximum of sums along the dependencies, so that the order in which ranks are advanced
 * here does not matter: each rank goes on until it must wait, round after round, until all are done
 * or none moves. */
#include "parallel/schedule_int.h"

#include <string.h>

#include "base/alloc.h"

/* Sends and receives of an ordered pair of ranks, matched one by one. */
typedef struct channel {
    int *transfers; /* in the order of the sends */
    double *send_times, *recv_times;
    int num_sent, num_received, num_done;
    double done_time;
} channel;

typedef struct runner {
    int next; /* action */
    double clock;
    int waits_for;   /* transfer that stopped it, valid while it has not moved on */
    int *last_sends; /* [num_send_buffers] transfer, -1 before the first */
} runner;

/* A transfer is numbered after the chunk and microbatch of its sender: forward ones first. */
typedef struct replay {
    const tr_schedule *schedule;
    const tr_schedule_costs *costs;
    int num_pairs;      /* chunks x microbatches */
    int *send_buffers;  /* [2 * num_pairs] */
    double *done_times; /* [2 * num_pairs], -1 until complete */
    channel *channels;  /* [num_stages, CHANNELS], those between ranks */
    runner *runners;    /* [num_stages] */
} replay;

enum { NO_TRANSFER = -1 };

/* Channels out of a rank. */
enum { TO_NEXT, TO_PREVIOUS, CHANNELS };

static int transfer_of(const replay *run, int sender_chunk, int microbatch, bool forward)
{
    return (forward ? 0 : run->num_pairs) +
           tr_schedule_index(run->schedule, sender_chunk, microbatch);
}

static bool is_forward(tr_action_kind kind)
{
    return kind == TR_ACTION_SEND_FORWARD || kind == TR_ACTION_RECV_FORWARD;
}

static channel *channel_of(const replay *run, const tr_action *transfer)
{
    const tr_schedule *schedule = run->schedule;
    int peer = tr_action_peer_chunk(transfer);
    bool sends = tr_action_is_send(transfer->kind);
    int from = tr_schedule_stage(schedule, sends ? transfer->chunk : peer);
    int to = tr_schedule_stage(schedule, sends ? peer : transfer->chunk);
    int which = to == (from + 1) % schedule->num_stages ? TO_NEXT : TO_PREVIOUS;
    return &run->channels[CHANNELS * from + which];
}

static replay *replay_create(const tr_schedule *schedule, const tr_schedule_costs *costs)
{
    replay *run = TR_NEW(replay);
    run->schedule = schedule;
    run->costs = costs;
    run->num_pairs = tr_schedule_num_chunks(schedule) * schedule->num_microbatches;
    run->send_buffers = TR_NEW_ARRAY(int, 2 * (size_t)run->num_pairs);
    run->done_times = TR_NEW_ARRAY(double, 2 * (size_t)run->num_pairs);
    for (int i = 0; i < 2 * run->num_pairs; i++)
        run->done_times[i] = -1;
    run->channels = TR_NEW_ARRAY(channel, CHANNELS * (size_t)schedule->num_stages);
    run->runners = TR_NEW_ARRAY(runner, schedule->num_stages);
    for (int r = 0; r < schedule->num_stages; r++) {
        const tr_action_list *list = &schedule->ranks[r];
        for (int i = 0; i < list->num_actions; i++) {
            const tr_action *action = &list->actions[i];
            if (!tr_action_is_send(action->kind))
                continue;
            if (!tr_schedule_stays(schedule, action))
                channel_of(run, action)->num_sent++;
            run->send_buffers[transfer_of(run, action->chunk, action->microbatch,
                                          is_forward(action->kind))] = action->buffer;
        }
        int num_buffers = schedule->num_send_buffers[r];
        run->runners[r].last_sends = TR_NEW_ARRAY(int, num_buffers + 1);
        for (int i = 0; i < num_buffers; i++)
            run->runners[r].last_sends[i] = NO_TRANSFER;
    }
    for (int i = 0; i < CHANNELS * schedule->num_stages; i++) {
        channel *one = &run->channels[i];
        one->transfers = TR_NEW_ARRAY(int, one->num_sent + 1);
        one->send_times = TR_NEW_ARRAY(double, one->num_sent + 1);
        one->recv_times = TR_NEW_ARRAY(double, one->num_sent + 1);
        one->num_sent = 0;
    }
    return run;
}

static void replay_destroy(replay *run)
{
    for (int i = 0; i < CHANNELS * run->schedule->num_stages; i++) {
        tr_free(run->channels[i].transfers);
        tr_free(run->channels[i].send_times);
        tr_free(run->channels[i].recv_times);
    }
    for (int r = 0; r < run->schedule->num_stages; r++)
        tr_free(run->runners[r].last_sends);
    tr_free(run->runners);
    tr_free(run->channels);
    tr_free(run->done_times);
    tr_free(run->send_buffers);
    tr_free(run);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Posts a send or receive; a pair is complete one transfer time after both are posted and the pair
 * before it is complete. Within a rank the receive is a copy, done at once. */
static void post(replay *run, runner *rank, const tr_action *action)
{
    bool sends = tr_action_is_send(action->kind);
    int transfer = transfer_of(run, sends ? action->chunk : tr_action_peer_chunk(action),
                               action->microbatch, is_forward(action->kind));
    if (sends)
        rank->last_sends[action->buffer] = transfer;
    if (tr_schedule_stays(run->schedule, action)) {
        if (!sends)
            run->done_times[transfer] = rank->clock;
        return;
    }
    channel *on = channel_of(run, action);
    if (sends) {
        on->transfers[on->num_sent] = transfer;
        on->send_times[on->num_sent++] = rank->clock;
    } else {
        on->recv_times[on->num_received++] = rank->clock;
    }
    double cost = run->costs != NULL ? run->costs->transfer : 0;
    while (on->num_done < on->num_sent && on->num_done < on->num_received) {
        int i = on->num_done++;
        double start = later(later(on->send_times[i], on->recv_times[i]), on->done_time);
        on->done_time = start + cost;
        run->done_times[on->transfers[i]] = on->done_time;
    }
}

/* Waits for a transfer (or none); false, noting it, when it is not complete. */
static bool wait_for(const replay *run, runner *rank, int transfer)
{
    if (transfer == NO_TRANSFER)
        return true;
    rank->waits_for = transfer;
    if (run->done_times[transfer] < 0)
        return false;
    rank->clock = later(rank->clock, run->done_times[transfer]);
    return true;
}

static bool wait_for_inputs(const replay *run, runner *rank, const tr_action *action)
{
    int last_chunk = tr_schedule_num_chunks(run->schedule) - 1;
    bool forward = action->kind == TR_ACTION_FORWARD;
    int from = forward ? action->chunk - 1 : action->chunk + 1;
    int to = forward ? action->chunk + 1 : action->chunk - 1;
    if (from >= 0 && from <= last_chunk &&
        !wait_for(run, rank, transfer_of(run, from, action->microbatch, forward)))
        return false;
    if (to < 0 || to > last_chunk)
        return true;
    int buffer = run->send_buffers[transfer_of(run, action->chunk, action->microbatch, forward)];
    return wait_for(run, rank, rank->last_sends[buffer]);
}

double tr_schedule_cost(const tr_schedule_costs *costs, const tr_action *action)
{
    if (costs == NULL)
        return 0;
    switch (action->kind) {
    case TR_ACTION_FORWARD:
        return costs->forward[action->chunk];
    case TR_ACTION_BACKWARD:
        return costs->backward[action->chunk];
    case TR_ACTION_WEIGHT:
        return costs->weight[action->chunk];
    default:
        return 0;
    }
}

/* Runs a rank until it must wait or is done; false when it did not move. `starts`: NULL or what
 * takes the times of its actions. */
static bool advance(replay *run, int rank, double *starts)
{
    const tr_action_list *list = &run->schedule->ranks[rank];
    runner *self = &run->runners[rank];
    int start = self->next;
    for (; self->next < list->num_actions; self->next++) {
        const tr_action *action = &list->actions[self->next];
        bool transfers = tr_action_is_send(action->kind) || tr_action_is_recv(action->kind);
        bool waits = !transfers && action->kind != TR_ACTION_WEIGHT;
        if (waits && !wait_for_inputs(run, self, action))
            break;
        if (starts != NULL)
            starts[self->next] = self->clock;
        if (transfers)
            post(run, self, action);
        else
            self->clock += tr_schedule_cost(run->costs, action);
    }
    return self->next > start;
}

static tr_status fail_deadlock(const replay *run, int rank)
{
    const tr_schedule *schedule = run->schedule;
    const runner *self = &run->runners[rank];
    bool forward = self->waits_for < run->num_pairs;
    int pair = self->waits_for - (forward ? 0 : run->num_pairs);
    tr_action send = {.kind = forward ? TR_ACTION_SEND_FORWARD : TR_ACTION_SEND_BACKWARD,
                      .chunk = pair / schedule->num_microbatches,
                      .microbatch = pair % schedule->num_microbatches};
    int sender = tr_schedule_stage(schedule, send.chunk);
    int peer = sender == rank ? tr_schedule_stage(schedule, tr_action_peer_chunk(&send)) : sender;
    const tr_action_list *peer_list = &schedule->ranks[peer];
    int peer_next = run->runners[peer].next;
    char here[TR_ACTION_TEXT], what[TR_ACTION_TEXT], there[TR_ACTION_TEXT] = "its end";
    if (peer_next < peer_list->num_actions)
        tr_action_text(&peer_list->actions[peer_next], there);
    return tr_fail(TR_ERR_INTERNAL,
                   "schedule deadlocks: rank %d at %s waits for %s to complete, while rank %d "
                   "stands at %s",
                   rank, tr_action_text(&schedule->ranks[rank].actions[self->next], here),
                   tr_action_text(&send, what), peer, there);
}

tr_status tr_schedule_replay(const tr_schedule *schedule, const tr_schedule_costs *costs,
                             double *end, double *const *starts)
{
    replay *run = replay_create(schedule, costs);
    bool moved = true;
    while (moved) {
        moved = false;
        for (int r = 0; r < schedule->num_stages; r++)
            moved |= advance(run, r, starts != NULL ? starts[r] : NULL);
    }
    tr_status status = TR_OK;
    for (int r = 0; r < schedule->num_stages && status == TR_OK; r++) {
        runner *self = &run->runners[r];
        if (self->next < schedule->ranks[r].num_actions)
            status = fail_deadlock(run, r);
        for (int i = 0; i < schedule->num_send_buffers[r] && status == TR_OK; i++)
            wait_for(run, self, self->last_sends[i]);
        end[r] = self->clock;
    }
    replay_destroy(run);
    return status;
}

tr_status tr_schedule_simulate(const tr_schedule *schedule, const tr_schedule_costs *costs,
                               tr_schedule_times *times)
{
    double *end = TR_NEW_ARRAY(double, schedule->num_stages);
    tr_status status = tr_schedule_replay(schedule, costs, end, NULL);
    double total = 0, sum_busy = 0;
    for (int r = 0; r < schedule->num_stages && status == TR_OK; r++) {
        times->busy[r] = 0;
        for (int i = 0; i < schedule->ranks[r].num_actions; i++)
            times->busy[r] += tr_schedule_cost(costs, &schedule->ranks[r].actions[i]);
        sum_busy += times->busy[r];
        total = later(total, end[r]);
    }
    tr_free(end);
    if (status != TR_OK)
        return status;
    times->total = total;
    times->idle_share = total > 0 ? 1 - sum_busy / (schedule->num_stages * total) : 0;
    return TR_OK;
}
