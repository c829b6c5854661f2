#include "tests/unit/parallel/schedule_machine.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { EMPTY = 0, IN_TRANSIT = -1 };

typedef struct channel {
    const tr_action **sends, **recvs;
    int num_sends, num_recvs, num_done;
} channel;

/* Everything is a plain table over (chunk, microbatch) or (chunk or rank, slot or buffer). */
typedef struct machine {
    const tr_schedule *schedule;
    int p, v, m, chunks;
    uint64_t random;
    int *next, *live;              /* [p] */
    int *inputs, *kept;            /* [p, slot] value received; pair + 1 computed */
    int *sends, *pending, *grads;  /* [p, buffer] */
    int *received, *received_back; /* [chunks, m] 0 not posted, 1 posted, 2 complete */
    int *forwards, *backwards, *weights, *weights_done; /* [chunks, m] and, the last, [chunks] */
    channel *channels;                                  /* [p, p] */
    bool wrong; /* a send sent something else than it names */
} machine;

typedef enum outcome { MOVED, BLOCKED, WRONG } outcome;

static uint64_t draw(machine *on, uint64_t below)
{
    on->random = on->random * 6364136223846793005u + 1442695040888963407u;
    return (on->random >> 33) % below;
}

static int forward_value(const machine *on, int chunk, int microbatch)
{
    return 1 + chunk * on->m + microbatch;
}

static int backward_value(const machine *on, int chunk, int microbatch)
{
    return 1000000 + forward_value(on, chunk, microbatch);
}

/* What a send says that it sends. */
static int named_value(const machine *on, const tr_action *send)
{
    return send->kind == TR_ACTION_SEND_FORWARD ? forward_value(on, send->chunk, send->microbatch)
                                                : backward_value(on, send->chunk, send->microbatch);
}

/* The transfer of this kind for (chunk, microbatch), wherever it stands in the list. */
static const tr_action *find(const machine *on, int rank, tr_action_kind kind, int chunk,
                             int microbatch)
{
    const tr_action_list *list = &on->schedule->ranks[rank];
    for (int i = 0; i < list->num_actions; i++)
        if (list->actions[i].kind == kind && list->actions[i].chunk == chunk &&
            list->actions[i].microbatch == microbatch)
            return &list->actions[i];
    return NULL;
}

/* A place belongs to one receive at a time. */
static outcome receive_into(int *place)
{
    if (*place == IN_TRANSIT)
        return WRONG;
    *place = IN_TRANSIT;
    return MOVED;
}

static int stage_of(const machine *on, int chunk)
{
    return tr_chunk_stage(on->schedule->placement, on->p, chunk);
}

/* Where a rank keeps what is in a slot. */
static int place_of(const machine *on, int rank, const tr_action *action)
{
    return rank * on->v * on->m + action->slot;
}

/* Between chunks of one rank: a receive copies what its send names, as it is now. */
static outcome copy(machine *on, int rank, const tr_action *action, int *to, int *received)
{
    channel *over = &on->channels[rank * on->p + rank];
    bool up = action->kind == TR_ACTION_RECV_FORWARD;
    tr_action_kind kind = up ? TR_ACTION_SEND_FORWARD : TR_ACTION_SEND_BACKWARD;
    int chunk = up ? action->chunk - 1 : action->chunk + 1, i = 0;
    while (i < over->num_sends && (over->sends[i]->kind != kind || over->sends[i]->chunk != chunk ||
                                   over->sends[i]->microbatch != action->microbatch))
        i++;
    if (i == over->num_sends || *to == IN_TRANSIT)
        return WRONG;
    *to = on->sends[rank * SCHEDULE_MACHINE_MAX + over->sends[i]->buffer];
    *received = 2;
    over->num_done++;
    return MOVED;
}

static outcome post(machine *on, int rank, const tr_action *action)
{
    bool sends = action->kind == TR_ACTION_SEND_FORWARD || action->kind == TR_ACTION_SEND_BACKWARD;
    bool up = action->kind == TR_ACTION_SEND_FORWARD || action->kind == TR_ACTION_RECV_BACKWARD;
    int peer_chunk = up ? action->chunk + 1 : action->chunk - 1;
    if (peer_chunk < 0 || peer_chunk >= on->chunks)
        return WRONG;
    int peer = stage_of(on, peer_chunk), pair = action->chunk * on->m + action->microbatch;
    channel *over = &on->channels[sends ? rank * on->p + peer : peer * on->p + rank];
    if (sends) {
        if (action->buffer < 0 || action->buffer >= on->schedule->num_send_buffers[rank])
            return WRONG;
        over->sends[over->num_sends++] = action;
        if (peer == rank)
            return on->sends[rank * SCHEDULE_MACHINE_MAX + action->buffer] ==
                           named_value(on, action)
                       ? MOVED
                       : WRONG;
        on->pending[rank * SCHEDULE_MACHINE_MAX + action->buffer]++;
        return MOVED;
    }
    over->recvs[over->num_recvs++] = action;
    int *posted = action->kind == TR_ACTION_RECV_FORWARD ? on->received : on->received_back;
    if (posted[pair]++ != 0)
        return WRONG;
    if (action->kind == TR_ACTION_RECV_FORWARD) {
        int place = place_of(on, rank, action);
        on->kept[place] = EMPTY;
        return peer == rank ? copy(on, rank, action, &on->inputs[place], &posted[pair])
                            : receive_into(&on->inputs[place]);
    }
    if (action->buffer < 0 || action->buffer >= on->schedule->num_grad_buffers[rank])
        return WRONG;
    int *grad = &on->grads[rank * SCHEDULE_MACHINE_MAX + action->buffer];
    return peer == rank ? copy(on, rank, action, grad, &posted[pair]) : receive_into(grad);
}

/* The data moves only now, at any time between the two posts and the first wait. */
static void complete_one(machine *on, int from, int to)
{
    channel *over = &on->channels[from * on->p + to];
    const tr_action *send = over->sends[over->num_done], *recv = over->recvs[over->num_done];
    over->num_done++;
    int *source = &on->sends[from * SCHEDULE_MACHINE_MAX + send->buffer];
    on->pending[from * SCHEDULE_MACHINE_MAX + send->buffer]--;
    on->wrong |= *source != named_value(on, send);
    int pair = recv->chunk * on->m + recv->microbatch;
    if (recv->kind == TR_ACTION_RECV_FORWARD) {
        on->inputs[place_of(on, to, recv)] = *source;
        on->received[pair] = 2;
    } else {
        on->grads[to * SCHEDULE_MACHINE_MAX + recv->buffer] = *source;
        on->received_back[pair] = 2;
    }
}

/* Puts a result into the buffer that its send names, once that is free. */
static outcome put(machine *on, int rank, const tr_action *send, int value)
{
    if (send == NULL || send->buffer < 0 || send->buffer >= on->schedule->num_send_buffers[rank])
        return WRONG;
    int place = rank * SCHEDULE_MACHINE_MAX + send->buffer;
    if (on->pending[place] > 0)
        return BLOCKED;
    on->sends[place] = value;
    return MOVED;
}

static outcome forward(machine *on, int rank, const tr_action *action)
{
    int c = action->chunk, m = action->microbatch, pair = c * on->m + m;
    int place = place_of(on, rank, action);
    if (c == 0 && on->inputs[place] == IN_TRANSIT)
        return WRONG;
    if (c == 0)
        on->inputs[place] = EMPTY;
    if (c > 0) {
        if (on->received[pair] == 0)
            return WRONG;
        if (on->received[pair] == 1)
            return BLOCKED;
        if (on->inputs[place] != forward_value(on, c - 1, m))
            return WRONG;
    }
    if (c < on->chunks - 1) {
        outcome sent =
            put(on, rank, find(on, rank, TR_ACTION_SEND_FORWARD, c, m), forward_value(on, c, m));
        if (sent != MOVED)
            return sent;
    }
    int limit = tr_schedule_live_limit(on->schedule->kind, on->p, on->v, on->m, rank);
    if (++on->live[rank] > limit)
        return WRONG;
    on->kept[place] = pair + 1;
    return on->forwards[pair]++ == 0 ? MOVED : WRONG;
}

static outcome backward(machine *on, int rank, const tr_action *action)
{
    int c = action->chunk, m = action->microbatch, pair = c * on->m + m;
    if (on->kept[place_of(on, rank, action)] != pair + 1)
        return WRONG;
    if (c < on->chunks - 1) {
        const tr_action *recv = find(on, rank, TR_ACTION_RECV_BACKWARD, c, m);
        if (recv == NULL || on->received_back[pair] == 0)
            return WRONG;
        if (on->received_back[pair] == 1)
            return BLOCKED;
        if (on->grads[rank * SCHEDULE_MACHINE_MAX + recv->buffer] != backward_value(on, c + 1, m))
            return WRONG;
    }
    if (c > 0) {
        outcome sent =
            put(on, rank, find(on, rank, TR_ACTION_SEND_BACKWARD, c, m), backward_value(on, c, m));
        if (sent != MOVED)
            return sent;
    }
    return on->backwards[pair]++ == 0 ? MOVED : WRONG;
}

static outcome weight(machine *on, int rank, const tr_action *action)
{
    int c = action->chunk, m = action->microbatch, place = place_of(on, rank, action);
    if (on->kept[place] != c * on->m + m + 1 || on->backwards[c * on->m + m] != 1 ||
        on->weights_done[c] != m)
        return WRONG;
    on->kept[place] = EMPTY;
    on->live[rank]--;
    on->weights_done[c]++;
    on->weights[c * on->m + m]++;
    return MOVED;
}

static outcome step(machine *on, int rank)
{
    const tr_action_list *list = &on->schedule->ranks[rank];
    if (on->next[rank] == list->num_actions)
        return BLOCKED;
    const tr_action *action = &list->actions[on->next[rank]];
    if (stage_of(on, action->chunk) != rank || action->slot < 0 ||
        action->slot >= on->schedule->num_slots[rank] || action->slot >= on->v * on->m)
        return WRONG;
    outcome result;
    switch (action->kind) {
    case TR_ACTION_FORWARD:
        result = forward(on, rank, action);
        break;
    case TR_ACTION_BACKWARD:
        result = backward(on, rank, action);
        break;
    case TR_ACTION_WEIGHT:
        result = weight(on, rank, action);
        break;
    default:
        result = post(on, rank, action);
    }
    if (result == MOVED)
        on->next[rank]++;
    return result;
}

/* True when a transfer could be completed; takes one at random. */
static bool complete_any(machine *on)
{
    int pairs = on->p * on->p, start = (int)draw(on, (uint64_t)pairs);
    for (int k = 0; k < pairs; k++) {
        int i = (start + k) % pairs;
        const channel *over = &on->channels[i];
        if (over->num_done < over->num_sends && over->num_done < over->num_recvs) {
            complete_one(on, i / on->p, i % on->p);
            return true;
        }
    }
    return false;
}

static outcome step_any(machine *on)
{
    int start = (int)draw(on, (uint64_t)on->p);
    for (int k = 0; k < on->p; k++) {
        outcome result = step(on, (start + k) % on->p);
        if (result != BLOCKED)
            return result;
    }
    return BLOCKED;
}

static bool finished(const machine *on)
{
    if (on->wrong)
        return false;
    for (int r = 0; r < on->p; r++)
        if (on->next[r] < on->schedule->ranks[r].num_actions)
            return false;
    for (int i = 0; i < on->p * on->p; i++)
        if (on->channels[i].num_done != on->channels[i].num_sends ||
            on->channels[i].num_done != on->channels[i].num_recvs)
            return false;
    for (int i = 0; i < on->chunks * on->m; i++)
        if (on->forwards[i] != 1 || on->backwards[i] != 1 || on->weights[i] != 1)
            return false;
    return true;
}

static bool run(machine *on, schedule_machine_order order)
{
    for (;;) {
        bool transfers_first = order == SCHEDULE_MACHINE_EAGER ||
                               (order == SCHEDULE_MACHINE_RANDOM && draw(on, 2) == 0);
        if (transfers_first && complete_any(on))
            continue;
        outcome result = step_any(on);
        if (result == WRONG || on->wrong)
            return false;
        if (result == BLOCKED && !complete_any(on))
            return finished(on);
    }
}

bool schedule_machine_accepts(const tr_schedule *schedule, schedule_machine_order order,
                              uint64_t seed)
{
    int p = schedule->num_stages, v = schedule->num_virtual, m = schedule->num_microbatches;
    size_t pairs = (size_t)p * v * m, buffers = (size_t)p * SCHEDULE_MACHINE_MAX;
    machine on = {.schedule = schedule, .p = p, .v = v, .m = m, .chunks = p * v, .random = seed};
    int *memory = TR_NEW_ARRAY(int, 2 * p + 7 * pairs + (size_t)(p * v) + 3 * buffers),
        *at = memory;
    on.next = at, at += p;
    on.live = at, at += p;
    on.inputs = at, at += pairs;
    on.kept = at, at += pairs;
    on.received = at, at += pairs;
    on.received_back = at, at += pairs;
    on.forwards = at, at += pairs;
    on.backwards = at, at += pairs;
    on.weights = at, at += pairs;
    on.weights_done = at, at += p * v;
    on.sends = at, at += buffers;
    on.pending = at, at += buffers;
    on.grads = at;
    on.channels = TR_NEW_ARRAY(channel, p * p);
    size_t most = 0;
    for (int r = 0; r < p; r++)
        most += (size_t)schedule->ranks[r].num_actions;
    for (int i = 0; i < p * p; i++) {
        on.channels[i].sends = TR_NEW_ARRAY(const tr_action *, most + 1);
        on.channels[i].recvs = TR_NEW_ARRAY(const tr_action *, most + 1);
    }
    bool accepts = run(&on, order);
    for (int i = 0; i < p * p; i++) {
        tr_free(on.channels[i].sends);
        tr_free(on.channels[i].recvs);
    }
    tr_free(on.channels);
    tr_free(memory);
    return accepts;
}
