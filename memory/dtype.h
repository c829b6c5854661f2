/* Element types of tensors. Valid C17, C++17 and CUDA. */
#ifndef TR_MEMORY_DTYPE_H
#define TR_MEMORY_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, bytes, text */
#define TR_DTYPE_LIST(X)                                                                           \
    X(F32, 4, "fp32")                                                                              \
    X(BF16, 2, "bf16")                                                                             \
    X(F16, 2, "fp16")                                                                              \
    X(I32, 4, "i32")                                                                               \
    X(I64, 8, "i64")                                                                               \
    X(U8, 1, "u8")

typedef enum tr_dtype {
#define TR_DTYPE_ENUM(name, bytes, text) TR_##name,
    TR_DTYPE_LIST(TR_DTYPE_ENUM)
#undef TR_DTYPE_ENUM
} tr_dtype;

size_t tr_dtype_size(tr_dtype dtype);
const char *tr_dtype_name(tr_dtype dtype);

/* Single-value conversions, round to nearest even; NaN stays NaN, fp16 overflows to infinity. */
uint16_t tr_bf16_from_f32(float value);
float tr_f32_from_bf16(uint16_t bits);
uint16_t tr_f16_from_f32(float value);
float tr_f32_from_f16(uint16_t bits);

#ifdef __cplusplus
}
#endif

#endif
