/* cpu_vec.h for AVX2 with FMA and F16C: eight lanes. */
#ifndef TR_KERNELS_CPU_VEC_AVX2_H
#define TR_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>

enum { TR_VEC_LANES = 8 };

typedef float tr_vec __attribute__((vector_size(32)));
typedef int32_t tr_vec_int __attribute__((vector_size(32)));
typedef uint32_t tr_vec_uint __attribute__((vector_size(32)));

TR_VEC_INLINE tr_vec tr_vec_set(float x)
{
    return (tr_vec)_mm256_set1_ps(x);
}

TR_VEC_INLINE tr_vec_int tr_vec_index(void)
{
    return (tr_vec_int){0, 1, 2, 3, 4, 5, 6, 7};
}

TR_VEC_INLINE tr_vec tr_vec_load_f32(const float *src)
{
    return (tr_vec)_mm256_loadu_ps(src);
}

TR_VEC_INLINE void tr_vec_store_f32(float *dst, tr_vec v)
{
    _mm256_storeu_ps(dst, (__m256)v);
}

TR_VEC_INLINE tr_vec tr_vec_load_bf16(const uint16_t *src)
{
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)src);
    return (tr_vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
}

/* To nearest even; a NaN keeps its upper payload and gets the quiet bit, as tr_bf16_from_f32. */
TR_VEC_INLINE void tr_vec_store_bf16(uint16_t *dst, tr_vec v)
{
    __m256i bits = (__m256i)v;
    __m256i high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i is_nan = (__m256i)_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i result = _mm256_blendv_epi8(rounded, quiet, is_nan);
    __m256i packed = _mm256_packus_epi32(result, result); /* halves stay in their 128-bit lanes */
    packed = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128((__m128i *)(void *)dst, _mm256_castsi256_si128(packed));
}

TR_VEC_INLINE tr_vec tr_vec_load_f16(const uint16_t *src)
{
    return (tr_vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
}

TR_VEC_INLINE void tr_vec_store_f16(uint16_t *dst, tr_vec v)
{
    _mm_storeu_si128((__m128i *)(void *)dst,
                     _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

TR_VEC_INLINE tr_vec tr_vec_fma(tr_vec a, tr_vec b, tr_vec c)
{
    return (tr_vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

TR_VEC_INLINE tr_vec tr_vec_sqrt(tr_vec v)
{
    return (tr_vec)_mm256_sqrt_ps((__m256)v);
}

TR_VEC_INLINE tr_vec tr_vec_max(tr_vec a, tr_vec b)
{
    return (tr_vec)_mm256_max_ps((__m256)a, (__m256)b);
}

TR_VEC_INLINE tr_vec tr_vec_min(tr_vec a, tr_vec b)
{
    return (tr_vec)_mm256_min_ps((__m256)a, (__m256)b);
}

TR_VEC_INLINE float tr_vec_sum(tr_vec v)
{
    __m128 four =
        _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

TR_VEC_INLINE float tr_vec_hmax(tr_vec v)
{
    __m128 four =
        _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

TR_VEC_INLINE void tr_vec_mul_wide(tr_vec_uint a, uint32_t m, tr_vec_uint *high, tr_vec_uint *low)
{
    __m256i factor = _mm256_set1_epi32((int)m);
    __m256i even = _mm256_mul_epu32((__m256i)a, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
    *high = (tr_vec_uint)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = (tr_vec_uint)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

TR_VEC_INLINE void tr_vec_store_quads(uint32_t *dst, tr_vec_uint a, tr_vec_uint b, tr_vec_uint c,
                                      tr_vec_uint d)
{
    __m256i ab_low = _mm256_unpacklo_epi32((__m256i)a, (__m256i)b);
    __m256i ab_high = _mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
    __m256i cd_low = _mm256_unpacklo_epi32((__m256i)c, (__m256i)d);
    __m256i cd_high = _mm256_unpackhi_epi32((__m256i)c, (__m256i)d);
    __m256i quad04 = _mm256_unpacklo_epi64(ab_low, cd_low);
    __m256i quad15 = _mm256_unpackhi_epi64(ab_low, cd_low);
    __m256i quad26 = _mm256_unpacklo_epi64(ab_high, cd_high);
    __m256i quad37 = _mm256_unpackhi_epi64(ab_high, cd_high);
    __m256i *out = (__m256i *)(void *)dst;
    _mm256_storeu_si256(out + 0, _mm256_permute2x128_si256(quad04, quad15, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(quad26, quad37, 0x20));
    _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(quad04, quad15, 0x31));
    _mm256_storeu_si256(out + 3, _mm256_permute2x128_si256(quad26, quad37, 0x31));
}

#endif
