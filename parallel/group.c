/* The part of groups that all transports share: checks, slots, events and the counting of bytes. */
#include "parallel/group.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/tree_sum.h"
#include "parallel/group_int.h"

int tr_group_size(const tr_group *group)
{
    return group->size;
}

int tr_group_rank(const tr_group *group)
{
    return group->rank;
}

const char *tr_group_name(const tr_group *group)
{
    return group->name;
}

const tr_group_stats *tr_group_get_stats(const tr_group *group)
{
    return &group->stats;
}

void tr_group_reserve(tr_group *group, size_t bytes, int num_ops)
{
    TR_ASSERT(num_ops <= TR_GROUP_SLOTS);
    if (group->transport->reserve != NULL)
        group->transport->reserve(group, bytes, num_ops);
}

void tr_group_scratch_set(tr_group *group, void *scratch, size_t bytes)
{
    group->scratch = scratch;
    group->scratch_bytes = bytes;
}

tr_status tr_group_native_set(tr_group *group)
{
    if (group->transport->native_open != NULL)
        TR_TRY(group->transport->native_open(group));
    group->native = true;
    return TR_OK;
}

tr_status tr_group_channels_open(tr_group *group, const tr_channel *channels, int count)
{
    for (int i = 0; i < count; i++)
        TR_ASSERT(channels[i].from != channels[i].to && channels[i].from >= 0 &&
                  channels[i].from < group->size && channels[i].to >= 0 &&
                  channels[i].to < group->size);
    return group->transport->channels_open != NULL
               ? group->transport->channels_open(group, channels, count)
               : TR_OK;
}

const char *tr_op_name(tr_op_kind kind)
{
    static const char *const names[] = {
#define TR_OP_TEXT(name, text, pair) text,
        TR_OP_LIST(TR_OP_TEXT)
#undef TR_OP_TEXT
    };
    return names[kind];
}

bool tr_op_is_pair(tr_op_kind kind)
{
    static const bool pairs[] = {
#define TR_OP_PAIR(name, text, pair) pair,
        TR_OP_LIST(TR_OP_PAIR)
#undef TR_OP_PAIR
    };
    return pairs[kind];
}

/* In the order of the ranks, so that zeros of both signs and NaNs come out alike everywhere; a NaN wins. */
static void maximum(int64_t n, int count, const float *const *src, float *dst)
{
    for (int64_t i = 0; i < n; i++) {
        float most = src[0][i];
        for (int k = 1; k < count; k++)
            most = most > src[k][i] || isnan(most) ? most : src[k][i];
        dst[i] = most;
    }
}

void tr_group_combine(tr_group *group, tr_op_kind kind, int64_t n, float *dst)
{
    double start = tr_clock_seconds();
    if (kind == TR_OP_ALL_REDUCE_MAX)
        maximum(n, group->size, group->sources, dst);
    else
        tr_tree_sum(n, group->size, group->sources, dst);
    group->stats.move_seconds += tr_clock_seconds() - start;
}

void tr_group_copy(tr_group *group, void *dst, const void *src, size_t bytes)
{
    double start = tr_clock_seconds();
    memcpy(dst, src, bytes);
    group->stats.move_seconds += tr_clock_seconds() - start;
}

void tr_group_combine_i64(tr_int_op op, int n, const int64_t *other, int64_t *values)
{
    for (int i = 0; i < n; i++) {
        if (op == TR_INT_SUM)
            values[i] = (int64_t)((uint64_t)values[i] + (uint64_t)other[i]);
        else if ((op == TR_INT_MAX) == (other[i] > values[i]))
            values[i] = other[i];
    }
}

/* --- traces --- */

void tr_group_label(tr_group *group, const char *text, int number)
{
    group->next_label = text;
    group->next_number = number;
}

void tr_group_trace_add(tr_group *group, const tr_op *op, int lane, double begin)
{
    tr_trace_event *event =
        tr_trace_add(group->world->trace, group->track, lane, tr_op_name(op->kind), begin);
    event->bytes = (int64_t)op->bytes;
    event->sequence = (int)(op->sequence & INT32_MAX);
    if (op->label != NULL) {
        strncpy(event->label, op->label, sizeof event->label - 1);
        event->number = op->label_number;
    }
    if (!tr_op_is_pair(op->kind))
        return;
    event->peer = group->ranks[op->peer];
    event->microbatch = (int)op->tag;
}

/* Sums take the first slots, what only moves takes the last. */
static int lane_of(const tr_op *op)
{
    if (op->index == TR_GROUP_SMALL)
        return TR_GROUP_LANE_SMALL;
    bool is_sum = op->index < TR_GROUP_SLOTS / 2;
    return is_sum ? TR_GROUP_LANE_SUMS + op->index
                  : TR_GROUP_LANE_MOVES + TR_GROUP_SLOTS - 1 - op->index;
}

/* An operation that was posted before the trace began is not in it. */
static void completion_trace(tr_group *group, const tr_op *op)
{
    if (op->posted > 0 && tr_trace_is_on(group->world->trace))
        tr_group_trace_add(group, op, lane_of(op), op->posted);
}

/* --- progress --- */

static tr_status group_progress(tr_group *group, bool *moved)
{
    int num_left = 0;
    tr_status status = TR_OK;
    for (int i = 0; i < group->num_active; i++) {
        tr_op *op = &group->ops[group->active[i]];
        if (status == TR_OK)
            status = group->transport->advance(group, op, moved);
        if (op->active)
            group->active[num_left++] = (uint8_t)op->index;
        else
            completion_trace(group, op);
    }
    group->num_active = num_left;
    return status;
}

tr_status tr_world_progress(tr_world *world, bool *moved)
{
    for (tr_group *group = world->first_group; group != NULL; group = group->next)
        if (group->num_active > 0 && group->transport->await == NULL)
            TR_TRY(group_progress(group, moved));
    return TR_OK;
}

tr_status tr_group_progress(tr_group *group)
{
    bool moved = false;
    return tr_world_progress(group->world, &moved);
}

/* --- posting --- */

static tr_op *activate(tr_group *group, int index, tr_op_kind kind)
{
    tr_op *op = &group->ops[index];
    TR_ASSERT(!op->active);
    *op = (tr_op){.kind = kind,
                  .index = index,
                  .generation = op->generation + 1,
                  .active = true,
                  .peer = -1,
                  .posted = group->transport->await == NULL ? tr_trace_now(group->world->trace) : 0,
                  .label = group->next_label,
                  .label_number = group->next_number};
    group->next_label = NULL;
    group->active[group->num_active++] = (uint8_t)index;
    return op;
}

tr_op *tr_group_small_begin(tr_group *group, tr_op_kind kind)
{
    return activate(group, TR_GROUP_SMALL, kind);
}

/* Sums take the first free slot, since memory is reserved for the first ones; what receives in place takes the last. */
static int free_slot(const tr_group *group, tr_op_kind kind)
{
    bool sum =
        kind == TR_OP_REDUCE_SCATTER || kind == TR_OP_ALL_REDUCE || kind == TR_OP_ALL_REDUCE_MAX;
    for (int i = 0; i < TR_GROUP_SLOTS; i++) {
        int slot = sum ? i : TR_GROUP_SLOTS - 1 - i;
        if (!group->ops[slot].active)
            return slot;
    }
    return -1;
}

/* Whether an event names an operation that is still posted. */
static tr_op *op_of(const tr_event *event)
{
    if (event->group == NULL)
        return NULL;
    tr_op *op = &event->group->ops[event->slot];
    return op->active && op->generation == event->generation ? op : NULL;
}

/* A slot for a new operation; waits for the oldest when all are taken. */
static tr_status op_begin(tr_group *group, tr_op_kind kind, tr_event *event, tr_op **out)
{
    TR_ASSERT(op_of(event) == NULL);
    int slot = free_slot(group, kind);
    while (slot < 0) {
        TR_TRY(tr_group_wait_op(group, &group->ops[group->active[0]], false));
        slot = free_slot(group, kind);
    }
    tr_op *op = activate(group, slot, kind);
    *event = (tr_event){.group = group, .slot = (uint32_t)slot, .generation = op->generation};
    *out = op;
    return TR_OK;
}

static tr_status post(tr_group *group, tr_op *op, uint64_t bytes_sent)
{
    if (op->kind == TR_OP_SEND)
        op->sequence = group->num_sends[op->peer]++;
    else if (op->kind == TR_OP_RECV)
        op->sequence = group->num_recvs[op->peer]++;
    else
        op->sequence = group->num_collectives++;
    op->bytes = op->kind == TR_OP_RECV ? (uint64_t)op->n : bytes_sent;
    group->stats.num_operations++;
    group->stats.bytes_sent += bytes_sent;
    return group->transport->post(group, op);
}

static int64_t total(const tr_group *group, const int64_t *counts)
{
    int64_t sum = 0;
    for (int i = 0; i < group->size; i++) {
        TR_ASSERT(counts[i] >= 0);
        sum += counts[i];
    }
    return sum;
}

tr_status tr_group_reduce_scatter(tr_group *group, const float *src, const int64_t *counts,
                                  float *dst, tr_event *event)
{
    int64_t n = total(group, counts);
    TR_ASSERT(tr_world_owns(group->world, src, (size_t)n * sizeof *src));
    tr_op *op;
    TR_TRY(op_begin(group, TR_OP_REDUCE_SCATTER, event, &op));
    op->src = src;
    op->dst = dst;
    op->counts = counts;
    op->item_bytes = sizeof *src;
    return post(group, op, (uint64_t)(n - counts[group->rank]) * sizeof *src);
}

static bool overlap(const void *a, const void *b, size_t bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y ? y - x < bytes : x - y < bytes;
}

static tr_status all_reduce(tr_group *group, tr_op_kind kind, const float *src, float *dst,
                            int64_t n, tr_event *event)
{
    TR_ASSERT(n >= 0 && tr_world_owns(group->world, src, (size_t)n * sizeof *src));
    TR_ASSERT(!overlap(src, dst, (size_t)n * sizeof *src));
    tr_op *op;
    TR_TRY(op_begin(group, kind, event, &op));
    op->src = src;
    op->dst = dst;
    op->n = n;
    return post(group, op, (uint64_t)tr_group_all_reduce_bytes(group->size, group->rank, n));
}

tr_status tr_group_all_reduce(tr_group *group, const float *src, float *dst, int64_t n,
                              tr_event *event)
{
    return all_reduce(group, TR_OP_ALL_REDUCE, src, dst, n, event);
}

tr_status tr_group_all_reduce_max(tr_group *group, const float *src, float *dst, int64_t n,
                                  tr_event *event)
{
    return all_reduce(group, TR_OP_ALL_REDUCE_MAX, src, dst, n, event);
}

tr_status tr_group_all_gather(tr_group *group, const void *src, const int64_t *counts,
                              size_t item_bytes, void *dst, tr_event *event)
{
    (void)total(group, counts);
    size_t bytes = (size_t)counts[group->rank] * item_bytes;
    TR_ASSERT(tr_world_owns(group->world, src, bytes));
    tr_op *op;
    TR_TRY(op_begin(group, TR_OP_ALL_GATHER, event, &op));
    op->src = src;
    op->dst = dst;
    op->counts = counts;
    op->item_bytes = item_bytes;
    return post(group, op, (uint64_t)bytes * (uint64_t)(group->size - 1));
}

tr_status tr_group_send(tr_group *group, int to, const void *src, size_t bytes, int64_t tag,
                        tr_event *event)
{
    TR_ASSERT(to >= 0 && to < group->size && to != group->rank);
    TR_ASSERT(tr_world_owns(group->world, src, bytes));
    tr_op *op;
    TR_TRY(op_begin(group, TR_OP_SEND, event, &op));
    op->src = src;
    op->n = (int64_t)bytes;
    op->peer = to;
    op->tag = tag;
    return post(group, op, bytes);
}

tr_status tr_group_recv(tr_group *group, int from, void *dst, size_t bytes, int64_t tag,
                        tr_event *event)
{
    TR_ASSERT(from >= 0 && from < group->size && from != group->rank);
    tr_op *op;
    TR_TRY(op_begin(group, TR_OP_RECV, event, &op));
    op->dst = dst;
    op->n = (int64_t)bytes;
    op->peer = from;
    op->tag = tag;
    return post(group, op, 0);
}

/* --- events --- */

tr_status tr_event_test(tr_event *event, bool *complete)
{
    tr_op *op = op_of(event);
    if (op != NULL) {
        bool moved = false;
        if (event->group->transport->await != NULL)
            TR_TRY(group_progress(event->group, &moved));
        else
            TR_TRY(tr_world_progress(event->group->world, &moved));
        op = op_of(event);
    }
    if (op == NULL)
        event->group = NULL;
    *complete = op == NULL;
    return TR_OK;
}

tr_status tr_event_wait(tr_event *event)
{
    tr_op *op = op_of(event);
    if (op != NULL)
        TR_TRY(tr_group_wait_op(event->group, op, false));
    event->group = NULL;
    return TR_OK;
}

tr_status tr_event_wait_result(tr_event *event)
{
    tr_op *op = op_of(event);
    return op != NULL && !op->result_ready ? tr_group_wait_op(event->group, op, true) : TR_OK;
}

/* --- operations that finish before they return --- */

tr_status tr_group_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op)
{
    TR_ASSERT(n >= 0 && n <= TR_GROUP_INTEGERS_MAX && group->transport->all_reduce_i64 != NULL);
    group->stats.num_operations++;
    group->stats.bytes_sent += (uint64_t)n * sizeof *values * (uint64_t)(group->size - 1);
    return group->transport->all_reduce_i64(group, values, n, op);
}

tr_status tr_group_barrier(tr_group *group)
{
    group->stats.num_operations++;
    return group->transport->all_reduce_i64(group, NULL, 0, TR_INT_SUM);
}

tr_status tr_group_broadcast(tr_group *group, int root, void *data, size_t bytes)
{
    TR_ASSERT(root >= 0 && root < group->size);
    group->stats.num_operations++;
    if (group->rank == root)
        group->stats.bytes_sent += (uint64_t)bytes * (uint64_t)(group->size - 1);
    return group->transport->broadcast(group, root, data, bytes);
}
