/* Dropout of rows of the residual stream by the counters of kernels/dropout.h, for embed_finish, residual_add and
 * dropout_backward, which must make the same mask. */
#ifndef TR_KERNELS_CUDA_DROPOUT_CUH
#define TR_KERNELS_CUDA_DROPOUT_CUH

#include "kernels/cuda/cuda_rows.cuh"
#include "kernels/dropout.h"

typedef struct tr_row_dropout {
    uint64_t key;
    const uint64_t *samples;
    uint32_t seq_len, row_begin;
    uint32_t threshold;
    float scale;
} tr_row_dropout;

/* Whether `dropout`, which may be NULL, drops anything. */
inline bool tr_dropout_is_on(const tr_dropout *dropout)
{
    return dropout != NULL && dropout->probability > 0.0f;
}

/* dropout: on. Row r of the operation is row row_begin + r of the microbatch. */
inline tr_row_dropout tr_row_dropout_of(const tr_dropout *dropout, int64_t row_begin)
{
    tr_row_dropout mask = {dropout->key,
                           dropout->samples,
                           (uint32_t)dropout->seq_len,
                           (uint32_t)row_begin,
                           tr_dropout_threshold(dropout->probability),
                           tr_dropout_scale(dropout->probability)};
    return mask;
}

/* Scales what is kept and sets to zero what is not of the group at `column` (a multiple of eight) of row `row`. */
__device__ inline void tr_row_dropout_apply(const tr_row_dropout &mask, int64_t row, int64_t column,
                                            float values[TR_GROUP])
{
    uint32_t position = mask.row_begin + (uint32_t)row;
    uint64_t sample = mask.samples[position / mask.seq_len];
    position %= mask.seq_len;
    uint64_t key = tr_dropout_key(mask.key, sample);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t words[4];
        tr_philox_block(key, (uint32_t)sample, 0, position, (uint32_t)(column / 4) + half, words);
#pragma unroll
        for (int lane = 0; lane < 4; lane++) {
            float *value = &values[4 * half + lane];
            *value = words[lane] >= mask.threshold ? *value * mask.scale : 0.0f;
        }
    }
}

#endif
