/* cpu_vec.h for AVX-512 (F, BW, DQ, VL): sixteen lanes. Not the conversions of AVX512_BF16, which flush subnormals. */
#ifndef TR_KERNELS_CPU_VEC_AVX512_H
#define TR_KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>

enum { TR_VEC_LANES = 16 };

typedef float tr_vec __attribute__((vector_size(64)));
typedef int32_t tr_vec_int __attribute__((vector_size(64)));
typedef uint32_t tr_vec_uint __attribute__((vector_size(64)));

TR_VEC_INLINE tr_vec tr_vec_set(float x)
{
    return (tr_vec)_mm512_set1_ps(x);
}

TR_VEC_INLINE tr_vec_int tr_vec_index(void)
{
    return (tr_vec_int){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

TR_VEC_INLINE tr_vec tr_vec_load_f32(const float *src)
{
    return (tr_vec)_mm512_loadu_ps(src);
}

TR_VEC_INLINE void tr_vec_store_f32(float *dst, tr_vec v)
{
    _mm512_storeu_ps(dst, (__m512)v);
}

TR_VEC_INLINE tr_vec tr_vec_load_bf16(const uint16_t *src)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)src);
    return (tr_vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}

/* To nearest even; a NaN keeps its upper payload and gets the quiet bit, as tr_bf16_from_f32. */
TR_VEC_INLINE void tr_vec_store_bf16(uint16_t *dst, tr_vec v)
{
    __m512i bits = (__m512i)v;
    __m512i high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m512i result = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm512_cvtepi32_epi16(result));
}

TR_VEC_INLINE tr_vec tr_vec_load_f16(const uint16_t *src)
{
    return (tr_vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)src));
}

TR_VEC_INLINE void tr_vec_store_f16(uint16_t *dst, tr_vec v)
{
    _mm256_storeu_si256((__m256i *)(void *)dst,
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

TR_VEC_INLINE tr_vec tr_vec_fma(tr_vec a, tr_vec b, tr_vec c)
{
    return (tr_vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

TR_VEC_INLINE tr_vec tr_vec_sqrt(tr_vec v)
{
    return (tr_vec)_mm512_sqrt_ps((__m512)v);
}

TR_VEC_INLINE tr_vec tr_vec_max(tr_vec a, tr_vec b)
{
    return (tr_vec)_mm512_max_ps((__m512)a, (__m512)b);
}

TR_VEC_INLINE tr_vec tr_vec_min(tr_vec a, tr_vec b)
{
    return (tr_vec)_mm512_min_ps((__m512)a, (__m512)b);
}

TR_VEC_INLINE float tr_vec_sum(tr_vec v)
{
    __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

TR_VEC_INLINE float tr_vec_hmax(tr_vec v)
{
    __m256 eight =
        _mm256_max_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

TR_VEC_INLINE void tr_vec_mul_wide(tr_vec_uint a, uint32_t m, tr_vec_uint *high, tr_vec_uint *low)
{
    __m512i factor = _mm512_set1_epi32((int)m);
    __m512i even = _mm512_mul_epu32((__m512i)a, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
    *high = (tr_vec_uint)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = (tr_vec_uint)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

/* Lane L of quad_k holds counter 4 L + k. */
TR_VEC_INLINE void tr_vec_store_quads(uint32_t *dst, tr_vec_uint a, tr_vec_uint b, tr_vec_uint c,
                                      tr_vec_uint d)
{
    __m512i ab_low = _mm512_unpacklo_epi32((__m512i)a, (__m512i)b);
    __m512i ab_high = _mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
    __m512i cd_low = _mm512_unpacklo_epi32((__m512i)c, (__m512i)d);
    __m512i cd_high = _mm512_unpackhi_epi32((__m512i)c, (__m512i)d);
    const __m512i quads[4] = {
        _mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)};
    __m128i *out = (__m128i *)(void *)dst;
    for (int k = 0; k < 4; k++) {
        _mm_storeu_si128(out + k, _mm512_extracti32x4_epi32(quads[k], 0));
        _mm_storeu_si128(out + k + 4, _mm512_extracti32x4_epi32(quads[k], 1));
        _mm_storeu_si128(out + k + 8, _mm512_extracti32x4_epi32(quads[k], 2));
        _mm_storeu_si128(out + k + 12, _mm512_extracti32x4_epi32(quads[k], 3));
    }
}

#endif
