/* The two ends of the decoder: vocabulary-parallel embedding, and final norm, logits and cross-entropy (never a gathered logit). */
#include "engine/model/linear.h"
#include "engine/model/row_sums.h"

static int outer_layer(const tr_model *model)
{
    return (int)model->cfg->model.layers;
}

static const tr_weight *outer_weights(const tr_model *model)
{
    return model->weights[outer_layer(model)];
}

tr_status tr_embed_run_forward(tr_model *model, const tr_microbatch *microbatch, void *out)
{
    const tr_ops *ops = model->device->ops;
    const tr_weight *w = outer_weights(model);
    float *partial, *sum;
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    int64_t rows = tr_tensor_comm_half_rows(&model->tensor);
    for (int h = 0; h < model->tensor.num_halves; h++) {
        TR_TRY(ops->embed_forward(model->device, model->dtype, rows, model->H, model->vocab_valid,
                                  model->vocab_begin, microbatch->tokens + h * rows,
                                  w[TR_ROLE_EMBED].weight, partial + h * rows * model->H));
        TR_TRY(tr_tensor_comm_reduce_post(&model->tensor, partial, h));
    }
    TR_TRY(tr_tensor_comm_reduce_finish(&model->tensor, partial, &sum));
    tr_dropout dropout = tr_model_dropout(model, microbatch, "embedding", -1);
    return ops->embed_finish(model->device, model->dtype, model->S, model->H,
                             model->tensor.row_begin, sum, w[TR_ROLE_POSITION].weight, &dropout,
                             out);
}

/* The gradient of the position table. Rows behind the sequence's end have none: they are cleared, since other units may have left theirs in this memory. */
static tr_status positions_backward(tr_model *model, const void *full)
{
    const tr_ops *ops = model->device->ops;
    float *grad = outer_weights(model)[TR_ROLE_POSITION].grad;
    int64_t unused = model->cfg->model.max_positions - model->T;
    TR_TRY(ops->position_backward(model->device, model->dtype, model->B, model->T, model->H, full,
                                  grad, model->accumulate));
    if (model->accumulate || unused == 0)
        return TR_OK;
    return ops->fill_zero(model->device, grad + model->T * model->H,
                          unused * model->H * (int64_t)sizeof(float));
}

tr_status tr_embed_run_backward(tr_model *model, const tr_microbatch *microbatch, const void *dx)
{
    const tr_ops *ops = model->device->ops;
    const tr_weight *w = outer_weights(model);
    const void *full;
    tr_dropout dropout = tr_model_dropout(model, microbatch, "embedding", -1);
    if (dropout.probability > 0) {
        TR_TRY(ops->dropout_backward(model->device, model->dtype, model->S, model->H,
                                     model->tensor.row_begin, dx, &dropout,
                                     model->scratch.dropped));
        dx = model->scratch.dropped;
    }
    TR_TRY(tr_model_gather(model, dx, &full));
    TR_TRY(tr_tensor_comm_gather_wait(&model->tensor, full, -1));
    if (w[TR_ROLE_POSITION].grad != NULL)
        TR_TRY(positions_backward(model, full));
    return ops->embed_backward(model->device, model->dtype, model->R, model->H, model->V,
                               model->vocab_begin, microbatch->tokens, full, w[TR_ROLE_EMBED].grad,
                               model->accumulate);
}

static tr_norm_site final_norm_site(const tr_model *model, const tr_head_saved *saved,
                                    const void *x)
{
    const tr_weight *w = outer_weights(model);
    return (tr_norm_site){.weight = w[TR_ROLE_FINAL_NORM_WEIGHT],
                          .bias = w[TR_ROLE_FINAL_NORM_BIAS],
                          .x = x,
                          .kept = saved->norm,
                          .mean = saved->mean,
                          .rstd = saved->rstd};
}

/* Of this rank's part of the vocabulary: the sum of exponentials and the label's logit of each row, the tree over slices in sums [2R]. */
static tr_status exponentials_sum(tr_model *model, const tr_microbatch *microbatch,
                                  const tr_head_saved *saved, float *sums)
{
    const tr_ops *ops = model->device->ops;
    const float *parts[TR_MODEL_SLICES];
    int64_t cols = model->V / model->slices, rows = model->R;
    for (int p = 0; p < model->slices; p++) {
        int64_t begin = p * cols, valid = model->vocab_valid - begin;
        valid = valid < 0 ? 0 : valid > cols ? cols : valid;
        float *out = model->slices == 1 ? sums : model->scratch.statistics + p * 2 * rows;
        const void *logits = (const char *)saved->logits + begin * (int64_t)model->item;
        TR_TRY(ops->xent_sum(model->device, model->dtype, rows, valid, model->V,
                             model->vocab_begin + begin, logits, microbatch->labels, saved->max,
                             out));
        parts[p] = out;
    }
    return model->slices == 1 ? TR_OK
                              : ops->tree_sum(model->device, 2 * rows, model->slices, parts, sums);
}

/* Softmax statistics of the whole vocabulary from each rank's part: the largest logit, then the sum of exponentials and the label's logit. */
static tr_status statistics(tr_model *model, const tr_microbatch *microbatch,
                            const tr_head_saved *saved)
{
    const tr_ops *ops = model->device->ops;
    tr_tensor_comm *tensor = &model->tensor;
    int64_t rows = model->R;
    if (tensor->size == 1) {
        TR_TRY(ops->xent_max(model->device, model->dtype, rows, model->vocab_valid, model->V,
                             saved->logits, saved->max));
        return exponentials_sum(model, microbatch, saved, saved->sum_target);
    }
    float *local;
    TR_TRY(tr_tensor_comm_statistics(tensor, &local));
    TR_TRY(ops->xent_max(model->device, model->dtype, rows, model->vocab_valid, model->V,
                         saved->logits, local));
    TR_TRY(tr_tensor_comm_max(tensor, local, saved->max, rows));
    TR_TRY(tr_tensor_comm_statistics(tensor, &local));
    TR_TRY(exponentials_sum(model, microbatch, saved, local));
    return tr_tensor_comm_sum(tensor, local, saved->sum_target, 2 * rows);
}

static tr_status logits_compute(tr_model *model, const tr_microbatch *microbatch,
                                const tr_head_saved *saved, const void *x)
{
    const void *full;
    tr_norm_site norm = final_norm_site(model, saved, x);
    TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(tr_model_gather(model, saved->norm, &full));
    TR_TRY(tr_linear_forward(model, outer_layer(model), TR_ROLE_HEAD, full, saved->logits));
    return statistics(model, microbatch, saved);
}

tr_status tr_head_forward(tr_model *model, const tr_microbatch *microbatch, tr_head_saved *saved,
                          const void *x, int64_t *loss)
{
    TR_TRY(logits_compute(model, microbatch, saved, x));
    if (loss == NULL)
        return TR_OK;
    return model->device->ops->loss_sum(model->device, model->R, microbatch->labels, saved->max,
                                        saved->sum_target, loss);
}

/* saved->logits -> their gradient. */
static tr_status logits_gradient(tr_model *model, const tr_microbatch *microbatch,
                                 const tr_head_saved *saved, const void *x, const float *scale)
{
    if (model->cfg->memory.recompute == TR_RECOMPUTE_FULL)
        TR_TRY(logits_compute(model, microbatch, saved, x));
    return model->device->ops->xent_backward(
        model->device, model->dtype, model->R, model->vocab_valid, model->V, model->vocab_begin,
        saved->logits, microbatch->labels, saved->max, saved->sum_target, scale);
}

tr_status tr_head_backward(tr_model *model, const tr_microbatch *microbatch,
                           const tr_head_saved *kept, const tr_head_pending *pending, const void *x,
                           const float *scale, void *dx)
{
    bool input = (model->parts & TR_BACKWARD_INPUT) != 0;
    bool weight = (model->parts & TR_BACKWARD_WEIGHT) != 0;
    tr_head_saved saved = *kept;
    const void *full;
    float *partial;
    TR_ASSERT(pending != NULL || model->parts == TR_BACKWARD_BOTH);
    if (pending == NULL)
        pending = &model->scratch.head_pending;
    if (pending->logits != NULL) {
        saved.norm = pending->norm;
        saved.logits = pending->logits;
    }
    tr_norm_site norm = final_norm_site(model, &saved, x);
    norm.sums = pending->row_sums;
    if (input)
        TR_TRY(logits_gradient(model, microbatch, &saved, x, scale));
    if (weight)
        TR_TRY(tr_model_gather(model, saved.norm, &full));
    if (input) {
        const tr_linear_term term = {TR_ROLE_HEAD, saved.logits};
        TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
        TR_TRY(tr_linear_input_partial(model, outer_layer(model), &term, 1, partial));
    }
    if (weight) /* while partial sums travel */
        TR_TRY(tr_linear_weight(model, outer_layer(model), TR_ROLE_HEAD, saved.logits, full));
    if (input)
        TR_TRY(tr_row_sums_norm_backward(model, &norm, partial, NULL, dx));
    if (!weight || !tr_row_sums_wait(model))
        return TR_OK;
    float *grads[] = {norm.weight.grad, norm.bias.grad};
    return tr_row_sums_take(model, norm.sums, tr_row_sums_norm(model), grads);
}
