#include "engine/checkpoint_node.h"

#include <stdlib.h>

#include "base/alloc.h"

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

tr_status tr_node_read_begin(tr_node_read *read, tr_world *world, tr_group *group,
                             tr_checkpoint *checkpoint, tr_node_want *wants, int num_wants)
{
    int64_t largest = tr_checkpoint_largest_chunk(checkpoint);
    *read = (tr_node_read){.checkpoint = checkpoint,
                           .group = group,
                           .size = group != NULL ? tr_group_size(group) : 1,
                           .rank = group != NULL ? tr_group_rank(group) : 0,
                           .wants = wants,
                           .num_wants = num_wants,
                           .slot_bytes = (size_t)larger(SLOT_LEAST, largest)};
    size_t extra = read->rank == 0 ? set_bytes(checkpoint) : 0;
    TR_TRY(tr_shm_segment_create_node(&read->segment, world, 2 * read->slot_bytes + extra));
    TR_ASSERT(read->segment.num_pieces == read->size && read->segment.own == read->rank);
    read->set = (tr_chunk_word *)(void *)(read->segment.base[0] + 2 * read->slot_bytes);
    read->round = TR_NEW_ARRAY(tr_chunk_portion, (size_t)read->size);
    qsort(wants, (size_t)num_wants, sizeof *wants, by_tensor);
    tr_status status = wants_mark(read);
    if (status != TR_OK) {
        tr_node_read_end(read);
        return status;
    }
    /* Of a small checkpoint every rank gets a part. */
    int64_t share = tr_node_read_needed(read).raw / read->size + 1;
    read->room =
        larger(largest, share < (int64_t)read->slot_bytes ? share : (int64_t)read->slot_bytes);
    return TR_OK;
}

void tr_node_read_end(tr_node_read *read)
{
    tr_shm_segment_clear(&read->segment);
    tr_free(read->round);
    *read = (tr_node_read){0};
}

tr_chunk_sums tr_node_read_needed(const tr_node_read *read)
{
    return tr_checkpoint_set_sums(read->checkpoint, read->set);
}

/* ---- reading ---- */

/* The portions of the next round, at most one per rank; how many. *last: the portion before, then the last one of these. */
static int round_deal(tr_node_read *read, tr_chunk_portion *last)
{
    int count = 0;
    while (count < read->size &&
           tr_checkpoint_portion_next(read->checkpoint, read->set, read->room, last))
        read->round[count++] = *last;
    return count;
}

tr_status tr_node_read_check(tr_node_read *read)
{
    tr_chunk_portion last = {0, 0};
    int count;
    while ((count = round_deal(read, &last)) > 0)
        if (read->rank < count)
            TR_TRY(tr_checkpoint_portion_read(read->checkpoint, read->set, &read->round[read->rank],
                                              NULL));
    return TR_OK;
}

static float *slot_of(const tr_node_read *read, int rank, int parity)
{
    return (float *)(void *)(read->segment.base[rank] + (size_t)parity * read->slot_bytes);
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

/* What this rank wants of a portion that lies decoded in a slot. */
static void portion_take(const tr_node_read *read, const tr_chunk_portion *portion,
                         const float *values)
{
    tr_numbered_chunk chunk;
    for (int64_t c = tr_chunk_portion_find(portion, read->set, portion->begin); c >= 0;
         c = tr_chunk_portion_find(portion, read->set, c + 1)) {
        tr_checkpoint_get_chunk(read->checkpoint, c, &chunk);
        for (int i = first_want(read, chunk.tensor, chunk.kind);
             i < read->num_wants && want_compare(&read->wants[i], chunk.tensor, chunk.kind) == 0;
             i++)
            tr_boxes_copy(chunk.pieces, chunk.num_pieces, values, read->wants[i].pieces,
                          read->wants[i].num_pieces, read->wants[i].dst);
        values += chunk.raw_bytes / (int)sizeof(float);
    }
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
    int count;
    for (int parity = 0; (count = round_deal(read, &last)) > 0; parity = 1 - parity) {
        tr_status status = TR_OK;
        bool all;
        if (read->rank < count)
            status =
                tr_checkpoint_portion_read(read->checkpoint, read->set, &read->round[read->rank],
                                           slot_of(read, read->rank, parity));
        TR_TRY(all_have(read, status, &all));
        if (!all)
            return TR_OK;
        for (int r = 0; r < count; r++)
            portion_take(read, &read->round[r], slot_of(read, r, parity));
    }
    return TR_OK;
}
