#include "engine/gradients.h"

#include "base/alloc.h"
#include "kernels/copy_list.h"
#include "kernels/device_range.h"
#include "parallel/shard_map.h"

static tr_replica_kind replica_kind(const tr_gradients *gradients, const tr_local_param *item)
{
    if (gradients->complete)
        return TR_REPLICA_NONE;
    if (item->param->cut == TR_CUT_KV_HEADS && item->num_replicas > 1)
        return TR_REPLICA_KV;
    if (item->param->row_partial && gradients->sequence)
        return TR_REPLICA_ROWS;
    return TR_REPLICA_NONE;
}

/* Elements of a bucket's items that one kind of tensor sum covers. */
static int64_t replica_elements(const tr_gradients *gradients, int bucket, tr_replica_kind kind)
{
    int64_t elements = 0;
    const tr_bucket_reducer *reducer = &gradients->reducer;
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++)
        if (replica_kind(gradients, &gradients->local->items[i]) == kind)
            elements += tr_local_param_held(&gradients->local->items[i]);
    return elements;
}

int64_t tr_gradients_replica_bytes(const tr_gradients *gradients, tr_replica_kind kind, int size,
                                   int rank)
{
    int64_t bytes = 0;
    for (int b = 0; b < gradients->reducer.num_buckets; b++)
        bytes += tr_group_all_reduce_bytes(size, rank, replica_elements(gradients, b, kind));
    return bytes;
}

static void replica_buffers_init(tr_gradients *gradients, tr_arena *comm, tr_arena *workspace)
{
    int64_t most = 0;
    for (int b = 0; b < gradients->reducer.num_buckets; b++)
        for (int kind = TR_REPLICA_ROWS; kind < TR_REPLICA_NUM; kind++) {
            int64_t elements = replica_elements(gradients, b, (tr_replica_kind)kind);
            if (elements > most)
                most = elements;
        }
    gradients->replica_elements = most;
    if (most == 0)
        return;
    gradients->replica_source = tr_arena_alloc(comm, (size_t)most * sizeof(float));
    gradients->replica_sum = tr_arena_alloc(workspace, (size_t)most * sizeof(float));
}

/* Where a unit's items begin among the elements of all. */
static int64_t unit_offset(const tr_local_params *local, int unit)
{
    return unit < local->num_units ? local->items[local->unit_first[unit]].offset
                                   : local->num_elements;
}

static int unit_chunk(const tr_local_params *local, int unit)
{
    return local->items[local->unit_first[unit]].chunk;
}

/* Flat buffers for all items, or one that each unit's items use in turn. */
static void buffers_init(tr_gradients *gradients, tr_arena *arena)
{
    const tr_local_params *local = gradients->local;
    int64_t elements = gradients->whole ? local->num_elements : 0;
    for (int u = 0; u < local->num_units && !gradients->whole; u++) {
        int64_t unit = unit_offset(local, u + 1) - unit_offset(local, u);
        elements = unit > elements ? unit : elements;
    }
    gradients->num_buffers = tr_leaf_num_slots(gradients->plan.local_leaves);
    gradients->buffers = TR_NEW_ARRAY(float *, (size_t)gradients->num_buffers);
    for (int b = 0; b < gradients->num_buffers; b++)
        gradients->buffers[b] = tr_arena_alloc(arena, (size_t)elements * sizeof(float));
    gradients->item_grads = TR_NEW_ARRAY(float *, (size_t)local->num_items + 1);
    for (int u = 0; u < local->num_units; u++) {
        int64_t first = gradients->whole ? 0 : unit_offset(local, u);
        for (int i = local->unit_first[u]; i < local->unit_first[u + 1]; i++)
            gradients->item_grads[i] =
                (float *)((uintptr_t)gradients->buffers[0] +
                          (uintptr_t)(local->items[i].offset - first) * sizeof(float));
    }
}

/* Where the reduced gradients lie: in place when there is one exchange of whole buffers, else in accumulators of their own. */
static void held_init(tr_gradients *gradients, tr_arena *arena)
{
    const tr_local_params *local = gradients->local;
    tr_bucket_reducer *reducer = &gradients->reducer;
    int64_t elements = 0;
    for (int i = 0; i < local->num_items; i++) {
        reducer->held_offset[i] = elements;
        elements += tr_round_up(tr_local_param_held(&local->items[i]), TR_SHARD_MULTIPLE);
    }
    bool in_place = gradients->whole && tr_reduce_num_exchanges(&gradients->plan) == 1;
    if (!in_place) {
        tr_shard_sums_init(&gradients->sums, &gradients->plan, elements, gradients->device, arena);
        reducer->sums = &gradients->sums;
    }
    for (int i = 0; i < local->num_items; i++) {
        float *base = in_place ? gradients->item_grads[i] : gradients->sums.total;
        int64_t offset = in_place ? local->items[i].state_begin : reducer->held_offset[i];
        reducer->held[i] = (float *)((uintptr_t)base + (uintptr_t)offset * sizeof(float));
    }
}

/* Buckets span neither chunks, which finish in any order, nor units that share a buffer; a tied head is exchanged by itself. */
static void reducer_init(tr_gradients *gradients, const tr_config *cfg, const tr_mesh *mesh,
                         tr_arena *comm, tr_arena *workspace)
{
    const tr_local_params *local = gradients->local;
    tr_bucket_item *items = TR_NEW_ARRAY(tr_bucket_item, (size_t)local->num_items + 1);
    int part = 0;
    for (int u = 0; u < local->num_units; u++) {
        part += u > 0 && (!gradients->whole || unit_chunk(local, u) != unit_chunk(local, u - 1));
        for (int i = local->unit_first[u]; i < local->unit_first[u + 1]; i++) {
            const tr_local_param *item = &local->items[i];
            part += i > 0 && (item->param->tied_to >= 0 || item[-1].param->tied_to >= 0);
            items[i] = (tr_bucket_item){item->count, part};
        }
    }
    tr_bucket_reducer_init(&gradients->reducer, items, local->num_items,
                           (int64_t)(cfg->parallel.bucket_mb * 1e6), mesh, gradients->device, comm,
                           workspace);
    tr_free(items);
    gradients->first_bucket = TR_NEW_ARRAY(int, (size_t)local->num_chunks);
    gradients->next_bucket = TR_NEW_ARRAY(int, (size_t)local->num_chunks);
    gradients->written = TR_NEW_ARRAY(bool, (size_t)local->num_items + 1);
    for (int b = gradients->reducer.num_buckets - 1; b >= 0; b--) {
        int chunk = local->items[gradients->reducer.bucket_first[b]].chunk;
        gradients->first_bucket[chunk] = gradients->next_bucket[chunk] = b;
    }
}

void tr_gradients_init(tr_gradients *gradients, const tr_local_params *local, const tr_config *cfg,
                       const tr_mesh *mesh, tr_device *device, tr_arena *arena, tr_arena *comm,
                       tr_arena *workspace)
{
    *gradients = (tr_gradients){.local = local, .device = device};
    gradients->plan = tr_config_reduce_plan(cfg);
    gradients->overlap = cfg->parallel.overlap;
    gradients->complete = cfg->derived.tensor_slices > 0;
    gradients->sequence = cfg->parallel.sequence && mesh->tensor_size > 1;
    gradients->whole = cfg->parallel.zero < 2 || tr_reduce_per_exchange(&gradients->plan) > 1;
    buffers_init(gradients, arena);
    reducer_init(gradients, cfg, mesh, comm, workspace);
    held_init(gradients, arena);
    replica_buffers_init(gradients, comm, workspace);
}

void tr_gradients_clear(tr_gradients *gradients)
{
    tr_bucket_reducer_clear(&gradients->reducer);
    tr_shard_sums_clear(&gradients->sums);
    tr_free(gradients->buffers);
    tr_free(gradients->item_grads);
    tr_free(gradients->first_bucket);
    tr_free(gradients->next_bucket);
    tr_free(gradients->written);
    *gradients = (tr_gradients){0};
}

/* The leaf of an exchange that a microbatch belongs to, and its place there. */
static int leaf_of(const tr_gradients *gradients, int microbatch, int *place)
{
    int within = microbatch % tr_reduce_per_exchange(&gradients->plan);
    *place = within % gradients->plan.per_leaf;
    return within / gradients->plan.per_leaf;
}

float *tr_gradients_place(const tr_gradients *gradients, int microbatch, const tr_local_param *item)
{
    int place, leaf = leaf_of(gradients, microbatch, &place);
    tr_leaf_step step = tr_leaf_step_make(leaf, gradients->plan.local_leaves);
    if (step.slot > 0)
        return gradients->buffers[step.slot] + item->offset;
    return gradients->item_grads[item - gradients->local->items];
}

bool tr_gradients_accumulates(const tr_gradients *gradients, int microbatch)
{
    int place;
    (void)leaf_of(gradients, microbatch, &place);
    return place > 0;
}

/* The merges of a finished leaf over an item. */
static tr_status merge(tr_gradients *gradients, int leaf, const tr_local_param *item)
{
    tr_leaf_step step = tr_leaf_step_make(leaf, gradients->plan.local_leaves);
    for (int k = 0; k < step.num_merges; k++) {
        float *left = gradients->buffers[step.slot - k - 1] + item->offset;
        const float *pair[2] = {left, gradients->buffers[step.slot - k] + item->offset};
        TR_TRY(gradients->device->ops->tree_sum(gradients->device, item->count, 2, pair, left));
    }
    return TR_OK;
}

/* Copies the items of one kind between where they are held and `values`, one after the other. */
static tr_status replicas_copy(const tr_gradients *gradients, int bucket, tr_replica_kind kind,
                               float *values, bool to_held)
{
    const tr_bucket_reducer *reducer = &gradients->reducer;
    const tr_local_param *items = gradients->local->items;
    tr_copy_list list;
    tr_copy_list_begin(&list, gradients->device);
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++) {
        if (replica_kind(gradients, &items[i]) != kind)
            continue;
        float *held = reducer->held[i];
        int64_t count = tr_local_param_held(&items[i]);
        TR_TRY(tr_copy_list_add(&list, to_held ? held : values, to_held ? values : held,
                                (size_t)count * sizeof(float)));
        values += count;
    }
    return tr_copy_list_flush(&list);
}

/* Sums the items of one kind over their tensor group, in place where they are held. After the data group's sum, never before it: then an element is the tree over
 * leaves of each tensor rank, and those are added, on any number of data ranks. */
static tr_status replicas_sum(tr_gradients *gradients, int bucket, tr_replica_kind kind)
{
    int64_t elements = replica_elements(gradients, bucket, kind);
    if (elements == 0)
        return TR_OK;
    TR_TRY(tr_event_wait(&gradients->replica_event));
    TR_TRY(replicas_copy(gradients, bucket, kind, gradients->replica_source, false));
    TR_TRY(tr_group_all_reduce(gradients->replica_groups[kind], gradients->replica_source,
                               gradients->replica_sum, elements, &gradients->replica_event));
    TR_TRY(tr_event_wait_result(&gradients->replica_event));
    return replicas_copy(gradients, bucket, kind, gradients->replica_sum, true);
}

static tr_status bucket_post(tr_gradients *gradients, int bucket, int exchange)
{
    tr_device_range_begin_format(gradients->device, "bucket %d", bucket);
    tr_status status =
        tr_bucket_reduce_post(&gradients->reducer, bucket, exchange, gradients->item_grads);
    tr_device_range_end(gradients->device);
    return status;
}

/* Posts the buckets of a chunk whose items are all before `end`. */
static tr_status buckets_post(tr_gradients *gradients, int chunk, int exchange, int end)
{
    const tr_bucket_reducer *reducer = &gradients->reducer;
    int *next = &gradients->next_bucket[chunk];
    while (*next < reducer->num_buckets && reducer->bucket_first[*next + 1] <= end)
        TR_TRY(bucket_post(gradients, (*next)++, exchange));
    return TR_OK;
}

/* The first item of a unit that is not written; its end when all are. */
static int first_missing(const tr_gradients *gradients, int unit)
{
    int item = gradients->local->unit_first[unit];
    while (item < gradients->local->unit_first[unit + 1] && gradients->written[item])
        item++;
    return item;
}

tr_status tr_gradients_item_end(tr_gradients *gradients, int item, int microbatch)
{
    const tr_local_params *local = gradients->local;
    int place, leaf = leaf_of(gradients, microbatch, &place);
    if (place < gradients->plan.per_leaf - 1 || gradients->written[item])
        return TR_OK;
    TR_TRY(merge(gradients, leaf, &local->items[item]));
    gradients->written[item] = true;
    if (leaf < gradients->plan.local_leaves - 1 || !gradients->overlap)
        return TR_OK;
    return buckets_post(gradients, local->items[item].chunk,
                        microbatch / tr_reduce_per_exchange(&gradients->plan),
                        first_missing(gradients, local->items[item].unit));
}

/* An exchange's gradients of a unit are complete. Without overlap whole buffers wait for the end of the chunk, and where nothing will overwrite them for the
 * end of the step. */
static tr_status unit_exchange(tr_gradients *gradients, int unit, int exchange)
{
    const tr_local_params *local = gradients->local;
    int chunk = unit_chunk(local, unit), end = local->unit_first[unit + 1];
    bool chunk_ends = end == local->chunk_first[chunk] + local->chunk_items[chunk];
    bool waits = gradients->whole && (!chunk_ends || gradients->reducer.sums == NULL);
    if (!gradients->overlap && !waits) {
        TR_TRY(buckets_post(gradients, chunk, exchange, end));
        TR_TRY(tr_bucket_reduce_finish(&gradients->reducer));
    }
    if (chunk_ends && exchange < tr_reduce_num_exchanges(&gradients->plan) - 1)
        gradients->next_bucket[chunk] = gradients->first_bucket[chunk];
    return TR_OK;
}

tr_status tr_gradients_unit_end(tr_gradients *gradients, int unit, int microbatch)
{
    const tr_local_params *local = gradients->local;
    int place, leaf = leaf_of(gradients, microbatch, &place);
    if (place < gradients->plan.per_leaf - 1)
        return TR_OK;
    int first = local->unit_first[unit], end = local->unit_first[unit + 1];
    for (int i = first; i < end; i++)
        TR_TRY(tr_gradients_item_end(gradients, i, microbatch));
    for (int i = first; i < end; i++)
        gradients->written[i] = false;
    if (leaf < gradients->plan.local_leaves - 1)
        return TR_OK;
    return unit_exchange(gradients, unit, microbatch / tr_reduce_per_exchange(&gradients->plan));
}

tr_status tr_gradients_finish(tr_gradients *gradients)
{
    const tr_local_params *local = gradients->local;
    int last = tr_reduce_num_exchanges(&gradients->plan) - 1;
    for (int c = local->num_chunks - 1; c >= 0; c--) {
        TR_TRY(buckets_post(gradients, c, last, local->chunk_first[c] + local->chunk_items[c]));
        gradients->next_bucket[c] = gradients->first_bucket[c];
    }
    TR_TRY(tr_bucket_reduce_finish(&gradients->reducer));
    for (int b = 0; b < gradients->reducer.num_buckets; b++) {
        TR_TRY(replicas_sum(gradients, b, TR_REPLICA_ROWS));
        TR_TRY(replicas_sum(gradients, b, TR_REPLICA_KV));
    }
    return TR_OK;
}

float *tr_gradients_held(const tr_gradients *gradients, const tr_local_param *item)
{
    return gradients->reducer.held[item - gradients->local->items];
}
