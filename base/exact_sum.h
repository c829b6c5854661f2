/* Sums whose result does not depend on the order of the terms (DESIGN section 1): the gradient norm and the loss.
 *
 * Both are integers inside. Threads and ranks each sum their part, hand out limbs (int64 numbers that are added element by
 * element: an integer all-reduce with "sum" is the merge), and the total is rounded once. One object belongs to one thread at a
 * time; nothing allocates. */
#ifndef TR_BASE_EXACT_SUM_H
#define TR_BASE_EXACT_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limbs can be added up over at most this many ranks. */
#define TR_EXACT_SUM_MAX_RANKS (1 << 20)

/* Sum of squares of fp32 values, exact.
 *
 * A float is m 2^(max(e, 1) - 150) with exponent field e and a 24-bit integer m; its square m^2 < 2^48 is added to bin e. 2^16
 * squares fit a bin before it is emptied into `limbs`, an integer of 32-bit digits, least significant first, in units of 2^-298
 * (the square of the smallest denormal). Bin 255 is infinities and NaNs. Exact for any 2^64 values. */
enum {
    TR_SQUARE_SUM_DIGITS = 20, /* 640 bits; 2^64 squares of the largest float need 618 */
    TR_SQUARE_SUM_LIMBS =
        TR_SQUARE_SUM_DIGITS + 1, /* the last limb is not 0 when a value was not finite */
    TR_SQUARE_SUM_TABLES = 4 /* neighbours go to different tables: no wait for the last addition */
};

typedef struct tr_square_sum {
    uint64_t bins[TR_SQUARE_SUM_TABLES][256];
    uint32_t
        pending; /* additions into the fullest table since the bins were emptied, at most 2^16 */
    int64_t limbs[TR_SQUARE_SUM_LIMBS];
} tr_square_sum;

void tr_square_sum_init(tr_square_sum *sum);
/* About 1 ns per value. */
void tr_square_sum_add(tr_square_sum *sum, const float *values, size_t count);
/* dst += src; src's bins are emptied, its value stays. */
void tr_square_sum_merge(tr_square_sum *dst, tr_square_sum *src);
/* The sum as limbs: digits in [0, 2^32), then 0 or 1. */
void tr_square_sum_to_limbs(tr_square_sum *sum, int64_t limbs[TR_SQUARE_SUM_LIMBS]);
/* The value of added-up limbs, rounded to nearest even once. *finite is whether every value was; if not the result is NaN. */
double tr_square_sum_from_limbs(const int64_t limbs[TR_SQUARE_SUM_LIMBS], bool *finite);

/* Sum of doubles as 128-bit fixed point in units of 2^-64, for loss terms and their like.
 *
 * A term is rounded to nearest even to a multiple of 2^-64 (floats of at least 2^-40 are exact). Terms must be below 2^32 in
 * size: others count as not finite, so that 2^30 terms can never overflow; when more terms do, the sum counts as not finite. */
enum {
    TR_FIXED_SUM_LIMBS = 5
}; /* four digits of 32 bits, the last one signed; then not 0 when not finite */

typedef struct tr_fixed_sum {
    __extension__ __int128 units;
    bool not_finite;
} tr_fixed_sum;

void tr_fixed_sum_init(tr_fixed_sum *sum);
void tr_fixed_sum_add(tr_fixed_sum *sum, double value);
void tr_fixed_sum_merge(tr_fixed_sum *dst, const tr_fixed_sum *src);
void tr_fixed_sum_to_limbs(const tr_fixed_sum *sum, int64_t limbs[TR_FIXED_SUM_LIMBS]);
/* Makes limbs that were added up those of one sum again: digits, and 0 or 1. A sum that has overflown counts as not finite. */
void tr_fixed_sum_limbs_carry(int64_t limbs[TR_FIXED_SUM_LIMBS]);
/* As tr_square_sum_from_limbs. */
double tr_fixed_sum_from_limbs(const int64_t limbs[TR_FIXED_SUM_LIMBS], bool *finite);

#ifdef __cplusplus
}
#endif

#endif
