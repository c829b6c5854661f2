/* Adding a branch to the residual stream, with bias and dropout, and the backward of that dropout: every element alone. */
#include "kernels/cuda/cuda_dropout.cuh"
#include "kernels/cuda/cuda_kernels.h"

/* Moves R H (4 + 2 sizes of T) bytes; with dropout some 25 integer operations an element. out may be x. */
template <typename T, bool WIDE, bool DROPOUT>
__global__ void residual_add_kernel(int64_t R, int64_t H, const T *x, const float *y, const T *bias,
                                    tr_row_dropout mask, T *out)
{
    int64_t r = tr_row_of_thread(), c = tr_column_of_thread();
    int count = r < R ? tr_group_count(c, H) : 0;
    if (count == 0)
        return;
    int64_t at = r * H + c;
    tr_group<float> branch = tr_group_load<float, WIDE>(y + at, count);
    tr_group<T> stream = tr_group_load<T, WIDE>(x + at, count);
    float values[TR_GROUP];
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        values[i] = branch.get(i);
    if (bias != NULL) {
        tr_group<T> b = tr_group_load<T, WIDE>(bias + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            values[i] += b.get(i);
    }
    if (DROPOUT)
        tr_row_dropout_apply(mask, r, c, values);
    tr_group<T> sum;
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        sum.set(i, stream.get(i) + values[i]);
    tr_group_store<T, WIDE>(out + at, count, sum);
}

template <typename T, bool WIDE>
static tr_status residual_add_launch(cudaStream_t stream, int64_t R, int64_t H, int64_t row_begin,
                                     const T *x, const float *y, const T *bias,
                                     const tr_dropout *dropout, T *out)
{
    tr_row_grid rows = tr_row_grid_of(R, H);
    if (tr_dropout_is_on(dropout))
        return TR_LAUNCH((residual_add_kernel<T, WIDE, true>), rows.grid, rows.block, 0, stream, R,
                         H, x, y, bias, tr_row_dropout_of(dropout, row_begin), out);
    return TR_LAUNCH((residual_add_kernel<T, WIDE, false>), rows.grid, rows.block, 0, stream, R, H,
                     x, y, bias, tr_row_dropout(), out);
}

extern "C" tr_status tr_cuda_residual_add(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t H,
                                          int64_t row_begin, const void *x, const float *y,
                                          const void *bias, const tr_dropout *dropout, void *out)
{
    bool wide = H % TR_GROUP == 0 && tr_vec_aligned(x) && tr_vec_aligned(y) &&
                tr_vec_aligned(bias) && tr_vec_aligned(out);
    TR_DISPATCH_WIDE(dtype, wide, T,
                     return residual_add_launch<T, WIDE>(stream, R, H, row_begin, (const T *)x, y,
                                                         (const T *)bias, dropout, (T *)out));
}

/* Moves 2 R H sizes of T. out may be dy. */
template <typename T, bool WIDE>
__global__ void dropout_backward_kernel(int64_t R, int64_t H, const T *dy, tr_row_dropout mask,
                                        T *out)
{
    int64_t r = tr_row_of_thread(), c = tr_column_of_thread();
    int count = r < R ? tr_group_count(c, H) : 0;
    if (count == 0)
        return;
    tr_group<T> group = tr_group_load<T, WIDE>(dy + r * H + c, count);
    float values[TR_GROUP];
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        values[i] = group.get(i);
    tr_row_dropout_apply(mask, r, c, values);
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        group.set(i, values[i]);
    tr_group_store<T, WIDE>(out + r * H + c, count, group);
}

extern "C" tr_status tr_cuda_dropout_backward(cudaStream_t stream, tr_dtype dtype, int64_t R,
                                              int64_t H, int64_t row_begin, const void *dy,
                                              const tr_dropout *dropout, void *out)
{
    if (!tr_dropout_is_on(dropout))
        return out == dy ? TR_OK : tr_cuda_convert(stream, R * H, dtype, dy, dtype, out);
    bool wide = H % TR_GROUP == 0 && tr_vec_aligned(dy) && tr_vec_aligned(out);
    tr_row_grid rows = tr_row_grid_of(R, H);
    tr_row_dropout mask = tr_row_dropout_of(dropout, row_begin);
    TR_DISPATCH_WIDE(dtype, wide, T,
                     return TR_LAUNCH((dropout_backward_kernel<T, WIDE>), rows.grid, rows.block, 0,
                                      stream, R, H, (const T *)dy, mask, (T *)out));
}
