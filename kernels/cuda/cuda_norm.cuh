/* What the norms' forward and backward share: the team of threads that has a row.
 *
 * A team is 8, 16 or 32 lanes of a warp, or a whole block, and holds its row in registers, ITEMS groups of eight to a thread:
 * lane l has groups l, l + TEAM, ... Rows longer than that are read again from the caches (the long kernels). Team and ITEMS are
 * functions of the width, and a width's groups are added in the same order whether it is read by wide or narrow accesses. Kind and
 * width of accesses are branches that a whole grid takes alike, around all loads of a row, so that the loads go out together. */
#ifndef TR_KERNELS_CUDA_NORM_CUH
#define TR_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cuda_rows.cuh"

enum { NORM_THREADS = TR_ROW_THREADS, NORM_LONGEST = NORM_THREADS * 4 * TR_GROUP };

/* Sums of two values over a team; all threads of the block call it and a team's threads get the same bits. shared: 64 floats
 * that no thread uses otherwise until the next barrier after the call; two calls in a row take different ones. */
template <int TEAM> __device__ inline void norm_team_sum2(float *a, float *b, float *shared)
{
#pragma unroll
    for (int offset = (TEAM < TR_WARP ? TEAM : TR_WARP) / 2; offset > 0; offset /= 2) {
        *a += __shfl_xor_sync(TR_WARP_ALL, *a, offset);
        *b += __shfl_xor_sync(TR_WARP_ALL, *b, offset);
    }
    if (TEAM <= TR_WARP)
        return;
    int warp = threadIdx.x / TR_WARP, lane = threadIdx.x % TR_WARP;
    if (lane == 0) {
        shared[warp] = *a;
        shared[32 + warp] = *b;
    }
    __syncthreads();
    *a = lane < TEAM / TR_WARP ? shared[lane] : 0.0f;
    *b = lane < TEAM / TR_WARP ? shared[32 + lane] : 0.0f;
#pragma unroll
    for (int offset = TEAM / TR_WARP / 2; offset > 0; offset /= 2) {
        *a += __shfl_xor_sync(TR_WARP_ALL, *a, offset);
        *b += __shfl_xor_sync(TR_WARP_ALL, *b, offset);
    }
    *a = __shfl_sync(TR_WARP_ALL, *a, 0);
    *b = __shfl_sync(TR_WARP_ALL, *b, 0);
}

/* Whether a width takes the short kernels, and the team and ITEMS that it takes there: launch.template run<T, TEAM, ITEMS>(), ITEMS 0
 * being the long kernel. */
template <typename T, typename Launch> tr_status norm_dispatch_team(int64_t H, const Launch &launch)
{
    int64_t groups = tr_blocks(H, TR_GROUP);
    if (groups <= 8)
        return launch.template run<T, 8, 1>();
    if (groups <= 16)
        return launch.template run<T, 16, 1>();
    if (groups <= 4 * TR_WARP)
        return launch.template run<T, TR_WARP, 4>();
    if (groups <= NORM_THREADS)
        return launch.template run<T, NORM_THREADS, 1>();
    if (groups <= 2 * NORM_THREADS)
        return launch.template run<T, NORM_THREADS, 2>();
    if (groups <= 4 * NORM_THREADS)
        return launch.template run<T, NORM_THREADS, 4>();
    return launch.template run<T, NORM_THREADS, 0>();
}

template <typename Launch> tr_status norm_dispatch(tr_dtype dtype, int64_t H, const Launch &launch)
{
    TR_DISPATCH(dtype, T, return norm_dispatch_team<T>(H, launch));
}

/* A thread's groups of a row of `width` elements (0: no row), and their way back. */
template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void norm_load(const T *row, int lane, int64_t width, tr_group<T> *groups)
{
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
        groups[k] = tr_group_load<T, WIDE>(row + c, tr_group_count(c, width));
    }
}

template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void norm_store(T *row, int lane, int64_t width, const tr_group<T> *groups)
{
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
        tr_group_store<T, WIDE>(row + c, tr_group_count(c, width), groups[k]);
    }
}

#endif
