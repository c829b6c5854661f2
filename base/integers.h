/* Integer arithmetic that sizes and counts need in many places. Pure. */
#ifndef TR_BASE_INTEGERS_H
#define TR_BASE_INTEGERS_H

#include <stdbool.h>
#include <stdint.h>

/* The smallest multiple of `multiple` (> 0) that is not below n (>= 0). The sum must fit: n + multiple - 1 <= INT64_MAX. */
static inline int64_t tr_round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* n >= 1. */
static inline bool tr_is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

#endif
