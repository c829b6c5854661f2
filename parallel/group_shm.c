/* Groups inside a node: a post publishes where the source lies, and the receivers read it in place. Nothing is copied on the way.
 *
 * Collectives of a group run in the order of their posts: phase POSTED until all ranks have posted, then this rank's reading and adding; phase
 * FINISHED until all ranks have read. A large all-reduce whose results all lie in communication memory is cut: each rank adds one
 * share, and copies the others' from their results (phase SHARED between the two). The bits are those of the tree either way. */
#include "parallel/group_shm.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { PHASE_POSTED, PHASE_SHARED, PHASE_FINISHED };
enum {
    CUT_ELEMENTS = 16384
}; /* below, an extra round of waiting costs more than adding everything */

size_t tr_shm_mailbox_bytes(int local_size)
{
    size_t bytes = sizeof(tr_shm_mailbox) + (size_t)local_size * sizeof(tr_shm_channel);
    return (bytes + 4095) / 4096 * 4096;
}

size_t tr_shm_control_bytes(const tr_world *world)
{
    return 4096 + TR_SHM_GROUPS * world->mailbox_bytes;
}

void tr_shm_ring_group(tr_group *group)
{
    for (int i = 0; i < group->size; i++)
        if (i != group->rank)
            tr_world_ring(group->world, group->world->local_of[group->ranks[i]]);
}

bool tr_shm_arrived(const tr_group *group, _Atomic uint64_t *counter, uint64_t round)
{
    uint64_t target = (uint64_t)group->size * (round + 1);
    return atomic_load_explicit(counter, memory_order_acquire) >= target;
}

void tr_shm_arrive(tr_group *group, _Atomic uint64_t *counter, uint64_t round)
{
    uint64_t target = (uint64_t)group->size * (round + 1);
    if (atomic_fetch_add_explicit(counter, 1, memory_order_acq_rel) + 1 == target)
        tr_shm_ring_group(group);
}

static tr_status shm_open(tr_group *group)
{
    const tr_world *world = group->world;
    for (int i = 0; i < group->size; i++)
        if (world->shm_groups_of[group->ranks[i]] >= TR_SHM_GROUPS)
            return tr_fail(TR_ERR_INTERNAL,
                           "group %s: rank %d is in more than %d groups of its node", group->name,
                           group->ranks[i], TR_SHM_GROUPS);
    tr_shm_state *state = TR_NEW(tr_shm_state);
    state->mailboxes = TR_NEW_ARRAY(tr_shm_mailbox *, group->size);
    for (int i = 0; i < group->size; i++) {
        int rank = group->ranks[i];
        char *at = world->control.base[world->local_of[rank]] + 4096 +
                   (size_t)world->shm_groups_of[rank] * world->mailbox_bytes;
        state->mailboxes[i] = (tr_shm_mailbox *)(void *)at;
    }
    group->state = state;
    return TR_OK;
}

static void shm_close(tr_group *group)
{
    tr_shm_state *state = group->state;
    tr_free(state->mailboxes);
    tr_free(state);
}

/* `otherwise` when it is no communication memory, or empty. */
static uint64_t offset_of(const tr_world *world, const void *data, size_t bytes, uint64_t otherwise)
{
    if (bytes == 0 || !tr_world_owns(world, data, bytes))
        return otherwise;
    return (uint64_t)((const char *)data - world->comm_segment.base[world->comm_segment.own]);
}

/* Where `offset` of a group rank's communication memory is mapped here. */
static char *mapped(const tr_group *group, int rank, uint64_t offset)
{
    const tr_world *world = group->world;
    if (!world->comm_made)
        return NULL; /* then all is empty */
    return world->comm_segment.base[world->local_of[group->ranks[rank]]] + offset;
}

/* Ranks that post different operations, or sizes, have different signatures. */
static uint64_t signature_of(const tr_group *group, const tr_op *op)
{
    uint64_t mixed = (uint64_t)op->kind + 1;
    for (int i = 0; op->counts != NULL && i < group->size; i++)
        mixed = mixed * 0x9E3779B97F4A7C15u + (uint64_t)op->counts[i];
    return mixed * 0x9E3779B97F4A7C15u + (uint64_t)op->n * 64 + op->item_bytes;
}

static void post_collective(tr_group *group, tr_op *op)
{
    tr_shm_state *state = group->state;
    tr_shm_mailbox *own = state->mailboxes[group->rank];
    uint64_t slot = op->sequence % TR_GROUP_SLOTS;
    size_t result_bytes = op->kind == TR_OP_ALL_REDUCE || op->kind == TR_OP_ALL_REDUCE_MAX
                              ? (size_t)op->n * sizeof(float)
                              : 0;
    own->posts[slot] =
        (tr_shm_post){.source = offset_of(group->world, op->src, 1, 0),
                      .destination = offset_of(group->world, op->dst, result_bytes, TR_SHM_PRIVATE),
                      .signature = signature_of(group, op)};
    atomic_store_explicit(&own->num_posted, op->sequence + 1, memory_order_relaxed);
    tr_shm_arrive(group, &state->mailboxes[0]->board.posted[slot], op->sequence / TR_GROUP_SLOTS);
}

static void post_send(tr_group *group, tr_op *op)
{
    tr_shm_state *state = group->state;
    tr_shm_channel *channel = &state->mailboxes[group->rank]->channels[op->peer];
    channel->letters[op->sequence % TR_GROUP_SLOTS] =
        (tr_shm_letter){.source = offset_of(group->world, op->src, (size_t)op->n, 0),
                        .bytes = (uint64_t)op->n,
                        .posted = tr_clock_seconds()};
    atomic_store_explicit(&channel->num_sent, op->sequence + 1, memory_order_release);
    tr_world_ring(group->world, group->world->local_of[group->ranks[op->peer]]);
}

static _Atomic double *wanted_at(tr_shm_channel *channel, const tr_op *op)
{
    return &channel->wanted[op->sequence % TR_GROUP_SLOTS];
}

static void post_recv(tr_group *group, const tr_op *op)
{
    tr_shm_state *state = group->state;
    atomic_store_explicit(wanted_at(&state->mailboxes[group->rank]->channels[op->peer], op),
                          tr_clock_seconds(), memory_order_relaxed);
}

static tr_status shm_post(tr_group *group, tr_op *op)
{
    if (op->kind == TR_OP_SEND)
        post_send(group, op);
    else if (op->kind == TR_OP_RECV)
        post_recv(group, op);
    else
        post_collective(group, op);
    return TR_OK;
}

static tr_status check_posts(const tr_group *group, const tr_op *op)
{
    const tr_shm_state *state = group->state;
    uint64_t slot = op->sequence % TR_GROUP_SLOTS;
    uint64_t own = state->mailboxes[group->rank]->posts[slot].signature;
    for (int i = 0; i < group->size; i++)
        if (state->mailboxes[i]->posts[slot].signature != own)
            return tr_fail(
                TR_ERR_INTERNAL,
                "%s number %llu of group %s: ranks %d and %d of the group posted different "
                "operations or sizes",
                tr_op_name(op->kind), (unsigned long long)op->sequence, group->name, group->rank,
                i);
    return TR_OK;
}

static bool is_cut(const tr_group *group, const tr_op *op)
{
    const tr_shm_state *state = group->state;
    if (op->kind != TR_OP_ALL_REDUCE && op->kind != TR_OP_ALL_REDUCE_MAX)
        return false;
    if (group->size <= 2 || op->n < CUT_ELEMENTS)
        return false;
    for (int i = 0; i < group->size; i++)
        if (state->mailboxes[i]->posts[op->sequence % TR_GROUP_SLOTS].destination == TR_SHM_PRIVATE)
            return false;
    return true;
}

/* Adds elements [begin, end) of all sources into dst. */
static void combine_range(tr_group *group, const tr_op *op, int64_t begin, int64_t end, float *dst)
{
    const tr_shm_state *state = group->state;
    for (int i = 0; i < group->size; i++) {
        uint64_t source = state->mailboxes[i]->posts[op->sequence % TR_GROUP_SLOTS].source;
        group->sources[i] = (const float *)(const void *)mapped(group, i, source) + begin;
    }
    tr_group_combine(group, op->kind, end - begin, dst);
}

static void gather_sources(tr_group *group, const tr_op *op)
{
    const tr_shm_state *state = group->state;
    char *dst = op->dst;
    for (int i = 0; i < group->size; i++) {
        size_t bytes = (size_t)op->counts[i] * op->item_bytes;
        const char *src =
            i == group->rank
                ? op->src
                : mapped(group, i,
                         state->mailboxes[i]->posts[op->sequence % TR_GROUP_SLOTS].source);
        if (bytes > 0 && src != dst)
            tr_group_copy(group, dst, src, bytes);
        dst += bytes;
    }
}

static void gather_shares(tr_group *group, const tr_op *op)
{
    const tr_shm_state *state = group->state;
    float *dst = op->dst;
    for (int i = 0; i < group->size; i++) {
        int64_t begin, end;
        tr_group_share(group, op->n, i, &begin, &end);
        uint64_t result = state->mailboxes[i]->posts[op->sequence % TR_GROUP_SLOTS].destination;
        const float *src = (const float *)(const void *)mapped(group, i, result);
        if (i != group->rank && end > begin)
            tr_group_copy(group, dst + begin, src + begin, (size_t)(end - begin) * sizeof(float));
    }
}

/* All sources are there: this rank's reading of them. */
static void run_collective(tr_group *group, tr_op *op)
{
    int64_t begin = 0, end = op->n;
    if (op->kind == TR_OP_ALL_GATHER) {
        gather_sources(group, op);
    } else if (op->kind == TR_OP_REDUCE_SCATTER) {
        for (int i = 0; i < group->rank; i++)
            begin += op->counts[i];
        combine_range(group, op, begin, begin + op->counts[group->rank], op->dst);
    } else {
        if (is_cut(group, op))
            tr_group_share(group, op->n, group->rank, &begin, &end);
        combine_range(group, op, begin, end, (float *)op->dst + begin);
    }
}

static void finish_reading(tr_group *group, tr_op *op, uint64_t slot, uint64_t round)
{
    tr_shm_state *state = group->state;
    op->phase = PHASE_FINISHED;
    atomic_store_explicit(&state->mailboxes[group->rank]->num_finished, op->sequence + 1,
                          memory_order_relaxed);
    tr_shm_arrive(group, &state->mailboxes[0]->board.finished[slot], round);
}

static tr_status advance_collective(tr_group *group, tr_op *op, bool *moved)
{
    tr_shm_state *state = group->state;
    tr_shm_board *board = &state->mailboxes[0]->board;
    uint64_t slot = op->sequence % TR_GROUP_SLOTS, round = op->sequence / TR_GROUP_SLOTS;
    if (op->phase == PHASE_POSTED) {
        if (state->num_read != op->sequence || !tr_shm_arrived(group, &board->posted[slot], round))
            return TR_OK;
        TR_TRY(check_posts(group, op));
        run_collective(group, op);
        *moved = true;
        if (is_cut(group, op)) {
            op->phase = PHASE_SHARED;
            atomic_store_explicit(&state->mailboxes[group->rank]->num_shared, op->sequence + 1,
                                  memory_order_relaxed);
            tr_shm_arrive(group, &board->shared, state->num_cut);
        } else {
            op->result_ready = true;
            state->num_read++;
            finish_reading(group, op, slot, round);
        }
    }
    if (op->phase == PHASE_SHARED) {
        if (!tr_shm_arrived(group, &board->shared, state->num_cut))
            return TR_OK;
        gather_shares(group, op);
        *moved = true;
        state->num_cut++;
        state->num_read++;
        finish_reading(group, op, slot, round);
    }
    if (op->phase == PHASE_FINISHED && tr_shm_arrived(group, &board->finished[slot], round)) {
        op->result_ready = true;
        op->active = false;
        *moved = true;
    }
    return TR_OK;
}

/* The ranks of a node have one clock. */
static double later(double a, double b)
{
    return a > b ? a : b;
}

static tr_status advance_send(tr_group *group, tr_op *op, bool *moved)
{
    tr_shm_state *state = group->state;
    tr_shm_channel *peer = &state->mailboxes[op->peer]->channels[group->rank];
    tr_shm_channel *own = &state->mailboxes[group->rank]->channels[op->peer];
    if (atomic_load_explicit(&peer->num_received, memory_order_acquire) > op->sequence) {
        op->begun = later(own->letters[op->sequence % TR_GROUP_SLOTS].posted,
                          atomic_load_explicit(wanted_at(peer, op), memory_order_relaxed));
        op->result_ready = true;
        op->active = false;
        *moved = true;
    }
    return TR_OK;
}

static tr_status advance_recv(tr_group *group, tr_op *op, bool *moved)
{
    tr_shm_state *state = group->state;
    tr_shm_channel *peer = &state->mailboxes[op->peer]->channels[group->rank];
    tr_shm_channel *own = &state->mailboxes[group->rank]->channels[op->peer];
    /* In order: an earlier receive of this channel is moved on before this one. */
    if (atomic_load_explicit(&own->num_received, memory_order_relaxed) != op->sequence ||
        atomic_load_explicit(&peer->num_sent, memory_order_acquire) <= op->sequence)
        return TR_OK;
    const tr_shm_letter *letter = &peer->letters[op->sequence % TR_GROUP_SLOTS];
    if (letter->bytes != (uint64_t)op->n)
        return tr_fail(TR_ERR_INTERNAL,
                       "recv number %llu of group %s from rank %d, tag %lld: expected %lld bytes, "
                       "%llu were sent",
                       (unsigned long long)op->sequence, group->name, op->peer, (long long)op->tag,
                       (long long)op->n, (unsigned long long)letter->bytes);
    op->begun =
        later(letter->posted, atomic_load_explicit(wanted_at(own, op), memory_order_relaxed));
    if (op->n > 0)
        tr_group_copy(group, op->dst, mapped(group, op->peer, letter->source), (size_t)op->n);
    atomic_store_explicit(&own->num_received, op->sequence + 1, memory_order_release);
    tr_world_ring(group->world, group->world->local_of[group->ranks[op->peer]]);
    op->result_ready = true;
    op->active = false;
    *moved = true;
    return TR_OK;
}

static tr_status shm_advance(tr_group *group, tr_op *op, bool *moved)
{
    if (op->index == TR_GROUP_SMALL)
        return tr_shm_advance_small(group, op, moved);
    if (op->kind == TR_OP_SEND)
        return advance_send(group, op, moved);
    if (op->kind == TR_OP_RECV)
        return advance_recv(group, op, moved);
    return advance_collective(group, op, moved);
}

static const char *shm_late(const tr_group *group, const tr_op *op, bool *late)
{
    const tr_shm_state *state = group->state;
    if (tr_op_is_pair(op->kind)) {
        late[op->peer] = true;
        return op->kind == TR_OP_SEND ? "not received by" : "not sent by";
    }
    bool small = op->index == TR_GROUP_SMALL;
    for (int i = 0; i < group->size; i++) {
        tr_shm_mailbox *box = state->mailboxes[i];
        _Atomic uint64_t *done = small                       ? &box->num_small
                                 : op->phase == PHASE_POSTED ? &box->num_posted
                                 : op->phase == PHASE_SHARED ? &box->num_shared
                                                             : &box->num_finished;
        late[i] = atomic_load_explicit(done, memory_order_relaxed) <= op->sequence;
    }
    return small || op->phase == PHASE_POSTED ? "not joined by" : "not finished by";
}

const tr_group_transport tr_group_transport_shm = {
    .name = "shm",
    .open = shm_open,
    .close = shm_close,
    .reserve = NULL,
    .post = shm_post,
    .advance = shm_advance,
    .all_reduce_i64 = tr_shm_all_reduce_i64,
    .broadcast = tr_shm_broadcast,
    .late = shm_late,
};
