#include "memory/dtype.h"

#include <string.h>

static const struct {
    size_t bytes;
    const char *text;
} dtype_rows[] = {
#define DTYPE_ROW(name, bytes, text) {bytes, text},
    TR_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

size_t tr_dtype_size(tr_dtype dtype)
{
    return dtype_rows[dtype].bytes;
}

const char *tr_dtype_name(tr_dtype dtype)
{
    return dtype_rows[dtype].text;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t tr_bf16_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 |
                          0x40u); /* the quiet bit keeps it a NaN when the payload is cut */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float tr_f32_from_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/* value >> shift, to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_round_even(uint32_t value, int shift)
{
    uint32_t half = 1u << (shift - 1);
    uint32_t odd = value >> shift & 1u;
    return (value + half - 1u + odd) >> shift;
}

uint16_t tr_f16_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >=
        0x47800000u) /* 65536 and infinity; what rounds up to it overflows by carry below */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >=
        0x38800000u) /* 2^-14: normal in both; the exponent bias falls from 127 to 15 */
        return (uint16_t)(sign | shift_round_even(magnitude - (112u << 23), 13));
    if (magnitude < 0x33000000u) /* below 2^-25, half of the smallest subnormal */
        return (uint16_t)sign;
    int shift = 126 - (int)(magnitude >> 23); /* the result counts units of 2^-24 */
    return (uint16_t)(sign | shift_round_even((magnitude & 0x7fffffu) | 0x800000u, shift));
}

float tr_f32_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 0x1fu;
    uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0x1fu)
        return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return float_of(sign | (exponent + 112u) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* exact */
    return float_of(sign | bits_of(magnitude));
}
