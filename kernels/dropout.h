/* Dropout masks by counter (DESIGN section 1, kernels/ops.h tr_dropout): whether a value is kept is a function of the run's
 * key, the global sample, head, position and feature, so that any layout, split or recomputation makes the same mask.
 * Valid C17, C++17 and CUDA; pure. */
#ifndef TR_KERNELS_DROPOUT_H
#define TR_KERNELS_DROPOUT_H

#include <stdint.h>

#include "base/host_device.h"
#include "base/philox.h"

/* The Philox key of a sample: `key` when the sample number fits 32 bits, else mixed with its upper half by the finaliser of
 * splitmix64 (Steele, Lea, Flood 2014). */
TR_HOST_DEVICE_INLINE uint64_t tr_dropout_key(uint64_t key, uint64_t sample)
{
    uint64_t high = sample >> 32;
    if (high == 0)
        return key;
    uint64_t z = key + high * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A value is kept when its 32 random bits are >= this: probability * 2^32, for 0 <= probability < 1. */
TR_HOST_DEVICE_INLINE uint32_t tr_dropout_threshold(float probability)
{
    return (uint32_t)((double)probability * 4294967296.0);
}

/* What kept values are multiplied by: 1 / (1 - probability). */
TR_HOST_DEVICE_INLINE float tr_dropout_scale(float probability)
{
    return (float)(1.0 / (1.0 - (double)probability));
}

/* The 32 random bits of one value. head is 0 where there are no heads. */
TR_HOST_DEVICE_INLINE uint32_t tr_dropout_word(uint64_t key, uint64_t sample, uint32_t head,
                                               uint32_t position, uint32_t feature)
{
    uint32_t words[4];
    tr_philox_block(tr_dropout_key(key, sample), (uint32_t)sample, head, position, feature / 4,
                    words);
    return words[feature % 4];
}

#endif
