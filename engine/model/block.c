/* One decoder block: pre-norm attention and pre-norm MLP, each added to the residual stream. */
#include "engine/model/model.h"

#include <math.h>

#include "base/alloc.h"

static tr_norm_site norm1_site(const tr_model *model, int layer, const tr_block_saved *saved,
                               const void *x)
{
    const tr_weight *w = model->weights[layer];
    return (tr_norm_site){w[TR_ROLE_NORM1_WEIGHT],
                          w[TR_ROLE_NORM1_BIAS],
                          x,
                          saved->norm1,
                          saved->mean1,
                          saved->rstd1};
}

static tr_norm_site norm2_site(const tr_model *model, int layer, const tr_block_saved *saved)
{
    const tr_weight *w = model->weights[layer];
    return (tr_norm_site){w[TR_ROLE_NORM2_WEIGHT],
                          w[TR_ROLE_NORM2_BIAS],
                          saved->middle,
                          saved->norm2,
                          saved->mean2,
                          saved->rstd2};
}

static tr_attention attention_args(const tr_model *model, int layer,
                                   const tr_microbatch *microbatch, const tr_block_saved *saved)
{
    return (tr_attention){.B = model->B,
                          .T = model->T,
                          .A = model->A,
                          .K = model->K,
                          .D = model->D,
                          .dtype = model->dtype,
                          .scale = (float)(1.0 / sqrt((double)model->D)),
                          .head_offset = model->head_begin,
                          .dropout = tr_model_dropout(model, microbatch, "attention", layer),
                          .q = saved->q,
                          .k = saved->k,
                          .v = saved->v,
                          .out = saved->attention,
                          .lse = saved->lse};
}

/* Rotary positions on queries and keys, or their backward. */
static tr_status rope_apply(tr_model *model, void *q, void *k, bool backward)
{
    if (model->rope == NULL)
        return TR_OK;
    const tr_ops *ops = model->device->ops;
    TR_TRY(ops->rope(model->device, model->dtype, model->B, model->T, model->A, model->D,
                     model->rope, backward, q));
    return ops->rope(model->device, model->dtype, model->B, model->T, model->K, model->D,
                     model->rope, backward, k);
}

/* out [S,H] = x + dropout(reduced partial sums of the product + bias). */
static tr_status product_add(tr_model *model, const tr_microbatch *microbatch, const char *site,
                             int layer, const void *in, int64_t in_cols, tr_weight weight,
                             tr_weight bias, const void *x, void *out)
{
    float *partial, *sum;
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(tr_model_linear_partial(model, in, in_cols, weight, partial, model->H));
    TR_TRY(tr_tensor_comm_reduce(&model->tensor, partial, &sum));
    tr_dropout dropout = tr_model_dropout(model, microbatch, site, layer);
    return model->device->ops->residual_add(model->device, model->dtype, model->S, model->H,
                                            model->tensor.row_begin, x, sum, bias.weight, &dropout,
                                            out);
}

/* x -> saved->middle */
static tr_status attention_part(tr_model *model, int layer, const tr_microbatch *microbatch,
                                tr_block_saved *saved, const void *x)
{
    const tr_weight *w = model->weights[layer];
    const void *full;
    int64_t q_cols = model->A * model->D, kv_cols = model->K * model->D;
    tr_norm_site norm = norm1_site(model, layer, saved, x);
    TR_TRY(tr_model_norm(model, &norm, false, &full));
    TR_TRY(tr_model_linear(model, full, model->H, w[TR_ROLE_Q_WEIGHT], w[TR_ROLE_Q_BIAS], saved->q,
                           q_cols));
    TR_TRY(tr_model_linear(model, full, model->H, w[TR_ROLE_K_WEIGHT], w[TR_ROLE_K_BIAS], saved->k,
                           kv_cols));
    TR_TRY(tr_model_linear(model, full, model->H, w[TR_ROLE_V_WEIGHT], w[TR_ROLE_V_BIAS], saved->v,
                           kv_cols));
    TR_TRY(rope_apply(model, saved->q, saved->k, false));
    tr_attention args = attention_args(model, layer, microbatch, saved);
    TR_TRY(model->device->ops->attention_forward(model->device, &args));
    return product_add(model, microbatch, "attention output", layer, saved->attention, q_cols,
                       w[TR_ROLE_O_WEIGHT], w[TR_ROLE_O_BIAS], x, saved->middle);
}

static tr_status activation_apply(tr_model *model, tr_block_saved *saved)
{
    const tr_ops *ops = model->device->ops;
    int64_t n = model->R * model->F;
    if (saved->gate != NULL)
        return ops->swiglu_forward(model->device, model->dtype, n, saved->gate, saved->up,
                                   saved->act);
    return ops->gelu_forward(model->device, model->dtype, n, saved->up, saved->act);
}

/* saved->middle -> saved->act */
static tr_status mlp_hidden(tr_model *model, int layer, tr_block_saved *saved)
{
    const tr_weight *w = model->weights[layer];
    const void *full;
    tr_norm_site norm = norm2_site(model, layer, saved);
    TR_TRY(tr_model_norm(model, &norm, false, &full));
    if (saved->gate != NULL)
        TR_TRY(tr_model_linear(model, full, model->H, w[TR_ROLE_GATE_WEIGHT], w[TR_ROLE_GATE_BIAS],
                               saved->gate, model->F));
    TR_TRY(tr_model_linear(model, full, model->H, w[TR_ROLE_UP_WEIGHT], w[TR_ROLE_UP_BIAS],
                           saved->up, model->F));
    return activation_apply(model, saved);
}

tr_status tr_block_forward(tr_model *model, int layer, const tr_microbatch *microbatch,
                           tr_block_saved *saved, const void *x, void *out)
{
    const tr_weight *w = model->weights[layer];
    TR_TRY(attention_part(model, layer, microbatch, saved, x));
    TR_TRY(mlp_hidden(model, layer, saved));
    return product_add(model, microbatch, "mlp output", layer, saved->act, model->F,
                       w[TR_ROLE_DOWN_WEIGHT], w[TR_ROLE_DOWN_BIAS], saved->middle, out);
}

/* Gradient of a product that writes to the stream: through dropout, bias gradient, gather. dy [S,H] -> *full [R,H]. */
static tr_status product_gradient(tr_model *model, const tr_microbatch *microbatch,
                                  const char *site, int layer, tr_weight bias, const void *dy,
                                  const void **full)
{
    const tr_ops *ops = model->device->ops;
    tr_dropout dropout = tr_model_dropout(model, microbatch, site, layer);
    if (dropout.probability > 0) {
        TR_TRY(ops->dropout_backward(model->device, model->dtype, model->S, model->H,
                                     model->tensor.row_begin, dy, &dropout,
                                     model->scratch.dropped));
        dy = model->scratch.dropped;
    }
    if (bias.grad != NULL)
        TR_TRY(ops->column_sum(model->device, model->dtype, model->S, model->H, dy, bias.grad,
                               model->accumulate));
    return tr_model_gather(model, dy, full);
}

/* dy [S,H] of the block's output -> scratch.dmiddle [S,H]. */
static tr_status mlp_backward(tr_model *model, int layer, const tr_microbatch *microbatch,
                              tr_block_saved *saved, const void *dy)
{
    const tr_ops *ops = model->device->ops;
    const tr_weight *w = model->weights[layer];
    tr_model_scratch *scratch = &model->scratch;
    bool recompute = model->cfg->memory.recompute == TR_RECOMPUTE_SELECTIVE;
    const void *full;
    float *partial;
    int64_t n = model->R * model->F;
    void *dup =
        saved->gate != NULL ? saved->up : scratch->dact; /* in place, where operations can */
    TR_TRY(
        product_gradient(model, microbatch, "mlp output", layer, w[TR_ROLE_DOWN_BIAS], dy, &full));
    if (recompute)
        TR_TRY(activation_apply(model, saved));
    TR_TRY(tr_model_linear_grads(model, full, model->H, saved->act, model->F,
                                 w[TR_ROLE_DOWN_WEIGHT], (tr_weight){0}));
    TR_TRY(tr_model_linear_input(model, full, model->H, w[TR_ROLE_DOWN_WEIGHT], scratch->dact,
                                 model->F, model->dtype, false));
    if (saved->gate != NULL)
        TR_TRY(ops->swiglu_backward(model->device, model->dtype, n, saved->gate, saved->up,
                                    scratch->dact, saved->gate, saved->up));
    else
        TR_TRY(ops->gelu_backward(model->device, model->dtype, n, saved->up, scratch->dact, dup));

    tr_norm_site norm = norm2_site(model, layer, saved);
    TR_TRY(tr_model_norm(model, &norm, !recompute, &full));
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(tr_model_linear_grads(model, dup, model->F, full, model->H, w[TR_ROLE_UP_WEIGHT],
                                 w[TR_ROLE_UP_BIAS]));
    TR_TRY(tr_model_linear_input(model, dup, model->F, w[TR_ROLE_UP_WEIGHT], partial, model->H,
                                 TR_F32, false));
    if (saved->gate != NULL) {
        TR_TRY(tr_model_linear_grads(model, saved->gate, model->F, full, model->H,
                                     w[TR_ROLE_GATE_WEIGHT], w[TR_ROLE_GATE_BIAS]));
        TR_TRY(tr_model_linear_input(model, saved->gate, model->F, w[TR_ROLE_GATE_WEIGHT], partial,
                                     model->H, TR_F32, true));
    }
    return tr_model_norm_backward(model, &norm, partial, dy, scratch->dmiddle);
}

/* One of the three input products of attention: its weight gradient, and its share of the input gradient. */
static tr_status projection_backward(tr_model *model, int layer, tr_param_role role, const void *dy,
                                     int64_t cols, const void *full, float *partial, bool add)
{
    const tr_weight *w = model->weights[layer];
    TR_TRY(tr_model_linear_grads(model, dy, cols, full, model->H, w[role], w[role + 1]));
    return tr_model_linear_input(model, dy, cols, w[role], partial, model->H, TR_F32, add);
}

/* scratch.dmiddle -> dx [S,H]. */
static tr_status attention_backward(tr_model *model, int layer, const tr_microbatch *microbatch,
                                    tr_block_saved *saved, const void *x, void *dx)
{
    const tr_weight *w = model->weights[layer];
    tr_model_scratch *scratch = &model->scratch;
    int64_t q_cols = model->A * model->D, kv_cols = model->K * model->D;
    const void *full;
    float *partial;
    TR_TRY(product_gradient(model, microbatch, "attention output", layer, w[TR_ROLE_O_BIAS],
                            scratch->dmiddle, &full));
    TR_TRY(tr_model_linear_grads(model, full, model->H, saved->attention, q_cols,
                                 w[TR_ROLE_O_WEIGHT], (tr_weight){0}));
    TR_TRY(tr_model_linear_input(model, full, model->H, w[TR_ROLE_O_WEIGHT], scratch->dattention,
                                 q_cols, model->dtype, false));
    tr_attention args = attention_args(model, layer, microbatch, saved);
    args.dout = scratch->dattention;
    args.dq = scratch->dq;
    args.dk = scratch->dk;
    args.dv = scratch->dv;
    TR_TRY(model->device->ops->attention_backward(model->device, &args));
    TR_TRY(rope_apply(model, scratch->dq, scratch->dk, true));

    tr_norm_site norm = norm1_site(model, layer, saved, x);
    bool have = model->cfg->memory.recompute != TR_RECOMPUTE_SELECTIVE;
    TR_TRY(tr_model_norm(model, &norm, have, &full));
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(projection_backward(model, layer, TR_ROLE_Q_WEIGHT, scratch->dq, q_cols, full, partial,
                               false));
    TR_TRY(projection_backward(model, layer, TR_ROLE_K_WEIGHT, scratch->dk, kv_cols, full, partial,
                               true));
    TR_TRY(projection_backward(model, layer, TR_ROLE_V_WEIGHT, scratch->dv, kv_cols, full, partial,
                               true));
    return tr_model_norm_backward(model, &norm, partial, scratch->dmiddle, dx);
}

tr_status tr_block_backward(tr_model *model, int layer, const tr_microbatch *microbatch,
                            tr_block_saved *saved, const void *x, const void *dy, void *dx)
{
    if (model->cfg->memory.recompute == TR_RECOMPUTE_FULL) {
        TR_TRY(attention_part(model, layer, microbatch, saved, x));
        TR_TRY(mlp_hidden(model, layer, saved));
    }
    TR_TRY(mlp_backward(model, layer, microbatch, saved, dy));
    return attention_backward(model, layer, microbatch, saved, x, dx);
}
