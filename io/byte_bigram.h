/* A byte bigram model: the plainest predictor of text, as the yardstick for a byte model's loss.
 *
 * Over the V = 257 ids of the tokenizer `bytes`, with c(a, b) the number of times b follows a in
 * the training stream:
 *     p(b | a) = (c(a, b) + 0.01) / (sum over b' of c(a, b') + 0.01 V)
 * Scored in nats per predicted token, -log p averaged over all tokens of the other stream but
 * its first. Documents are not told apart: the end-of-document id is a token like the others, or
 * is left out of both streams (V = 256). */
#ifndef TR_IO_BYTE_BIGRAM_H
#define TR_IO_BYTE_BIGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "io/token_file.h"

typedef struct tr_byte_bigram_score {
    double nats;        /* per predicted token */
    uint64_t num_train; /* pairs counted */
    uint64_t num_valid; /* pairs scored */
} tr_byte_bigram_score;

/* Trains on `train`, scores on `valid`. TR_ERR_DATA when an id is above 256 (no byte tokens), or
 * a stream has fewer than two tokens. Reads both files once. */
tr_status tr_byte_bigram_compute(const tr_token_file *train, const tr_token_file *valid,
                                 bool with_ends, tr_byte_bigram_score *score);

#endif
