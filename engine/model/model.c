#include "engine/model/model.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/model/linear.h"
#include "engine/model/row_sums.h"
#include "kernels/device_host.h"
#include "kernels/rope_table.h"

static void *rows_alloc(const tr_model *model, tr_arena *arena, int64_t rows, int64_t cols)
{
    return tr_arena_alloc(arena, (size_t)(rows * cols) * model->item);
}

static float *floats_alloc(tr_arena *arena, int64_t count)
{
    return tr_arena_alloc(arena, (size_t)count * sizeof(float));
}

/* How many slices this rank has, and what they share. */
static void slices_init(tr_model *model, const tr_config *cfg, const tr_mesh *mesh)
{
    int64_t slices = cfg->derived.tensor_slices;
    model->slices = model->row_slices = model->kv_parts = 1;
    if (slices == 0)
        return;
    int64_t heads = cfg->model.kv_heads;
    TR_ASSERT(slices <= TR_MODEL_SLICES && slices % mesh->tensor_size == 0);
    model->sliced = true;
    model->slices = (int)(slices / mesh->tensor_size);
    model->row_slices = cfg->parallel.sequence ? model->slices : (int)slices;
    if (slices <= heads)
        return;
    model->kv_parts = model->slices / (int)model->K;
    model->num_shared = 2 * model->K * model->D * (model->H + (cfg->model.qkv_bias ? 1 : 0));
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
    model->V = tr_vocab_rows(cfg, t);
    model->head_begin = model->A * mesh->tensor;
    model->vocab_begin = model->V * mesh->tensor;
    model->vocab_valid = cfg->model.vocab - model->vocab_begin;
    if (model->vocab_valid < 0)
        model->vocab_valid = 0;
    if (model->vocab_valid > model->V)
        model->vocab_valid = model->V;
    model->dtype = cfg->train.precision;
    model->item = tr_dtype_size(model->dtype);
    slices_init(model, cfg, mesh);
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
    pending->dk = rows_alloc(model, arena, model->R, model->K * model->kv_parts * model->D);
    pending->dv = rows_alloc(model, arena, model->R, model->K * model->kv_parts * model->D);
    pending->row_sums = floats_alloc(arena, tr_row_sums_of(model).count * model->H);
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
    *pending = (tr_head_pending){0};
    pending->row_sums = floats_alloc(arena, tr_row_sums_norm(model) * model->H);
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
    if (model->sliced) {
        pending->row_sums = floats_alloc(arena, tr_row_sums_of(model).count * model->H);
        if (has_head)
            scratch->head_pending.row_sums =
                floats_alloc(arena, tr_row_sums_norm(model) * model->H);
    }
    pending->dmiddle = rows_alloc(model, arena, model->S, model->H);

    /* The MLP's and the attention's gradients live in turn. */
    size_t mark = tr_arena_mark(arena);
    scratch->dact = rows_alloc(model, arena, model->R, model->F);
    size_t mlp_end = tr_arena_mark(arena);
    tr_arena_reset(arena, mark);
    scratch->dattention = rows_alloc(model, arena, model->R, model->A * model->D);
    pending->dq = rows_alloc(model, arena, model->R, model->A * model->D);
    pending->dk = rows_alloc(model, arena, model->R, model->K * model->kv_parts * model->D);
    pending->dv = rows_alloc(model, arena, model->R, model->K * model->kv_parts * model->D);
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

static tr_status rope_table_write(const tr_model *model, float *table)
{
    size_t count = (size_t)(model->T * model->D);
    float *values = TR_NEW_ARRAY(float, count);
    tr_rope_table_fill(model->cfg->model.rope_theta, model->D, model->T, NULL, values);
    tr_status status = tr_device_write(model->device, table, values, count * sizeof(float));
    tr_free(values);
    return status;
}

tr_status tr_model_init(tr_model *model, const tr_config *cfg, const tr_mesh *mesh,
                        tr_device *device, bool has_head, tr_arena *comm, tr_arena *activations,
                        tr_arena *workspace)
{
    *model = (tr_model){.cfg = cfg, .device = device};
    dimensions_init(model, cfg, mesh);
    int64_t statistics = 2 * model->R, row_sums = tr_row_sums_of(model).count * model->H;
    if (model->sliced && row_sums > statistics)
        statistics = row_sums;
    const tr_tensor_comm_sizes sizes = {.rows = model->R,
                                        .width = model->H,
                                        .statistics = statistics,
                                        .shared = model->num_shared,
                                        .sharers = tr_kv_sharers(cfg, mesh->tensor_size),
                                        .halves = model->sliced,
                                        .dtype = model->dtype};
    tr_tensor_comm_init(&model->tensor, mesh->tensor_size, mesh->tensor, cfg->parallel.sequence,
                        cfg->parallel.overlap, &sizes, comm, workspace);
    model->S = model->tensor.local_rows;
    model->weights = tr_alloc((size_t)cfg->model.layers + 1, sizeof *model->weights);
    scratch_init(model, has_head, activations);
    tr_linear_init(model, workspace);
    tr_row_sums_init(model, workspace);
    if (model->slices > 1 && has_head)
        model->scratch.statistics = floats_alloc(workspace, model->slices * 2 * model->R);
    if (cfg->model.position == TR_POSITION_ROPE) {
        float *table = floats_alloc(workspace, model->T * model->D);
        model->rope = table;
        if (!workspace->counting)
            TR_TRY(rope_table_write(model, table));
    }
    return TR_OK;
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
    TR_TRY(tr_tensor_comm_gather_post(&model->tensor, source, model->scratch.full));
    *full = model->scratch.full;
    return TR_OK;
}

tr_norm_kind tr_model_norm_kind(const tr_model *model)
{
    return model->cfg->model.norm == TR_NORM_RMS ? TR_NORM_KIND_RMS : TR_NORM_KIND_LAYER;
}

tr_status tr_model_norm(tr_model *model, const tr_norm_site *site)
{
    return model->device->ops->norm_forward(model->device, tr_model_norm_kind(model), model->dtype,
                                            model->S, model->H, (float)model->cfg->model.norm_eps,
                                            site->x, site->weight.weight, site->bias.weight,
                                            site->kept, site->mean, site->rstd);
}

tr_status tr_model_add(tr_model *model, int64_t n, const float *values, float *grad)
{
    const tr_ops *ops = model->device->ops;
    if (!model->accumulate)
        return ops->convert(model->device, n, TR_F32, values, TR_F32, grad);
    const float *pair[2] = {values, grad};
    return ops->tree_sum(model->device, n, 2, pair, grad);
}
