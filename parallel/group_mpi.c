/* Groups over MPI's nonblocking messages, in host memory: for ranks on different nodes, and wherever memory cannot be shared.
 *
 * A sum gathers the other ranks' segments into staging memory and adds them in tree order once all are there, so that its bits are
 * those of shared memory. Phase EXCHANGE is under way from the post; an all-reduce then has a phase GATHER in which the shares travel. */
#include "parallel/group_mpi.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { PHASE_EXCHANGE, PHASE_GATHER };
enum {
    PIECE = 1 << 30, /* bytes of the largest message: counts are int */
    STREAM_BITS = 2, /* of a tag */
    NUMBER_BITS = 10 /* of a tag; numbers may wrap since MPI keeps order */
};

static int tag_of(const tr_group *group, tr_mpi_stream stream, uint64_t number)
{
    return group->index << (STREAM_BITS + NUMBER_BITS) | (int)stream << NUMBER_BITS |
           (int)(number & ((1u << NUMBER_BITS) - 1));
}

static tr_status mpi_open(tr_group *group)
{
    int most = group->world->max_tag >> (STREAM_BITS + NUMBER_BITS);
    if (group->index >= most)
        return tr_fail(TR_ERR_TRANSPORT, "group %s: MPI's tags are enough for %d groups only",
                       group->name, most);
    tr_mpi_state *state = TR_NEW(tr_mpi_state);
    int capacity = 2 * group->size;
    for (int i = 0; i <= TR_GROUP_SLOTS; i++) {
        tr_mpi_op *op = &state->ops[i];
        op->capacity = capacity;
        op->requests = TR_NEW_ARRAY(MPI_Request, capacity);
        op->statuses = TR_NEW_ARRAY(MPI_Status, capacity);
        op->messages = TR_NEW_ARRAY(tr_mpi_message, capacity);
    }
    group->state = state;
    return TR_OK;
}

static void mpi_close(tr_group *group)
{
    tr_mpi_state *state = group->state;
    for (int i = 0; i <= TR_GROUP_SLOTS; i++) {
        tr_mpi_op *op = &state->ops[i];
        if (group->ops[i].active) {
            /* After an error: what is under way may still write its memory, so that stays. */
            group->world->num_polled--;
            continue;
        }
        tr_free(op->requests);
        tr_free(op->statuses);
        tr_free(op->messages);
        tr_free(op->staging);
    }
    tr_free(state);
}

static void staging_grow(tr_mpi_op *op, size_t bytes)
{
    if (op->staging_bytes >= bytes)
        return;
    tr_free(op->staging);
    op->staging = tr_alloc(1, bytes);
    op->staging_bytes = bytes;
}

static void mpi_reserve(tr_group *group, size_t bytes, int num_ops)
{
    tr_mpi_state *state = group->state;
    for (int i = 0; i < num_ops; i++)
        staging_grow(&state->ops[i], bytes);
}

void *tr_mpi_staging(tr_group *group, const tr_op *op, size_t bytes)
{
    tr_mpi_state *state = group->state;
    staging_grow(&state->ops[op->index], bytes);
    return state->ops[op->index].staging;
}

static MPI_Request *request_add(tr_mpi_op *op, int peer, int bytes)
{
    if (op->num == op->capacity) {
        op->capacity *= 2;
        op->requests = tr_realloc(op->requests, (size_t)op->capacity, sizeof *op->requests);
        op->statuses = tr_realloc(op->statuses, (size_t)op->capacity, sizeof *op->statuses);
        op->messages = tr_realloc(op->messages, (size_t)op->capacity, sizeof *op->messages);
    }
    op->messages[op->num] = (tr_mpi_message){.peer = peer, .bytes = bytes};
    return &op->requests[op->num++];
}

tr_status tr_mpi_send(tr_group *group, tr_op *op, tr_mpi_stream stream, uint64_t number, int to,
                      const void *data, size_t bytes)
{
    tr_mpi_state *state = group->state;
    size_t begin = 0;
    do {
        int n = bytes - begin < PIECE ? (int)(bytes - begin) : PIECE;
        TR_MPI(MPI_Isend((const char *)data + begin, n, MPI_BYTE, group->ranks[to],
                         tag_of(group, stream, number), group->world->comm,
                         request_add(&state->ops[op->index], to, -1)));
        begin += (size_t)n;
    } while (begin < bytes);
    return TR_OK;
}

tr_status tr_mpi_recv(tr_group *group, tr_op *op, tr_mpi_stream stream, uint64_t number, int from,
                      void *data, size_t bytes)
{
    tr_mpi_state *state = group->state;
    size_t begin = 0;
    do {
        int n = bytes - begin < PIECE ? (int)(bytes - begin) : PIECE;
        TR_MPI(MPI_Irecv((char *)data + begin, n, MPI_BYTE, group->ranks[from],
                         tag_of(group, stream, number), group->world->comm,
                         request_add(&state->ops[op->index], from, n)));
        begin += (size_t)n;
    } while (begin < bytes);
    return TR_OK;
}

/* Each peer's segment of the source to it, all peers' segments for this rank into staging memory. */
static tr_status exchange_segments(tr_group *group, tr_op *op)
{
    size_t own_bytes = tr_segment_bytes(tr_group_segment(group, op, group->rank));
    char *staging = tr_mpi_staging(group, op, own_bytes * (size_t)(group->size - 1));
    for (int step = 1; step < group->size && own_bytes > 0; step++) {
        int from = (group->rank + group->size - step) % group->size;
        TR_TRY(tr_mpi_recv(group, op, TR_MPI_COLLECTIVE, op->sequence, from, staging, own_bytes));
        staging += own_bytes;
    }
    for (int step = 1; step < group->size; step++) {
        int to = (group->rank + step) % group->size;
        tr_segment s = tr_group_segment(group, op, to);
        if (s.end > s.begin)
            TR_TRY(tr_mpi_send(group, op, TR_MPI_COLLECTIVE, op->sequence, to,
                               (const float *)op->src + s.begin, tr_segment_bytes(s)));
    }
    return TR_OK;
}

static void combine_segments(tr_group *group, tr_op *op)
{
    tr_segment own = tr_group_segment(group, op, group->rank);
    const float *staging = tr_mpi_staging(group, op, 0);
    group->sources[group->rank] = (const float *)op->src + own.begin;
    for (int step = 1; step < group->size; step++) {
        int from = (group->rank + group->size - step) % group->size;
        group->sources[from] = staging + (step - 1) * (own.end - own.begin);
    }
    float *dst = op->kind == TR_OP_REDUCE_SCATTER ? op->dst : (float *)op->dst + own.begin;
    tr_group_combine(group, op->kind, own.end - own.begin, dst);
}

/* The second half of an all-reduce: the shares of the result. */
static tr_status gather_shares(tr_group *group, tr_op *op)
{
    tr_segment own = tr_group_segment(group, op, group->rank);
    float *dst = op->dst;
    for (int step = 1; step < group->size; step++) {
        int from = (group->rank + group->size - step) % group->size;
        tr_segment s = tr_group_segment(group, op, from);
        if (s.end > s.begin)
            TR_TRY(tr_mpi_recv(group, op, TR_MPI_COLLECTIVE, op->sequence, from, dst + s.begin,
                               tr_segment_bytes(s)));
    }
    for (int step = 1; step < group->size && own.end > own.begin; step++)
        TR_TRY(tr_mpi_send(group, op, TR_MPI_COLLECTIVE, op->sequence,
                           (group->rank + step) % group->size, dst + own.begin,
                           tr_segment_bytes(own)));
    return TR_OK;
}

static tr_status gather_blocks(tr_group *group, tr_op *op)
{
    char *dst = op->dst;
    size_t own_bytes = (size_t)op->counts[group->rank] * op->item_bytes;
    for (int i = 0; i < group->size; i++) {
        size_t bytes = (size_t)op->counts[i] * op->item_bytes;
        if (i != group->rank && bytes > 0)
            TR_TRY(tr_mpi_recv(group, op, TR_MPI_COLLECTIVE, op->sequence, i, dst, bytes));
        if (i == group->rank && bytes > 0 && dst != op->src)
            tr_group_copy(group, dst, op->src, bytes);
        dst += bytes;
    }
    for (int step = 1; step < group->size && own_bytes > 0; step++)
        TR_TRY(tr_mpi_send(group, op, TR_MPI_COLLECTIVE, op->sequence,
                           (group->rank + step) % group->size, op->src, own_bytes));
    return TR_OK;
}

static tr_status mpi_post(tr_group *group, tr_op *op)
{
    group->world->num_polled++;
    switch (op->kind) {
    case TR_OP_ALL_GATHER:
        return gather_blocks(group, op);
    case TR_OP_SEND:
        TR_TRY(tr_mpi_send(group, op, TR_MPI_NOTE, 0, op->peer, NULL, 0));
        return tr_mpi_send(group, op, TR_MPI_CHANNEL, 0, op->peer, op->src, (size_t)op->n);
    case TR_OP_RECV:
        TR_TRY(tr_mpi_recv(group, op, TR_MPI_NOTE, 0, op->peer, NULL, 0));
        return tr_mpi_recv(group, op, TR_MPI_CHANNEL, 0, op->peer, op->dst, (size_t)op->n);
    default:
        return exchange_segments(group, op);
    }
}

static tr_status check_received(const tr_group *group, const tr_op *op, tr_mpi_op *under_way)
{
    for (int i = 0; i < under_way->num; i++) {
        int bytes, expected = under_way->messages[i].bytes;
        if (expected < 0)
            continue;
        TR_MPI(MPI_Get_count(&under_way->statuses[i], MPI_BYTE, &bytes));
        if (bytes != expected)
            return tr_fail(TR_ERR_INTERNAL,
                           "%s number %llu of group %s: expected %d bytes of rank %d, %d came",
                           tr_op_name(op->kind), (unsigned long long)op->sequence, group->name,
                           expected, under_way->messages[i].peer, bytes);
    }
    under_way->num = 0;
    return TR_OK;
}

/* The empty message in front of the data tells a receiver that waits from when on it waits for the transfer, and no longer for the sender. */
static tr_status note_look(tr_op *op, const tr_mpi_op *under_way)
{
    int has_come = 0;
    if (op->kind != TR_OP_RECV || op->begun > 0)
        return TR_OK;
    TR_MPI(MPI_Request_get_status(under_way->requests[0], &has_come, MPI_STATUS_IGNORE));
    if (has_come)
        op->begun = tr_clock_seconds();
    return TR_OK;
}

static tr_status mpi_advance(tr_group *group, tr_op *op, bool *moved)
{
    tr_mpi_state *state = group->state;
    tr_mpi_op *under_way = &state->ops[op->index];
    if (under_way->num > 0) {
        int complete = 0;
        TR_TRY(note_look(op, under_way));
        TR_MPI(MPI_Testall(under_way->num, under_way->requests, &complete, under_way->statuses));
        if (!complete)
            return TR_OK;
        TR_TRY(check_received(group, op, under_way));
    }
    *moved = true;
    bool all_reduce = op->kind == TR_OP_ALL_REDUCE || op->kind == TR_OP_ALL_REDUCE_MAX;
    if (op->phase == PHASE_EXCHANGE && (all_reduce || op->kind == TR_OP_REDUCE_SCATTER))
        combine_segments(group, op);
    if (op->phase == PHASE_EXCHANGE && all_reduce) {
        op->phase = PHASE_GATHER;
        return gather_shares(group, op);
    }
    op->result_ready = true;
    op->active = false;
    group->world->num_polled--;
    return TR_OK;
}

static const char *mpi_late(const tr_group *group, const tr_op *op, bool *late)
{
    const tr_mpi_state *state = group->state;
    const tr_mpi_op *under_way = &state->ops[op->index];
    for (int i = 0; i < under_way->num; i++) {
        int complete = 0;
        MPI_Request_get_status(under_way->requests[i], &complete, MPI_STATUS_IGNORE);
        if (!complete)
            late[under_way->messages[i].peer] = true;
    }
    return op->kind == TR_OP_SEND ? "not received by" : "nothing from";
}

const tr_group_transport tr_group_transport_mpi = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .reserve = mpi_reserve,
    .post = mpi_post,
    .advance = mpi_advance,
    .all_reduce_i64 = tr_mpi_all_reduce_i64,
    .broadcast = tr_mpi_broadcast,
    .late = mpi_late,
};
