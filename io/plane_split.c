#include "io/plane_split.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#define AVX2 __attribute__((target("avx2")))
#else
#define HAS_AVX2 0
#endif

/* ---- any processor, from value `begin` on ---- */

static uint32_t bits_of(const float *value)
{
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    return bits;
}

static void exponents_each(const float *src, size_t begin, size_t n, unsigned char *p3)
{
    for (size_t i = begin; i < n; i++)
        p3[i] = (unsigned char)(bits_of(src + i) >> 23);
}

static void mantissas_each(const float *src, size_t begin, size_t n, unsigned char *p0,
                           unsigned char *p1, unsigned char *p2)
{
    for (size_t i = begin; i < n; i++) {
        uint32_t bits = bits_of(src + i);
        p0[i] = (unsigned char)(bits << 1 | bits >> 31);
        p1[i] = (unsigned char)(bits >> 7);
        p2[i] = (unsigned char)(bits >> 15);
    }
}

static void join_each(const unsigned char *const planes[TR_NUM_PLANES], size_t begin, size_t n,
                      float *dst)
{
    for (size_t i = begin; i < n; i++) {
        uint32_t bits = (uint32_t)planes[0][i] | (uint32_t)planes[1][i] << 8 |
                        (uint32_t)planes[2][i] << 16 | (uint32_t)planes[3][i] << 24;
        bits = bits >> 1 | bits << 31;
        memcpy(dst + i, &bits, sizeof bits);
    }
}

/* ---- AVX2: 32 values at a time; how many of n were done ---- */

#if defined(__x86_64__)
enum { STEP = 32 };

AVX2 static inline __m256i load(const void *at)
{
    return _mm256_loadu_si256(at);
}

AVX2 static inline void store(void *at, __m256i bytes)
{
    _mm256_storeu_si256(at, bytes);
}

/* Packing and unpacking work in halves of 128 bits, which leaves words of 4 bytes in the order 0 2 4
 * 6 1 3 5 7. */
AVX2 static inline __m256i words_order(__m256i bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

AVX2 static inline __m256i exponents_8(const float *src)
{
    return _mm256_and_si256(_mm256_srli_epi32(load(src), 23), _mm256_set1_epi32(255));
}

AVX2 static size_t exponents_avx2(const float *src, size_t n, unsigned char *p3)
{
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        __m256i low = _mm256_packus_epi32(exponents_8(src + i), exponents_8(src + i + 8));
        __m256i high = _mm256_packus_epi32(exponents_8(src + i + 16), exponents_8(src + i + 24));
        store(p3 + i, words_order(_mm256_packus_epi16(low, high)));
    }
    return i;
}

/* 8 values, rotated; in each half the four bytes 0, then the four bytes 1, 2, 3. */
AVX2 static inline __m256i bytes_gather_8(const float *src)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i bits = load(src);
    bits = _mm256_or_si256(_mm256_slli_epi32(bits, 1), _mm256_srli_epi32(bits, 31));
    return _mm256_shuffle_epi8(bits, order);
}

AVX2 static size_t mantissas_avx2(const float *src, size_t n, unsigned char *p0, unsigned char *p1,
                                  unsigned char *p2)
{
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        __m256i a = bytes_gather_8(src + i), b = bytes_gather_8(src + i + 8);
        __m256i c = bytes_gather_8(src + i + 16), d = bytes_gather_8(src + i + 24);
        __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
        store(p0 + i, words_order(_mm256_unpacklo_epi64(ab, cd)));
        store(p1 + i, words_order(_mm256_unpackhi_epi64(ab, cd)));
        ab = _mm256_unpackhi_epi32(a, b);
        cd = _mm256_unpackhi_epi32(c, d);
        store(p2 + i, words_order(_mm256_unpacklo_epi64(ab, cd)));
    }
    return i;
}

/* 32 bytes of a plane, so that unpacking in halves meets the first 16 and the last 16 in order. */
AVX2 static inline __m256i plane_load(const unsigned char *plane)
{
    return _mm256_permute4x64_epi64(load(plane), 0xd8);
}

AVX2 static inline __m256i rotate_back(__m256i bits)
{
    return _mm256_or_si256(_mm256_srli_epi32(bits, 1), _mm256_slli_epi32(bits, 31));
}

/* Bytes 0 and 1, 2 and 3 of 16 values as words of 2 bytes. */
AVX2 static inline void join_16(__m256i low, __m256i high, float *dst)
{
    __m256i even = rotate_back(_mm256_unpacklo_epi16(low, high));
    __m256i odd = rotate_back(_mm256_unpackhi_epi16(low, high));
    store(dst, _mm256_permute2x128_si256(even, odd, 0x20));
    store(dst + 8, _mm256_permute2x128_si256(even, odd, 0x31));
}

AVX2 static size_t join_avx2(const unsigned char *const planes[TR_NUM_PLANES], size_t n, float *dst)
{
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        __m256i p0 = plane_load(planes[0] + i), p1 = plane_load(planes[1] + i);
        __m256i p2 = plane_load(planes[2] + i), p3 = plane_load(planes[3] + i);
        join_16(_mm256_unpacklo_epi8(p0, p1), _mm256_unpacklo_epi8(p2, p3), dst + i);
        join_16(_mm256_unpackhi_epi8(p0, p1), _mm256_unpackhi_epi8(p2, p3), dst + i + 16);
    }
    return i;
}
#else
static size_t exponents_avx2(const float *src, size_t n, unsigned char *p3)
{
    (void)src, (void)n, (void)p3;
    return 0;
}

static size_t mantissas_avx2(const float *src, size_t n, unsigned char *p0, unsigned char *p1,
                             unsigned char *p2)
{
    (void)src, (void)n, (void)p0, (void)p1, (void)p2;
    return 0;
}

static size_t join_avx2(const unsigned char *const planes[TR_NUM_PLANES], size_t n, float *dst)
{
    (void)planes, (void)n, (void)dst;
    return 0;
}
#endif

void tr_plane_take_exponents(const float *src, size_t n, unsigned char *p3)
{
    exponents_each(src, HAS_AVX2 ? exponents_avx2(src, n, p3) : 0, n, p3);
}

void tr_plane_take_mantissas(const float *src, size_t n, unsigned char *p0, unsigned char *p1,
                             unsigned char *p2)
{
    mantissas_each(src, HAS_AVX2 ? mantissas_avx2(src, n, p0, p1, p2) : 0, n, p0, p1, p2);
}

void tr_plane_join(const unsigned char *const planes[TR_NUM_PLANES], size_t n, float *dst)
{
    join_each(planes, HAS_AVX2 ? join_avx2(planes, n, dst) : 0, n, dst);
}
