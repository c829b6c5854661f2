#include "engine/optimizer.h"

void tr_optimizer_init(tr_optimizer *optimizer, tr_stage *stage)
{
    *optimizer = (tr_optimizer){.stage = stage};
}

/* The gradient of this rank's interval [state_begin, state_end). */
static float *grad_of(const tr_optimizer *optimizer, const tr_local_param *item)
{
    return tr_gradients_held(&optimizer->stage->gradients, item);
}

static tr_status grads_add(tr_optimizer *optimizer, const tr_local_param *embed,
                           const float *head_grad)
{
    tr_device *device = optimizer->stage->device;
    float *grad = grad_of(optimizer, embed);
    const float *pair[2] = {grad, head_grad};
    return device->ops->tree_sum(device, tr_local_param_held(embed), 2, pair, grad);
}

tr_status tr_optimizer_tie_gradients(tr_optimizer *optimizer)
{
    tr_stage *stage = optimizer->stage;
    tr_tied *tied = &stage->tied;
    const tr_local_param *embed = tr_local_param_find(&stage->local, TR_ROLE_EMBED, -1);
    const tr_local_param *head = tr_local_param_find(&stage->local, TR_ROLE_HEAD, -1);
    if (tied->head != NULL)
        return tr_tied_gradient_send(tied, grad_of(optimizer, head));
    const float *head_grad;
    if (tied->embed != NULL)
        TR_TRY(tr_tied_gradient_receive(tied, &head_grad));
    else if (embed != NULL && head != NULL && head->param->tied_to >= 0)
        head_grad = grad_of(optimizer, head);
    else
        return TR_OK;
    return grads_add(optimizer, embed, head_grad);
}

/* Adds the squares of this rank's share of an item. */
static tr_status item_square_sum(const tr_optimizer *optimizer, const tr_local_param *item)
{
    tr_stage *stage = optimizer->stage;
    return stage->device->ops->square_sum(
        stage->device, item->shard_end - item->shard_begin,
        grad_of(optimizer, item) + (item->shard_begin - item->state_begin), stage->sums.squares);
}

tr_status tr_optimizer_square_sum(tr_optimizer *optimizer)
{
    const tr_local_params *local = &optimizer->stage->local;
    for (int i = 0; i < local->num_items; i++)
        if (local->items[i].counted && local->items[i].param->tied_to < 0)
            TR_TRY(item_square_sum(optimizer, &local->items[i]));
    return TR_OK;
}

/* Weights of this rank's interval of an item in the compute dtype. */
static tr_status item_spread(const tr_optimizer *optimizer, const tr_local_param *item)
{
    const tr_stage *stage = optimizer->stage;
    tr_device *device = stage->device;
    void *compute = tr_weights_target(&stage->weights, item);
    if (compute == NULL)
        return TR_OK;
    return device->ops->convert(device, tr_local_param_held(item), TR_F32,
                                stage->master + item->state_offset, stage->model.dtype, compute);
}

/* Updates this rank's interval of an item. */
static tr_status item_update(const tr_optimizer *optimizer, const tr_local_param *item)
{
    const tr_stage *stage = optimizer->stage;
    const tr_config *cfg = stage->cfg;
    tr_device *device = stage->device;
    tr_adamw args = {.n = tr_local_param_held(item),
                     .master = stage->master + item->state_offset,
                     .m = stage->m != NULL ? stage->m + item->state_offset : NULL,
                     .v = stage->v != NULL ? stage->v + item->state_offset : NULL,
                     .grad = grad_of(optimizer, item),
                     .step = stage->decider.state,
                     .beta1 = (float)cfg->train.beta1,
                     .beta2 = (float)cfg->train.beta2,
                     .eps = (float)cfg->train.eps,
                     .weight_decay = item->param->decay ? (float)cfg->train.weight_decay : 0.0f,
                     .compute = tr_weights_target(&stage->weights, item),
                     .dtype = stage->model.dtype};
    return cfg->train.optimizer == TR_OPTIMIZER_ADAMW ? device->ops->adamw(device, &args)
                                                      : device->ops->sgd(device, &args);
}

static tr_status all_change(const tr_optimizer *optimizer,
                            tr_status (*change)(const tr_optimizer *optimizer,
                                                const tr_local_param *item))
{
    tr_stage *stage = optimizer->stage;
    for (int i = 0; i < stage->local.num_items; i++)
        if (stage->local.items[i].param->tied_to < 0)
            TR_TRY(change(optimizer, &stage->local.items[i]));
    return tr_weights_changed(&stage->weights);
}

tr_status tr_optimizer_update(tr_optimizer *optimizer)
{
    return all_change(optimizer, item_update);
}

tr_status tr_optimizer_spread(tr_optimizer *optimizer)
{
    return all_change(optimizer, item_spread);
}

tr_status tr_optimizer_find_non_finite(tr_optimizer *optimizer, int *row)
{
    tr_stage *stage = optimizer->stage;
    int64_t sums[TR_STEP_SUMS];
    *row = -1;
    for (int i = 0; i < stage->local.num_items; i++) {
        const tr_local_param *item = &stage->local.items[i];
        if (item->param->tied_to >= 0 || (*row >= 0 && item->table_row > *row))
            continue;
        TR_TRY(tr_step_sums_reset_squares(&stage->sums));
        TR_TRY(item_square_sum(optimizer, item));
        TR_TRY(tr_step_sums_get(&stage->sums, sums));
        if (sums[TR_SQUARE_SUM_LIMBS - 1] != 0)
            *row = item->table_row;
    }
    return TR_OK;
}
