/* Token and position embeddings forward, and the gradient of the positions; the token table's is in cuda_embed_backward.cu. */
#include "kernels/cuda/cuda_dropout.cuh"
#include "kernels/cuda/cuda_kernels.h"

/* Moves R H (size of T + 4) bytes, and R ids. */
template <typename T, bool WIDE>
__global__ void embed_forward_kernel(int64_t R, int64_t H, int64_t V, int64_t vocab_begin,
                                     const int32_t *ids, const T *table, float *out)
{
    int64_t r = tr_row_of_thread(), c = tr_column_of_thread();
    int count = r < R ? tr_group_count(c, H) : 0;
    if (count == 0)
        return;
    int64_t id = ids[r] - vocab_begin;
    bool owned = id >= 0 && id < V;
    tr_group<T> row = tr_group_load<T, WIDE>(table + (owned ? id : 0) * H + c, owned ? count : 0);
    tr_group<float> sum;
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) /* as a sum with the zeros of other ranks: -0 becomes 0 */
        sum.set(i, 0.0f + row.get(i));
    tr_group_store<float, WIDE>(out + r * H + c, count, sum);
}

extern "C" tr_status tr_cuda_embed_forward(cudaStream_t stream, tr_dtype dtype, int64_t R,
                                           int64_t H, int64_t V, int64_t vocab_begin,
                                           const int32_t *ids, const void *table, float *out)
{
    bool wide = H % TR_GROUP == 0 && tr_vec_aligned(table) && tr_vec_aligned(out);
    tr_row_grid rows = tr_row_grid_of(R, H);
    TR_DISPATCH_WIDE(dtype, wide, T,
                     return TR_LAUNCH((embed_forward_kernel<T, WIDE>), rows.grid, rows.block, 0,
                                      stream, R, H, V, vocab_begin, ids, (const T *)table, out));
}

/* Moves R H (4 + 2 sizes of T) bytes, the positions mostly from the second-level cache. */
template <typename T, bool WIDE, bool DROPOUT>
__global__ void embed_finish_kernel(int64_t R, int64_t H, uint32_t row_begin, uint32_t seq_len,
                                    const float *in, const T *positions, tr_row_dropout mask,
                                    T *out)
{
    int64_t r = tr_row_of_thread(), c = tr_column_of_thread();
    int count = r < R ? tr_group_count(c, H) : 0;
    if (count == 0)
        return;
    tr_group<float> token = tr_group_load<float, WIDE>(in + r * H + c, count);
    float values[TR_GROUP];
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        values[i] = token.get(i);
    if (positions != NULL) {
        int64_t position = (row_begin + (uint32_t)r) % seq_len;
        tr_group<T> p = tr_group_load<T, WIDE>(positions + position * H + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            values[i] += p.get(i);
    }
    if (DROPOUT)
        tr_row_dropout_apply(mask, r, c, values);
    tr_group<T> sum;
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        sum.set(i, values[i]);
    tr_group_store<T, WIDE>(out + r * H + c, count, sum);
}

template <typename T, bool WIDE>
static tr_status embed_finish_launch(cudaStream_t stream, int64_t R, int64_t H, int64_t row_begin,
                                     const float *in, const T *positions, const tr_dropout *dropout,
                                     T *out)
{
    tr_row_grid rows = tr_row_grid_of(R, H);
    uint32_t begin = (uint32_t)row_begin, seq_len = (uint32_t)dropout->seq_len;
    if (tr_dropout_is_on(dropout))
        return TR_LAUNCH((embed_finish_kernel<T, WIDE, true>), rows.grid, rows.block, 0, stream, R,
                         H, begin, seq_len, in, positions, tr_row_dropout_of(dropout, row_begin),
                         out);
    return TR_LAUNCH((embed_finish_kernel<T, WIDE, false>), rows.grid, rows.block, 0, stream, R, H,
                     begin, seq_len, in, positions, tr_row_dropout(), out);
}

extern "C" tr_status tr_cuda_embed_finish(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t H,
                                          int64_t row_begin, const float *in, const void *positions,
                                          const tr_dropout *dropout, void *out)
{
    bool wide =
        H % TR_GROUP == 0 && tr_vec_aligned(in) && tr_vec_aligned(positions) && tr_vec_aligned(out);
    TR_DISPATCH_WIDE(dtype, wide, T,
                     return embed_finish_launch<T, WIDE>(stream, R, H, row_begin, in,
                                                         (const T *)positions, dropout, (T *)out));
}

/* Rows are positions; a position's sequences are added in order. Moves T H (B sizes of T + 4, or 8 when accumulating) bytes. */
template <typename T, bool WIDE>
__global__ void position_backward_kernel(int64_t B, int64_t seq_len, int64_t H, const T *dx,
                                         float *dpositions, bool accumulate)
{
    int64_t t = tr_row_of_thread(), c = tr_column_of_thread();
    int count = t < seq_len ? tr_group_count(c, H) : 0;
    if (count == 0)
        return;
    int64_t at = t * H + c;
    float values[TR_GROUP] = {0};
#pragma unroll 4
    for (int64_t b = 0; b < B; b++) {
        tr_group<T> row = tr_group_load<T, WIDE>(dx + b * seq_len * H + at, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            values[i] += row.get(i);
    }
    tr_group<float> sum = tr_group_load<float, WIDE>(dpositions + at, accumulate ? count : 0);
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        sum.set(i, accumulate ? values[i] + sum.get(i) : values[i]);
    tr_group_store<float, WIDE>(dpositions + at, count, sum);
}

extern "C" tr_status tr_cuda_position_backward(cudaStream_t stream, tr_dtype dtype, int64_t B,
                                               int64_t T, int64_t H, const void *dx,
                                               float *dpositions, bool accumulate)
{
    bool wide = H % TR_GROUP == 0 && tr_vec_aligned(dx) && tr_vec_aligned(dpositions);
    tr_row_grid rows = tr_row_grid_of(T, H);
    TR_DISPATCH_WIDE(dtype, wide, Element,
                     return TR_LAUNCH((position_backward_kernel<Element, WIDE>), rows.grid,
                                      rows.block, 0, stream, B, T, H, (const Element *)dx,
                                      dpositions, accumulate));
}
