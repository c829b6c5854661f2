/* bf16 conversions are integer arithmetic that the compiler vectorises for each instruction set (target_clones; integers have
 * the same bits on all). fp16 uses the processor's conversion instructions (F16C) where it has them. */
#include "kernels/cpu/cpu_widen.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define WIDEN_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define WIDEN_CLONES
#endif

WIDEN_CLONES static void widen_bf16(const uint16_t *restrict src, int64_t n, float *restrict dst)
{
    uint32_t *restrict bits = (uint32_t *)dst;
    for (int64_t i = 0; i < n; i++)
        bits[i] = (uint32_t)src[i] << 16;
}

WIDEN_CLONES static void narrow_bf16(const float *restrict src, int64_t n, uint16_t *restrict dst)
{
    const uint32_t *restrict bits = (const uint32_t *)src;
    for (int64_t i = 0; i < n; i++) {
        uint32_t value = bits[i];
        uint32_t rounded = (value + 0x7fffu + (value >> 16 & 1u)) >> 16;
        uint32_t quiet_nan = value >> 16 | 0x40u;
        dst[i] = (uint16_t)((value & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
    }
}

static void widen_f16_each(const uint16_t *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = tr_f32_from_f16(src[i]);
}

static void narrow_f16_each(const float *src, int64_t n, uint16_t *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = tr_f16_from_f32(src[i]);
}

#if defined(__x86_64__)
/* The instructions quiet a signalling NaN and keep its payload, as the element-wise narrowing does; widening differs from the
 * element-wise one only in that bit. */
__attribute__((target("avx,f16c"))) static void widen_f16_vector(const uint16_t *src, int64_t n,
                                                                 float *dst)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
    widen_f16_each(src + i, n - i, dst + i);
}

__attribute__((target("avx,f16c"))) static void narrow_f16_vector(const float *src, int64_t n,
                                                                  uint16_t *dst)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    narrow_f16_each(src + i, n - i, dst + i);
}
#endif

static void widen_f16(const uint16_t *src, int64_t n, float *dst)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("f16c")) {
        widen_f16_vector(src, n, dst);
        return;
    }
#endif
    widen_f16_each(src, n, dst);
}

static void narrow_f16(const float *src, int64_t n, uint16_t *dst)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("f16c")) {
        narrow_f16_vector(src, n, dst);
        return;
    }
#endif
    narrow_f16_each(src, n, dst);
}

void tr_cpu_widen(tr_dtype dtype, const void *src, int64_t n, float *dst)
{
    if (dtype == TR_BF16)
        widen_bf16(src, n, dst);
    else if (dtype == TR_F16)
        widen_f16(src, n, dst);
    else
        memcpy(dst, src, (size_t)n * sizeof *dst);
}

void tr_cpu_narrow(tr_dtype dtype, const float *src, int64_t n, void *dst)
{
    if (dtype == TR_BF16)
        narrow_bf16(src, n, dst);
    else if (dtype == TR_F16)
        narrow_f16(src, n, dst);
    else
        memcpy(dst, src, (size_t)n * sizeof *src);
}
