/* One decoder block: pre-norm attention and pre-norm MLP, each added to the residual stream. */
#include "engine/model/model.h"

#include <math.h>

#include "base/alloc.h"

static tr_norm_site norm1_site(const tr_model *model, int layer, const tr_block_saved *saved,
                               const void *x)
{
    const tr_weight *w = model->weights[layer];
    return (tr_norm_site){.weight = w[TR_ROLE_NORM1_WEIGHT],
                          .bias = w[TR_ROLE_NORM1_BIAS],
                          .x = x,
                          .kept = saved->norm1,
                          .mean = saved->mean1,
                          .rstd = saved->rstd1};
}

static tr_norm_site norm2_site(const tr_model *model, int layer, const tr_block_saved *saved)
{
    const tr_weight *w = model->weights[layer];
    return (tr_norm_site){.weight = w[TR_ROLE_NORM2_WEIGHT],
                          .bias = w[TR_ROLE_NORM2_BIAS],
                          .x = saved->middle,
                          .kept = saved->norm2,
                          .mean = saved->mean2,
                          .rstd = saved->rstd2};
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
                                const tr_block_saved *saved, const void *x)
{
    const tr_weight *w = model->weights[layer];
    const void *full;
    int64_t q_cols = model->A * model->D, kv_cols = model->K * model->D;
    tr_norm_site norm = norm1_site(model, layer, saved, x);
    TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(tr_model_gather(model, saved->norm1, &full));
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

static tr_status activation_apply(tr_model *model, const tr_block_saved *saved)
{
    const tr_ops *ops = model->device->ops;
    int64_t n = model->R * model->F;
    if (saved->gate != NULL)
        return ops->swiglu_forward(model->device, model->dtype, n, saved->gate, saved->up,
                                   saved->act);
    return ops->gelu_forward(model->device, model->dtype, n, saved->up, saved->act);
}

/* saved->middle -> saved->act */
static tr_status mlp_hidden(tr_model *model, int layer, const tr_block_saved *saved)
{
    const tr_weight *w = model->weights[layer];
    const void *full;
    tr_norm_site norm = norm2_site(model, layer, saved);
    TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(tr_model_gather(model, saved->norm2, &full));
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

/* ---- backward ---- */

static bool has_part(const tr_model *model, unsigned part)
{
    return (model->parts & part) != 0;
}

/* One block's backward. */
typedef struct block_pass {
    tr_model *model;
    int layer;
    const tr_weight *weights;
    const tr_microbatch *microbatch;
    tr_block_saved saved; /* with what recomputation leaves for the weight part in `pending` */
    const tr_block_pending *pending;
    const void *x, *dy;
} block_pass;

/* Gradient of a product that writes to the stream: through dropout, bias gradient, gather. dy [S,H] -> *full [R,H]. */
static tr_status product_gradient(const block_pass *pass, const char *site, tr_param_role bias,
                                  const void *dy, const void **full)
{
    tr_model *model = pass->model;
    const tr_ops *ops = model->device->ops;
    tr_dropout dropout = tr_model_dropout(model, pass->microbatch, site, pass->layer);
    if (dropout.probability > 0) {
        TR_TRY(ops->dropout_backward(model->device, model->dtype, model->S, model->H,
                                     model->tensor.row_begin, dy, &dropout,
                                     model->scratch.dropped));
        dy = model->scratch.dropped;
    }
    float *grad = pass->weights[bias].grad;
    if (has_part(model, TR_BACKWARD_WEIGHT) && grad != NULL)
        TR_TRY(ops->column_sum(model->device, model->dtype, model->S, model->H, dy, grad,
                               model->accumulate));
    return tr_model_gather(model, dy, full);
}

/* scratch.dact becomes the gradients of gate and up, in their places. */
static tr_status activation_gradient(const block_pass *pass)
{
    tr_model *model = pass->model;
    const tr_ops *ops = model->device->ops;
    const tr_block_saved *saved = &pass->saved;
    int64_t n = model->R * model->F;
    if (saved->gate != NULL)
        return ops->swiglu_backward(model->device, model->dtype, n, saved->gate, saved->up,
                                    model->scratch.dact, saved->gate, saved->up);
    return ops->gelu_backward(model->device, model->dtype, n, saved->up, model->scratch.dact,
                              saved->up);
}

/* Weight gradients of the MLP's first products; their output gradients lie in gate and up. */
static tr_status mlp_weights(const block_pass *pass)
{
    tr_model *model = pass->model;
    const tr_weight *w = pass->weights;
    const tr_block_saved *saved = &pass->saved;
    const void *full;
    TR_TRY(tr_model_gather(model, saved->norm2, &full));
    TR_TRY(tr_model_linear_grads(model, saved->up, model->F, full, model->H, w[TR_ROLE_UP_WEIGHT],
                                 w[TR_ROLE_UP_BIAS]));
    if (saved->gate == NULL)
        return TR_OK;
    return tr_model_linear_grads(model, saved->gate, model->F, full, model->H,
                                 w[TR_ROLE_GATE_WEIGHT], w[TR_ROLE_GATE_BIAS]);
}

/* dy [S,H] of the block's output -> pending->dmiddle [S,H]. */
static tr_status mlp_backward(const block_pass *pass)
{
    tr_model *model = pass->model;
    const tr_weight *w = pass->weights;
    const tr_block_saved *saved = &pass->saved;
    bool input = has_part(model, TR_BACKWARD_INPUT), weight = has_part(model, TR_BACKWARD_WEIGHT);
    const void *full;
    float *partial;
    tr_norm_site norm = norm2_site(model, pass->layer, saved);
    if (input && model->cfg->memory.recompute == TR_RECOMPUTE_SELECTIVE) {
        TR_TRY(activation_apply(model, saved));
        TR_TRY(tr_model_norm(model, &norm));
    }
    TR_TRY(product_gradient(pass, "mlp output", TR_ROLE_DOWN_BIAS, pass->dy, &full));
    if (weight)
        TR_TRY(tr_model_linear_grads(model, full, model->H, saved->act, model->F,
                                     w[TR_ROLE_DOWN_WEIGHT], (tr_weight){0}));
    if (input) {
        TR_TRY(tr_model_linear_input(model, full, model->H, w[TR_ROLE_DOWN_WEIGHT],
                                     model->scratch.dact, model->F, model->dtype, false));
        TR_TRY(activation_gradient(pass));
    }
    if (weight)
        TR_TRY(mlp_weights(pass));
    if (pass->pending->norm_sums != NULL)
        norm.sums = pass->pending->norm_sums + 2 * model->H;
    if (!input)
        return tr_model_norm_take(model, &norm);
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(tr_model_linear_input(model, saved->up, model->F, w[TR_ROLE_UP_WEIGHT], partial,
                                 model->H, TR_F32, false));
    if (saved->gate != NULL)
        TR_TRY(tr_model_linear_input(model, saved->gate, model->F, w[TR_ROLE_GATE_WEIGHT], partial,
                                     model->H, TR_F32, true));
    return tr_model_norm_backward(model, &norm, partial, pass->dy, pass->pending->dmiddle);
}

/* The three input products of attention. */
typedef struct projection {
    tr_param_role role; /* its bias is the next role */
    int64_t cols;
    const void *dy;
} projection;

enum { NUM_PROJECTIONS = 3 };

static void projections_list(const block_pass *pass, projection list[NUM_PROJECTIONS])
{
    const tr_model *model = pass->model;
    int64_t q_cols = model->A * model->D, kv_cols = model->K * model->D;
    list[0] = (projection){TR_ROLE_Q_WEIGHT, q_cols, pass->pending->dq};
    list[1] = (projection){TR_ROLE_K_WEIGHT, kv_cols, pass->pending->dk};
    list[2] = (projection){TR_ROLE_V_WEIGHT, kv_cols, pass->pending->dv};
}

/* Gradients of queries, keys and values from that of attention's output product. dy [R,H]. */
static tr_status attention_gradient(const block_pass *pass, const void *dy)
{
    tr_model *model = pass->model;
    const tr_block_pending *pending = pass->pending;
    TR_TRY(tr_model_linear_input(model, dy, model->H, pass->weights[TR_ROLE_O_WEIGHT],
                                 model->scratch.dattention, model->A * model->D, model->dtype,
                                 false));
    tr_attention args = attention_args(model, pass->layer, pass->microbatch, &pass->saved);
    args.dout = model->scratch.dattention;
    args.dq = pending->dq;
    args.dk = pending->dk;
    args.dv = pending->dv;
    TR_TRY(model->device->ops->attention_backward(model->device, &args));
    return rope_apply(model, pending->dq, pending->dk, true);
}

/* pending->dmiddle -> dx [S,H]. */
static tr_status attention_backward(const block_pass *pass, void *dx)
{
    tr_model *model = pass->model;
    const tr_weight *w = pass->weights;
    const tr_block_saved *saved = &pass->saved;
    bool input = has_part(model, TR_BACKWARD_INPUT), weight = has_part(model, TR_BACKWARD_WEIGHT);
    const void *full, *dmiddle = pass->pending->dmiddle;
    float *partial;
    projection projections[NUM_PROJECTIONS];
    projections_list(pass, projections);
    tr_norm_site norm = norm1_site(model, pass->layer, saved, pass->x);
    if (input && model->cfg->memory.recompute == TR_RECOMPUTE_SELECTIVE)
        TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(product_gradient(pass, "attention output", TR_ROLE_O_BIAS, dmiddle, &full));
    if (weight)
        TR_TRY(tr_model_linear_grads(model, full, model->H, saved->attention, model->A * model->D,
                                     w[TR_ROLE_O_WEIGHT], (tr_weight){0}));
    if (input)
        TR_TRY(attention_gradient(pass, full));
    if (weight) {
        TR_TRY(tr_model_gather(model, saved->norm1, &full));
        for (int i = 0; i < NUM_PROJECTIONS; i++)
            TR_TRY(tr_model_linear_grads(model, projections[i].dy, projections[i].cols, full,
                                         model->H, w[projections[i].role],
                                         w[projections[i].role + 1]));
    }
    norm.sums = pass->pending->norm_sums;
    if (!input)
        return tr_model_norm_take(model, &norm);
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    for (int i = 0; i < NUM_PROJECTIONS; i++)
        TR_TRY(tr_model_linear_input(model, projections[i].dy, projections[i].cols,
                                     w[projections[i].role], partial, model->H, TR_F32, i > 0));
    return tr_model_norm_backward(model, &norm, partial, dmiddle, dx);
}

static void *either(void *first, void *second)
{
    return first != NULL ? first : second;
}

tr_status tr_block_backward(tr_model *model, int layer, const tr_microbatch *microbatch,
                            const tr_block_saved *saved, const tr_block_pending *pending,
                            const void *x, const void *dy, void *dx)
{
    TR_ASSERT(pending != NULL || model->parts == TR_BACKWARD_BOTH);
    if (pending == NULL)
        pending = &model->scratch.pending;
    block_pass pass = {model, layer, model->weights[layer], microbatch, *saved, pending, x, dy};
    pass.saved.norm1 = either(pending->norm1, saved->norm1);
    pass.saved.norm2 = either(pending->norm2, saved->norm2);
    pass.saved.attention = either(pending->attention, saved->attention);
    pass.saved.gate = either(pending->gate, saved->gate);
    pass.saved.up = either(pending->up, saved->up);
    pass.saved.act = either(pending->act, saved->act);
    if (has_part(model, TR_BACKWARD_INPUT) && model->cfg->memory.recompute == TR_RECOMPUTE_FULL) {
        TR_TRY(attention_part(model, layer, microbatch, &pass.saved, x));
        TR_TRY(mlp_hidden(model, layer, &pass.saved));
    }
    TR_TRY(mlp_backward(&pass));
    return attention_backward(&pass, dx);
}
