/* Runs of elements between a compute dtype and fp32: widening is exact, narrowing rounds to nearest even (NaN stays NaN, fp16
 * overflows to infinity), bit for bit what memory/dtype.h does element by element. Any alignment; thread-safe. */
#ifndef TR_KERNELS_CPU_WIDEN_H
#define TR_KERNELS_CPU_WIDEN_H

#include <stdint.h>

#include "memory/dtype.h"

/* dst[i] = src[i], i in [0, n); dtype fp32, bf16 or fp16. */
void tr_cpu_widen(tr_dtype dtype, const void *src, int64_t n, float *dst);
void tr_cpu_narrow(tr_dtype dtype, const float *src, int64_t n, void *dst);

/* The address of element `index` of an array of `dtype`. */
static inline const void *tr_cpu_element(tr_dtype dtype, const void *base, int64_t index)
{
    return (const char *)base + index * (int64_t)tr_dtype_size(dtype);
}
static inline void *tr_cpu_element_mut(tr_dtype dtype, void *base, int64_t index)
{
    return (char *)base + index * (int64_t)tr_dtype_size(dtype);
}

#endif
