/* What the norms' forward and backward share: the team of threads that has a row.
 *
 * A team is 8 or 16 lanes of a warp, or a whole block, and holds its row in registers, ITEMS groups of eight to a thread:
 * lane l has groups l, l + TEAM, ... Rows longer than that are read again from the caches (the long kernels). Team and ITEMS are
 * functions of the width, and a width's groups are added in the same order whether it is read by wide or narrow accesses. Kind and
 * width of accesses are branches that a whole grid takes alike, around all loads of a row, so that the loads go out together. */
#ifndef TR_KERNELS_CUDA_NORM_CUH
#define TR_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cuda_rows.cuh"

/* Threads of a block of teams. */
__host__ __device__ constexpr int norm_threads(int team)
{
    return team < TR_WARP ? TR_ROW_THREADS : team;
}

/* Blocks that a multiprocessor of 65536 registers is to hold at least, which bounds the registers of a thread to 64 or 80. */
__host__ __device__ constexpr int norm_blocks(int team, int items)
{
    return items > 1 ? 1024 / norm_threads(team) : 768 / norm_threads(team);
}

enum { NORM_LONG = 256 }; /* threads of the long kernels */

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

/* Whether rows of H elements take the long kernels. */
inline bool norm_is_long(int64_t H)
{
    return tr_blocks(H, TR_GROUP) > 1024;
}

/* Calls launch.template run<T, TEAM, ITEMS>() with what a width takes, ITEMS 0 being the long kernel. */
template <typename T, typename Launch> tr_status norm_dispatch_team(int64_t H, const Launch &launch)
{
    int64_t groups = tr_blocks(H, TR_GROUP);
    if (groups <= 8)
        return launch.template run<T, 8, 1>();
    if (groups <= 16)
        return launch.template run<T, 16, 1>();
    if (groups <= 128)
        return launch.template run<T, 128, 1>();
    if (groups <= 256)
        return launch.template run<T, 256, 1>();
    if (groups <= 512)
        return launch.template run<T, 256, 2>();
    if (norm_is_long(H))
        return launch.template run<T, NORM_LONG, 0>();
    return launch.template run<T, 512, 2>();
}

template <typename Launch> tr_status norm_dispatch(tr_dtype dtype, int64_t H, const Launch &launch)
{
    TR_DISPATCH(dtype, T, return norm_dispatch_team<T>(H, launch));
}

/* A thread's groups of a row of `width` elements (0: no row). */
template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void norm_load(const T *row, int lane, int64_t width, tr_group<T> *groups)
{
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
        groups[k] = tr_group_load<T, WIDE>(row + c, tr_group_count(c, width));
    }
}

#endif
