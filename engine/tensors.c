/* Global tensors and logits of a run, gathered from the ranks that hold their parts. */
#include "engine/run_int.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels/device_host.h"

int tr_run_num_params(const tr_run *run)
{
    int count = 0;
    for (int i = 0; i < run->stage.table.num_rows; i++)
        count += run->stage.table.rows[i].tied_to < 0;
    return count;
}

/* Table row of the index-th parameter with state. */
static int row_of(const tr_run *run, int index)
{
    int row = 0;
    for (; row < run->stage.table.num_rows; row++)
        if (run->stage.table.rows[row].tied_to < 0 && index-- == 0)
            break;
    return row;
}

const char *tr_run_param_name(const tr_run *run, int index, int64_t shape[2])
{
    const tr_param *param = &run->stage.table.rows[row_of(run, index)];
    shape[0] = param->shape[0];
    shape[1] = param->shape[1];
    return param->name;
}

static const tr_local_param *item_of_row(const tr_local_params *local, int row)
{
    for (int i = 0; i < local->num_items; i++)
        if (local->items[i].table_row == row)
            return &local->items[i];
    return NULL;
}

/* This rank's array of a kind for an item, of the elements [begin, end) of the local cut. */
static float *kind_values(const tr_run *run, const tr_local_param *item, tr_tensor_kind kind)
{
    const tr_stage *stage = &run->stage;
    switch (kind) {
    case TR_TENSOR_MASTER:
        return stage->master + item->state_offset + (item->shard_begin - item->state_begin);
    case TR_TENSOR_M:
        return stage->m + item->state_offset + (item->shard_begin - item->state_begin);
    case TR_TENSOR_V:
        return stage->v + item->state_offset + (item->shard_begin - item->state_begin);
    case TR_TENSOR_GRAD:
        break;
    }
    return tr_gradients_held(&stage->gradients, item) + (item->shard_begin - item->state_begin);
}

/* Copies between the row-major interval [begin, end) of an item's local cut and the global tensor. */
static void interval_copy(const tr_local_param *item, int64_t begin, int64_t end, float *part,
                          float *global, bool to_global)
{
    int64_t global_cols = item->param->shape[1];
    for (int64_t e = begin; e < end;) {
        int64_t row = e / item->cols, col = e % item->cols, count = item->cols - col;
        if (count > end - e)
            count = end - e;
        if (row >= item->valid_rows)
            break;
        float *place = global + (item->row_begin + row) * global_cols + item->col_begin + col;
        if (to_global)
            memcpy(place, part + (e - begin), (size_t)count * sizeof(float));
        else
            memcpy(part + (e - begin), place, (size_t)count * sizeof(float));
        e += count;
    }
}

tr_status tr_run_param_get(tr_run *run, int index, tr_tensor_kind kind, float *values)
{
    int row = row_of(run, index), num_ranks = (int)run->cfg.derived.num_ranks;
    const tr_param *param = &run->stage.table.rows[row];
    TR_TRY(
        tr_world_synchronize(run->world, TR_STREAM_COMPUTE)); /* the read below has no deadline */
    /* The whole vocabulary with its padding is the largest that a rank has of any parameter. */
    int64_t padded = tr_vocab_rows(&run->cfg, run->mesh.tensor_size) * run->mesh.tensor_size;
    int64_t padding = padded - run->cfg.model.vocab;
    size_t most = (size_t)((param->shape[0] + padding) * param->shape[1]);
    float *part = TR_NEW_ARRAY(float, most);
    tr_status status = TR_OK;
    for (int r = 0; r < num_ranks && status == TR_OK; r++) {
        tr_mesh mesh = tr_config_mesh(&run->cfg, r);
        tr_local_params local;
        tr_local_params_init(&local, &run->stage.table, &run->cfg, &mesh);
        const tr_local_param *item = item_of_row(&local, row);
        if (item != NULL && item->counted && item->shard_end > item->shard_begin) {
            size_t count = (size_t)(item->shard_end - item->shard_begin);
            if (r == run->mesh.rank)
                status = tr_device_read(run->device, part,
                                        kind_values(run, item_of_row(&run->stage.local, row), kind),
                                        count * sizeof(float));
            if (status == TR_OK && run->all != NULL)
                status = tr_group_broadcast(run->all, r, part, count * sizeof(float));
            if (status == TR_OK)
                interval_copy(item, item->shard_begin, item->shard_end, part, values, true);
        }
        tr_local_params_clear(&local);
    }
    tr_free(part);
    TR_TRY(status);
    if (kind == TR_TENSOR_GRAD)
        for (int64_t e = 0; e < param->shape[0] * param->shape[1]; e++)
            values[e] = (float)((double)values[e] / run->grad_divisor);
    return TR_OK;
}

tr_status tr_run_param_set(tr_run *run, int index, tr_tensor_kind kind, const float *values)
{
    const tr_local_param *item = item_of_row(&run->stage.local, row_of(run, index));
    if (item == NULL)
        return TR_OK;
    TR_ASSERT(kind != TR_TENSOR_GRAD);
    tr_save_preserve_here(run);
    float *held = kind_values(run, item, kind) - (item->shard_begin - item->state_begin);
    size_t bytes = (size_t)tr_local_param_held(item) * sizeof(float);
    float *part = tr_alloc(1, bytes); /* rows of padding stay zero */
    interval_copy(item, item->state_begin, item->state_end, part, (float *)(uintptr_t)values,
                  false);
    tr_status status = tr_device_write(run->device, held, part, bytes);
    tr_free(part);
    return status;
}

/* ---- logits ---- */

/* Row `row` of the device's logits. */
static tr_status row_read(const tr_model *model, const void *logits, int64_t row, float *values)
{
    size_t row_bytes = (size_t)model->V * model->item;
    void *read = tr_alloc(1, row_bytes);
    tr_status status =
        tr_device_read(model->device, read, (const char *)logits + (size_t)row * row_bytes,
                       (size_t)model->vocab_valid * model->item);
    for (int64_t v = 0; v < model->vocab_valid && status == TR_OK; v++)
        values[v] = model->dtype == TR_BF16  ? tr_f32_from_bf16(((const uint16_t *)read)[v])
                    : model->dtype == TR_F16 ? tr_f32_from_f16(((const uint16_t *)read)[v])
                                             : ((const float *)read)[v];
    tr_free(read);
    return status;
}

/* Runs the microbatch forward as the first of an evaluation pass on every data rank. */
static tr_status forward_run(tr_run *run, const int32_t *tokens)
{
    const tr_model *model = &run->stage.model;
    int32_t *labels = TR_NEW_ARRAY(int32_t, (size_t)model->R);
    uint64_t *samples = TR_NEW_ARRAY(uint64_t, (size_t)model->B);
    for (int64_t r = 0; r < model->R; r++)
        labels[r] = -1;
    tr_status status =
        tr_upload_make(&run->stage.upload, tokens, labels, samples, 1, run->microbatches);
    for (int m = 1; m < run->num_microbatches; m++)
        run->microbatches[m] = run->microbatches[0];
    if (status == TR_OK)
        status = tr_stage_evaluate(&run->stage, run->microbatches);
    tr_free(labels);
    tr_free(samples);
    return status;
}

/* Rows [first, first + count) of the logits of the last forward pass, on every rank. */
static tr_status rows_share(tr_run *run, int64_t first, int64_t count, float *values)
{
    const tr_model *model = &run->stage.model;
    int64_t vocab = run->cfg.model.vocab;
    int last = run->cfg.derived.head_stage;
    float *part = TR_NEW_ARRAY(float, (size_t)(count * model->V));
    tr_status status = TR_OK;
    for (int t = 0; t < run->mesh.tensor_size && status == TR_OK; t++) {
        int root = tr_mesh_rank_at(&run->mesh, 0, t, last);
        int64_t begin = model->V * t, valid = vocab - begin < model->V ? vocab - begin : model->V;
        if (valid <= 0)
            break;
        if (root == run->mesh.rank)
            for (int64_t r = 0; r < count && status == TR_OK; r++)
                status =
                    row_read(model, run->stage.heads[0].saved.logits, first + r, part + r * valid);
        if (status == TR_OK && run->all != NULL)
            status =
                tr_group_broadcast(run->all, root, part, (size_t)(count * valid) * sizeof(float));
        for (int64_t r = 0; r < count && status == TR_OK; r++)
            memcpy(values + r * vocab + begin, part + r * valid, (size_t)valid * sizeof(float));
    }
    tr_free(part);
    return status;
}

tr_status tr_run_logits(tr_run *run, const int32_t *tokens, float *values)
{
    TR_TRY(forward_run(run, tokens));
    return rows_share(run, 0, run->stage.model.R, values);
}

tr_status tr_run_row_logits(tr_run *run, const int32_t *tokens, int64_t row, float *values)
{
    TR_TRY(forward_run(run, tokens));
    return rows_share(run, row, 1, values);
}
