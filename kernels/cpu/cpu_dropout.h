/* Dropout masks for the vector sources: the words of kernels/dropout.h, a vector of Philox counters at a time. */
#ifndef TR_KERNELS_CPU_DROPOUT_H
#define TR_KERNELS_CPU_DROPOUT_H

#include "kernels/cpu/cpu_vec.h"
#include "kernels/dropout.h"

enum { TR_DROPOUT_BLOCK = 4 * TR_VEC_LANES }; /* words that one call of the generator makes */

/* Philox4x32-10 (base/philox.h) of a vector of counters, words[0..3], in place. */
TR_VEC_INLINE void tr_cpu_philox(uint64_t key, tr_vec_uint words[4])
{
    tr_vec_uint c0 = words[0], c1 = words[1], c2 = words[2], c3 = words[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        tr_vec_uint high0, low0, high1, low1;
        tr_vec_mul_wide(c0, 0xD2511F53u, &high0, &low0);
        tr_vec_mul_wide(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* words[i] = tr_dropout_word of feature_begin + i, for count features rounded up to TR_DROPOUT_BLOCK: `words` has room
 * for that many. feature_begin is a multiple of 4. `sample_key` is tr_dropout_key of the sample, `sample` its low word. */
TR_VEC_INLINE void tr_cpu_dropout_words(uint64_t sample_key, uint32_t sample, uint32_t head,
                                        uint32_t position, int64_t feature_begin, int64_t count,
                                        uint32_t *words)
{
    const tr_vec_uint zero = {0};
    for (int64_t i = 0; i < count; i += TR_DROPOUT_BLOCK) {
        tr_vec_uint block[4] = {zero + sample, zero + head, zero + position,
                                (tr_vec_uint)tr_vec_index() + (uint32_t)((feature_begin + i) / 4)};
        tr_cpu_philox(sample_key, block);
        tr_vec_store_quads(words + i, block[0], block[1], block[2], block[3]);
    }
}

/* v * scale where the word is >= threshold, else 0. */
TR_VEC_INLINE tr_vec tr_cpu_dropout_apply(tr_vec v, const uint32_t *words, uint32_t threshold,
                                          float scale)
{
    tr_vec_uint bits;
    memcpy(&bits, words, sizeof bits);
    return (tr_vec)((tr_vec_int)(v * scale) & (tr_vec_int)(bits >= threshold));
}

#endif
