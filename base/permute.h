/* A keyed permutation of [0, n), computed for one index at a time: sample order without a table (DESIGN section 1).
 *
 * A balanced Feistel network over the smallest even number of bits that holds n - 1 (at least 2), eight rounds, walked until the
 * result is below n again (Black and Rogaway: Ciphers with arbitrary finite domains, 2002): 4 walks at most on average. Round
 * keys are Philox of (key, round); the round function is a 64-bit integer mix. Recorded mathematics: never change. Not
 * cryptographic. Thread-safe, no memory. */
#ifndef TR_BASE_PERMUTE_H
#define TR_BASE_PERMUTE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where `index` goes; 1 <= n <= 2^63, index < n. For a fixed (key, n) distinct indices go to distinct places. */
uint64_t tr_permute(uint64_t key, uint64_t n, uint64_t index);

#ifdef __cplusplus
}
#endif

#endif
