/* Vocabulary-parallel cross-entropy (Megatron-LM, Shoeybi et al. 2019, section 3): every row alone. A rank may own no real
 * column (V = 0). Logits that are infinite or NaN give NaN where mathematics has no value, and never fault. */
#include <math.h>

#include "base/exact_sum.h"
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_vec.h"

enum { PIECE_ROWS = 4, LOSS_ROWS = 512 }; /* a row is a whole vocabulary, but for loss_sum */

typedef struct xent {
    tr_dtype dtype;
    int64_t R, V, stride, vocab_begin;
    const void *logits;
    void *gradient; /* the logits, to be overwritten */
    const int32_t *labels;
    const float *max, *sum_target;
    float *out;
    float scale;
} xent;

static int64_t piece_end(int64_t piece, int64_t R)
{
    return (piece + 1) * PIECE_ROWS < R ? (piece + 1) * PIECE_ROWS : R;
}

/* The column of row r's label when it is one of this rank's, else -1. */
static int64_t label_column(const xent *a, int64_t r)
{
    int64_t column = a->labels[r] - a->vocab_begin;
    return a->labels[r] >= 0 && column >= 0 && column < a->V ? column : -1;
}

TR_VEC_INLINE void max_vec(tr_dtype dtype, const void *logits, int64_t begin, tr_row_sum *max,
                           int part, int64_t i, int count)
{
    tr_vec v = tr_vec_load(dtype, logits, begin + i, count);
    if (count < TR_VEC_LANES) /* what is behind the row's end must not win */
        v = tr_vec_select(tr_vec_index() < tr_vec_index() - tr_vec_index() + count, v,
                          tr_vec_set(-__builtin_inff()));
    max->part[part] = tr_vec_max(v, max->part[part]);
}

TR_VEC_INLINE void max_rows(tr_dtype dtype, const xent *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        tr_row_sum max;
        for (int p = 0; p < TR_ROW_VECS; p++)
            max.part[p] = tr_vec_set(-__builtin_inff());
        TR_ROW_LOOP(a->V, max_vec, dtype, a->logits, r * a->stride, &max);
        for (int p = 1; p < TR_ROW_VECS; p++)
            max.part[0] = tr_vec_max(max.part[0], max.part[p]);
        a->out[r] = tr_vec_hmax(max.part[0]);
    }
}

static void max_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const xent *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, max_rows, a, piece * PIECE_ROWS, piece_end(piece, a->R));
}

static tr_status xent_max(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          const void *logits, float *max)
{
    xent a = {.dtype = dtype, .R = R, .V = V, .stride = stride, .logits = logits, .out = max};
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, max_piece, &a);
    return TR_OK;
}

TR_VEC_INLINE void exp_sum_vec(tr_dtype dtype, const void *logits, int64_t begin, tr_vec max,
                               tr_row_sum *sum, int part, int64_t i, int count)
{
    tr_vec e = tr_vec_exp(tr_vec_load(dtype, logits, begin + i, count) - max);
    if (count < TR_VEC_LANES)
        e = tr_vec_head(e, count);
    sum->part[part] += e;
}

TR_VEC_INLINE void sum_rows(tr_dtype dtype, const xent *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        tr_row_sum sum;
        tr_row_sum_init(&sum);
        TR_ROW_LOOP(a->V, exp_sum_vec, dtype, a->logits, r * a->stride, tr_vec_set(a->max[r]),
                    &sum);
        int64_t label = label_column(a, r);
        a->out[2 * r] = tr_row_sum_get(&sum);
        a->out[2 * r + 1] =
            label >= 0 ? tr_vec_load(dtype, a->logits, r * a->stride + label, 1)[0] : 0.0f;
    }
}

static void sum_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const xent *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, sum_rows, a, piece * PIECE_ROWS, piece_end(piece, a->R));
}

static tr_status xent_sum(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          int64_t vocab_begin, const void *logits, const int32_t *labels,
                          const float *max, float *sum_target)
{
    xent a = {.dtype = dtype,
              .R = R,
              .V = V,
              .stride = stride,
              .vocab_begin = vocab_begin,
              .logits = logits,
              .labels = labels,
              .max = max,
              .out = sum_target};
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, sum_piece, &a);
    return TR_OK;
}

/* scale * (e^(logit - max) / sum - hit), hit being 1 for the label and 0 elsewhere */
TR_VEC_INLINE tr_vec gradient_of(tr_vec logit, tr_vec max, tr_vec inverse_sum, float scale,
                                 float hit)
{
    return scale * (tr_vec_exp(logit - max) * inverse_sum - hit);
}

TR_VEC_INLINE void gradient_vec(tr_dtype dtype, void *logits, int64_t begin, tr_vec max,
                                tr_vec inverse_sum, float scale, int64_t i, int count)
{
    tr_vec logit = tr_vec_load(dtype, logits, begin + i, count);
    tr_vec_store(dtype, logits, begin + i, count,
                 gradient_of(logit, max, inverse_sum, scale, 0.0f));
}

TR_VEC_INLINE void zero_columns(tr_dtype dtype, const xent *a, int64_t r, int64_t from)
{
    size_t size = dtype == TR_F32 ? 4 : 2;
    memset((char *)a->gradient + (size_t)(r * a->stride + from) * size, 0,
           (size_t)(a->stride - from) * size);
}

TR_VEC_INLINE void backward_rows(tr_dtype dtype, const xent *a, int64_t row_begin, int64_t row_end)
{
    for (int64_t r = row_begin; r < row_end; r++) {
        if (a->labels[r] < 0) {
            zero_columns(dtype, a, r, 0);
            continue;
        }
        int64_t begin = r * a->stride, label = label_column(a, r);
        tr_vec max = tr_vec_set(a->max[r]);
        tr_vec inverse_sum = tr_vec_set(1.0f / a->sum_target[2 * r]);
        tr_vec at_label = tr_vec_zero();
        if (label >= 0)
            at_label = gradient_of(tr_vec_load(dtype, a->gradient, begin + label, 1), max,
                                   inverse_sum, a->scale, 1.0f);
        TR_VEC_LOOP(a->V, gradient_vec, dtype, a->gradient, begin, max, inverse_sum, a->scale);
        if (label >= 0)
            tr_vec_store(dtype, a->gradient, begin + label, 1, at_label);
        zero_columns(dtype, a, r, a->V);
    }
}

static void backward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const xent *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, backward_rows, a, piece * PIECE_ROWS, piece_end(piece, a->R));
}

static tr_status xent_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t V,
                               int64_t stride, int64_t vocab_begin, void *logits,
                               const int32_t *labels, const float *max, const float *sum_target,
                               const float *scale)
{
    xent a = {.dtype = dtype,
              .R = R,
              .V = V,
              .stride = stride,
              .vocab_begin = vocab_begin,
              .gradient = logits,
              .labels = labels,
              .max = max,
              .sum_target = sum_target,
              .scale = *scale};
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, backward_piece, &a);
    return TR_OK;
}

typedef struct loss_terms {
    int64_t R;
    const int32_t *labels;
    const float *max, *sum_target;
    int64_t *limbs;
} loss_terms;

static void loss_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const loss_terms *a = ctx;
    int64_t begin = piece * LOSS_ROWS, limbs[TR_LOSS_SUM_LIMBS] = {0};
    int64_t end = begin + LOSS_ROWS < a->R ? begin + LOSS_ROWS : a->R;
    tr_fixed_sum terms;
    tr_fixed_sum_init(&terms);
    for (int64_t r = begin; r < end; r++) {
        if (a->labels[r] < 0)
            continue;
        double sum = a->sum_target[2 * r], target = a->sum_target[2 * r + 1];
        tr_fixed_sum_add(&terms, log(sum) + (double)a->max[r] - target);
        limbs[TR_LOSS_SUM_TOKENS]++;
    }
    tr_fixed_sum_to_limbs(&terms, limbs);
    for (int i = 0; i < TR_LOSS_SUM_LIMBS; i++)
        __atomic_fetch_add(&a->limbs[i], limbs[i], __ATOMIC_RELAXED);
}

static tr_status loss_sum(tr_device *device, int64_t R, const int32_t *labels, const float *max,
                          const float *sum_target, int64_t *limbs)
{
    loss_terms a = {R, labels, max, sum_target, limbs};
    tr_cpu_parallel_for(device, (R + LOSS_ROWS - 1) / LOSS_ROWS, loss_piece, &a);
    tr_fixed_sum_limbs_carry(limbs);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_xent_ops)(tr_ops *ops)
{
    ops->xent_max = xent_max;
    ops->xent_sum = xent_sum;
    ops->xent_backward = xent_backward;
    ops->loss_sum = loss_sum;
}
