/* The value of limbs that were added up (base/exact_sum.h), rounded once, with the same bits on host and devices. Valid C17, C++17 and CUDA; pure.
 *
 * *finite is whether every term was; if not the result is NaN. */
#ifndef TR_BASE_EXACT_SUM_VALUE_H
#define TR_BASE_EXACT_SUM_VALUE_H

#include <math.h>

#include "base/exact_sum.h"
#include "base/host_device.h"

/* Carries from limb to limb until all but the last one are digits in [0, 2^32); the last keeps the sign. */
TR_HOST_DEVICE_INLINE void tr_limbs_normalise(int64_t *limbs, int count)
{
    for (int i = 0; i + 1 < count; i++) {
        int64_t digit = limbs[i] & 0xffffffff;
        limbs[i + 1] += (limbs[i] - digit) / ((int64_t)1 << 32);
        limbs[i] = digit;
    }
}

/* The non-negative integer of normalised `digits` (the last below 2^63) times 2^unit_exponent, rounded to nearest even. The
 * result is a normal double or 0: units are at least 2^-298. */
TR_HOST_DEVICE_INLINE double tr_limbs_to_double(const int64_t *digits, int count, int unit_exponent)
{
    /* The window holds the top digit and enough below it for 64 significant bits; the rest is one sticky bit. */
    __extension__ unsigned __int128 window = 0;
    int lowest = count;
    bool sticky = false;
    for (int i = count - 1; i >= 0; i--) {
        if (window >> 64 == 0) {
            window = window << 32 | (uint64_t)digits[i];
            lowest = i;
        } else {
            sticky |= digits[i] != 0;
        }
    }
    int excess = 0;
    while (window >> excess >> 53 != 0)
        excess++;
    uint64_t mantissa = (uint64_t)(window >> excess);
    if (excess > 0) {
        __extension__ unsigned __int128 rest = window - ((unsigned __int128)mantissa << excess);
        __extension__ unsigned __int128 half = (unsigned __int128)1 << (excess - 1);
        if (rest > half || (rest == half && (sticky || (mantissa & 1u))))
            mantissa++;
    }
    return ldexp((double)mantissa, unit_exponent + 32 * lowest + excess);
}

/* Of a sum of squares, in units of 2^-298. */
TR_HOST_DEVICE_INLINE double tr_square_sum_value(const int64_t *limbs, bool *finite)
{
    *finite = limbs[TR_SQUARE_SUM_DIGITS] == 0;
    if (!*finite)
        return NAN;
    int64_t digits[TR_SQUARE_SUM_DIGITS];
    for (int i = 0; i < TR_SQUARE_SUM_DIGITS; i++)
        digits[i] = limbs[i];
    tr_limbs_normalise(digits, TR_SQUARE_SUM_DIGITS);
    return tr_limbs_to_double(digits, TR_SQUARE_SUM_DIGITS, -298);
}

/* Of a sum of doubles, in units of 2^-64. */
TR_HOST_DEVICE_INLINE double tr_fixed_sum_value(const int64_t *limbs, bool *finite)
{
    *finite = limbs[TR_FIXED_SUM_LIMBS - 1] == 0;
    if (!*finite)
        return NAN;
    int64_t digits[TR_FIXED_SUM_LIMBS - 1];
    for (int i = 0; i < TR_FIXED_SUM_LIMBS - 1; i++)
        digits[i] = limbs[i];
    tr_limbs_normalise(digits, TR_FIXED_SUM_LIMBS - 1);
    bool negative = digits[TR_FIXED_SUM_LIMBS - 2] < 0;
    if (negative) {
        for (int i = 0; i < TR_FIXED_SUM_LIMBS - 1; i++)
            digits[i] = -digits[i];
        tr_limbs_normalise(digits, TR_FIXED_SUM_LIMBS - 1);
    }
    double value = tr_limbs_to_double(digits, TR_FIXED_SUM_LIMBS - 1, -64);
    return negative ? -value : value;
}

#endif
