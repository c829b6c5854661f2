/* CUDA's fp16 type and its conversions, for kernels compiled as C++: the subset that Trine's kernels use. There is no arithmetic:
 * kernels compute in fp32. */
#ifndef TR_TESTS_CUDASIM_CUDA_FP16_H
#define TR_TESTS_CUDASIM_CUDA_FP16_H

#include <cuda_runtime.h>

typedef struct __half {
    unsigned short cudasim_bits;
} __half;

typedef struct __attribute__((aligned(4))) __half2 {
    __half x, y;
} __half2;

inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}

inline unsigned short __half_as_ushort(__half value)
{
    return value.cudasim_bits;
}

/* Exact. The exponent is moved by a product, which also makes subnormals right: 0x77800000 is 2^112. */
inline float __half2float(__half value)
{
    unsigned int sign = (unsigned int)(value.cudasim_bits & 0x8000u) << 16;
    unsigned int magnitude = value.cudasim_bits & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity and NaN */
        return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    float number = __uint_as_float(magnitude << 13) * __uint_as_float(0x77800000u);
    return __uint_as_float(sign | __float_as_uint(number));
}

/* To nearest even, above 65504 + 16 to infinity; a NaN becomes 0x7fff, as on the device. */
inline __half __float2half_rn(float value)
{
    unsigned int bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u;
    unsigned int magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return {0x7fff};
    if (magnitude >= 0x477ff000u) /* 65520 */
        return {(unsigned short)(sign | 0x7c00u)};
    if (magnitude <
        0x38800000u) { /* below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits */
        unsigned int shifted = __float_as_uint(__uint_as_float(magnitude) + 0.5f);
        return {(unsigned short)(sign | (shifted - 0x3f000000u))};
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1);
    return {(unsigned short)(sign | ((magnitude - 0x38000000u) >> 13))};
}

inline __half __float2half(float value)
{
    return __float2half_rn(value);
}

inline __half2 __halves2half2(__half low, __half high)
{
    return {low, high};
}

inline __half2 __floats2half2_rn(float low, float high)
{
    return {__float2half_rn(low), __float2half_rn(high)};
}

inline __half2 __float22half2_rn(float2 value)
{
    return __floats2half2_rn(value.x, value.y);
}

inline float2 __half22float2(__half2 value)
{
    return {__half2float(value.x), __half2float(value.y)};
}

inline float __low2float(__half2 value)
{
    return __half2float(value.x);
}

inline float __high2float(__half2 value)
{
    return __half2float(value.y);
}

#endif
