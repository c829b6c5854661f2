#include "engine/checkpoint_node.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/device_host.h"

enum { SLOT_LEAST = 4 << 20, LINE = 64 };

static int want_compare(const tr_node_want *want, int tensor, tr_shard_kind kind)
{
    if (want->tensor != tensor)
        return want->tensor < tensor ? -1 : 1;
    return (int)want->kind - (int)kind;
}

static int by_tensor(const void *a, const void *b)
{
    const tr_node_want *other = b;
    return want_compare(a, other->tensor, other->kind);
}

static size_t set_bytes(const tr_checkpoint *checkpoint)
{
    size_t bytes = tr_checkpoint_set_words(checkpoint) * sizeof(tr_chunk_word);
    return (bytes + LINE - 1) / LINE * LINE;
}

/* ---- set-up ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The set has all marks only when all ranks have come as far. */
static tr_status wants_mark(tr_node_read *read)
{
    for (int i = 0; i < read->num_wants; i++)
        tr_checkpoint_mark(read->checkpoint, read->wants[i].tensor, read->wants[i].kind,
                           read->wants[i].pieces, read->wants[i].num_pieces, read->set);
    return read->group != NULL ? tr_group_barrier(read->group) : TR_OK;
}

/* As many lanes on every rank as each can have threads. A system that has no more threads leaves one. */
static tr_status lanes_create(tr_node_read *read, int num_threads)
{
    int most = num_threads < TR_NODE_READ_THREADS ? num_threads : TR_NODE_READ_THREADS;
    if (tr_thread_pool_create(most, &read->pool) != TR_OK)
        TR_TRY(tr_thread_pool_create(1, &read->pool));
    int64_t lanes = tr_thread_pool_num_threads(read->pool);
    if (read->group != NULL)
        TR_TRY(tr_group_all_reduce_i64(read->group, &lanes, 1, TR_INT_MIN));
    read->num_lanes = (int)lanes;
    read->lanes = TR_NEW_ARRAY(tr_node_lane, (size_t)lanes);
    for (int i = 0; i < read->num_lanes; i++)
        tr_chunk_reader_init(&read->lanes[i].reader, read->checkpoint);
    read->round = TR_NEW_ARRAY(tr_chunk_portion, (size_t)(read->size * read->num_lanes));
    return TR_OK;
}

static tr_status slots_create(tr_node_read *read, tr_world *world)
{
    size_t slots = 2 * (size_t)read->num_lanes * read->slot_bytes;
    size_t extra = read->rank == 0 ? set_bytes(read->checkpoint) : 0;
    TR_TRY(tr_shm_segment_create_node(&read->segment, world, slots + extra));
    TR_ASSERT(read->segment.num_pieces == read->size && read->segment.own == read->rank);
    read->set = (tr_chunk_word *)(void *)(read->segment.base[0] + slots);
    return TR_OK;
}

tr_status tr_node_read_begin(tr_node_read *read, tr_world *world, tr_group *group,
                             tr_device *device, tr_checkpoint *checkpoint, tr_node_want *wants,
                             int num_wants, int num_threads)
{
    int64_t largest = tr_checkpoint_largest_chunk(checkpoint);
    tr_status status;
    *read = (tr_node_read){.checkpoint = checkpoint,
                           .device = device,
                           .group = group,
                           .size = group != NULL ? tr_group_size(group) : 1,
                           .rank = group != NULL ? tr_group_rank(group) : 0,
                           .wants = wants,
                           .num_wants = num_wants,
                           .slot_bytes = (size_t)larger(SLOT_LEAST, largest)};
    qsort(wants, (size_t)num_wants, sizeof *wants, by_tensor);
    TR_TRY_GOTO(status, lanes_create(read, num_threads), fail);
    TR_TRY_GOTO(status, slots_create(read, world), fail);
    TR_TRY_GOTO(status, wants_mark(read), fail);
    /* Of a small checkpoint every thread gets a part. */
    int64_t share = tr_node_read_needed(read).raw / (read->size * read->num_lanes) + 1;
    read->room =
        larger(largest, share < (int64_t)read->slot_bytes ? share : (int64_t)read->slot_bytes);
    return TR_OK;
fail:
    tr_node_read_end(read);
    return status;
}

void tr_node_read_end(tr_node_read *read)
{
    for (int i = 0; i < read->num_lanes; i++)
        tr_chunk_reader_clear(&read->lanes[i].reader);
    tr_thread_pool_destroy(read->pool);
    tr_shm_segment_clear(&read->segment);
    tr_free(read->lanes);
    tr_free(read->round);
    *read = (tr_node_read){0};
}

int64_t tr_node_read_bytes(const tr_node_read *read)
{
    int64_t bytes = 0;
    for (int i = 0; i < read->num_lanes; i++)
        bytes += read->lanes[i].reader.bytes_read;
    return bytes;
}

tr_chunk_sums tr_node_read_needed(const tr_node_read *read)
{
    return tr_checkpoint_set_sums(read->checkpoint, read->set);
}

/* ---- reading ---- */

/* The portions of the next round, at most one per lane; false when there are none. *last: the portion before, then the last one of these. */
static bool round_deal(tr_node_read *read, tr_chunk_portion *last)
{
    int most = read->size * read->num_lanes;
    for (read->num_portions = 0; read->num_portions < most; read->num_portions++) {
        if (!tr_checkpoint_portion_next(read->checkpoint, read->set, read->room, last))
            break;
        read->round[read->num_portions] = *last;
    }
    return read->num_portions > 0;
}

/* Of portion p of the round. */
static float *slot_of(const tr_node_read *read, int p)
{
    int slot = 2 * (p % read->num_lanes) + read->parity;
    return (float *)(void *)(read->segment.base[p / read->num_lanes] +
                             (size_t)slot * read->slot_bytes);
}

static void lane_read(void *context, int piece, int thread)
{
    tr_node_read *read = context;
    tr_node_lane *lane = &read->lanes[piece];
    int p = read->rank * read->num_lanes + piece;
    (void)thread;
    lane->status = tr_chunk_portion_read(&lane->reader, read->set, &read->round[p],
                                         read->decoding ? slot_of(read, p) : NULL);
    if (lane->status != TR_OK)
        lane->message = tr_strdup(tr_error_message());
}

/* This rank's portions of the round; the failure of the first that has one, as the calling thread's. */
static tr_status own_read(tr_node_read *read, bool decoding)
{
    int count = read->num_portions - read->rank * read->num_lanes;
    if (count <= 0)
        return TR_OK;
    count = count < read->num_lanes ? count : read->num_lanes;
    read->decoding = decoding;
    tr_thread_pool_run(read->pool, count, lane_read, read);
    tr_status status = TR_OK;
    for (int i = 0; i < count; i++) {
        if (read->lanes[i].status != TR_OK && status == TR_OK)
            status = tr_fail(read->lanes[i].status, "%s", read->lanes[i].message);
        tr_free(read->lanes[i].message);
        read->lanes[i].message = NULL;
    }
    return status;
}

tr_status tr_node_read_check(tr_node_read *read)
{
    tr_chunk_portion last = {0, 0};
    while (round_deal(read, &last))
        TR_TRY(own_read(read, false));
    return TR_OK;
}

/* First of the sorted wants that is not before (tensor, kind). */
static int first_want(const tr_node_read *read, int tensor, tr_shard_kind kind)
{
    int low = 0, high = read->num_wants;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (want_compare(&read->wants[middle], tensor, kind) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What this rank wants of a portion that lies decoded in its slot. No two portions have elements in common. */
static tr_status portion_copy(const tr_node_read *read, int piece, tr_box_run_copy copy,
                              void *copy_context)
{
    const tr_chunk_portion *portion = &read->round[piece];
    const float *values = slot_of(read, piece);
    tr_numbered_chunk chunk;
    for (int64_t c = tr_chunk_portion_find(portion, read->set, portion->begin); c >= 0;
         c = tr_chunk_portion_find(portion, read->set, c + 1)) {
        tr_checkpoint_get_chunk(read->checkpoint, c, &chunk);
        for (int i = first_want(read, chunk.tensor, chunk.kind);
             i < read->num_wants && want_compare(&read->wants[i], chunk.tensor, chunk.kind) == 0;
             i++)
            TR_TRY(tr_boxes_copy_runs(chunk.pieces, chunk.num_pieces, values, read->wants[i].pieces,
                                      read->wants[i].num_pieces, read->wants[i].dst, copy,
                                      copy_context));
        values += chunk.raw_bytes / (int)sizeof(float);
    }
    return TR_OK;
}

static void portion_take(void *context, int piece, int thread)
{
    (void)thread;
    (void)portion_copy(context, piece, tr_box_run_memcpy, NULL);
}

static tr_status run_write(void *context, void *dst, const void *src, size_t bytes)
{
    return tr_device_writer_add(context, dst, src, bytes);
}

/* The round's portions into memory that the host cannot touch: the device's owner writes them. */
static tr_status portions_write(const tr_node_read *read)
{
    tr_device_writer writer;
    tr_status status = tr_device_writer_begin(&writer, read->device);
    for (int p = 0; p < read->num_portions && status == TR_OK; p++)
        status = portion_copy(read, p, run_write, &writer);
    tr_status end = tr_device_writer_end(&writer);
    return status != TR_OK ? status : end;
}

static tr_status portions_take(tr_node_read *read)
{
    if (!read->device->unified)
        return portions_write(read);
    tr_thread_pool_run(read->pool, read->num_portions, portion_take, read);
    return TR_OK;
}

/* Collective over the node: whether all ranks have their portion. */
static tr_status all_have(tr_node_read *read, tr_status own, bool *all)
{
    int64_t failed = own != TR_OK;
    *all = own == TR_OK;
    if (read->group == NULL)
        return own;
    char *message = own != TR_OK ? tr_strdup(tr_error_message()) : NULL;
    tr_status status = tr_group_all_reduce_i64(read->group, &failed, 1, TR_INT_MAX);
    *all = failed == 0;
    if (status == TR_OK && own != TR_OK)
        status = tr_fail(own, "%s", message);
    tr_free(message);
    return status;
}

tr_status tr_node_read_load(tr_node_read *read)
{
    tr_chunk_portion last = {0, 0};
    tr_status taken = TR_OK; /* a failure is told in the next round, where all ranks meet */
    for (read->parity = 0; round_deal(read, &last); read->parity = 1 - read->parity) {
        bool all;
        TR_TRY(all_have(read, taken != TR_OK ? taken : own_read(read, true), &all));
        if (!all)
            return TR_OK;
        taken = portions_take(read);
    }
    return taken;
}
