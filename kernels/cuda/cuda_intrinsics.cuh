/* Tensor cores, matrix loads, asynchronous copies and the fast exponential: thin wrappers around the PTX instructions of compute capability 8.0 and
 * later. The simulator's build reads tests/cudasim/twins/kernels/cuda/cuda_intrinsics.cuh instead.
 *
 * Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"), lane = 4 g + t, g in 0...7, t in 0...3, a
 * register holding two elements, the first in its low half:
 *     A 16 x 16, by rows     a[0] = A[g][2t, 2t+1]      a[1] = A[g+8][2t, 2t+1]   a[2] = A[g][2t+8, 2t+9]   a[3] = A[g+8][2t+8, 2t+9]
 *     B 16 x 8, by columns   b[0] = B[2t, 2t+1][g]      b[1] = B[2t+8, 2t+9][g]
 *     C, D 16 x 8 fp32       d[0], d[1] = D[g][2t, 2t+1]                          d[2], d[3] = D[g+8][2t, 2t+1]
 * A matrix load reads 8 x 8 matrices of 16-bit elements from shared memory: lane 8 m + i gives the 16-byte aligned address of row i
 * of matrix m, and register m receives elements [g][2t, 2t+1] of matrix m, or with _trans [2t, 2t+1][g]. x2 uses the addresses of
 * lanes 0...15; the other lanes' must be valid all the same. The whole warp calls these together. */
#ifndef TR_KERNELS_CUDA_INTRINSICS_CUH
#define TR_KERNELS_CUDA_INTRINSICS_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_kernel.cuh"

/* d += A B, T = __nv_bfloat16 or __half, sums in fp32. */
template <typename T>
__device__ inline void tr_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2]);

template <>
__device__ inline void tr_mma_m16n8k16<__nv_bfloat16>(float d[4], const uint32_t a[4],
                                                      const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ inline void tr_mma_m16n8k16<__half>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The address of shared memory as PTX takes it. */
__device__ inline uint32_t tr_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

__device__ inline void tr_ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tr_shared_address(row))
                 : "memory");
}

__device__ inline void tr_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tr_shared_address(row))
                 : "memory");
}

__device__ inline void tr_ldmatrix_x2(uint32_t r[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(tr_shared_address(row))
                 : "memory");
}

__device__ inline void tr_ldmatrix_x2_trans(uint32_t r[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(tr_shared_address(row))
                 : "memory");
}

/* Starts copying 16 bytes from global to shared memory (both 16-byte aligned), past the first-level cache. valid = false writes
 * zeros and reads nothing. The bytes are there for the calling thread after the tr_copy_async_wait that covers the copy, for the
 * block's other threads after a __syncthreads that follows it. */
__device__ inline void tr_copy_async16(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(tr_shared_address(shared)), "l"(__cvta_generic_to_global(global)),
                   "r"(valid ? 16 : 0)
                 : "memory");
}

/* Closes a group: the calling thread's copies since the last commit. */
__device__ inline void tr_copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most the N youngest groups of the calling thread are still on their way. */
template <int N> __device__ inline void tr_copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 2^x within a few units in the last place, zero where that is below 2^-126: one instruction, where exp2f takes care of
 * subnormal results. */
__device__ inline float tr_exp2(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

#endif
