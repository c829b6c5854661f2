/* Philox4x32-10: counter-based random numbers (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3,
 * SC 2011). A number is a function of (key, counter), so that any rank, thread or device makes its own part and all agree.
 *
 * Keys come from tr_hash_key and tr_hash_mix (base/hash.h): 64 bits, low word first. What each function makes of the lanes of a
 * block is recorded mathematics and never changes. Inline functions are valid C17, C++17 and CUDA; everything is thread-safe. */
#ifndef TR_BASE_PHILOX_H
#define TR_BASE_PHILOX_H

#include <stdint.h>

#include "base/host_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `out` may be `counter`. */
TR_HOST_DEVICE_INLINE void tr_philox4x32(const uint32_t counter[4], const uint32_t key[2],
                                         uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The same with the key as one number, and the counter's words in order. */
TR_HOST_DEVICE_INLINE void tr_philox_block(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                           uint32_t c3, uint32_t out[4])
{
    const uint32_t counter[4] = {c0, c1, c2, c3};
    const uint32_t key_words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    tr_philox4x32(counter, key_words, out);
}

/* Uniform in [0, 1), a multiple of 2^-24: the upper 24 of 32 random bits. An element is dropped with probability p when this
 * is < p. */
TR_HOST_DEVICE_INLINE float tr_philox_uniform(uint32_t bits)
{
    return (float)(bits >> 8) * (1.0f / 16777216.0f);
}

/* Element `index` of the endless sequence of standard normals of `key`, by Box-Muller:
 *     block = index / 4, counter = (low 32 bits of block, high 32 bits of block, 0, 0), x = the block's four lanes
 *     elements 4 block + 0, 1: r cos t, r sin t with r = sqrt(-2 ln((x0 + 1/2) / 2^32)), t = 2 pi (x1 + 1/2) / 2^32
 *     elements 4 block + 2, 3: the same of x2, x3
 * `index` is the element's row-major index in the *global* tensor. The logarithm, sine and cosine are our own, made of correctly
 * rounded operations only, so that the bits do not depend on the C library or the processor; within 4e-15 of the exact value. */
double tr_philox_normal(uint64_t key, uint64_t index);

/* dst[i - begin] = (float)(std * tr_philox_normal(key, i)) for i in [begin, end): the bits do not depend on how a tensor is cut
 * into ranges. */
void tr_philox_normal_fill(uint64_t key, uint64_t begin, uint64_t end, double std, float *dst);

#ifdef __cplusplus
}
#endif

#endif
