/* Vocabulary-parallel cross-entropy (Megatron-LM, Shoeybi et al. 2019, section 3): a block for each row of logits, which are only
 * ever in the compute type. A rank may own no real column (V = 0). NaN and infinite logits give NaN where mathematics has no
 * value. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"

enum { XENT_THREADS = 256 };

/* WIDE: columns begin at a multiple of a whole group (32 bytes of fp32), and rows are whole groups long, so that the last group of a row, or of a slice
 * of it, may be read whole: it ends where the row ends at the latest. */
static bool xent_wide(tr_dtype dtype, int64_t stride, const void *logits)
{
    return stride % TR_GROUP == 0 && (uintptr_t)logits % (TR_GROUP * tr_dtype_size(dtype)) == 0;
}

/* e^d for d <= 0 by the exponential of base 2, within 1e-6 where it counts (d above -20). */
__device__ inline float xent_exp(float d)
{
    return exp2f(d * 1.4426950408889634f);
}

/* Moves R V sizes of T. A NaN never is the largest. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(XENT_THREADS)
    xent_max_kernel(int64_t V, int64_t stride, const T *logits, float *max)
{
    TR_SHARED(float, shared, [32]);
    const T *row = logits + (int64_t)blockIdx.x * stride;
    const int64_t step = (int64_t)XENT_THREADS * TR_GROUP, whole = V / TR_GROUP * TR_GROUP;
    int64_t c = (int64_t)threadIdx.x * TR_GROUP;
    float largest = -INFINITY;
#pragma unroll 4
    for (; c < whole; c += step) {
        tr_group<T> group = tr_group_load<T, WIDE>(row + c, TR_GROUP);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            largest = fmaxf(largest, group.get(i));
    }
    if (c < V) {
        int count = tr_group_count(c, V);
        tr_group<T> group = tr_group_load<T, WIDE>(row + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            largest = i < count ? fmaxf(largest, group.get(i)) : largest;
    }
    largest = tr_block_max(largest, shared);
    if (threadIdx.x == 0)
        max[blockIdx.x] = largest;
}

extern "C" tr_status tr_cuda_xent_max(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t V,
                                      int64_t stride, const void *logits, float *max)
{
    TR_DISPATCH_WIDE(dtype, xent_wide(dtype, stride, logits), T,
                     return TR_LAUNCH((xent_max_kernel<T, WIDE>), (unsigned)R, XENT_THREADS, 0,
                                      stream, V, stride, (const T *)logits, max));
}

/* Moves R V sizes of T; an exponential an element. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(XENT_THREADS)
    xent_sum_kernel(int64_t V, int64_t stride, int64_t vocab_begin, const T *logits,
                    const int32_t *labels, const float *max, float *sum_target)
{
    TR_SHARED(float, shared, [32]);
    const int64_t r = blockIdx.x;
    const T *row = logits + r * stride;
    const int64_t step = (int64_t)XENT_THREADS * TR_GROUP, whole = V / TR_GROUP * TR_GROUP;
    const float largest = max[r];
    int64_t c = (int64_t)threadIdx.x * TR_GROUP;
    float sum = 0.0f;
#pragma unroll 4
    for (; c < whole; c += step) {
        tr_group<T> group = tr_group_load<T, WIDE>(row + c, TR_GROUP);
        float e[TR_GROUP];
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            e[i] = xent_exp(group.get(i) - largest);
        sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
    }
    if (c < V) {
        int count = tr_group_count(c, V);
        tr_group<T> group = tr_group_load<T, WIDE>(row + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            sum += i < count ? xent_exp(group.get(i) - largest) : 0.0f;
    }
    sum = tr_block_sum(sum, shared);
    if (threadIdx.x != 0)
        return;
    int64_t label = labels[r] < 0 ? -1 : labels[r] - vocab_begin;
    sum_target[2 * r] = sum;
    sum_target[2 * r + 1] = label >= 0 && label < V ? tr_load(row + label) : 0.0f;
}

extern "C" tr_status tr_cuda_xent_sum(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t V,
                                      int64_t stride, int64_t vocab_begin, const void *logits,
                                      const int32_t *labels, const float *max, float *sum_target)
{
    TR_DISPATCH_WIDE(dtype, xent_wide(dtype, stride, logits), T,
                     return TR_LAUNCH((xent_sum_kernel<T, WIDE>), (unsigned)R, XENT_THREADS, 0,
                                      stream, V, stride, vocab_begin, (const T *)logits, labels,
                                      max, sum_target));
}

/* Moves 2 R stride sizes of T, half of it for rows that do not count; an exponential an element. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(XENT_THREADS)
    xent_backward_kernel(int64_t V, int64_t stride, int64_t vocab_begin, T *logits,
                         const int32_t *labels, const float *max, const float *sum_target,
                         const float *scale)
{
    const int64_t r = blockIdx.x;
    T *row = logits + r * stride;
    const int64_t step = (int64_t)XENT_THREADS * TR_GROUP;
    const bool counts = labels[r] >= 0;
    const int64_t label = labels[r] - vocab_begin, columns = counts ? V : 0;
    const float largest = max[r], inverse_sum = 1.0f / sum_target[2 * r], factor = *scale;
#pragma unroll 4
    for (int64_t c = (int64_t)threadIdx.x * TR_GROUP; c < stride; c += step) {
        int count = tr_group_count(c, columns);
        tr_group<T> group = tr_group_load<T, WIDE>(row + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++) {
            float p = xent_exp(group.get(i) - largest) * inverse_sum;
            float gradient = factor * (p - (c + i == label ? 1.0f : 0.0f));
            group.set(i, i < count ? gradient : 0.0f);
        }
        tr_group_store<T, WIDE>(row + c, tr_group_count(c, stride), group);
    }
}

extern "C" tr_status tr_cuda_xent_backward(cudaStream_t stream, tr_dtype dtype, int64_t R,
                                           int64_t V, int64_t stride, int64_t vocab_begin,
                                           void *logits, const int32_t *labels, const float *max,
                                           const float *sum_target, const float *scale)
{
    TR_DISPATCH_WIDE(dtype, xent_wide(dtype, stride, logits), T,
                     return TR_LAUNCH((xent_backward_kernel<T, WIDE>), (unsigned)R, XENT_THREADS, 0,
                                      stream, V, stride, vocab_begin, (T *)logits, labels, max,
                                      sum_target, scale));
}
