/* Token and position embeddings. Forward takes rows; the gradients take columns (tokens, so that each element of the table is
 * added to by one thread, in row order) or positions. */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_dropout_row.h"
#include "kernels/cpu/cpu_isa.h"

enum { PIECE_ROWS = 16, COLUMNS = 64 };

typedef struct embedding {
    tr_dtype dtype;
    int64_t R, T, H, V, vocab_begin, row_begin; /* R holds B in position_backward */
    const int32_t *ids;
    const void *table; /* forward's table, or the positions of embed_finish */
    const void *dx;
    const float *in;
    tr_dropout_rows mask;
    void *out;
    float *gradient;
    bool accumulate;
} embedding;

static int64_t piece_end(int64_t piece, int64_t size, int64_t n)
{
    return (piece + 1) * size < n ? (piece + 1) * size : n;
}

/* 0 + x: the bits of a sum with the zeros of other ranks, also where x is -0. */
TR_VEC_INLINE void widen_vec(tr_dtype dtype, const void *src, int64_t src_begin, float *dst,
                             int64_t i, int count)
{
    tr_vec_store(TR_F32, dst, i, count,
                 tr_vec_zero() + tr_vec_load(dtype, src, src_begin + i, count));
}

TR_VEC_INLINE void forward_rows(tr_dtype dtype, const embedding *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        float *out = (float *)a->out + r * a->H;
        int64_t id = a->ids[r] - a->vocab_begin;
        if (id >= 0 && id < a->V)
            TR_VEC_LOOP(a->H, widen_vec, dtype, a->table, id * a->H, out);
        else
            memset(out, 0, (size_t)a->H * sizeof(float));
    }
}

static void forward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const embedding *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, forward_rows, a, piece * PIECE_ROWS,
                        piece_end(piece, PIECE_ROWS, a->R));
}

static tr_status embed_forward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                               int64_t vocab_begin, const int32_t *ids, const void *table,
                               float *out)
{
    embedding a = {.dtype = dtype,
                   .R = R,
                   .H = H,
                   .V = V,
                   .vocab_begin = vocab_begin,
                   .ids = ids,
                   .table = table,
                   .out = out};
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, forward_piece, &a);
    return TR_OK;
}

/* `words` NULL when dropout is off. */
TR_VEC_INLINE void finish_vec(tr_dtype dtype, const embedding *a, int64_t at, int64_t position_at,
                              const uint32_t *words, int64_t i, int count)
{
    tr_vec v = tr_vec_load(TR_F32, a->in, at + i, count);
    if (a->table != NULL)
        v += tr_vec_load(dtype, a->table, position_at + i, count);
    if (words != NULL)
        v = tr_cpu_dropout_apply(v, words + i, a->mask.threshold, a->mask.scale);
    tr_vec_store(dtype, a->out, at + i, count, v);
}

TR_VEC_INLINE void finish_rows(tr_dtype dtype, const embedding *a, int64_t begin, int64_t end)
{
    _Alignas(64) uint32_t buffer[TR_DROPOUT_FEATURES];
    for (int64_t r = begin; r < end; r++) {
        int64_t row = a->row_begin + r;
        int64_t position = row % a->T;
        for (int64_t feature = 0; feature < a->H; feature += TR_DROPOUT_FEATURES) {
            int64_t n = a->H - feature < TR_DROPOUT_FEATURES ? a->H - feature : TR_DROPOUT_FEATURES;
            if (a->mask.on)
                tr_dropout_rows_words(&a->mask, row, feature, n, buffer);
            const uint32_t *words = a->mask.on ? buffer : NULL;
            TR_VEC_LOOP(n, finish_vec, dtype, a, r * a->H + feature, position * a->H + feature,
                        words);
        }
    }
}

static void finish_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const embedding *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, finish_rows, a, piece * PIECE_ROWS,
                        piece_end(piece, PIECE_ROWS, a->R));
}

static tr_status embed_finish(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const float *in, const void *positions,
                              const tr_dropout *dropout, void *out)
{
    TR_ASSERT(dropout != NULL); /* tells T, also when off */
    embedding a = {.dtype = dtype,
                   .R = R,
                   .T = dropout->seq_len,
                   .H = H,
                   .row_begin = row_begin,
                   .table = positions,
                   .in = in,
                   .mask = tr_dropout_rows_init(dropout),
                   .out = out};
    tr_cpu_parallel_for(device, (R + PIECE_ROWS - 1) / PIECE_ROWS, finish_piece, &a);
    return TR_OK;
}

/* dst[i] += src[src_begin + i] */
TR_VEC_INLINE void add_vec(tr_dtype dtype, const void *src, int64_t src_begin, float *dst,
                           int64_t i, int count)
{
    tr_vec sum = tr_vec_load(TR_F32, dst, i, count) + tr_vec_load(dtype, src, src_begin + i, count);
    tr_vec_store(TR_F32, dst, i, count, sum);
}

TR_VEC_INLINE void backward_columns(tr_dtype dtype, const embedding *a, int64_t begin, int64_t end)
{
    enum { AHEAD = 8 }; /* rows of both come from far apart: ask for them early */
    for (int64_t r = 0; r < a->R; r++) {
        int64_t ahead = r + AHEAD < a->R ? a->ids[r + AHEAD] - a->vocab_begin : -1;
        if (ahead >= 0 && ahead < a->V) {
            for (int64_t c = begin; c < end; c += 16)
                __builtin_prefetch(a->gradient + ahead * a->H + c, 1);
            const int64_t size = dtype == TR_F32 ? 4 : 2;
            const char *dx = (const char *)a->dx + ((r + AHEAD) * a->H + begin) * size;
            for (int64_t byte = 0; byte < (end - begin) * size; byte += 64)
                __builtin_prefetch(dx + byte);
        }
        int64_t id = a->ids[r] - a->vocab_begin;
        if (id >= 0 && id < a->V)
            TR_VEC_LOOP(end - begin, add_vec, dtype, a->dx, r * a->H + begin,
                        a->gradient + id * a->H + begin);
    }
}

static void backward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const embedding *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, backward_columns, a, piece * COLUMNS,
                        piece_end(piece, COLUMNS, a->H));
}

static void zero_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const embedding *a = ctx;
    int64_t begin = piece * PIECE_ROWS, end = piece_end(piece, PIECE_ROWS, a->V);
    memset(a->gradient + begin * a->H, 0, (size_t)((end - begin) * a->H) * sizeof(float));
}

static tr_status embed_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                                int64_t vocab_begin, const int32_t *ids, const void *dx,
                                float *dtable, bool accumulate)
{
    embedding a = {.dtype = dtype,
                   .R = R,
                   .H = H,
                   .V = V,
                   .vocab_begin = vocab_begin,
                   .ids = ids,
                   .dx = dx,
                   .gradient = dtable};
    if (!accumulate)
        tr_cpu_parallel_for(device, (V + PIECE_ROWS - 1) / PIECE_ROWS, zero_piece, &a);
    if (V > 0)
        tr_cpu_parallel_for(device, (H + COLUMNS - 1) / COLUMNS, backward_piece, &a);
    return TR_OK;
}

/* The sequences of element i of position t, in order. */
TR_VEC_INLINE void position_vec(tr_dtype dtype, const embedding *a, int64_t t, int64_t i, int count)
{
    tr_vec sum = tr_vec_zero();
    for (int64_t b = 0; b < a->R; b++)
        sum += tr_vec_load(dtype, a->dx, (b * a->T + t) * a->H + i, count);
    if (a->accumulate)
        sum += tr_vec_load(TR_F32, a->gradient, t * a->H + i, count);
    tr_vec_store(TR_F32, a->gradient, t * a->H + i, count, sum);
}

TR_VEC_INLINE void position_rows(tr_dtype dtype, const embedding *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        TR_VEC_LOOP(a->H, position_vec, dtype, a, t);
}

static void position_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const embedding *a = ctx;
    TR_VEC_DTYPE_SWITCH(a->dtype, position_rows, a, piece * PIECE_ROWS,
                        piece_end(piece, PIECE_ROWS, a->T));
}

static tr_status position_backward(tr_device *device, tr_dtype dtype, int64_t B, int64_t T,
                                   int64_t H, const void *dx, float *dpositions, bool accumulate)
{
    embedding a = {.dtype = dtype,
                   .R = B,
                   .T = T,
                   .H = H,
                   .dx = dx,
                   .gradient = dpositions,
                   .accumulate = accumulate};
    tr_cpu_parallel_for(device, (T + PIECE_ROWS - 1) / PIECE_ROWS, position_piece, &a);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_embed_ops)(tr_ops *ops)
{
    ops->embed_forward = embed_forward;
    ops->embed_finish = embed_finish;
    ops->embed_backward = embed_backward;
    ops->position_backward = position_backward;
}
