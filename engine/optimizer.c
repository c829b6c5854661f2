#include "engine/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

static bool owns_tied_pair(const tr_optimizer *optimizer)
{
    const tr_stage *stage = optimizer->stage;
    return stage->cfg->model.tied && stage->cfg->derived.head_stage > 0;
}

static const tr_local_param *tied_item(const tr_optimizer *optimizer)
{
    const tr_stage *stage = optimizer->stage;
    const tr_local_param *head = tr_local_param_find(&stage->local, TR_ROLE_HEAD, -1);
    return head != NULL && head->param->tied_to >= 0 ? head : NULL;
}

void tr_optimizer_init(tr_optimizer *optimizer, tr_stage *stage)
{
    *optimizer = (tr_optimizer){.stage = stage};
    optimizer->weights = TR_NEW_ARRAY(void *, (size_t)stage->local.num_items + 1);
    for (int i = 0; i < stage->local.num_items; i++)
        optimizer->weights[i] = tr_stage_weight(stage, &stage->local.items[i]);
    if (!owns_tied_pair(optimizer))
        return;
    bool first = stage->mesh.pipeline == 0;
    const tr_local_param *item =
        first ? tr_local_param_find(&stage->local, TR_ROLE_EMBED, -1) : tied_item(optimizer);
    if (item == NULL)
        return;
    size_t bytes = (size_t)(item->state_end - item->state_begin) * sizeof(float);
    optimizer->tied_source = tr_arena_alloc(&stage->arenas[TR_MEM_COMMUNICATION], bytes);
    if (first)
        optimizer->tied_received = tr_arena_alloc(&stage->arenas[TR_MEM_WORKSPACE], bytes);
}

void tr_optimizer_clear(tr_optimizer *optimizer)
{
    tr_free(optimizer->weights);
    *optimizer = (tr_optimizer){0};
}

static float *grad_of(const tr_optimizer *optimizer, const tr_local_param *item)
{
    return optimizer->stage->gradients.item_grads[item - optimizer->stage->local.items];
}

static tr_status grads_add(tr_optimizer *optimizer, const tr_local_param *embed,
                           const float *head_grad)
{
    tr_device *device = optimizer->stage->device;
    float *grad = grad_of(optimizer, embed) + embed->state_begin;
    const float *pair[2] = {grad, head_grad};
    return device->ops->tree_sum(device, embed->state_end - embed->state_begin, 2, pair, grad);
}

tr_status tr_optimizer_tie_gradients(tr_optimizer *optimizer)
{
    tr_stage *stage = optimizer->stage;
    const tr_local_param *embed = tr_local_param_find(&stage->local, TR_ROLE_EMBED, -1);
    const tr_local_param *head = tied_item(optimizer);
    if (!stage->cfg->model.tied || (embed == NULL && head == NULL))
        return TR_OK;
    if (!owns_tied_pair(optimizer))
        return grads_add(optimizer, embed, grad_of(optimizer, head) + head->state_begin);
    if (head != NULL) {
        size_t bytes = (size_t)(head->state_end - head->state_begin) * sizeof(float);
        TR_TRY(tr_event_wait(&optimizer->tied_event));
        memcpy(optimizer->tied_source, grad_of(optimizer, head) + head->state_begin, bytes);
        return tr_group_send(optimizer->pipeline, 0, optimizer->tied_source, bytes, 0,
                             &optimizer->tied_event);
    }
    size_t bytes = (size_t)(embed->state_end - embed->state_begin) * sizeof(float);
    tr_event event = {0};
    TR_TRY(tr_group_recv(optimizer->pipeline, stage->cfg->derived.head_stage,
                         optimizer->tied_received, bytes, 0, &event));
    TR_TRY(tr_event_wait(&event));
    return grads_add(optimizer, embed, optimizer->tied_received);
}

tr_status tr_optimizer_square_sum(tr_optimizer *optimizer, int64_t *limbs)
{
    tr_stage *stage = optimizer->stage;
    for (int i = 0; i < stage->local.num_items; i++) {
        const tr_local_param *item = &stage->local.items[i];
        if (!item->counted || item->param->tied_to >= 0)
            continue;
        TR_TRY(stage->device->ops->square_sum(stage->device, item->shard_end - item->shard_begin,
                                              grad_of(optimizer, item) + item->shard_begin, limbs));
    }
    return TR_OK;
}

/* What an item's update does: an optimizer step, or only the compute copy. */
typedef struct item_update {
    bool spread_only;
    double lr, grad_scale;
} item_update;

/* Updates this rank's share of an item; `compute` receives it in the compute dtype. */
static tr_status item_apply(tr_optimizer *optimizer, const tr_local_param *item,
                            const item_update *update, void *compute)
{
    tr_stage *stage = optimizer->stage;
    const tr_config *cfg = stage->cfg;
    tr_device *device = stage->device;
    int64_t n = item->state_end - item->state_begin;
    float *master = stage->master + item->state_offset;
    if (update->spread_only)
        return device->ops->convert(device, n, TR_F32, master, stage->model.dtype, compute);
    double t = (double)optimizer->num_updates;
    tr_adamw args = {.n = n,
                     .master = master,
                     .m = stage->m != NULL ? stage->m + item->state_offset : NULL,
                     .v = stage->v != NULL ? stage->v + item->state_offset : NULL,
                     .grad = grad_of(optimizer, item) + item->state_begin,
                     .grad_scale = (float)update->grad_scale,
                     .lr = (float)update->lr,
                     .beta1 = (float)cfg->train.beta1,
                     .beta2 = (float)cfg->train.beta2,
                     .eps = (float)cfg->train.eps,
                     .weight_decay = item->param->decay ? (float)cfg->train.weight_decay : 0.0f,
                     .bias1 = (float)(1.0 - pow(cfg->train.beta1, t)),
                     .bias2 = (float)(1.0 - pow(cfg->train.beta2, t)),
                     .compute = compute,
                     .dtype = stage->model.dtype};
    return cfg->train.optimizer == TR_OPTIMIZER_ADAMW ? device->ops->adamw(device, &args)
                                                      : device->ops->sgd(device, &args);
}

/* First stage: sends the updated compute copy of the embedding's share to the last stage. */
static tr_status tied_weights_send(tr_optimizer *optimizer, const tr_local_param *embed)
{
    tr_stage *stage = optimizer->stage;
    size_t bytes = (size_t)(embed->state_end - embed->state_begin) * stage->model.item;
    const unsigned char *weight = tr_stage_weight(stage, embed);
    TR_TRY(tr_event_wait(&optimizer->tied_event));
    memcpy(optimizer->tied_source, weight + (size_t)embed->state_begin * stage->model.item, bytes);
    return tr_group_send(optimizer->pipeline, stage->cfg->derived.head_stage,
                         optimizer->tied_source, bytes, 0, &optimizer->tied_event);
}

/* Last stage: receives the head's share into `compute`. */
static tr_status tied_weights_receive(tr_optimizer *optimizer, const tr_local_param *head,
                                      void *compute)
{
    tr_event event = {0};
    TR_TRY(tr_group_recv(
        optimizer->pipeline, 0, compute,
        (size_t)(head->state_end - head->state_begin) * optimizer->stage->model.item, 0, &event));
    return tr_event_wait(&event);
}

/* One bucket: this rank's shares, gathered when others hold the rest. A tied head with the embedding on the same rank shares its copy and has nothing to do. */
static tr_status bucket_apply(tr_optimizer *optimizer, int bucket, const item_update *update)
{
    tr_stage *stage = optimizer->stage;
    tr_bucket_reducer *reducer = &stage->gradients.reducer;
    bool sharded = stage->cfg->parallel.zero > 0 && reducer->size > 1;
    int first = reducer->bucket_first[bucket], end = reducer->bucket_first[bucket + 1];
    if (stage->local.items[first].param->tied_to >= 0 && !owns_tied_pair(optimizer))
        return TR_OK;
    unsigned char *position = NULL;
    if (sharded) {
        void *shard;
        TR_TRY(tr_bucket_gather_buffer(reducer, bucket, &shard));
        position = shard;
    }
    for (int i = first; i < end; i++) {
        const tr_local_param *item = &stage->local.items[i];
        void *compute = sharded ? (void *)position : optimizer->weights[i];
        if (item->param->tied_to >= 0)
            TR_TRY(tied_weights_receive(optimizer, item, compute));
        else
            TR_TRY(item_apply(optimizer, item, update, compute));
        position += sharded ? (size_t)(item->state_end - item->state_begin) * stage->model.item : 0;
    }
    return sharded ? tr_bucket_gather(reducer, bucket, optimizer->weights) : TR_OK;
}

static tr_status all_apply(tr_optimizer *optimizer, const item_update *update)
{
    tr_stage *stage = optimizer->stage;
    const tr_bucket_reducer *reducer = &stage->gradients.reducer;
    for (int pass = 0; pass < 2; pass++) /* what is received from the first stage comes last */
        for (int b = 0; b < reducer->num_buckets; b++) {
            bool tied = stage->local.items[reducer->bucket_first[b]].param->tied_to >= 0;
            if (tied == (pass == 1))
                TR_TRY(bucket_apply(optimizer, b, update));
        }
    const tr_local_param *embed = tr_local_param_find(&stage->local, TR_ROLE_EMBED, -1);
    if (owns_tied_pair(optimizer) && embed != NULL)
        TR_TRY(tied_weights_send(optimizer, embed));
    return TR_OK;
}

tr_status tr_optimizer_update(tr_optimizer *optimizer, double lr, double grad_scale)
{
    optimizer->num_updates++;
    const item_update update = {.lr = lr, .grad_scale = grad_scale};
    return all_apply(optimizer, &update);
}

tr_status tr_optimizer_spread(tr_optimizer *optimizer)
{
    const item_update update = {.spread_only = true};
    return all_apply(optimizer, &update);
}

int tr_optimizer_find_non_finite(const tr_optimizer *optimizer)
{
    const tr_stage *stage = optimizer->stage;
    int found = -1;
    for (int i = 0; i < stage->local.num_items; i++) {
        const tr_local_param *item = &stage->local.items[i];
        if (item->param->tied_to >= 0)
            continue;
        const float *grad = grad_of(optimizer, item);
        for (int64_t e = item->shard_begin; e < item->shard_end; e++)
            if (!isfinite(grad[e]) && (found < 0 || item->table_row < found))
                found = item->table_row;
    }
    return found;
}
