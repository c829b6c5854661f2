/* The table of rotary positions (Su et al. 2021) that the rope operation reads. Host memory; pure. */
#ifndef TR_KERNELS_ROPE_TABLE_H
#define TR_KERNELS_ROPE_TABLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cos_sin[t, j, 0] and [t, j, 1], fp32 [T, D/2, 2]: cosine and sine of positions[t] theta^(-2j/D), in double, rounded once.
 * positions NULL: 0 ... T-1. D is even. */
void tr_rope_table_fill(double theta, int64_t D, int64_t T, const int64_t *positions,
                        float *cos_sin);

#ifdef __cplusplus
}
#endif

#endif
