#include "base/permute.h"

#include "base/philox.h"
#include "base/status.h"

enum { NUM_ROUNDS = 8 };

/* Round key i: lanes 2 (i mod 2) (low word) and the one after it of the Philox block with counter (i / 2, 0, 0, 0). */
static void round_keys_make(uint64_t key, uint64_t round_keys[NUM_ROUNDS])
{
    for (uint32_t block = 0; block < NUM_ROUNDS / 2; block++) {
        uint32_t lanes[4];
        tr_philox_block(key, block, 0, 0, 0, lanes);
        round_keys[2 * block] = (uint64_t)lanes[1] << 32 | lanes[0];
        round_keys[2 * block + 1] = (uint64_t)lanes[3] << 32 | lanes[2];
    }
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014), after adding the round key. The upper half is used: its bits depend on
 * all bits below. */
static uint32_t round_function(uint64_t value, uint64_t round_key)
{
    value += round_key;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(value >> 32);
}

uint64_t tr_permute(uint64_t key, uint64_t n, uint64_t index)
{
    TR_ASSERT(n >= 1 && n <= (uint64_t)1 << 63 && index < n);
    int half_bits = 1;
    while (half_bits < 32 && (n - 1) >> 2 * half_bits != 0)
        half_bits++;
    uint32_t mask = (uint32_t)(((uint64_t)1 << half_bits) - 1);
    uint64_t round_keys[NUM_ROUNDS];
    round_keys_make(key, round_keys);
    do {
        uint32_t left = (uint32_t)(index >> half_bits), right = (uint32_t)index & mask;
        for (int round = 0; round < NUM_ROUNDS; round++) {
            uint32_t mixed = left ^ (round_function(right, round_keys[round]) & mask);
            left = right;
            right = mixed;
        }
        index = (uint64_t)left << half_bits | right;
    } while (index >= n);
    return index;
}
