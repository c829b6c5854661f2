/* cpu_vec.h for processors of which nothing is known: four lanes of GCC vector types, no fused multiply-add. */
#ifndef TR_KERNELS_CPU_VEC_BASELINE_H
#define TR_KERNELS_CPU_VEC_BASELINE_H

enum { TR_VEC_LANES = 4 };

typedef float tr_vec __attribute__((vector_size(16)));
typedef int32_t tr_vec_int __attribute__((vector_size(16)));
typedef uint32_t tr_vec_uint __attribute__((vector_size(16)));

TR_VEC_INLINE tr_vec tr_vec_set(float x)
{
    return (tr_vec){x, x, x, x};
}

TR_VEC_INLINE tr_vec_int tr_vec_index(void)
{
    return (tr_vec_int){0, 1, 2, 3};
}

TR_VEC_INLINE tr_vec tr_vec_load_f32(const float *src)
{
    tr_vec v;
    memcpy(&v, src, sizeof v);
    return v;
}

TR_VEC_INLINE void tr_vec_store_f32(float *dst, tr_vec v)
{
    memcpy(dst, &v, sizeof v);
}

TR_VEC_INLINE tr_vec tr_vec_load_bf16(const uint16_t *src)
{
    return (tr_vec){tr_f32_from_bf16(src[0]), tr_f32_from_bf16(src[1]), tr_f32_from_bf16(src[2]),
                    tr_f32_from_bf16(src[3])};
}

TR_VEC_INLINE void tr_vec_store_bf16(uint16_t *dst, tr_vec v)
{
    for (int l = 0; l < TR_VEC_LANES; l++)
        dst[l] = tr_bf16_from_f32(v[l]);
}

TR_VEC_INLINE tr_vec tr_vec_load_f16(const uint16_t *src)
{
    return (tr_vec){tr_f32_from_f16(src[0]), tr_f32_from_f16(src[1]), tr_f32_from_f16(src[2]),
                    tr_f32_from_f16(src[3])};
}

TR_VEC_INLINE void tr_vec_store_f16(uint16_t *dst, tr_vec v)
{
    for (int l = 0; l < TR_VEC_LANES; l++)
        dst[l] = tr_f16_from_f32(v[l]);
}

TR_VEC_INLINE tr_vec tr_vec_fma(tr_vec a, tr_vec b, tr_vec c)
{
    return a * b + c;
}

TR_VEC_INLINE tr_vec tr_vec_sqrt(tr_vec v)
{
    return (tr_vec){__builtin_sqrtf(v[0]), __builtin_sqrtf(v[1]), __builtin_sqrtf(v[2]),
                    __builtin_sqrtf(v[3])};
}

TR_VEC_INLINE tr_vec tr_vec_max(tr_vec a, tr_vec b)
{
    tr_vec_int first = a > b;
    return (tr_vec)(((tr_vec_int)a & first) | ((tr_vec_int)b & ~first));
}

TR_VEC_INLINE tr_vec tr_vec_min(tr_vec a, tr_vec b)
{
    tr_vec_int first = a < b;
    return (tr_vec)(((tr_vec_int)a & first) | ((tr_vec_int)b & ~first));
}

TR_VEC_INLINE float tr_vec_sum(tr_vec v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

TR_VEC_INLINE float tr_vec_hmax(tr_vec v)
{
    float a = v[0] > v[2] ? v[0] : v[2];
    float b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}

TR_VEC_INLINE void tr_vec_mul_wide(tr_vec_uint a, uint32_t m, tr_vec_uint *high, tr_vec_uint *low)
{
    for (int l = 0; l < TR_VEC_LANES; l++) {
        uint64_t product = (uint64_t)a[l] * m;
        (*high)[l] = (uint32_t)(product >> 32);
        (*low)[l] = (uint32_t)product;
    }
}

TR_VEC_INLINE void tr_vec_store_quads(uint32_t *dst, tr_vec_uint a, tr_vec_uint b, tr_vec_uint c,
                                      tr_vec_uint d)
{
    for (int l = 0; l < TR_VEC_LANES; l++) {
        const tr_vec_uint quad = {a[l], b[l], c[l], d[l]};
        memcpy(dst + 4 * l, &quad, sizeof quad);
    }
}

#endif
