/* Dropout of rows of the residual stream: where a row of a microbatch stands in the run, and its mask, for embed_finish,
 * residual_add and dropout_backward, which must make the same one. */
#ifndef TR_KERNELS_CPU_DROPOUT_ROW_H
#define TR_KERNELS_CPU_DROPOUT_ROW_H

#include "kernels/cpu/cpu_dropout.h"
#include "kernels/ops.h"

/* Features whose words are made at a time; a multiple of TR_DROPOUT_BLOCK on every instruction set. */
enum { TR_DROPOUT_FEATURES = 512 };

/* The mask of an operation's rows. */
typedef struct tr_dropout_rows {
    bool on;
    const tr_dropout *dropout;
    uint32_t threshold;
    float scale;
} tr_dropout_rows;

/* dropout may be NULL (off). */
TR_VEC_INLINE tr_dropout_rows tr_dropout_rows_init(const tr_dropout *dropout)
{
    tr_dropout_rows rows = {.on = dropout != NULL && dropout->probability > 0.0f,
                            .dropout = dropout};
    if (rows.on) {
        rows.threshold = tr_dropout_threshold(dropout->probability);
        rows.scale = tr_dropout_scale(dropout->probability);
    }
    return rows;
}

/* Words of `count` features from feature_begin of microbatch row `row`; words has room for TR_DROPOUT_FEATURES. */
TR_VEC_INLINE void tr_dropout_rows_words(const tr_dropout_rows *rows, int64_t row,
                                         int64_t feature_begin, int64_t count, uint32_t *words)
{
    const tr_dropout *d = rows->dropout;
    uint64_t sample = d->samples[row / d->seq_len];
    tr_cpu_dropout_words(tr_dropout_key(d->key, sample), (uint32_t)sample, 0,
                         (uint32_t)(row % d->seq_len), feature_begin, count, words);
}

#endif
