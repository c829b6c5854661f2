/* The simulator's twin of kernels/cuda/cuda_intrinsics.cuh: the same functions and fragments (described there), done by the emulator. A copy
 * lands at the wait that covers it, and not before. */
#ifndef TR_KERNELS_CUDA_INTRINSICS_CUH
#define TR_KERNELS_CUDA_INTRINSICS_CUH

#include <math.h>
#include <stdint.h>

#include "kernels/cuda/cuda_kernel.cuh"
#include "tests/cudasim/simt_matrix.h"

#define CUDASIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

template <typename T>
inline void tr_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], CUDASIM_SITE);

template <>
inline void tr_mma_m16n8k16<__nv_bfloat16>(float d[4], const uint32_t a[4], const uint32_t b[2],
                                           const char *file, int line)
{
    simt_mma_bf16(d, a, b, {file, line});
}

template <>
inline void tr_mma_m16n8k16<__half>(float d[4], const uint32_t a[4], const uint32_t b[2],
                                    const char *file, int line)
{
    simt_mma_f16(d, a, b, {file, line});
}

inline void tr_ldmatrix_x4(uint32_t r[4], const void *row, CUDASIM_SITE)
{
    simt_ldmatrix(r, 4, row, false, {file, line});
}

inline void tr_ldmatrix_x4_trans(uint32_t r[4], const void *row, CUDASIM_SITE)
{
    simt_ldmatrix(r, 4, row, true, {file, line});
}

inline void tr_ldmatrix_x2(uint32_t r[2], const void *row, CUDASIM_SITE)
{
    simt_ldmatrix(r, 2, row, false, {file, line});
}

inline void tr_ldmatrix_x2_trans(uint32_t r[2], const void *row, CUDASIM_SITE)
{
    simt_ldmatrix(r, 2, row, true, {file, line});
}

#undef CUDASIM_SITE

inline void tr_copy_async16(void *shared, const void *global, bool valid)
{
    if (valid) { /* seen by AddressSanitizer here, where the copy stands in the source */
        const volatile char *bytes = static_cast<const volatile char *>(global);
        (void)(bytes[0] + bytes[15]);
    }
    simt_copy_start(shared, valid ? global : nullptr, 16);
}

inline void tr_copy_async_commit()
{
    simt_copy_commit();
}

template <int N> inline void tr_copy_async_wait()
{
    simt_copy_wait(N);
}

inline float tr_exp2(float x)
{
    float power = exp2f(x);
    return power < 0x1p-126f ? 0.0f : power;
}

#endif
