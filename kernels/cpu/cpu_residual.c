/* Adding a branch to the residual stream, with bias and dropout, and the backward of that dropout. Every row alone, over
 * fixed pieces of rows; a row goes by segments of TR_DROPOUT_FEATURES features, whose random words are made first. */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_dropout_row.h"
#include "kernels/cpu/cpu_isa.h"

enum { PIECE_ROWS = 16 };

typedef struct residual {
    tr_dtype dtype;
    int64_t R, H, row_begin;
    const void *x, *bias; /* x: the stream, or dy of dropout_backward */
    const float *y;
    tr_dropout_rows mask;
    void *out;
} residual;

/* `at` is the offset of the segment in the tensors, `words` NULL when dropout is off. */
TR_VEC_INLINE void add_vec(tr_dtype dtype, const residual *a, int64_t at, int64_t feature,
                           const uint32_t *words, int64_t i, int count)
{
    tr_vec y = tr_vec_load(TR_F32, a->y, at + i, count);
    if (a->bias != NULL)
        y += tr_vec_load(dtype, a->bias, feature + i, count);
    if (words != NULL)
        y = tr_cpu_dropout_apply(y, words + i, a->mask.threshold, a->mask.scale);
    tr_vec_store(dtype, a->out, at + i, count, tr_vec_load(dtype, a->x, at + i, count) + y);
}

TR_VEC_INLINE void mask_vec(tr_dtype dtype, const residual *a, int64_t at, const uint32_t *words,
                            int64_t i, int count)
{
    tr_vec dy = tr_vec_load(dtype, a->x, at + i, count);
    tr_vec_store(dtype, a->out, at + i, count,
                 tr_cpu_dropout_apply(dy, words + i, a->mask.threshold, a->mask.scale));
}

/* The rows of residual_add (is_add) or dropout_backward. */
TR_VEC_INLINE void rows(tr_dtype dtype, const residual *a, bool is_add, int64_t begin, int64_t end)
{
    _Alignas(64) uint32_t buffer[TR_DROPOUT_FEATURES];
    for (int64_t r = begin; r < end; r++) {
        if (!a->mask.on) {
            TR_VEC_LOOP(a->H, add_vec, dtype, a, r * a->H, 0, NULL);
            continue;
        }
        for (int64_t feature = 0; feature < a->H; feature += TR_DROPOUT_FEATURES) {
            int64_t n = a->H - feature < TR_DROPOUT_FEATURES ? a->H - feature : TR_DROPOUT_FEATURES;
            tr_dropout_rows_words(&a->mask, a->row_begin + r, feature, n, buffer);
            if (is_add)
                TR_VEC_LOOP(n, add_vec, dtype, a, r * a->H + feature, feature, buffer);
            else
                TR_VEC_LOOP(n, mask_vec, dtype, a, r * a->H + feature, buffer);
        }
    }
}

static int64_t piece_end(int64_t piece, int64_t R)
{
    return (piece + 1) * PIECE_ROWS < R ? (piece + 1) * PIECE_ROWS : R;
}

static void add_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const residual *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, rows, a, true, piece * PIECE_ROWS, piece_end(piece, a->R));
}

static tr_status residual_add(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const void *x, const float *y, const void *bias,
                              const tr_dropout *dropout, void *out)
{
    residual a = {.dtype = dtype,
                  .R = R,
                  .H = H,
                  .row_begin = row_begin,
                  .x = x,
                  .bias = bias,
                  .y = y,
                  .mask = tr_dropout_rows_init(dropout),
                  .out = out};
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, add_piece, &a);
    return TR_OK;
}

/* Both entries of the table; a row of the sum may still lie in a cache when the norm takes it. */
static tr_status residual_norm(tr_device *device, const tr_residual_norm *a)
{
    TR_TRY(device->ops->residual_add(device, a->dtype, a->R, a->H, a->row_begin, a->x, a->y,
                                     a->bias, &a->dropout, a->out));
    return device->ops->norm_forward(device, a->kind, a->dtype, a->R, a->H, a->eps, a->out,
                                     a->weight, a->norm_bias, a->normed, a->mean, a->rstd);
}

static void mask_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const residual *a = ctx;
    int64_t begin = piece * PIECE_ROWS, end = piece_end(piece, a->R);
    if (!a->mask.on) {
        size_t row_bytes = (size_t)a->H * tr_dtype_size(a->dtype);
        memcpy((char *)a->out + (size_t)begin * row_bytes,
               (const char *)a->x + (size_t)begin * row_bytes, (size_t)(end - begin) * row_bytes);
        return;
    }
    TR_VEC_DTYPE_SWITCH(a->dtype, rows, a, false, begin, end);
}

static tr_status dropout_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                  int64_t row_begin, const void *dy, const tr_dropout *dropout,
                                  void *out)
{
    residual a = {.dtype = dtype,
                  .R = R,
                  .H = H,
                  .row_begin = row_begin,
                  .x = dy,
                  .mask = tr_dropout_rows_init(dropout),
                  .out = out};
    if (!a.mask.on && out == dy)
        return TR_OK;
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, mask_piece, &a);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_residual_ops)(tr_ops *ops)
{
    ops->residual_add = residual_add;
    ops->residual_norm = residual_norm;
    ops->dropout_backward = dropout_backward;
}
