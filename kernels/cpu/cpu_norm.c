/* RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba, Kiros, Hinton 2016).
 *
 * A row's statistics are partial sums in TR_ROW_LANES lanes; the variance is taken around the mean in a second pass over the
 * row, which lies in the first-level cache. Backward goes over blocks of BLOCK_ROWS rows: each block leaves its part of the
 * weight and bias gradients in the workspace, and columns of these parts are then added in block order. */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_rowwise.h"
#include "kernels/cpu/cpu_vec.h"

enum { FORWARD_ROWS = 16, COLUMNS = 64 };

typedef struct norm {
    tr_norm_kind kind;
    tr_dtype dtype;
    int64_t R, H;
    float eps;
    const void *x, *weight, *bias, *dresidual;
    const float *dy, *saved_mean, *saved_rstd;
    void *out; /* y or dx */
    float *mean, *rstd, *dweight, *dbias;
    float *partial; /* [blocks, 1 or 2, H]: dweight, then dbias */
    bool accumulate;
} norm;

TR_VEC_INLINE void sum_vec(tr_dtype dtype, const void *x, int64_t begin, tr_row_sum *sum, int part,
                           int64_t i, int count)
{
    sum->part[part] += tr_vec_load(dtype, x, begin + i, count);
}

TR_VEC_INLINE void square_vec(tr_dtype dtype, const void *x, int64_t begin, tr_vec center,
                              tr_row_sum *sum, int part, int64_t i, int count)
{
    tr_vec v = tr_vec_load(dtype, x, begin + i, count) - center;
    if (count < TR_VEC_LANES)
        v = tr_vec_head(v, count);
    sum->part[part] += v * v;
}

TR_VEC_INLINE void normalize_vec(tr_dtype dtype, const norm *a, int64_t begin, tr_vec mean,
                                 tr_vec rstd, int64_t i, int count)
{
    tr_vec y = (tr_vec_load(dtype, a->x, begin + i, count) - mean) * rstd *
               tr_vec_load(dtype, a->weight, i, count);
    if (a->bias != NULL)
        y += tr_vec_load(dtype, a->bias, i, count);
    tr_vec_store(dtype, a->out, begin + i, count, y);
}

TR_VEC_INLINE void forward_rows(tr_dtype dtype, const norm *a, int64_t row_begin, int64_t row_end)
{
    const float per_row = (float)a->H;
    for (int64_t r = row_begin; r < row_end; r++) {
        int64_t begin = r * a->H;
        float mean = 0.0f;
        tr_row_sum sum;
        if (a->kind == TR_NORM_KIND_LAYER) {
            tr_row_sum_init(&sum);
            TR_ROW_LOOP(a->H, sum_vec, dtype, a->x, begin, &sum);
            mean = tr_row_sum_get(&sum) / per_row;
        }
        tr_row_sum_init(&sum);
        TR_ROW_LOOP(a->H, square_vec, dtype, a->x, begin, tr_vec_set(mean), &sum);
        float rstd = 1.0f / __builtin_sqrtf(tr_row_sum_get(&sum) / per_row + a->eps);
        TR_VEC_LOOP(a->H, normalize_vec, dtype, a, begin, tr_vec_set(mean), tr_vec_set(rstd));
        if (a->mean != NULL)
            a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
}

static void forward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const norm *a = ctx;
    int64_t begin = piece * FORWARD_ROWS;
    int64_t end = begin + FORWARD_ROWS < a->R ? begin + FORWARD_ROWS : a->R;
    TR_VEC_DTYPE_SWITCH(a->dtype, forward_rows, a, begin, end);
}

static tr_status norm_forward(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                              int64_t H, float eps, const void *x, const void *weight,
                              const void *bias, void *out, float *mean, float *rstd)
{
    norm a = {.kind = kind,
              .dtype = dtype,
              .R = R,
              .H = H,
              .eps = eps,
              .x = x,
              .weight = weight,
              .bias = bias,
              .out = out,
              .mean = mean,
              .rstd = rstd};
    tr_cpu_parallel_for(device, (R + FORWARD_ROWS - 1) / FORWARD_ROWS, forward_piece, &a);
    return TR_OK;
}

/* What one row of backward needs besides its data. */
typedef struct row_state {
    int64_t begin; /* of the row in x, dy, dx */
    tr_vec mean, rstd;
    tr_row_sum dot;   /* sum of w dy xhat */
    tr_row_sum total; /* sum of w dy; LayerNorm only */
    tr_vec dot_mean, total_mean;
    float *dweight, *dbias; /* of the block */
} row_state;

TR_VEC_INLINE void reduce_vec(tr_dtype dtype, const norm *a, bool layer, row_state *row, int part,
                              int64_t i, int count)
{
    tr_vec dy = tr_vec_load(TR_F32, a->dy, row->begin + i, count);
    tr_vec xhat = (tr_vec_load(dtype, a->x, row->begin + i, count) - row->mean) * row->rstd;
    tr_vec wdy = tr_vec_load(dtype, a->weight, i, count) * dy;
    row->dot.part[part] += wdy * xhat;
    if (layer)
        row->total.part[part] += wdy;
    tr_vec_store(TR_F32, row->dweight, i, count,
                 tr_vec_load(TR_F32, row->dweight, i, count) + dy * xhat);
    if (row->dbias != NULL)
        tr_vec_store(TR_F32, row->dbias, i, count, tr_vec_load(TR_F32, row->dbias, i, count) + dy);
}

/* RMS:   dx = rstd (w dy - xhat mean(w dy xhat))
 * Layer: dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat)) */
TR_VEC_INLINE void dx_vec(tr_dtype dtype, const norm *a, bool layer, const row_state *row,
                          int64_t i, int count)
{
    tr_vec dy = tr_vec_load(TR_F32, a->dy, row->begin + i, count);
    tr_vec xhat = (tr_vec_load(dtype, a->x, row->begin + i, count) - row->mean) * row->rstd;
    tr_vec inner = tr_vec_load(dtype, a->weight, i, count) * dy - xhat * row->dot_mean;
    if (layer)
        inner -= row->total_mean;
    tr_vec dx = row->rstd * inner;
    if (a->dresidual != NULL)
        dx += tr_vec_load(dtype, a->dresidual, row->begin + i, count);
    tr_vec_store(dtype, a->out, row->begin + i, count, dx);
}

TR_VEC_INLINE void backward_rows_kind(tr_dtype dtype, const norm *a, bool layer, int64_t row_begin,
                                      int64_t row_end, float *dweight, float *dbias)
{
    const float per_row = (float)a->H;
    row_state row = {.dweight = dweight, .dbias = dbias};
    memset(dweight, 0, (size_t)a->H * sizeof(float));
    if (dbias != NULL)
        memset(dbias, 0, (size_t)a->H * sizeof(float));
    for (int64_t r = row_begin; r < row_end; r++) {
        row.begin = r * a->H;
        row.mean = tr_vec_set(layer ? a->saved_mean[r] : 0.0f);
        row.rstd = tr_vec_set(a->saved_rstd[r]);
        tr_row_sum_init(&row.dot);
        tr_row_sum_init(&row.total);
        TR_ROW_LOOP(a->H, reduce_vec, dtype, a, layer, &row);
        row.dot_mean = tr_vec_set(tr_row_sum_get(&row.dot) / per_row);
        row.total_mean = tr_vec_set(tr_row_sum_get(&row.total) / per_row);
        TR_VEC_LOOP(a->H, dx_vec, dtype, a, layer, &row);
    }
}

TR_VEC_INLINE void backward_rows(tr_dtype dtype, const norm *a, int64_t row_begin, int64_t row_end,
                                 float *dweight, float *dbias)
{
    if (a->kind == TR_NORM_KIND_LAYER)
        backward_rows_kind(dtype, a, true, row_begin, row_end, dweight, dbias);
    else
        backward_rows_kind(dtype, a, false, row_begin, row_end, dweight, dbias);
}

static int gradient_count(const norm *a)
{
    return a->dbias != NULL ? 2 : 1;
}

static void backward_piece(void *ctx, int64_t block, int thread)
{
    (void)thread;
    const norm *a = ctx;
    int64_t begin = block * TR_BLOCK_ROWS;
    int64_t end = begin + TR_BLOCK_ROWS < a->R ? begin + TR_BLOCK_ROWS : a->R;
    float *dweight = a->partial + block * gradient_count(a) * a->H;
    float *dbias = a->dbias != NULL ? dweight + a->H : NULL;
    TR_VEC_DTYPE_SWITCH(a->dtype, backward_rows, a, begin, end, dweight, dbias);
}

/* dst[i] (+)= sum over blocks, in order, of partial[block * step + i] */
TR_VEC_INLINE void blocks_vec(const float *partial, int64_t num_blocks, int64_t step,
                              bool accumulate, float *dst, int64_t i, int count)
{
    tr_vec sum = tr_vec_zero();
    for (int64_t block = 0; block < num_blocks; block++)
        sum += tr_vec_load(TR_F32, partial, block * step + i, count);
    if (accumulate)
        sum += tr_vec_load(TR_F32, dst, i, count);
    tr_vec_store(TR_F32, dst, i, count, sum);
}

static void add_blocks_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const norm *a = ctx;
    int64_t begin = piece * COLUMNS;
    int64_t n = a->H - begin < COLUMNS ? a->H - begin : COLUMNS;
    int64_t num_blocks = tr_row_blocks(a->R), step = gradient_count(a) * a->H;
    TR_VEC_LOOP(n, blocks_vec, a->partial + begin, num_blocks, step, a->accumulate,
                a->dweight + begin);
    if (a->dbias != NULL)
        TR_VEC_LOOP(n, blocks_vec, a->partial + a->H + begin, num_blocks, step, a->accumulate,
                    a->dbias + begin);
}

static tr_status norm_backward(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                               int64_t H, const float *dy, const void *x, const void *weight,
                               const float *mean, const float *rstd, const void *dresidual,
                               void *dx, float *dweight, float *dbias, bool accumulate)
{
    norm a = {.kind = kind,
              .dtype = dtype,
              .R = R,
              .H = H,
              .x = x,
              .weight = weight,
              .dresidual = dresidual,
              .dy = dy,
              .saved_mean = mean,
              .saved_rstd = rstd,
              .out = dx,
              .dweight = dweight,
              .dbias = dbias,
              .accumulate = accumulate};
    int64_t num_blocks = tr_row_blocks(R);
    size_t bytes = (size_t)(num_blocks * gradient_count(&a) * H) * sizeof(float);
    a.partial = tr_cpu_workspace(device, bytes);
    tr_cpu_parallel_for(device, num_blocks, backward_piece, &a);
    tr_cpu_parallel_for(device, (H + COLUMNS - 1) / COLUMNS, add_blocks_piece, &a);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_norm_ops)(tr_ops *ops)
{
    ops->norm_forward = norm_forward;
    ops->norm_backward = norm_backward;
}
