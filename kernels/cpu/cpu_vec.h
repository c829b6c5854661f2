/* Vectors of floats for the vector sources of the CPU device: one set of names over three instruction sets.
 *
 * A tr_vec has TR_VEC_LANES floats (4, 8 or 16) and takes C's arithmetic operators. What is written with these names gives
 * an element the same bits wherever it stands in a vector: tails are loaded with zeros behind them and computed whole.
 * Sums along a row keep TR_ROW_LANES partial sums on every instruction set (element i goes to partial sum i mod
 * TR_ROW_LANES) and add them in one fixed tree, so that their order does not depend on the width of a vector. Only
 * tr_vec_fma differs: fused where the processor can, two roundings on the baseline.
 *
 * Loads and stores convert: `dtype` is fp32, bf16 or fp16 and is a constant once everything is inlined; addresses need only
 * the alignment of the element. Stores round to nearest even. Pure functions, any thread. */
#ifndef TR_KERNELS_CPU_VEC_H
#define TR_KERNELS_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "memory/dtype.h"

#define TR_VEC_INLINE static inline __attribute__((always_inline, unused))

/* Each gives: TR_VEC_LANES, tr_vec, tr_vec_int, tr_vec_uint; tr_vec_set (all lanes), tr_vec_index (0, 1, 2, ...);
 * tr_vec_load_<dtype> and tr_vec_store_<dtype>; tr_vec_fma (a b + c); tr_vec_sqrt; tr_vec_max and tr_vec_min (b where a or b is
 * NaN); tr_vec_sum and tr_vec_hmax over lanes, by halving; tr_vec_mul_wide (64-bit products with m, as high and low words);
 * tr_vec_store_quads (dst[4 l ... 4 l + 3] = a, b, c, d of lane l). */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/cpu/cpu_vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/cpu/cpu_vec_avx2.h"
#else
#include "kernels/cpu/cpu_vec_baseline.h"
#endif

TR_VEC_INLINE tr_vec tr_vec_zero(void)
{
    return tr_vec_set(0.0f);
}

/* yes where mask is -1, no where it is 0. */
TR_VEC_INLINE tr_vec tr_vec_select(tr_vec_int mask, tr_vec yes, tr_vec no)
{
    return (tr_vec)(((tr_vec_int)yes & mask) | ((tr_vec_int)no & ~mask));
}

/* Lanes `count` and above become +0. */
TR_VEC_INLINE tr_vec tr_vec_head(tr_vec v, int count)
{
    tr_vec_int limit = tr_vec_index() - tr_vec_index() + count;
    return (tr_vec)((tr_vec_int)v & (tr_vec_index() < limit));
}

/* Elements index ... index + TR_VEC_LANES - 1 of base. */
TR_VEC_INLINE tr_vec tr_vec_load_full(tr_dtype dtype, const void *base, int64_t index)
{
    if (dtype == TR_F32)
        return tr_vec_load_f32((const float *)base + index);
    if (dtype == TR_BF16)
        return tr_vec_load_bf16((const uint16_t *)base + index);
    return tr_vec_load_f16((const uint16_t *)base + index);
}

TR_VEC_INLINE void tr_vec_store_full(tr_dtype dtype, void *base, int64_t index, tr_vec v)
{
    if (dtype == TR_F32)
        tr_vec_store_f32((float *)base + index, v);
    else if (dtype == TR_BF16)
        tr_vec_store_bf16((uint16_t *)base + index, v);
    else
        tr_vec_store_f16((uint16_t *)base + index, v);
}

/* The first `count` elements, then zeros; 1 <= count <= TR_VEC_LANES. Nothing else is read. */
TR_VEC_INLINE tr_vec tr_vec_load(tr_dtype dtype, const void *base, int64_t index, int count)
{
    if (count == TR_VEC_LANES)
        return tr_vec_load_full(dtype, base, index);
    size_t size = dtype == TR_F32 ? 4 : 2;
    float whole[TR_VEC_LANES] = {0};
    memcpy(whole, (const char *)base + (size_t)index * size, (size_t)count * size);
    return tr_vec_load_full(dtype, whole, 0);
}

/* Stores the first `count` lanes; nothing else is written. */
TR_VEC_INLINE void tr_vec_store(tr_dtype dtype, void *base, int64_t index, int count, tr_vec v)
{
    if (count == TR_VEC_LANES) {
        tr_vec_store_full(dtype, base, index, v);
        return;
    }
    size_t size = dtype == TR_F32 ? 4 : 2;
    float whole[TR_VEC_LANES];
    tr_vec_store_full(dtype, whole, 0, v);
    memcpy((char *)base + (size_t)index * size, whole, (size_t)count * size);
}

/* function(arguments ..., index, count) for every vector of 0 ... n-1; count is a constant except in the last call. */
#define TR_VEC_LOOP(n, function, ...)                                                              \
    do {                                                                                           \
        int64_t tr_loop_i_ = 0;                                                                    \
        for (; tr_loop_i_ + TR_VEC_LANES <= (n); tr_loop_i_ += TR_VEC_LANES)                       \
            function(__VA_ARGS__, tr_loop_i_, TR_VEC_LANES);                                       \
        if (tr_loop_i_ < (n))                                                                      \
            function(__VA_ARGS__, tr_loop_i_, (int)((n)-tr_loop_i_));                              \
    } while (0)

/* function(dtype as a constant, arguments ...) for a floating dtype. */
#define TR_VEC_DTYPE_SWITCH(dtype, function, ...)                                                  \
    do {                                                                                           \
        switch (dtype) {                                                                           \
        case TR_F32:                                                                               \
            function(TR_F32, __VA_ARGS__);                                                         \
            break;                                                                                 \
        case TR_BF16:                                                                              \
            function(TR_BF16, __VA_ARGS__);                                                        \
            break;                                                                                 \
        case TR_F16:                                                                               \
            function(TR_F16, __VA_ARGS__);                                                         \
            break;                                                                                 \
        default:                                                                                   \
            TR_ASSERT(!"a floating dtype");                                                        \
        }                                                                                          \
    } while (0)

enum { TR_ROW_LANES = 32, TR_ROW_VECS = TR_ROW_LANES / TR_VEC_LANES };

/* The partial sums of a row. */
typedef struct tr_row_sum {
    tr_vec part[TR_ROW_VECS];
} tr_row_sum;

TR_VEC_INLINE void tr_row_sum_init(tr_row_sum *sum)
{
    for (int p = 0; p < TR_ROW_VECS; p++)
        sum->part[p] = tr_vec_zero();
}

TR_VEC_INLINE float tr_row_sum_get(const tr_row_sum *sum)
{
    tr_row_sum tree = *sum;
    for (int half = TR_ROW_VECS / 2; half > 0; half /= 2) {
        for (int p = 0; p < half; p++)
            tree.part[p] += tree.part[p + half];
    }
    return tr_vec_sum(tree.part[0]);
}

/* function(arguments ..., part, index, count) for every vector of 0 ... n-1, part being the one that the vector's elements
 * are to be added to. */
#define TR_ROW_LOOP(n, function, ...)                                                              \
    do {                                                                                           \
        int64_t tr_loop_i_ = 0;                                                                    \
        for (; tr_loop_i_ + TR_ROW_LANES <= (n); tr_loop_i_ += TR_ROW_LANES) {                     \
            _Pragma("GCC unroll 8") for (int tr_loop_p_ = 0; tr_loop_p_ < TR_ROW_VECS;             \
                                         tr_loop_p_++)                                             \
                function(__VA_ARGS__, tr_loop_p_, tr_loop_i_ + tr_loop_p_ * TR_VEC_LANES,          \
                         TR_VEC_LANES);                                                            \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int tr_loop_p_ = 0; tr_loop_p_ < TR_ROW_VECS; tr_loop_p_++)   \
        {                                                                                          \
            int64_t tr_loop_left_ = (n)-tr_loop_i_ - tr_loop_p_ * TR_VEC_LANES;                    \
            if (tr_loop_left_ > 0)                                                                 \
                function(__VA_ARGS__, tr_loop_p_, tr_loop_i_ + tr_loop_p_ * TR_VEC_LANES,          \
                         tr_loop_left_ < TR_VEC_LANES ? (int)tr_loop_left_ : TR_VEC_LANES);        \
        }                                                                                          \
    } while (0)

/* e^x within 2 units in the last place, by Cody and Waite's reduction and Cephes' polynomial (Moshier 1989): 0 below -87.3,
 * where results would be subnormal, infinity above 88.37; NaN stays NaN. */
TR_VEC_INLINE tr_vec tr_vec_exp(tr_vec x)
{
    const float shift =
        12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    tr_vec_int too_small = x < tr_vec_set(-87.3f);
    x = tr_vec_min(tr_vec_set(89.0f), x);
    tr_vec t = tr_vec_fma(x, tr_vec_set(1.44269504088896341f), tr_vec_set(shift));
    tr_vec_int exponent = (tr_vec_int)t + (127 - 0x4b400000); /* 0x4b400000: the bits of shift */
    tr_vec whole = t - shift;
    tr_vec r = tr_vec_fma(whole, tr_vec_set(-0.693359375f), x); /* exact: 9 bits times 8 bits */
    r = tr_vec_fma(whole, tr_vec_set(2.12194440e-4f), r);
    tr_vec p = tr_vec_set(1.9875691500e-4f);
    p = tr_vec_fma(p, r, tr_vec_set(1.3981999507e-3f));
    p = tr_vec_fma(p, r, tr_vec_set(8.3334519073e-3f));
    p = tr_vec_fma(p, r, tr_vec_set(4.1665795894e-2f));
    p = tr_vec_fma(p, r, tr_vec_set(1.6666665459e-1f));
    p = tr_vec_fma(p, r, tr_vec_set(5.0000001201e-1f));
    p = tr_vec_fma(p, r * r, r) + 1.0f;
    return (tr_vec)((tr_vec_int)(p * (tr_vec)(exponent << 23)) & ~too_small);
}

/* 1 / (1 + e^-x); NaN stays NaN. */
TR_VEC_INLINE tr_vec tr_vec_sigmoid(tr_vec x)
{
    return 1.0f / (1.0f + tr_vec_exp(-x));
}

#endif
