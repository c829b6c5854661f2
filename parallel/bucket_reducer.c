#include "parallel/bucket_reducer.h"

#include <string.h>

#include "base/alloc.h"
#include "parallel/shard_map.h"

static int64_t owner_count(const tr_bucket_reducer *reducer, int item, int owner)
{
    int64_t begin, end;
    tr_shard_interval(reducer->item_counts[item], reducer->size, owner, &begin, &end);
    return end - begin;
}

static void buckets_form(tr_bucket_reducer *reducer, const tr_bucket_item *items,
                         int64_t bucket_bytes)
{
    int64_t bytes = 0;
    reducer->bucket_first = TR_NEW_ARRAY(int, (size_t)reducer->num_items + 1);
    for (int i = 0; i < reducer->num_items; i++) {
        int64_t item_bytes = items[i].count * (int64_t)sizeof(float);
        bool cut =
            i == 0 || items[i].alone || items[i - 1].alone || bytes + item_bytes > bucket_bytes;
        if (cut) {
            reducer->bucket_first[reducer->num_buckets++] = i;
            bytes = 0;
        }
        bytes += item_bytes;
    }
    reducer->bucket_first[reducer->num_buckets] = reducer->num_items;
}

void tr_bucket_reducer_init(tr_bucket_reducer *reducer, const tr_bucket_item *items, int num_items,
                            int64_t bucket_bytes, int size, int rank, bool everywhere,
                            tr_arena *comm, tr_arena *workspace)
{
    *reducer = (tr_bucket_reducer){
        .size = size, .rank = rank, .everywhere = everywhere, .num_items = num_items};
    reducer->item_counts = TR_NEW_ARRAY(int64_t, (size_t)num_items);
    for (int i = 0; i < num_items; i++)
        reducer->item_counts[i] = items[i].count;
    buckets_form(reducer, items, bucket_bytes);
    reducer->counts = TR_NEW_ARRAY(int64_t, (size_t)reducer->num_buckets * (size_t)size);
    int64_t max_total = 0, max_shard = 0;
    for (int b = 0; b < reducer->num_buckets; b++) {
        int64_t total = 0;
        for (int owner = 0; owner < size; owner++) {
            int64_t *count = &reducer->counts[b * size + owner];
            for (int i = reducer->bucket_first[b]; i < reducer->bucket_first[b + 1]; i++)
                *count += owner_count(reducer, i, owner);
            total += *count;
            if (*count > max_shard)
                max_shard = *count;
        }
        if (total > max_total)
            max_total = total;
    }
    for (int s = 0; s < TR_BUCKET_SLOTS; s++) {
        reducer->slots[s].bucket = -1;
        if (size == 1)
            continue;
        reducer->slots[s].packed = tr_arena_alloc(comm, (size_t)max_total * sizeof(float));
        reducer->slots[s].shard = tr_arena_alloc(comm, (size_t)max_shard * sizeof(float));
    }
    if (everywhere && size > 1)
        reducer->gathered = tr_arena_alloc(workspace, (size_t)max_total * sizeof(float));
}

void tr_bucket_reducer_clear(tr_bucket_reducer *reducer)
{
    tr_free(reducer->item_counts);
    tr_free(reducer->bucket_first);
    tr_free(reducer->counts);
    *reducer = (tr_bucket_reducer){0};
}

/* Copies between the items of a bucket and segments laid out by owner; to_items says which way. Only `owner`'s segment, or all with -1. */
static void segments_copy(const tr_bucket_reducer *reducer, int bucket, int only_owner,
                          size_t item_bytes, void *segments, void *const *items, bool to_items)
{
    unsigned char *position = segments;
    for (int owner = 0; owner < reducer->size; owner++) {
        if (only_owner >= 0 && owner != only_owner)
            continue;
        for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++) {
            int64_t begin, end;
            tr_shard_interval(reducer->item_counts[i], reducer->size, owner, &begin, &end);
            size_t bytes = (size_t)(end - begin) * item_bytes;
            unsigned char *place = (unsigned char *)items[i] + (size_t)begin * item_bytes;
            if (to_items)
                memcpy(place, position, bytes);
            else
                memcpy(position, place, bytes);
            position += bytes;
        }
    }
}

/* Completes the bucket of a slot: the reduced shard goes to its place, and everywhere when asked. */
static tr_status slot_complete(tr_bucket_reducer *reducer, tr_bucket_slot *slot,
                               float *const *grads)
{
    if (slot->bucket < 0)
        return TR_OK;
    int bucket = slot->bucket;
    slot->bucket = -1;
    void *const *items = (void *const *)grads;
    TR_TRY(tr_event_wait_result(&slot->packed_event));
    if (!reducer->everywhere) {
        segments_copy(reducer, bucket, reducer->rank, sizeof(float), slot->shard, items, true);
        return TR_OK;
    }
    TR_TRY(tr_group_all_gather(reducer->group, slot->shard,
                               &reducer->counts[bucket * reducer->size], sizeof(float),
                               reducer->gathered, &slot->shard_event));
    TR_TRY(tr_event_wait_result(&slot->shard_event));
    segments_copy(reducer, bucket, -1, sizeof(float), reducer->gathered, items, true);
    return TR_OK;
}

tr_status tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, float *const *grads)
{
    if (reducer->size == 1)
        return TR_OK;
    tr_bucket_slot *slot = &reducer->slots[reducer->next_slot];
    reducer->next_slot = (reducer->next_slot + 1) % TR_BUCKET_SLOTS;
    TR_TRY(slot_complete(reducer, slot, grads));
    TR_TRY(tr_event_wait(&slot->packed_event));
    TR_TRY(tr_event_wait(&slot->shard_event));
    segments_copy(reducer, bucket, -1, sizeof(float), slot->packed, (void *const *)grads, false);
    slot->bucket = bucket;
    return tr_group_reduce_scatter(reducer->group, slot->packed,
                                   &reducer->counts[bucket * reducer->size], slot->shard,
                                   &slot->packed_event);
}

tr_status tr_bucket_reduce_finish(tr_bucket_reducer *reducer, float *const *grads)
{
    for (int s = 0; s < TR_BUCKET_SLOTS; s++)
        TR_TRY(slot_complete(reducer, &reducer->slots[(reducer->next_slot + s) % TR_BUCKET_SLOTS],
                             grads));
    return TR_OK;
}
