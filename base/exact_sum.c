#include "base/exact_sum.h"

#include <math.h>
#include <string.h>

#include "base/exact_sum_value.h"
#include "base/status.h"

enum { BIN_CAPACITY = 1 << 16, NOT_FINITE_BIN = 255 };

static const double fixed_limit = 0x1p32;

void tr_square_sum_init(tr_square_sum *sum)
{
    memset(sum, 0, sizeof *sum);
}

/* limbs += value 2^bit, digit by digit, without carries: each limb grows by less than 2^32. */
static void limbs_add_shifted(int64_t *limbs, uint64_t value, int bit)
{
    int digit = bit / 32, shift = bit % 32;
    __extension__ unsigned __int128 shifted = (unsigned __int128)value << shift;
    for (int i = 0; i < 3; i++)
        limbs[digit + i] += (int64_t)(uint32_t)(shifted >> 32 * i);
}

static void bins_empty(tr_square_sum *sum)
{
    if (sum->pending == 0)
        return;
    for (int table = 0; table < TR_SQUARE_SUM_TABLES; table++) {
        uint64_t *bins = sum->bins[table];
        for (int exponent = 0; exponent < NOT_FINITE_BIN; exponent++)
            if (bins[exponent] != 0)
                limbs_add_shifted(sum->limbs, bins[exponent],
                                  exponent > 1 ? 2 * (exponent - 1) : 0);
        if (bins[NOT_FINITE_BIN] != 0)
            sum->limbs[TR_SQUARE_SUM_DIGITS] = 1;
    }
    tr_limbs_normalise(sum->limbs, TR_SQUARE_SUM_DIGITS);
    memset(sum->bins, 0, sizeof sum->bins);
    sum->pending = 0;
}

static inline void bin_add(uint64_t bins[256], float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t exponent = bits >> 23 & 0xffu;
    uint64_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
    bins[exponent] += mantissa * mantissa;
}

void tr_square_sum_add(tr_square_sum *sum, const float *values, size_t count)
{
    while (count > 0) {
        size_t room = (size_t)(BIN_CAPACITY - sum->pending) * TR_SQUARE_SUM_TABLES;
        size_t now = count < room ? count : room;
        size_t i = 0;
        for (; i + TR_SQUARE_SUM_TABLES <= now; i += TR_SQUARE_SUM_TABLES)
            for (int table = 0; table < TR_SQUARE_SUM_TABLES; table++)
                bin_add(sum->bins[table], values[i + (size_t)table]);
        for (int table = 0; i < now; i++, table++)
            bin_add(sum->bins[table], values[i]);
        sum->pending += (uint32_t)((now + TR_SQUARE_SUM_TABLES - 1) / TR_SQUARE_SUM_TABLES);
        if (sum->pending == BIN_CAPACITY)
            bins_empty(sum);
        values += now;
        count -= now;
    }
}

void tr_square_sum_merge(tr_square_sum *dst, tr_square_sum *src)
{
    bins_empty(src);
    bins_empty(dst);
    for (int i = 0; i < TR_SQUARE_SUM_DIGITS; i++)
        dst->limbs[i] += src->limbs[i];
    dst->limbs[TR_SQUARE_SUM_DIGITS] |= src->limbs[TR_SQUARE_SUM_DIGITS];
    tr_limbs_normalise(dst->limbs, TR_SQUARE_SUM_DIGITS);
}

void tr_square_sum_to_limbs(tr_square_sum *sum, int64_t limbs[TR_SQUARE_SUM_LIMBS])
{
    bins_empty(sum);
    memcpy(limbs, sum->limbs, sizeof sum->limbs);
}

double tr_square_sum_from_limbs(const int64_t limbs[TR_SQUARE_SUM_LIMBS], bool *finite)
{
    return tr_square_sum_value(limbs, finite);
}

void tr_fixed_sum_init(tr_fixed_sum *sum)
{
    memset(sum, 0, sizeof *sum);
}

void tr_fixed_sum_add(tr_fixed_sum *sum, double value)
{
    if (!(fabs(value) < fixed_limit)) {
        sum->not_finite = true;
        return;
    }
    /* The upper part is a whole number of 2^-20 below 2^52 of them, so that both parts convert exactly but for the one rounding
     * of the rest (rint: to nearest even). */
    double upper = trunc(value * 0x1p20);
    double rest = rint((value - upper * 0x1p-20) * 0x1p64);
    __extension__ __int128 units = (__int128)(int64_t)upper * ((__int128)1 << 44) + (int64_t)rest;
    if (__builtin_add_overflow(sum->units, units, &sum->units))
        sum->not_finite = true;
}

void tr_fixed_sum_merge(tr_fixed_sum *dst, const tr_fixed_sum *src)
{
    if (__builtin_add_overflow(dst->units, src->units, &dst->units))
        dst->not_finite = true;
    dst->not_finite |= src->not_finite;
}

void tr_fixed_sum_to_limbs(const tr_fixed_sum *sum, int64_t limbs[TR_FIXED_SUM_LIMBS])
{
    __extension__ unsigned __int128 bits = (unsigned __int128)sum->units;
    for (int i = 0; i < 3; i++)
        limbs[i] = (int64_t)(uint32_t)(bits >> 32 * i);
    limbs[3] = (int32_t)(uint32_t)(bits >> 96);
    limbs[4] = sum->not_finite;
}

void tr_fixed_sum_limbs_carry(int64_t limbs[TR_FIXED_SUM_LIMBS])
{
    tr_limbs_normalise(limbs, TR_FIXED_SUM_LIMBS - 1);
    int64_t top = limbs[TR_FIXED_SUM_LIMBS - 2];
    limbs[TR_FIXED_SUM_LIMBS - 1] =
        limbs[TR_FIXED_SUM_LIMBS - 1] != 0 || top < INT32_MIN || top > INT32_MAX;
}

double tr_fixed_sum_from_limbs(const int64_t limbs[TR_FIXED_SUM_LIMBS], bool *finite)
{
    return tr_fixed_sum_value(limbs, finite);
}
