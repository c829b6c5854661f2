#include "parallel/bucket_reducer.h"

#include "base/alloc.h"
#include "base/integers.h"
#include "kernels/copy_list.h"
#include "parallel/shard_map.h"

/* ---- layout ---- */

/* Whether buckets are packed in the order of data ranks, or by sharding rank and then replica. */
static bool packs_by_data(const tr_mesh *mesh)
{
    return mesh->replica_size > 1 && !tr_is_power_of_two(mesh->shard_size);
}

/* The n-th owner in the order in which a bucket is packed. */
static void owner_at(const tr_mesh *mesh, int n, int *shard, int *replica)
{
    bool by_data = packs_by_data(mesh);
    *shard = by_data ? n % mesh->shard_size : n / mesh->replica_size;
    *replica = by_data ? n / mesh->shard_size : n % mesh->replica_size;
}

static void work_of(const tr_bucket_reducer *reducer, int item, int shard, int replica,
                    int64_t *begin, int64_t *end)
{
    tr_work_interval(reducer->item_counts[item], reducer->mesh.shard_size, shard,
                     reducer->mesh.replica_size, replica, begin, end);
}

static int64_t state_begin(const tr_bucket_reducer *reducer, int item)
{
    int64_t begin, end;
    tr_shard_interval(reducer->item_counts[item], reducer->mesh.shard_size, reducer->mesh.shard,
                      &begin, &end);
    return begin;
}

static void buckets_form(tr_bucket_reducer *reducer, const tr_bucket_item *items,
                         int64_t bucket_bytes)
{
    int64_t bytes = 0;
    reducer->bucket_first = TR_NEW_ARRAY(int, (size_t)reducer->num_items + 1);
    for (int i = 0; i < reducer->num_items; i++) {
        int64_t item_bytes = items[i].count * (int64_t)sizeof(float);
        bool cut =
            i == 0 || items[i].part != items[i - 1].part || bytes + item_bytes > bucket_bytes;
        if (cut) {
            reducer->bucket_first[reducer->num_buckets++] = i;
            bytes = 0;
        }
        bytes += item_bytes;
    }
    reducer->bucket_first[reducer->num_buckets] = reducer->num_items;
}

static void hop_add(tr_bucket_reducer *reducer, tr_group **group, int size, int64_t *counts)
{
    if (size > 1)
        reducer->hops[reducer->num_hops++] = (tr_bucket_hop){group, size, counts};
}

/* Elements of a bucket that each rank of each group owns, and the sums that they pass. */
static void hops_form(tr_bucket_reducer *reducer)
{
    const tr_mesh *mesh = &reducer->mesh;
    bool by_data = packs_by_data(mesh);
    size_t num_buckets = (size_t)reducer->num_buckets;
    int64_t *data = TR_NEW_ARRAY(int64_t, num_buckets * (size_t)mesh->data_size);
    reducer->shard_counts = TR_NEW_ARRAY(int64_t, num_buckets * (size_t)mesh->shard_size);
    reducer->replica_counts = TR_NEW_ARRAY(int64_t, num_buckets * (size_t)mesh->replica_size);
    for (int b = 0; b < reducer->num_buckets; b++)
        for (int i = reducer->bucket_first[b]; i < reducer->bucket_first[b + 1]; i++)
            for (int n = 0; n < mesh->data_size; n++) {
                int shard = n % mesh->shard_size, replica = n / mesh->shard_size;
                int64_t begin, end;
                work_of(reducer, i, shard, replica, &begin, &end);
                data[b * mesh->data_size + n] += end - begin;
                reducer->shard_counts[b * mesh->shard_size + shard] += end - begin;
                if (shard == mesh->shard)
                    reducer->replica_counts[b * mesh->replica_size + replica] += end - begin;
            }
    reducer->data_counts = data;
    if (by_data) {
        hop_add(reducer, &reducer->groups.data, mesh->data_size, data);
        return;
    }
    hop_add(reducer, &reducer->groups.shard, mesh->shard_size, reducer->shard_counts);
    hop_add(reducer, &reducer->groups.replica, mesh->replica_size, reducer->replica_counts);
}

/* The largest of counts[bucket][size] over buckets and ranks. */
static int64_t largest(const tr_bucket_reducer *reducer, const int64_t *counts, int size)
{
    int64_t most = 0;
    for (int i = 0; i < reducer->num_buckets * size; i++)
        most = counts[i] > most ? counts[i] : most;
    return most;
}

static int64_t largest_bucket(const tr_bucket_reducer *reducer)
{
    int64_t most = 0;
    for (int b = 0; b < reducer->num_buckets; b++) {
        int64_t total = 0;
        for (int i = reducer->bucket_first[b]; i < reducer->bucket_first[b + 1]; i++)
            total += reducer->item_counts[i];
        most = total > most ? total : most;
    }
    return most;
}

static void memory_init(tr_bucket_reducer *reducer, tr_arena *comm, tr_arena *workspace)
{
    const tr_mesh *mesh = &reducer->mesh;
    size_t bucket = (size_t)largest_bucket(reducer);
    size_t state = (size_t)largest(reducer, reducer->shard_counts, mesh->shard_size);
    size_t work = (size_t)largest(reducer, reducer->data_counts, mesh->data_size);
    for (int s = 0; s < TR_BUCKET_SLOTS; s++) {
        tr_bucket_slot *slot = &reducer->slots[s];
        for (int h = 0; h < reducer->num_hops; h++)
            slot->source[h] = tr_arena_alloc(comm, (h == 0 ? bucket : state) * sizeof(float));
        slot->work = tr_arena_alloc(workspace, work * sizeof(float));
    }
    if (mesh->replica_size > 1) {
        reducer->own_work = tr_arena_alloc(comm, work * sizeof(float));
        reducer->gathered = tr_arena_alloc(workspace, state * sizeof(float));
    }
}

void tr_bucket_reducer_init(tr_bucket_reducer *reducer, const tr_bucket_item *items, int num_items,
                            int64_t bucket_bytes, const tr_mesh *mesh, tr_device *device,
                            tr_arena *comm, tr_arena *workspace)
{
    *reducer = (tr_bucket_reducer){
        .mesh = *mesh, .device = device, .num_items = num_items, .gathering = -1};
    reducer->item_counts = TR_NEW_ARRAY(int64_t, (size_t)num_items);
    reducer->held = TR_NEW_ARRAY(float *, (size_t)num_items + 1);
    reducer->held_offset = TR_NEW_ARRAY(int64_t, (size_t)num_items + 1);
    for (int i = 0; i < num_items; i++)
        reducer->item_counts[i] = items[i].count;
    buckets_form(reducer, items, bucket_bytes);
    hops_form(reducer);
    for (int s = 0; s < TR_BUCKET_SLOTS; s++)
        reducer->slots[s].bucket = -1;
    if (mesh->data_size > 1)
        memory_init(reducer, comm, workspace);
}

void tr_bucket_reducer_clear(tr_bucket_reducer *reducer)
{
    tr_free(reducer->item_counts);
    tr_free(reducer->held);
    tr_free(reducer->held_offset);
    tr_free(reducer->bucket_first);
    tr_free(reducer->data_counts);
    tr_free(reducer->shard_counts);
    tr_free(reducer->replica_counts);
    *reducer = (tr_bucket_reducer){0};
}

size_t tr_bucket_reducer_scratch_bytes(const tr_bucket_reducer *reducer)
{
    size_t most = 0;
    for (int h = 0; h < reducer->num_hops; h++) {
        const tr_bucket_hop *hop = &reducer->hops[h];
        size_t bytes = tr_group_scratch_bytes(hop->size, largest(reducer, hop->counts, hop->size));
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Sums of one group in flight. */
enum { SUMS = TR_BUCKET_SLOTS };

void tr_bucket_reducer_connect(tr_bucket_reducer *reducer, const tr_data_groups *groups)
{
    reducer->groups = *groups;
    for (int h = 0; h < reducer->num_hops; h++) {
        const tr_bucket_hop *hop = &reducer->hops[h];
        int64_t most = largest(reducer, hop->counts, hop->size);
        tr_group_reserve(*hop->group, (size_t)most * (size_t)(hop->size - 1) * sizeof(float), SUMS);
    }
}

int64_t tr_bucket_reducer_step_bytes(const tr_bucket_reducer *reducer, int num_exchanges)
{
    const tr_mesh *mesh = &reducer->mesh;
    int64_t exchanged = 0, gathered = 0;
    for (int b = 0; b < reducer->num_buckets; b++) {
        for (int h = 0; h < reducer->num_hops; h++) {
            const tr_bucket_hop *hop = &reducer->hops[h];
            int own = hop->group == &reducer->groups.shard     ? mesh->shard
                      : hop->group == &reducer->groups.replica ? mesh->replica
                                                               : mesh->data;
            for (int n = 0; n < hop->size; n++)
                exchanged += n != own ? hop->counts[b * hop->size + n] : 0;
        }
        gathered += reducer->replica_counts[b * mesh->replica_size + mesh->replica] *
                    (mesh->replica_size - 1);
    }
    return (exchanged * num_exchanges + gathered) * (int64_t)sizeof(float);
}

/* ---- sums ---- */

/* Copies the intervals of all owners of a bucket, in packing order. */
static tr_status bucket_pack(const tr_bucket_reducer *reducer, int bucket, float *const *grads,
                             float *packed)
{
    tr_copy_list list;
    tr_copy_list_begin(&list, reducer->device);
    for (int n = 0; n < reducer->mesh.data_size; n++) {
        int shard, replica;
        owner_at(&reducer->mesh, n, &shard, &replica);
        for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++) {
            int64_t begin, end;
            work_of(reducer, i, shard, replica, &begin, &end);
            TR_TRY(tr_copy_list_add(&list, packed, grads[i] + begin,
                                    (size_t)(end - begin) * sizeof(float)));
            packed += end - begin;
        }
    }
    return tr_copy_list_flush(&list);
}

/* Lists copies between held[] and the work intervals of a bucket that this rank's state has for `replica`, one after the other. *work moves to the end. */
static tr_status work_copy(const tr_bucket_reducer *reducer, int bucket, int replica, float **work,
                           bool to_held, tr_copy_list *list)
{
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++) {
        int64_t begin, end;
        work_of(reducer, i, reducer->mesh.shard, replica, &begin, &end);
        float *held = reducer->held[i] + (begin - state_begin(reducer, i));
        TR_TRY(tr_copy_list_add(list, to_held ? held : *work, to_held ? *work : held,
                                (size_t)(end - begin) * sizeof(float)));
        *work += end - begin;
    }
    return TR_OK;
}

/* The copies of one replica's work intervals, made. */
static tr_status work_copy_one(const tr_bucket_reducer *reducer, int bucket, int replica,
                               float *work, bool to_held)
{
    tr_copy_list list;
    tr_copy_list_begin(&list, reducer->device);
    TR_TRY(work_copy(reducer, bucket, replica, &work, to_held, &list));
    return tr_copy_list_flush(&list);
}

/* The replicas' parts of the bucket on the way come to their places. */
static tr_status gather_finish(tr_bucket_reducer *reducer)
{
    if (reducer->gathering < 0)
        return TR_OK;
    TR_TRY(tr_event_wait_result(&reducer->work_event));
    tr_copy_list list;
    tr_copy_list_begin(&list, reducer->device);
    float *work = reducer->gathered;
    for (int k = 0; k < reducer->mesh.replica_size; k++)
        TR_TRY(work_copy(reducer, reducer->gathering, k, &work, true, &list));
    reducer->gathering = -1;
    return tr_copy_list_flush(&list);
}

/* Sends this rank's part of a bucket's sum to the replicas, and fetches theirs. */
static tr_status gather_post(tr_bucket_reducer *reducer, int bucket)
{
    TR_TRY(gather_finish(reducer));
    TR_TRY(tr_event_wait(&reducer->work_event));
    TR_TRY(work_copy_one(reducer, bucket, reducer->mesh.replica, reducer->own_work, false));
    reducer->gathering = bucket;
    tr_group_label(reducer->groups.replica, "bucket", bucket);
    return tr_group_all_gather(reducer->groups.replica, reducer->own_work,
                               &reducer->replica_counts[bucket * reducer->mesh.replica_size],
                               sizeof(float), reducer->gathered, &reducer->work_event);
}

/* Posts the slot's next sum; its source is there. */
static tr_status hop_post(tr_bucket_reducer *reducer, tr_bucket_slot *slot, int index)
{
    const tr_bucket_hop *hop = &reducer->hops[index];
    float *dst = index == reducer->num_hops - 1 ? slot->work : slot->source[index + 1];
    slot->hop = index;
    tr_group_label(*hop->group, "bucket", slot->bucket);
    return tr_group_reduce_scatter(*hop->group, slot->source[index],
                                   &hop->counts[slot->bucket * hop->size], dst,
                                   &slot->events[index]);
}

/* Moves a bucket to its next sum. */
static tr_status slot_advance(tr_bucket_reducer *reducer, tr_bucket_slot *slot)
{
    if (slot->bucket < 0 || slot->hop == reducer->num_hops - 1)
        return TR_OK;
    TR_TRY(tr_event_wait_result(&slot->events[slot->hop]));
    return hop_post(reducer, slot, slot->hop + 1);
}

static bool is_last(const tr_bucket_reducer *reducer, int exchange)
{
    return reducer->sums == NULL || exchange == tr_reduce_num_exchanges(&reducer->sums->plan) - 1;
}

/* This rank's work intervals of a bucket, summed over the data ranks, come to their places. */
static tr_status work_take(tr_bucket_reducer *reducer, int bucket, int exchange, float *work)
{
    const tr_mesh *mesh = &reducer->mesh;
    if (reducer->sums == NULL)
        return work_copy_one(reducer, bucket, mesh->replica, work, true);
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++) {
        int64_t begin, end;
        work_of(reducer, i, mesh->shard, mesh->replica, &begin, &end);
        TR_TRY(tr_shard_sums_take(reducer->sums, exchange,
                                  reducer->held_offset[i] + (begin - state_begin(reducer, i)),
                                  end - begin, work));
        work += end - begin;
    }
    return TR_OK;
}

/* Completes the sums of the bucket of a slot, and passes it on to the replicas. */
static tr_status slot_finish(tr_bucket_reducer *reducer, tr_bucket_slot *slot)
{
    if (slot->bucket < 0)
        return TR_OK;
    TR_TRY(slot_advance(reducer, slot));
    TR_TRY(tr_event_wait_result(&slot->events[slot->hop]));
    int bucket = slot->bucket;
    slot->bucket = -1;
    TR_TRY(work_take(reducer, bucket, slot->exchange, slot->work));
    bool gathers = reducer->mesh.replica_size > 1 && is_last(reducer, slot->exchange);
    return gathers ? gather_post(reducer, bucket) : TR_OK;
}

/* One data rank: its gradients are the sums. */
static tr_status alone_take(tr_bucket_reducer *reducer, int bucket, int exchange,
                            float *const *grads)
{
    for (int i = reducer->bucket_first[bucket];
         reducer->sums != NULL && i < reducer->bucket_first[bucket + 1]; i++)
        TR_TRY(tr_shard_sums_take(reducer->sums, exchange, reducer->held_offset[i],
                                  reducer->item_counts[i], grads[i]));
    return TR_OK;
}

tr_status tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, int exchange,
                                float *const *grads)
{
    if (reducer->mesh.data_size == 1)
        return alone_take(reducer, bucket, exchange, grads);
    int next = reducer->next_slot;
    tr_bucket_slot *slot = &reducer->slots[next];
    reducer->next_slot = (next + 1) % TR_BUCKET_SLOTS;
    TR_TRY(slot_finish(reducer, slot));
    TR_TRY(slot_advance(reducer, &reducer->slots[(next + TR_BUCKET_SLOTS - 1) % TR_BUCKET_SLOTS]));
    for (int h = 0; h < reducer->num_hops; h++)
        TR_TRY(tr_event_wait(&slot->events[h]));
    TR_TRY(bucket_pack(reducer, bucket, grads, slot->source[0]));
    slot->bucket = bucket;
    slot->exchange = exchange;
    return hop_post(reducer, slot, 0);
}

tr_status tr_bucket_reduce_finish(tr_bucket_reducer *reducer)
{
    for (int s = 0; s < TR_BUCKET_SLOTS; s++)
        TR_TRY(slot_finish(reducer, &reducer->slots[(reducer->next_slot + s) % TR_BUCKET_SLOTS]));
    return gather_finish(reducer);
}
