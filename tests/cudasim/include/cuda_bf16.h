/* CUDA's bf16 type and its conversions, for kernels compiled as C++: the subset that Trine's kernels use. There is no arithmetic:
 * kernels compute in fp32. */
#ifndef TR_TESTS_CUDASIM_CUDA_BF16_H
#define TR_TESTS_CUDASIM_CUDA_BF16_H

#include <cuda_runtime.h>

typedef struct __nv_bfloat16 {
    unsigned short cudasim_bits;
} __nv_bfloat16;

typedef struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
} __nv_bfloat162;

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return {bits};
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value)
{
    return value.cudasim_bits;
}

inline float __bfloat162float(__nv_bfloat16 value)
{
    return __uint_as_float((unsigned int)value.cudasim_bits << 16);
}

/* To nearest even; a NaN becomes 0x7fff, as on the device. */
inline __nv_bfloat16 __float2bfloat16_rn(float value)
{
    unsigned int bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return {0x7fff};
    bits += 0x7fffu + ((bits >> 16) & 1);
    return {(unsigned short)(bits >> 16)};
}

inline __nv_bfloat16 __float2bfloat16(float value)
{
    return __float2bfloat16_rn(value);
}

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high)
{
    return {low, high};
}

inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high)
{
    return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}

inline __nv_bfloat162 __float22bfloat162_rn(float2 value)
{
    return __floats2bfloat162_rn(value.x, value.y);
}

inline float2 __bfloat1622float2(__nv_bfloat162 value)
{
    return {__bfloat162float(value.x), __bfloat162float(value.y)};
}

inline float __low2float(__nv_bfloat162 value)
{
    return __bfloat162float(value.x);
}

inline float __high2float(__nv_bfloat162 value)
{
    return __bfloat162float(value.y);
}

#endif
