/* The feed: which tokens each step trains on, read ahead of it by a loader thread.
 *
 * Samples. A token file of N tokens is cut in num_samples = (N - 1) / T sequences: sample k is
 * the T + 1 tokens k*T ... k*T + T of the stream, inputs being the first T and labels the last
 * T, so that neighbours overlap in one token and no token is lost in between; the (N - 1) mod T
 * tokens at the very end are not used. Document borders do not matter.
 *
 * Order (recorded mathematics). A run numbers its samples n = 0, 1, 2, ... without end; its data
 * position is the next n. Shuffled: epoch e = n / num_samples, and sample
 * tr_permute(tr_hash_key(seed, "data order", decimal e), num_samples, n mod num_samples). Every
 * sample stands once in an epoch, whatever the step, the batch or the number of ranks. Epochs
 * follow each other without a gap; a set smaller than a batch repeats within it. In order
 * (evaluation): pass after pass over samples 0, 1, 2, ...; see pass_steps. What is missing in
 * the last batch of a pass is padded with sequences of token 0 whose labels are all -1, "not
 * counted".
 *
 * A step consumes global_batch consecutive numbers. Microbatch m of the global batch holds
 * numbers base + m * micro_batch ..., so the set of samples of a step depends on neither the
 * data-parallel size nor micro_batch. A rank reads only its microbatches.
 *
 * Threads: open, next and close are called by one thread; the loader is the feed's own, blocks
 * all signals and sleeps while the queue is full. After open nothing is allocated. */
#ifndef TR_ENGINE_FEED_H
#define TR_ENGINE_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tr_feed tr_feed;

typedef struct tr_feed_options {
    const char *path;        /* token file; any form that tr_token_file_open takes */
    int seq_len;             /* T */
    int micro_batch;         /* B, sequences per microbatch */
    int global_batch;        /* sequences per step of the whole job, a multiple of micro_batch */
    const int *microbatches; /* [M] numbers in the global batch of this rank's; copied */
    int num_microbatches;    /* of this rank, M */
    int32_t vocab;           /* every id must be below it */
    int prefetch;            /* steps read ahead, >= 2; bounds the memory */
    bool shuffle;            /* training; false: in order, for evaluation */
    uint64_t seed;           /* shuffled only */
    uint64_t first_sample;   /* the data position to start at; shuffled only, 0 otherwise */
    /* In order only: steps after which it starts again at sample 0. 0, or more than the data has:
     * after all samples, each counted once. */
    uint64_t pass_steps;
} tr_feed_options;

typedef struct tr_feed_info {
    const char *path; /* of the file that holds the tokens */
    uint64_t num_tokens;
    uint64_t num_samples; /* per epoch or pass */
    uint64_t pass_steps;  /* in order: steps of a pass; 0 when shuffled */
} tr_feed_info;

/* One step's part of this rank. The arrays belong to the feed and hold until the next call on
 * it. */
typedef struct tr_batch {
    const int32_t *tokens;   /* [M][B][T] */
    const int32_t *labels;   /* [M][B][T], the next token; -1: not counted */
    const uint64_t *samples; /* [M][B], global sample numbers n (they feed dropout) */
    uint64_t first_sample;   /* of the step, over all ranks: the data position in front of it */
    uint64_t num_counted;    /* sequences of the step, over all ranks, that are not padding */
    uint64_t first_epoch; /* epoch (or pass) of the step's first and last sample, over all ranks: */
    uint64_t last_epoch;  /* they differ in the step in which an epoch begins inside the batch */
    double wait_s;        /* seconds this call waited for the loader */
} tr_batch;

/* Opens the file and starts the loader. TR_ERR_DATA for a damaged file, or fewer tokens than one
 * sequence (what it has and what it needs are in the message). */
tr_status tr_feed_open(tr_feed **out, const tr_feed_options *options);
void tr_feed_close(tr_feed *feed);

/* The next step's batch; waits for the loader. A token id outside the vocabulary is TR_ERR_DATA
 * here, before the step that would use it, with file, document, position, id and vocabulary; the
 * feed stays at that step, and each further call fails alike. Only the ranks that read the token
 * see it. */
tr_status tr_feed_next(tr_feed *feed, tr_batch *batch);

const tr_feed_info *tr_feed_get_info(const tr_feed *feed);

/* Copies of the same token file have the same one. */
uint64_t tr_feed_fingerprint(const tr_feed *feed);

/* Bytes of heap memory that a feed with these options holds for its queue. */
size_t tr_feed_bytes(const tr_feed_options *options);

#endif
