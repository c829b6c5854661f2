/* Inside of `trine bench checkpoint`: the state that is measured, and the two things measured on it. */
#ifndef TR_ENGINE_CLI_BENCH_CHECKPOINT_H
#define TR_ENGINE_CLI_BENCH_CHECKPOINT_H

#include "io/shard_write.h"

/* Values of a real checkpoint in memory. */
typedef struct bench_state {
    float *values;
    int64_t num_values;
    tr_shard_part *parts; /* its boxes in the order of the files; `values` holds them in order */
    int num_parts;
    double
        plain_bytes; /* of the same state at 14 bytes a parameter with AdamW: bf16 weights beside fp32 */
} bench_state;

/* How often and on how many threads. */
typedef struct bench_setup {
    int num_threads, runs, level;
    const char *dir; /* where files are written */
} bench_setup;

/* Reads whole chunks of the checkpoint in folder `path` until most_bytes are there. */
tr_status bench_state_load(bench_state *state, const char *path, int64_t most_bytes);
void bench_state_clear(bench_state *state);

/* Trains the configuration of argv (CONFIG [key=value ...]) on this one process and saves the last
 * step under `dir`; *path: the checkpoint's folder (tr_free). */
tr_status bench_state_train(int argc, char **argv, const char *dir, char **path);

/* Encoding and decoding in memory, with the hashes, on one thread and on all: lines on stdout. */
tr_status bench_codec(const bench_state *state, const bench_setup *setup);
/* Files: a shard a thread, beside plain writes and reads of the same bytes: lines on stdout. */
tr_status bench_files(const bench_state *state, const bench_setup *setup);

#endif
