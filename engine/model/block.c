/* One decoder block: pre-norm attention and pre-norm MLP, each added to the residual stream. */
#include <math.h>

#include "engine/model/linear.h"
#include "engine/model/row_sums.h"

/* The block's norms; sums: a block's vectors (tr_row_sums), or NULL. */
static tr_norm_site norm1_site(const tr_model *model, int layer, const tr_block_saved *saved,
                               const void *x, float *sums)
{
    const tr_weight *w = model->weights[layer];
    return (tr_norm_site){.weight = w[TR_ROLE_NORM1_WEIGHT],
                          .bias = w[TR_ROLE_NORM1_BIAS],
                          .x = x,
                          .kept = saved->norm1,
                          .mean = saved->mean1,
                          .rstd = saved->rstd1,
                          .sums =
                              sums == NULL ? NULL : sums + tr_row_sums_of(model).norm1 * model->H};
}

static tr_norm_site norm2_site(const tr_model *model, int layer, const tr_block_saved *saved,
                               float *sums)
{
    const tr_weight *w = model->weights[layer];
    return (tr_norm_site){.weight = w[TR_ROLE_NORM2_WEIGHT],
                          .bias = w[TR_ROLE_NORM2_BIAS],
                          .x = saved->middle,
                          .kept = saved->norm2,
                          .mean = saved->mean2,
                          .rstd = saved->rstd2,
                          .sums =
                              sums == NULL ? NULL : sums + tr_row_sums_of(model).norm2 * model->H};
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
                          .lse = saved->lse,
                          .kv_parts = model->kv_parts};
}

/* Rotary positions on queries and keys, or their backward; k has `heads` heads. */
static tr_status rope_apply(tr_model *model, void *q, void *k, int64_t heads, bool backward)
{
    if (model->rope == NULL)
        return TR_OK;
    const tr_ops *ops = model->device->ops;
    TR_TRY(ops->rope(model->device, model->dtype, model->B, model->T, model->A, model->D,
                     model->rope, backward, q));
    return ops->rope(model->device, model->dtype, model->B, model->T, heads, model->D, model->rope,
                     backward, k);
}

/* *sum [S,H]: the reduced partial sums of a product that writes to the stream. */
static tr_status product_sum(tr_model *model, int layer, tr_param_role role, const void *in,
                             float **sum)
{
    float *partial;
    TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
    TR_TRY(tr_linear_forward_partial(model, layer, role, in, partial));
    return tr_tensor_comm_reduce_finish(&model->tensor, partial, sum);
}

/* saved->middle = x + dropout(attention's product + bias), and its norm. */
static tr_status attention_add(tr_model *model, int layer, const tr_microbatch *microbatch,
                               const tr_block_saved *saved, const void *x)
{
    float *sum;
    tr_norm_site norm = norm2_site(model, layer, saved, NULL);
    TR_TRY(product_sum(model, layer, TR_ROLE_O_WEIGHT, saved->attention, &sum));
    const tr_residual_norm args = {
        .kind = tr_model_norm_kind(model),
        .dtype = model->dtype,
        .R = model->S,
        .H = model->H,
        .row_begin = model->tensor.row_begin,
        .x = x,
        .y = sum,
        .bias = model->weights[layer][TR_ROLE_O_BIAS].weight,
        .dropout = tr_model_dropout(model, microbatch, "attention output", layer),
        .out = saved->middle,
        .eps = (float)model->cfg->model.norm_eps,
        .weight = norm.weight.weight,
        .norm_bias = norm.bias.weight,
        .normed = norm.kept,
        .mean = norm.mean,
        .rstd = norm.rstd};
    return model->device->ops->residual_norm(model->device, &args);
}

/* x -> saved->middle, saved->norm2 */
static tr_status attention_part(tr_model *model, int layer, const tr_microbatch *microbatch,
                                const tr_block_saved *saved, const void *x)
{
    const void *full;
    tr_norm_site norm = norm1_site(model, layer, saved, x, NULL);
    TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(tr_model_gather(model, saved->norm1, &full));
    TR_TRY(tr_linear_forward(model, layer, TR_ROLE_Q_WEIGHT, full, saved->q));
    TR_TRY(tr_linear_forward(model, layer, TR_ROLE_K_WEIGHT, full, saved->k));
    TR_TRY(tr_linear_forward(model, layer, TR_ROLE_V_WEIGHT, full, saved->v));
    TR_TRY(rope_apply(model, saved->q, saved->k, model->K, false));
    tr_attention args = attention_args(model, layer, microbatch, saved);
    TR_TRY(model->device->ops->attention_forward(model->device, &args));
    return attention_add(model, layer, microbatch, saved, x);
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

/* saved->norm2 -> saved->act */
static tr_status mlp_hidden(tr_model *model, int layer, const tr_block_saved *saved)
{
    const void *full;
    TR_TRY(tr_model_gather(model, saved->norm2, &full));
    if (saved->gate != NULL)
        TR_TRY(tr_linear_forward(model, layer, TR_ROLE_GATE_WEIGHT, full, saved->gate));
    TR_TRY(tr_linear_forward(model, layer, TR_ROLE_UP_WEIGHT, full, saved->up));
    return activation_apply(model, saved);
}

tr_status tr_block_forward(tr_model *model, int layer, const tr_microbatch *microbatch,
                           tr_block_saved *saved, const void *x, void *out)
{
    TR_TRY(attention_part(model, layer, microbatch, saved, x));
    TR_TRY(mlp_hidden(model, layer, saved));
    float *sum;
    TR_TRY(product_sum(model, layer, TR_ROLE_DOWN_WEIGHT, saved->act, &sum));
    tr_dropout dropout = tr_model_dropout(model, microbatch, "mlp output", layer);
    return model->device->ops->residual_add(
        model->device, model->dtype, model->S, model->H, model->tensor.row_begin, saved->middle,
        sum, model->weights[layer][TR_ROLE_DOWN_BIAS].weight, &dropout, out);
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
    tr_row_sums sums;
    void *dup; /* [R,F] gradient of up */
    const void *x, *dy;
} block_pass;

/* Gradient of a product that writes to the stream: through dropout, bias gradient (vector `sum` of the block's row sums), gather. dy [S,H] -> *full [R,H]. */
static tr_status product_gradient(const block_pass *pass, const char *site, tr_param_role bias,
                                  int sum, const void *dy, const void **full)
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
    if (has_part(model, TR_BACKWARD_WEIGHT) && grad != NULL) {
        float *sums = sum < 0 ? NULL : pass->pending->row_sums + sum * model->H;
        TR_TRY(tr_row_sums_columns(model, dy, sums, grad));
        if (sums == NULL)
            TR_TRY(tr_model_written(model, bias));
    }
    return tr_model_gather(model, dy, full);
}

/* SwiGLU: scratch.dact becomes the gradients of gate and up, in their places. GELU: it is the gradient of up, and is put where the weight part finds it when the parts
 * come apart. */
static tr_status activation_gradient(const block_pass *pass)
{
    tr_model *model = pass->model;
    const tr_ops *ops = model->device->ops;
    const tr_block_saved *saved = &pass->saved;
    int64_t n = model->R * model->F;
    if (saved->gate != NULL)
        return ops->swiglu_backward(model->device, model->dtype, n, saved->gate, saved->up,
                                    model->scratch.dact, saved->gate, pass->dup);
    if (pass->dup == model->scratch.dact)
        return TR_OK;
    return ops->convert(model->device, n, model->dtype, model->scratch.dact, model->dtype,
                        pass->dup);
}

/* Weight gradients of the MLP's first products; the gradient of gate lies in its place. norm: [R,H]. */
static tr_status mlp_weights(const block_pass *pass, const void *norm)
{
    tr_model *model = pass->model;
    const tr_block_saved *saved = &pass->saved;
    TR_TRY(tr_linear_weight(model, pass->layer, TR_ROLE_UP_WEIGHT, pass->dup, norm));
    if (saved->gate == NULL)
        return TR_OK;
    return tr_linear_weight(model, pass->layer, TR_ROLE_GATE_WEIGHT, saved->gate, norm);
}

/* dy [S,H] of the block's output -> pending->dmiddle [S,H]. */
static tr_status mlp_backward(const block_pass *pass)
{
    tr_model *model = pass->model;
    const tr_block_saved *saved = &pass->saved;
    bool input = has_part(model, TR_BACKWARD_INPUT), weight = has_part(model, TR_BACKWARD_WEIGHT);
    const void *full;
    float *partial;
    tr_norm_site norm = norm2_site(model, pass->layer, saved, pass->pending->row_sums);
    if (input && model->cfg->memory.recompute == TR_RECOMPUTE_SELECTIVE) {
        TR_TRY(activation_apply(model, saved));
        TR_TRY(tr_model_norm(model, &norm));
    }
    TR_TRY(product_gradient(pass, "mlp output", TR_ROLE_DOWN_BIAS, pass->sums.down_bias, pass->dy,
                            &full));
    if (input)
        TR_TRY(tr_linear_input(model, pass->layer, TR_ROLE_DOWN_WEIGHT, full,
                               saved->gate == NULL ? saved->up : NULL, model->scratch.dact));
    if (weight) {
        TR_TRY(tr_linear_weight(model, pass->layer, TR_ROLE_DOWN_WEIGHT, full, saved->act));
        TR_TRY(tr_model_gather(model, saved->norm2, &full));
    }
    if (input) {
        TR_TRY(activation_gradient(pass));
        const tr_linear_term terms[] = {{TR_ROLE_UP_WEIGHT, pass->dup},
                                        {TR_ROLE_GATE_WEIGHT, saved->gate}};
        TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
        TR_TRY(tr_linear_input_partial(model, pass->layer, terms, saved->gate != NULL ? 2 : 1,
                                       partial));
    }
    if (weight) /* while partial sums travel */
        TR_TRY(mlp_weights(pass, full));
    if (!input)
        return TR_OK;
    TR_TRY(tr_row_sums_norm_backward(model, &norm, partial, pass->dy, pass->pending->dmiddle));
    if (!weight || tr_row_sums_wait(model))
        return TR_OK;
    TR_TRY(tr_model_written(model, TR_ROLE_NORM2_BIAS));
    return tr_model_written(model, TR_ROLE_NORM2_WEIGHT);
}

/* scratch.dattention -> gradients of queries, keys and values. */
static tr_status attention_gradient(const block_pass *pass)
{
    tr_model *model = pass->model;
    const tr_block_pending *pending = pass->pending;
    tr_attention args = attention_args(model, pass->layer, pass->microbatch, &pass->saved);
    args.dout = model->scratch.dattention;
    args.dq = pending->dq;
    args.dk = pending->dk;
    args.dv = pending->dv;
    TR_TRY(model->device->ops->attention_backward(model->device, &args));
    return rope_apply(model, pending->dq, pending->dk, model->K * model->kv_parts, true);
}

/* pending->dmiddle -> dx [S,H]. */
static tr_status attention_backward(const block_pass *pass, void *dx)
{
    tr_model *model = pass->model;
    const tr_block_saved *saved = &pass->saved;
    const tr_block_pending *pending = pass->pending;
    bool input = has_part(model, TR_BACKWARD_INPUT), weight = has_part(model, TR_BACKWARD_WEIGHT);
    const void *full;
    float *partial;
    tr_norm_site norm = norm1_site(model, pass->layer, saved, pass->x, pending->row_sums);
    if (input && model->cfg->memory.recompute == TR_RECOMPUTE_SELECTIVE)
        TR_TRY(tr_model_norm(model, &norm));
    TR_TRY(product_gradient(pass, "attention output", TR_ROLE_O_BIAS, pass->sums.o_bias,
                            pending->dmiddle, &full));
    if (input)
        TR_TRY(tr_linear_input(model, pass->layer, TR_ROLE_O_WEIGHT, full, NULL,
                               model->scratch.dattention));
    if (weight) {
        TR_TRY(tr_linear_weight(model, pass->layer, TR_ROLE_O_WEIGHT, full, saved->attention));
        TR_TRY(tr_model_gather(model, saved->norm1, &full));
    }
    if (input) {
        TR_TRY(attention_gradient(pass));
        const tr_linear_term terms[] = {{TR_ROLE_Q_WEIGHT, pending->dq},
                                        {TR_ROLE_K_WEIGHT, pending->dk},
                                        {TR_ROLE_V_WEIGHT, pending->dv}};
        TR_TRY(tr_tensor_comm_partial(&model->tensor, &partial));
        TR_TRY(tr_linear_input_partial(model, pass->layer, terms, 3, partial));
    }
    if (weight) { /* while partial sums travel */
        TR_TRY(tr_linear_weight(model, pass->layer, TR_ROLE_Q_WEIGHT, pending->dq, full));
        TR_TRY(tr_linear_weight_kv(model, pass->layer, pending->dk, pending->dv, full));
    }
    if (!input)
        return TR_OK;
    return tr_row_sums_norm_backward(model, &norm, partial, pending->dmiddle, dx);
}

/* Takes the row sums that the block has left. */
static tr_status sums_take(const block_pass *pass)
{
    const tr_row_sums *sums = &pass->sums;
    const tr_weight *w = pass->weights;
    float *grads[TR_ROW_SUMS_MOST] = {NULL};
    bool bias = tr_row_sums_norm(pass->model) == 2;
    grads[sums->norm1] = w[TR_ROLE_NORM1_WEIGHT].grad;
    grads[sums->norm2] = w[TR_ROLE_NORM2_WEIGHT].grad;
    if (bias) {
        grads[sums->norm1 + 1] = w[TR_ROLE_NORM1_BIAS].grad;
        grads[sums->norm2 + 1] = w[TR_ROLE_NORM2_BIAS].grad;
    }
    if (sums->o_bias >= 0)
        grads[sums->o_bias] = w[TR_ROLE_O_BIAS].grad;
    if (sums->down_bias >= 0)
        grads[sums->down_bias] = w[TR_ROLE_DOWN_BIAS].grad;
    return tr_row_sums_take(pass->model, pass->pending->row_sums, sums->count, grads);
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
    block_pass pass = {.model = model,
                       .layer = layer,
                       .weights = model->weights[layer],
                       .microbatch = microbatch,
                       .saved = *saved,
                       .pending = pending,
                       .sums = tr_row_sums_of(model),
                       .x = x,
                       .dy = dy};
    pass.saved.norm1 = either(pending->norm1, saved->norm1);
    pass.saved.norm2 = either(pending->norm2, saved->norm2);
    pass.saved.attention = either(pending->attention, saved->attention);
    pass.saved.gate = either(pending->gate, saved->gate);
    pass.saved.up = either(pending->up, saved->up);
    pass.saved.act = either(pending->act, saved->act);
    bool dup_apart = pass.saved.gate != NULL || model->parts != TR_BACKWARD_BOTH;
    pass.dup = dup_apart ? pass.saved.up : model->scratch.dact;
    if (has_part(model, TR_BACKWARD_INPUT) && model->cfg->memory.recompute == TR_RECOMPUTE_FULL) {
        TR_TRY(attention_part(model, layer, microbatch, &pass.saved, x));
        TR_TRY(mlp_hidden(model, layer, &pass.saved));
    }
    TR_TRY(mlp_backward(&pass));
    TR_TRY(attention_backward(&pass, dx));
    bool waiting = has_part(model, TR_BACKWARD_WEIGHT) && tr_row_sums_wait(model);
    return waiting ? sums_take(&pass) : TR_OK;
}
