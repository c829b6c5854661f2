#include "engine/gradients.h"

#include <string.h>

#include "base/alloc.h"
#include "parallel/reduce_tree.h"

static tr_replica_kind replica_kind(const tr_gradients *gradients, const tr_local_param *item)
{
    if (item->param->cut == TR_CUT_KV_HEADS && item->num_replicas > 1)
        return TR_REPLICA_KV;
    if (item->param->row_partial && gradients->sequence)
        return TR_REPLICA_ROWS;
    return TR_REPLICA_NONE;
}

/* Elements of an item that this rank holds the sum of after the data group's reduction. */
static int64_t held_elements(const tr_local_param *item)
{
    return item->state_end - item->state_begin;
}

/* Elements of a bucket's items that one kind of tensor sum covers. */
static int64_t replica_elements(const tr_gradients *gradients, int bucket, tr_replica_kind kind)
{
    int64_t elements = 0;
    const tr_bucket_reducer *reducer = &gradients->reducer;
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++)
        if (replica_kind(gradients, &gradients->local->items[i]) == kind)
            elements += held_elements(&gradients->local->items[i]);
    return elements;
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

void tr_gradients_init(tr_gradients *gradients, const tr_local_params *local, const tr_config *cfg,
                       const tr_mesh *mesh, tr_device *device, tr_arena *arena, tr_arena *comm,
                       tr_arena *workspace)
{
    *gradients = (tr_gradients){.local = local, .device = device};
    gradients->overlap = cfg->parallel.overlap;
    gradients->sequence = cfg->parallel.sequence && mesh->tensor_size > 1;
    gradients->num_microbatches = (int)(cfg->derived.microbatches / mesh->data_size);
    gradients->num_leaves = (int)(cfg->derived.leaves / mesh->data_size);
    gradients->num_buffers = tr_leaf_num_slots(gradients->num_leaves);
    gradients->buffers = TR_NEW_ARRAY(float *, (size_t)gradients->num_buffers);
    for (int b = 0; b < gradients->num_buffers; b++)
        gradients->buffers[b] = tr_arena_alloc(arena, (size_t)local->num_elements * sizeof(float));

    tr_bucket_item *items = TR_NEW_ARRAY(tr_bucket_item, (size_t)local->num_items + 1);
    gradients->item_grads = TR_NEW_ARRAY(float *, (size_t)local->num_items + 1);
    for (int i = 0; i < local->num_items; i++) {
        items[i].count = local->items[i].count;
        items[i].alone = local->items[i].param->tied_to >= 0;
        gradients->item_grads[i] = (float *)((uintptr_t)gradients->buffers[0] +
                                             (uintptr_t)local->items[i].offset * sizeof(float));
    }
    tr_bucket_reducer_init(&gradients->reducer, items, local->num_items,
                           (int64_t)(cfg->parallel.bucket_mb * 1e6), mesh->data_size, mesh->data,
                           cfg->parallel.zero == 0, comm, workspace);
    tr_free(items);
    replica_buffers_init(gradients, comm, workspace);
}

void tr_gradients_clear(tr_gradients *gradients)
{
    tr_bucket_reducer_clear(&gradients->reducer);
    tr_free(gradients->buffers);
    tr_free(gradients->item_grads);
    *gradients = (tr_gradients){0};
}

void tr_gradients_step_begin(tr_gradients *gradients)
{
    gradients->num_ready = 0;
    gradients->next_bucket = 0;
}

static tr_leaf_step leaf_of(const tr_gradients *gradients, int microbatch, int *position, int *leaf)
{
    int per_leaf = gradients->num_microbatches / gradients->num_leaves;
    *leaf = microbatch / per_leaf;
    *position = microbatch % per_leaf;
    return tr_leaf_step_make(*leaf, gradients->num_leaves);
}

float *tr_gradients_microbatch_begin(const tr_gradients *gradients, int microbatch,
                                     bool *accumulate)
{
    int position, leaf;
    tr_leaf_step step = leaf_of(gradients, microbatch, &position, &leaf);
    *accumulate = position > 0;
    return gradients->buffers[step.slot];
}

/* The merges of a leaf over elements [begin, end) of the flat buffers. */
static tr_status merge(tr_gradients *gradients, tr_leaf_step step, int64_t begin, int64_t end)
{
    for (int k = 0; k < step.num_merges; k++) {
        float *left = gradients->buffers[step.slot - k - 1] + begin;
        const float *pair[2] = {left, gradients->buffers[step.slot - k] + begin};
        TR_TRY(gradients->device->ops->tree_sum(gradients->device, end - begin, 2, pair, left));
    }
    return TR_OK;
}

tr_status tr_gradients_microbatch_end(tr_gradients *gradients, int chunk, int microbatch)
{
    int position, leaf;
    tr_leaf_step step = leaf_of(gradients, microbatch, &position, &leaf);
    int per_leaf = gradients->num_microbatches / gradients->num_leaves;
    if (position < per_leaf - 1 || leaf == gradients->num_leaves - 1)
        return TR_OK;
    return merge(gradients, step, gradients->local->chunk_begin[chunk],
                 gradients->local->chunk_end[chunk]);
}

/* Sums the items of one kind over their tensor group, in place in buffer 0. After the data group's sum, never before it: then an element is the tree over
 * leaves of each tensor rank, and those are added, on any number of data ranks. */
static tr_status replicas_sum(tr_gradients *gradients, int bucket, tr_replica_kind kind)
{
    int64_t elements = replica_elements(gradients, bucket, kind), position = 0;
    if (elements == 0)
        return TR_OK;
    const tr_bucket_reducer *reducer = &gradients->reducer;
    const tr_local_param *items = gradients->local->items;
    TR_TRY(tr_event_wait(&gradients->replica_event));
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++)
        if (replica_kind(gradients, &items[i]) == kind) {
            memcpy(gradients->replica_source + position,
                   gradients->item_grads[i] + items[i].state_begin,
                   (size_t)held_elements(&items[i]) * sizeof(float));
            position += held_elements(&items[i]);
        }
    TR_TRY(tr_group_all_reduce(gradients->replica_groups[kind], gradients->replica_source,
                               gradients->replica_sum, elements, &gradients->replica_event));
    TR_TRY(tr_event_wait_result(&gradients->replica_event));
    position = 0;
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++)
        if (replica_kind(gradients, &items[i]) == kind) {
            memcpy(gradients->item_grads[i] + items[i].state_begin,
                   gradients->replica_sum + position,
                   (size_t)held_elements(&items[i]) * sizeof(float));
            position += held_elements(&items[i]);
        }
    return TR_OK;
}

static tr_status ready_buckets_post(tr_gradients *gradients)
{
    const tr_bucket_reducer *reducer = &gradients->reducer;
    while (gradients->next_bucket < reducer->num_buckets &&
           reducer->bucket_first[gradients->next_bucket + 1] <= gradients->num_ready)
        TR_TRY(tr_bucket_reduce_post(&gradients->reducer, gradients->next_bucket++,
                                     gradients->item_grads));
    return TR_OK;
}

tr_status tr_gradients_ready(tr_gradients *gradients, int num_items)
{
    if (num_items <= gradients->num_ready)
        return TR_OK;
    const tr_local_param *items = gradients->local->items;
    int64_t begin = items[gradients->num_ready].offset;
    int64_t end = items[num_items - 1].offset + items[num_items - 1].count;
    TR_TRY(merge(gradients, tr_leaf_step_make(gradients->num_leaves - 1, gradients->num_leaves),
                 begin, end));
    gradients->num_ready = num_items;
    return gradients->overlap ? ready_buckets_post(gradients) : TR_OK;
}

tr_status tr_gradients_finish(tr_gradients *gradients)
{
    TR_ASSERT(gradients->num_ready == gradients->local->num_items);
    TR_TRY(ready_buckets_post(gradients));
    if (gradients->reducer.size > 1)
        TR_TRY(tr_bucket_reduce_finish(&gradients->reducer, gradients->item_grads));
    for (int b = 0; b < gradients->reducer.num_buckets; b++) {
        TR_TRY(replicas_sum(gradients, b, TR_REPLICA_ROWS));
        TR_TRY(replicas_sum(gradients, b, TR_REPLICA_KV));
    }
    return TR_OK;
}
