#include "engine/model/model.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kernels/rope_table.h"

static void *rows_alloc(const tr_model *model, tr_arena *arena, int64_t rows, int64_t cols)
{
    return tr_arena_alloc(arena, (size_t)(rows * cols) * model->item);
}

static float *floats_alloc(tr_arena *arena, int64_t count)
{
    return tr_arena_alloc(arena, (size_t)count * sizeof(float));
}

static void dimensions_init(tr_model *model, const tr_config *cfg, const tr_mesh *mesh)
{
    int64_t t = mesh->tensor_size;
    model->B = cfg->train.micro_batch;
    model->T = cfg->train.seq_len;
    model->R = model->B * model->T;
    model->H = cfg->model.hidden;
    model->F = cfg->model.ffn / t;
    model->A = cfg->model.heads / t;
    model->K = cfg->model.kv_heads > t ? cfg->model.kv_heads / t : 1;
    model->D = cfg->model.head_dim;
    model->V = (cfg->model.vocab + t - 1) / t;
    model->head_begin = model->A * mesh->tensor;
    model->vocab_begin = model->V * mesh->tensor;
    model->vocab_valid = cfg->model.vocab - model->vocab_begin;
    if (model->vocab_valid < 0)
        model->vocab_valid = 0;
    if (model->vocab_valid > model->V)
        model->vocab_valid = model->V;
    model->dtype = cfg->train.precision;
    model->item = tr_dtype_size(model->dtype);
}

/* The products that recompute drops: norm outputs and the MLP's activation product. */
static void dropped_alloc(const tr_model *model, tr_block_saved *saved, tr_arena *arena)
{
    saved->norm1 = rows_alloc(model, arena, model->S, model->H);
    saved->norm2 = rows_alloc(model, arena, model->S, model->H);
    saved->act = rows_alloc(model, arena, model->R, model->F);
}

static void stored_alloc(const tr_model *model, tr_block_saved *saved, tr_arena *arena)
{
    bool layer_norm = model->cfg->model.norm == TR_NORM_LAYER;
    saved->mean1 = layer_norm ? floats_alloc(arena, model->S) : NULL;
    saved->mean2 = layer_norm ? floats_alloc(arena, model->S) : NULL;
    saved->rstd1 = floats_alloc(arena, model->S);
    saved->rstd2 = floats_alloc(arena, model->S);
    saved->q = rows_alloc(model, arena, model->R, model->A * model->D);
    saved->k = rows_alloc(model, arena, model->R, model->K * model->D);
    saved->v = rows_alloc(model, arena, model->R, model->K * model->D);
    saved->attention = rows_alloc(model, arena, model->R, model->A * model->D);
    saved->lse = floats_alloc(arena, model->R * model->A);
    saved->middle = rows_alloc(model, arena, model->S, model->H);
    if (model->cfg->model.mlp == TR_MLP_SWIGLU)
        saved->gate = rows_alloc(model, arena, model->R, model->F);
    saved->up = rows_alloc(model, arena, model->R, model->F);
}

void tr_block_saved_init(const tr_model *model, tr_block_saved *saved, tr_arena *arena)
{
    *saved = model->scratch.recompute;
    if (model->cfg->memory.recompute != TR_RECOMPUTE_FULL)
        stored_alloc(model, saved, arena);
    if (model->cfg->memory.recompute == TR_RECOMPUTE_NONE)
        dropped_alloc(model, saved, arena);
}

static void logits_alloc(const tr_model *model, tr_head_saved *saved, tr_arena *arena)
{
    saved->norm = rows_alloc(model, arena, model->S, model->H);
    saved->logits = rows_alloc(model, arena, model->R, model->V);
}

void tr_head_saved_init(const tr_model *model, tr_head_saved *saved, tr_arena *arena)
{
    *saved = model->scratch.head;
    bool layer_norm = model->cfg->model.norm == TR_NORM_LAYER;
    saved->mean = layer_norm ? floats_alloc(arena, model->S) : NULL;
    saved->rstd = floats_alloc(arena, model->S);
    saved->max = floats_alloc(arena, model->R);
    saved->sum_target = floats_alloc(arena, 2 * model->R);
    if (model->cfg->memory.recompute != TR_RECOMPUTE_FULL)
        logits_alloc(model, saved, arena);
}

void tr_block_pending_init(const tr_model *model, tr_block_pending *pending, tr_arena *arena)
{
    tr_recompute recompute = model->cfg->memory.recompute;
    *pending = (tr_block_pending){0};
    pending->dmiddle = rows_alloc(model, arena, model->S, model->H);
    pending->dq = rows_alloc(model, arena, model->R, model->A * model->D);
    pending->dk = rows_alloc(model, arena, model->R, model->K * model->D);
    pending->dv = rows_alloc(model, arena, model->R, model->K * model->D);
    pending->norm_sums = floats_alloc(arena, 4 * model->H);
    if (recompute == TR_RECOMPUTE_NONE)
        return;
    pending->norm1 = rows_alloc(model, arena, model->S, model->H);
    pending->norm2 = rows_alloc(model, arena, model->S, model->H);
    pending->act = rows_alloc(model, arena, model->R, model->F);
    if (recompute != TR_RECOMPUTE_FULL)
        return;
    pending->attention = rows_alloc(model, arena, model->R, model->A * model->D);
    if (model->cfg->model.mlp == TR_MLP_SWIGLU)
        pending->gate = rows_alloc(model, arena, model->R, model->F);
    pending->up = rows_alloc(model, arena, model->R, model->F);
}

void tr_head_pending_init(const tr_model *model, tr_head_pending *pending, tr_arena *arena)
{
    *pending = (tr_head_pending){.norm_sums = floats_alloc(arena, 2 * model->H)};
    if (model->cfg->memory.recompute != TR_RECOMPUTE_FULL)
        return;
    pending->norm = rows_alloc(model, arena, model->S, model->H);
    pending->logits = rows_alloc(model, arena, model->R, model->V);
}

/* Takes what is missing up to a mark made earlier. */
static void arena_advance(tr_arena *arena, size_t mark)
{
    if (tr_arena_mark(arena) < mark)
        tr_arena_alloc(arena, mark - tr_arena_mark(arena));
}

static void scratch_init(tr_model *model, bool has_head, tr_arena *arena)
{
    tr_model_scratch *scratch = &model->scratch;
    if (model->tensor.sequence)
        scratch->full = rows_alloc(model, arena, model->R, model->H);
    if (model->cfg->model.dropout > 0)
        scratch->dropped = rows_alloc(model, arena, model->S, model->H);
    tr_block_pending *pending = &scratch->pending;
    pending->dmiddle = rows_alloc(model, arena, model->S, model->H);

    /* The MLP's and the attention's gradients live in turn. */
    size_t mark = tr_arena_mark(arena);
    scratch->dact = rows_alloc(model, arena, model->R, model->F);
    size_t mlp_end = tr_arena_mark(arena);
    tr_arena_reset(arena, mark);
    scratch->dattention = rows_alloc(model, arena, model->R, model->A * model->D);
    pending->dq = rows_alloc(model, arena, model->R, model->A * model->D);
    pending->dk = rows_alloc(model, arena, model->R, model->K * model->D);
    pending->dv = rows_alloc(model, arena, model->R, model->K * model->D);
    arena_advance(arena, mlp_end);

    /* So do a recomputed block and, with full recomputation, the logits. */
    mark = tr_arena_mark(arena);
    if (model->cfg->memory.recompute == TR_RECOMPUTE_FULL)
        stored_alloc(model, &scratch->recompute, arena);
    if (model->cfg->memory.recompute != TR_RECOMPUTE_NONE)
        dropped_alloc(model, &scratch->recompute, arena);
    if (model->cfg->memory.recompute == TR_RECOMPUTE_FULL && has_head) {
        size_t block_end = tr_arena_mark(arena);
        tr_arena_reset(arena, mark);
        logits_alloc(model, &scratch->head, arena);
        arena_advance(arena, block_end);
    }
}

void tr_model_init(tr_model *model, const tr_config *cfg, const tr_mesh *mesh, tr_device *device,
                   bool has_head, tr_arena *comm, tr_arena *activations, tr_arena *workspace)
{
    *model = (tr_model){.cfg = cfg, .device = device};
    dimensions_init(model, cfg, mesh);
    tr_tensor_comm_init(&model->tensor, mesh->tensor_size, mesh->tensor, cfg->parallel.sequence,
                        model->R, model->H, model->dtype, comm, workspace);
    model->S = model->tensor.local_rows;
    model->weights = tr_alloc((size_t)cfg->model.layers + 1, sizeof *model->weights);
    scratch_init(model, has_head, activations);
    if (cfg->model.position == TR_POSITION_ROPE) {
        float *table = floats_alloc(workspace, model->T * model->D);
        if (!workspace->counting)
            tr_rope_table_fill(cfg->model.rope_theta, model->D, model->T, NULL, table);
        model->rope = table;
    }
}

void tr_model_clear(tr_model *model)
{
    tr_tensor_comm_clear(&model->tensor);
    tr_free(model->weights);
    *model = (tr_model){0};
}

tr_dropout tr_model_dropout(const tr_model *model, const tr_microbatch *microbatch,
                            const char *site, int layer)
{
    tr_dropout dropout = {.samples = microbatch->samples, .seq_len = model->T};
    if (!model->training || model->cfg->model.dropout <= 0)
        return dropout;
    char name[64];
    snprintf(name, sizeof name, "%lld %s %d", (long long)model->step, site, layer);
    dropout.probability = (float)model->cfg->model.dropout;
    dropout.key = tr_hash_key(model->cfg->train.seed, "dropout", name);
    return dropout;
}

tr_status tr_model_gather(tr_model *model, const void *rows, const void **full)
{
    *full = rows;
    if (!model->tensor.sequence)
        return TR_OK;
    const tr_ops *ops = model->device->ops;
    void *source;
    TR_TRY(tr_tensor_comm_rows(&model->tensor, &source));
    if (source != rows)
        TR_TRY(ops->convert(model->device, model->S * model->H, model->dtype, rows, model->dtype,
                            source));
    TR_TRY(tr_tensor_comm_gather(&model->tensor, source, model->scratch.full));
    *full = model->scratch.full;
    return TR_OK;
}

static tr_norm_kind norm_kind(const tr_model *model)
{
    return model->cfg->model.norm == TR_NORM_RMS ? TR_NORM_KIND_RMS : TR_NORM_KIND_LAYER;
}

tr_status tr_model_norm(tr_model *model, const tr_norm_site *site)
{
    return model->device->ops->norm_forward(model->device, norm_kind(model), model->dtype, model->S,
                                            model->H, (float)model->cfg->model.norm_eps, site->x,
                                            site->weight.weight, site->bias.weight, site->kept,
                                            site->mean, site->rstd);
}

tr_status tr_model_norm_backward(tr_model *model, const tr_norm_site *site, float *partial,
                                 const void *dresidual, void *dx)
{
    float *dy, *dweight = site->weight.grad, *dbias = site->bias.grad;
    bool apart = model->parts == TR_BACKWARD_INPUT;
    if (apart) {
        dweight = site->sums;
        dbias = site->bias.weight != NULL ? site->sums + model->H : NULL;
    }
    TR_TRY(tr_tensor_comm_reduce(&model->tensor, partial, &dy));
    return model->device->ops->norm_backward(model->device, norm_kind(model), model->dtype,
                                             model->S, model->H, dy, site->x, site->weight.weight,
                                             site->mean, site->rstd, dresidual, dx, dweight, dbias,
                                             !apart && model->accumulate);
}

/* grad [H] (+)= sums: what norm_backward does with the sum over a microbatch, an addition later. */
static tr_status sums_take(tr_model *model, const float *sums, float *grad)
{
    const tr_ops *ops = model->device->ops;
    if (!model->accumulate)
        return ops->convert(model->device, model->H, TR_F32, sums, TR_F32, grad);
    const float *pair[2] = {sums, grad};
    return ops->tree_sum(model->device, model->H, 2, pair, grad);
}

tr_status tr_model_norm_take(tr_model *model, const tr_norm_site *site)
{
    TR_TRY(sums_take(model, site->sums, site->weight.grad));
    return site->bias.grad != NULL ? sums_take(model, site->sums + model->H, site->bias.grad)
                                   : TR_OK;
}

tr_status tr_model_linear(tr_model *model, const void *x, int64_t in, tr_weight weight,
                          tr_weight bias, void *y, int64_t out)
{
    tr_matmul args = {.form = TR_MATMUL_NT,
                      .M = model->R,
                      .N = out,
                      .K = in,
                      .dtype = model->dtype,
                      .c_dtype = model->dtype,
                      .A = x,
                      .lda = in,
                      .B = weight.weight,
                      .ldb = in,
                      .bias = bias.weight,
                      .C = y,
                      .ldc = out};
    return model->device->ops->matmul(model->device, &args);
}

tr_status tr_model_linear_partial(tr_model *model, const void *x, int64_t in, tr_weight weight,
                                  float *y, int64_t out)
{
    tr_matmul args = {.form = TR_MATMUL_NT,
                      .M = model->R,
                      .N = out,
                      .K = in,
                      .dtype = model->dtype,
                      .c_dtype = TR_F32,
                      .A = x,
                      .lda = in,
                      .B = weight.weight,
                      .ldb = in,
                      .C = y,
                      .ldc = out};
    return model->device->ops->matmul(model->device, &args);
}

tr_status tr_model_linear_grads(tr_model *model, const void *dy, int64_t out, const void *x,
                                int64_t in, tr_weight weight, tr_weight bias)
{
    tr_matmul args = {.form = TR_MATMUL_TN,
                      .M = out,
                      .N = in,
                      .K = model->R,
                      .dtype = model->dtype,
                      .c_dtype = TR_F32,
                      .A = dy,
                      .lda = out,
                      .B = x,
                      .ldb = in,
                      .C = weight.grad,
                      .ldc = in,
                      .accumulate = model->accumulate};
    TR_TRY(model->device->ops->matmul(model->device, &args));
    if (bias.grad == NULL)
        return TR_OK;
    return model->device->ops->column_sum(model->device, model->dtype, model->R, out, dy, bias.grad,
                                          model->accumulate);
}

tr_status tr_model_linear_input(tr_model *model, const void *dy, int64_t out, tr_weight weight,
                                void *y, int64_t in, tr_dtype y_dtype, bool accumulate)
{
    tr_matmul args = {.form = TR_MATMUL_NN,
                      .M = model->R,
                      .N = in,
                      .K = out,
                      .dtype = model->dtype,
                      .c_dtype = y_dtype,
                      .A = dy,
                      .lda = out,
                      .B = weight.weight,
                      .ldb = in,
                      .C = y,
                      .ldc = in,
                      .accumulate = accumulate};
    return model->device->ops->matmul(model->device, &args);
}
