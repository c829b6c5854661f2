/* The two ends of the decoder: vocabulary-parallel embedding, and final norm, logits and cross-entropy (never a gathered logit). */
#include "engine/model/model.h"

#include <math.h>

static const tr_weight *outer_weights(const tr_model *model)
{
    return model->weights[model->cfg->model.layers];
}

tr_status tr_embed_run_forward(tr_model *model, const tr_microbatch *microbatch, void *out)
{
    const tr_ops *ops = model->device->ops;
    const tr_weight *w = outer_weights(model);
    float *partial, *sum;
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(ops->embed_forward(model->device, model->dtype, model->R, model->H, model->vocab_valid,
                              model->vocab_begin, microbatch->tokens, w[TR_ROLE_EMBED].weight,
                              partial));
    TR_TRY(tr_tensor_comm_reduce(&model->tensor, partial, &sum));
    tr_dropout dropout = tr_model_dropout(model, microbatch, "embedding", -1);
    return ops->embed_finish(model->device, model->dtype, model->S, model->H,
                             model->tensor.row_begin, sum, w[TR_ROLE_POSITION].weight, &dropout,
                             out);
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
    if (w[TR_ROLE_POSITION].grad != NULL)
        TR_TRY(ops->position_backward(model->device, model->dtype, model->B, model->T, model->H,
                                      full, w[TR_ROLE_POSITION].grad, model->accumulate));
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
        return ops->xent_sum(model->device, model->dtype, rows, model->vocab_valid, model->V,
                             model->vocab_begin, saved->logits, microbatch->labels, saved->max,
                             saved->sum_target);
    }
    float *local;
    TR_TRY(tr_tensor_comm_statistics(tensor, &local));
    TR_TRY(ops->xent_max(model->device, model->dtype, rows, model->vocab_valid, model->V,
                         saved->logits, local));
    TR_TRY(tr_tensor_comm_max(tensor, local, saved->max, rows));
    TR_TRY(tr_tensor_comm_statistics(tensor, &local));
    TR_TRY(ops->xent_sum(model->device, model->dtype, rows, model->vocab_valid, model->V,
                         model->vocab_begin, saved->logits, microbatch->labels, saved->max, local));
    return tr_tensor_comm_sum(tensor, local, saved->sum_target, 2 * rows);
}

static tr_status logits_compute(tr_model *model, const tr_microbatch *microbatch,
                                const tr_head_saved *saved, const void *x)
{
    const void *full;
    tr_norm_site norm = final_norm_site(model, saved, x);
    TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(tr_model_gather(model, saved->norm, &full));
    TR_TRY(tr_model_linear(model, full, model->H, outer_weights(model)[TR_ROLE_HEAD],
                           (tr_weight){0}, saved->logits, model->V));
    return statistics(model, microbatch, saved);
}

tr_status tr_head_forward(tr_model *model, const tr_microbatch *microbatch, tr_head_saved *saved,
                          const void *x, tr_loss *loss)
{
    TR_TRY(logits_compute(model, microbatch, saved, x));
    for (int64_t r = 0; r < model->R; r++) {
        if (microbatch->labels[r] < 0)
            continue;
        double sum = saved->sum_target[2 * r], target = saved->sum_target[2 * r + 1];
        tr_fixed_sum_add(&loss->sum, log(sum) + (double)saved->max[r] - target);
        loss->num_tokens++;
    }
    return TR_OK;
}

tr_status tr_head_backward(tr_model *model, const tr_microbatch *microbatch,
                           const tr_head_saved *kept, const tr_head_pending *pending, const void *x,
                           float scale, void *dx)
{
    const tr_ops *ops = model->device->ops;
    const tr_weight head = outer_weights(model)[TR_ROLE_HEAD];
    tr_head_saved saved = *kept;
    const void *full;
    float *partial;
    TR_ASSERT(pending != NULL || model->parts == TR_BACKWARD_BOTH);
    if (pending != NULL && pending->logits != NULL) {
        saved.norm = pending->norm;
        saved.logits = pending->logits;
    }
    tr_norm_site norm = final_norm_site(model, &saved, x);
    norm.sums = pending != NULL ? pending->norm_sums : NULL;
    if (model->parts & TR_BACKWARD_INPUT) {
        if (model->cfg->memory.recompute == TR_RECOMPUTE_FULL)
            TR_TRY(logits_compute(model, microbatch, &saved, x));
        TR_TRY(ops->xent_backward(model->device, model->dtype, model->R, model->vocab_valid,
                                  model->V, model->vocab_begin, saved.logits, microbatch->labels,
                                  saved.max, saved.sum_target, scale));
    }
    if (model->parts & TR_BACKWARD_WEIGHT) {
        TR_TRY(tr_model_gather(model, saved.norm, &full));
        TR_TRY(tr_model_linear_grads(model, saved.logits, model->V, full, model->H, head,
                                     (tr_weight){0}));
    }
    if (model->parts == TR_BACKWARD_WEIGHT)
        return tr_model_norm_take(model, &norm);
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(tr_model_linear_input(model, saved.logits, model->V, head, partial, model->H, TR_F32,
                                 false));
    return tr_model_norm_backward(model, &norm, partial, NULL, dx);
}
