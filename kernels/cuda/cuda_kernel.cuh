/* What every .cu file includes first: CUDA's own headers, element types, 16-byte vectors, reductions and the choice of a kernel's
 * element type.
 *
 * A kernel is a template over its element type T: float, __nv_bfloat16 or __half. It computes in fp32: tr_load and tr_vec::get
 * widen, tr_store and tr_vec::set round once, to nearest even. Reductions are fixed trees, so that a result depends on the inputs
 * and the shape of the block, never on the order in which threads run.
 *
 * Shared memory is declared with TR_SHARED and TR_SHARED_DYNAMIC and kernels are started with TR_LAUNCH (cuda_launch.cuh); tensor
 * cores and asynchronous copies are reached through cuda_intrinsics.cuh. These two headers have simulated twins in
 * tests/cudasim/twins, found first by the simulator's build; everything else here is what both builds run. */
#ifndef TR_KERNELS_CUDA_KERNEL_CUH
#define TR_KERNELS_CUDA_KERNEL_CUH

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/status.h"
#include "kernels/cuda/cuda_launch.cuh"
#include "memory/dtype.h"

enum { TR_WARP = 32 };
#define TR_WARP_ALL 0xffffffffu /* the mask of a whole warp */

/* *p in fp32. */
template <typename T> __device__ inline float tr_load(const T *p);
template <> __device__ inline float tr_load<float>(const float *p)
{
    return *p;
}
template <> __device__ inline float tr_load<__nv_bfloat16>(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
template <> __device__ inline float tr_load<__half>(const __half *p)
{
    return __half2float(*p);
}

/* value rounded to nearest even (fp16 overflows to infinity). */
template <typename T> __device__ inline T tr_round(float value);
template <> __device__ inline float tr_round<float>(float value)
{
    return value;
}
template <> __device__ inline __nv_bfloat16 tr_round<__nv_bfloat16>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ inline __half tr_round<__half>(float value)
{
    return __float2half_rn(value);
}

/* *p = value, rounded to nearest even. */
template <typename T> __device__ inline void tr_store(T *p, float value)
{
    *p = tr_round<T>(value);
}

/* 16 bytes of T: N elements that are loaded and stored by one instruction. */
template <typename T> struct alignas(16) tr_vec {
    enum { N = 16 / sizeof(T) };
    T element[16 / sizeof(T)];

    __device__ float get(int i) const
    {
        return tr_load<T>(&element[i]);
    }
    __device__ void set(int i, float value)
    {
        element[i] = tr_round<T>(value);
    }
};

/* p is 16-byte aligned (tr_vec_aligned tells) and in global or shared memory. */
template <typename T> __device__ inline tr_vec<T> tr_vec_load(const T *p)
{
    tr_vec<T> vec;
    *reinterpret_cast<uint4 *>(vec.element) = *reinterpret_cast<const uint4 *>(p);
    return vec;
}

template <typename T> __device__ inline void tr_vec_store(T *p, const tr_vec<T> &vec)
{
    *reinterpret_cast<uint4 *>(p) = *reinterpret_cast<const uint4 *>(vec.element);
}

__host__ __device__ inline bool tr_vec_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* Number of blocks of `size` that cover n. */
__host__ __device__ inline int64_t tr_blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Sum and maximum over the 32 lanes of a warp by a butterfly; all lanes call it and all get the same bits. */
__device__ inline float tr_warp_sum(float value)
{
#pragma unroll
    for (int offset = TR_WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(TR_WARP_ALL, value, offset);
    return value;
}

__device__ inline float tr_warp_max(float value)
{
#pragma unroll
    for (int offset = TR_WARP / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(TR_WARP_ALL, value, offset));
    return value;
}

/* Sum and maximum over a block of one dimension, whole warps and at most 1024 threads: a butterfly in each warp, then one over the
 * warps' values. All threads call it and all get the same bits. shared: 32 floats of shared memory that no thread uses otherwise
 * during the call; they may be used again, also by the next reduction, as soon as it returns. */
__device__ inline float tr_block_sum(float value, float *shared)
{
    int warp = threadIdx.x / TR_WARP, lane = threadIdx.x % TR_WARP;
    value = tr_warp_sum(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    value = lane < (int)(blockDim.x / TR_WARP) ? shared[lane] : 0.0f;
    value = tr_warp_sum(value);
    __syncthreads();
    return value;
}

__device__ inline float tr_block_max(float value, float *shared)
{
    int warp = threadIdx.x / TR_WARP, lane = threadIdx.x % TR_WARP;
    value = tr_warp_max(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    value = lane < (int)(blockDim.x / TR_WARP) ? shared[lane] : shared[0];
    value = tr_warp_max(value);
    __syncthreads();
    return value;
}

/* Runs the statements with T the element type of `dtype` (fp32, bf16 or fp16), in a function that returns tr_status:
 *     TR_DISPATCH(dtype, T, return TR_LAUNCH((scale_kernel<T>), grid, block, 0, stream, n, (const T *)x, (T *)out)); */
#define TR_DISPATCH(dtype, T, ...)                                                                 \
    do {                                                                                           \
        if ((dtype) == TR_F32) {                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == TR_BF16) {                                                           \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == TR_F16) {                                                            \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            return tr_fail(TR_ERR_INTERNAL, "%s has no kernel for elements of %s", __func__,       \
                           tr_dtype_name(dtype));                                                  \
        }                                                                                          \
    } while (0)

#endif
