#include "engine/model/row_sums.h"

int tr_row_sums_norm(const tr_model *model)
{
    return model->cfg->model.norm == TR_NORM_LAYER && model->cfg->model.bias ? 2 : 1;
}

tr_row_sums tr_row_sums_of(const tr_model *model)
{
    int norm = tr_row_sums_norm(model);
    tr_row_sums sums = {
        .norm1 = 0, .norm2 = norm, .o_bias = -1, .down_bias = -1, .count = 2 * norm};
    if (model->sliced && model->cfg->model.bias) { /* else the weight part adds them by itself */
        sums.o_bias = sums.count++;
        sums.down_bias = sums.count++;
    }
    return sums;
}

bool tr_row_sums_wait(const tr_model *model)
{
    return model->sliced || model->parts != TR_BACKWARD_BOTH;
}

/* Row part p of [S,H] with elements of `size` bytes. */
static const void *part_at(const tr_model *model, const void *base, int p, size_t size)
{
    size_t rows = (size_t)(model->S / model->row_slices);
    return base == NULL ? NULL : (const char *)base + (size_t)p * rows * (size_t)model->H * size;
}

/* sum [H] = the tree over this rank's row parts, of which vector `index` of two. */
static tr_status parts_sum(const tr_model *model, int index, float *sum)
{
    const float *parts[TR_MODEL_SLICES];
    for (int p = 0; p < model->row_slices; p++)
        parts[p] = model->scratch.row_parts + (2 * p + index) * model->H;
    return model->device->ops->tree_sum(model->device, model->H, model->row_slices, parts, sum);
}

/* Rows of part p. */
static tr_status norm_part(const tr_model *model, const tr_norm_site *site, int p, const float *dy,
                           const void *dresidual, void *dx, float *dweight, float *dbias,
                           bool accumulate)
{
    int64_t rows = model->S / model->row_slices;
    return model->device->ops->norm_backward(
        model->device, tr_model_norm_kind(model), model->dtype, rows, model->H,
        part_at(model, dy, p, sizeof(float)), part_at(model, site->x, p, model->item),
        site->weight.weight, site->mean == NULL ? NULL : site->mean + p * rows,
        site->rstd + p * rows, part_at(model, dresidual, p, model->item),
        (void *)(uintptr_t)part_at(model, dx, p, model->item), dweight, dbias, accumulate);
}

tr_status tr_row_sums_norm_backward(tr_model *model, const tr_norm_site *site, float *partial,
                                    const void *dresidual, void *dx)
{
    float *dy;
    bool bias = site->bias.weight != NULL;
    TR_TRY(tr_tensor_comm_reduce_finish(&model->tensor, partial, &dy));
    if (!tr_row_sums_wait(model))
        return norm_part(model, site, 0, dy, dresidual, dx, site->weight.grad, site->bias.grad,
                         model->accumulate);
    if (!model->sliced)
        return norm_part(model, site, 0, dy, dresidual, dx, site->sums,
                         bias ? site->sums + model->H : NULL, false);
    for (int p = 0; p < model->row_slices; p++) {
        float *dweight = model->scratch.row_parts + 2 * p * model->H;
        TR_TRY(norm_part(model, site, p, dy, dresidual, dx, dweight,
                         bias ? dweight + model->H : NULL, false));
    }
    TR_TRY(parts_sum(model, 0, site->sums));
    return bias ? parts_sum(model, 1, site->sums + model->H) : TR_OK;
}

tr_status tr_row_sums_columns(tr_model *model, const void *dy, float *sums, float *grad)
{
    const tr_ops *ops = model->device->ops;
    if (!model->sliced)
        return ops->column_sum(model->device, model->dtype, model->S, model->H, dy, grad,
                               model->accumulate);
    for (int p = 0; p < model->row_slices; p++)
        TR_TRY(ops->column_sum(model->device, model->dtype, model->S / model->row_slices, model->H,
                               part_at(model, dy, p, model->item),
                               model->scratch.row_parts + 2 * p * model->H, false));
    return parts_sum(model, 0, sums);
}

tr_status tr_row_sums_take(tr_model *model, float *sums, int count, float *const *grads)
{
    if (model->sliced && model->tensor.sequence) {
        float *buffer;
        int64_t n = count * model->H;
        TR_TRY(tr_tensor_comm_statistics(&model->tensor, &buffer));
        TR_TRY(model->device->ops->convert(model->device, n, TR_F32, sums, TR_F32, buffer));
        TR_TRY(tr_tensor_comm_sum(&model->tensor, buffer, sums, n));
    }
    for (int i = 0; i < count; i++)
        if (grads[i] != NULL)
            TR_TRY(tr_model_add(model, model->H, sums + i * model->H, grads[i]));
    return TR_OK;
}

void tr_row_sums_init(tr_model *model, tr_arena *workspace)
{
    if (!model->sliced)
        return;
    size_t floats = (size_t)(model->row_slices * 2 * model->H);
    model->scratch.row_parts = tr_arena_alloc(workspace, floats * sizeof(float));
}
