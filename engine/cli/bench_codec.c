/* The codec's part of `trine bench checkpoint`: the chunks of a state encoded and decoded in memory,
 * with the hashes that a checkpoint needs (of each chunk, and when writing of the whole file). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "engine/cli/bench_checkpoint.h"
#include "engine/cli/cmd_bench_int.h"
#include "engine/cli/cmd_ckpt_int.h"
#include "io/plane_codec.h"

typedef struct chunk {
    const float *values;
    size_t num_values;
    size_t stored_bytes; /* equal to the raw bytes: not encoded */
} chunk;

enum { ENCODE, DECODE, NUM_DIRECTIONS };
enum { CHUNK_VALUES = TR_SHARD_CHUNK_DEFAULT / 4 };

/* Seconds of one thread by the clock, and those in which it had a core. */
typedef struct spent {
    double clock, core;
} spent;

/* As a shard's writer or reader, a thread has room for one chunk. */
typedef struct worker {
    tr_plane_codec *codec;
    tr_hash_stream *file_hash;
    unsigned char *stored; /* [CHUNK_VALUES * 4] */
    float *decoded;        /* [CHUNK_VALUES] */
    spent spent[NUM_DIRECTIONS];
    bool wrong; /* what came back is not what went in */
} worker;

typedef struct codec_bench {
    const bench_setup *setup;
    chunk *chunks;
    int num_chunks;
    worker *workers; /* [threads] */
    bool compare;    /* decoded values with the state's */
} codec_bench;

static spent time_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (spent){tr_clock_seconds(), (double)time.tv_sec + 1e-9 * (double)time.tv_nsec};
}

static void time_add(spent *sum, spent begin)
{
    spent end = time_now();
    sum->clock += end.clock - begin.clock;
    sum->core += end.core - begin.core;
}

/* Returns the stored bytes, which lie in w->stored, or are the values themselves. */
static const void *chunk_encode(const codec_bench *b, worker *w, chunk *c, tr_hash128 *hash)
{
    size_t raw = c->num_values * sizeof(float);
    const void *bytes = w->stored;
    c->stored_bytes =
        tr_plane_encode(w->codec, b->setup->level, c->values, c->num_values, w->stored, raw - 1);
    if (c->stored_bytes == 0) {
        bytes = c->values;
        c->stored_bytes = raw;
    }
    *hash = tr_hash128_compute(bytes, c->stored_bytes);
    tr_hash_stream_add(w->file_hash, bytes, c->stored_bytes);
    return bytes;
}

static bool chunk_decode(worker *w, const chunk *c, const void *bytes, tr_hash128 hash)
{
    bool good = tr_hash128_equal(hash, tr_hash128_compute(bytes, c->stored_bytes));
    if (c->stored_bytes < c->num_values * sizeof(float))
        return tr_plane_decode(w->codec, bytes, c->stored_bytes, w->decoded, c->num_values) && good;
    memcpy(w->decoded, bytes, c->stored_bytes);
    return good;
}

static void piece_run(void *context, int piece, int thread)
{
    codec_bench *b = context;
    worker *w = &b->workers[thread];
    chunk *c = &b->chunks[piece];
    tr_hash128 hash;
    spent begin = time_now();
    const void *bytes = chunk_encode(b, w, c, &hash);
    time_add(&w->spent[ENCODE], begin);
    begin = time_now();
    bool good = chunk_decode(w, c, bytes, hash);
    time_add(&w->spent[DECODE], begin);
    if (b->compare)
        good = good && memcmp(w->decoded, c->values, c->num_values * sizeof(float)) == 0;
    w->wrong = w->wrong || !good;
}

/* Of all threads: the clock of the slowest, the sum of their cores'. The next run begins at 0. */
static spent spent_take(codec_bench *b, int direction)
{
    spent all = {0};
    for (int i = 0; i < b->setup->num_threads; i++) {
        spent *one = &b->workers[i].spent[direction];
        all.clock = one->clock > all.clock ? one->clock : all.clock;
        all.core += one->core;
        *one = (spent){0};
    }
    return all;
}

/* Rates in GB/s of values: of all threads by the clock, the median run; of one core by processor
 * time, the fastest run, since other work on the machine slows this by the caches it takes. */
typedef struct rates {
    double all, core;
} rates;

static tr_status rates_measure(codec_bench *b, int num_threads, double bytes,
                               rates result[NUM_DIRECTIONS])
{
    double clock[NUM_DIRECTIONS][BENCH_RUNS_MAX], core[NUM_DIRECTIONS][BENCH_RUNS_MAX];
    int runs = b->setup->runs;
    tr_thread_pool *pool;
    TR_TRY(tr_thread_pool_create(num_threads, &pool));
    for (int run = -1; run < runs; run++) { /* run -1 warms up, and compares */
        b->compare = run < 0;
        tr_thread_pool_run(pool, b->num_chunks, piece_run, b);
        for (int i = 0; i < NUM_DIRECTIONS; i++) {
            spent all = spent_take(b, i);
            if (run >= 0) {
                clock[i][run] = all.clock;
                core[i][run] = all.core;
            }
        }
    }
    tr_thread_pool_destroy(pool);
    for (int i = 0; i < NUM_DIRECTIONS; i++) {
        result[i].all = bytes * 1e-9 / bench_median(clock[i], runs);
        bench_median(core[i], runs); /* sorts: the fastest comes first */
        result[i].core = bytes * 1e-9 / core[i][0];
    }
    for (int i = 0; i < b->setup->num_threads; i++)
        if (b->workers[i].wrong)
            return tr_fail(TR_ERR_INTERNAL, "a chunk did not come back as it was");
    return TR_OK;
}

static void chunks_cut(codec_bench *b, const bench_state *state)
{
    int64_t count = 0;
    for (int i = 0; i < state->num_parts; i++)
        count += (tr_box_volume(&state->parts[i].box) + CHUNK_VALUES - 1) / CHUNK_VALUES;
    b->chunks = TR_NEW_ARRAY(chunk, (size_t)count);
    for (int i = 0; i < state->num_parts; i++) {
        int64_t volume = tr_box_volume(&state->parts[i].box);
        for (int64_t at = 0; at < volume; at += CHUNK_VALUES) {
            chunk *c = &b->chunks[b->num_chunks++];
            c->values = state->parts[i].values + at;
            c->num_values = (size_t)(volume - at < CHUNK_VALUES ? volume - at : CHUNK_VALUES);
        }
    }
}

static void bench_free(codec_bench *b)
{
    for (int i = 0; i < b->setup->num_threads; i++) {
        tr_plane_codec_destroy(b->workers[i].codec);
        tr_hash_stream_destroy(b->workers[i].file_hash);
        tr_free(b->workers[i].stored);
        tr_free(b->workers[i].decoded);
    }
    tr_free(b->workers);
    tr_free(b->chunks);
}

static tr_status threads_print(codec_bench *b, int num_threads, double bytes)
{
    rates r[NUM_DIRECTIONS];
    TR_TRY(rates_measure(b, num_threads, bytes, r));
    printf("%2d thread%s  %8.2f %8.2f   a core's second, fastest run %8.2f %8.2f\n", num_threads,
           num_threads == 1 ? " " : "s", r[ENCODE].all, r[DECODE].all, r[ENCODE].core,
           r[DECODE].core);
    fflush(stdout);
    return TR_OK;
}

tr_status bench_codec(const bench_state *state, const bench_setup *setup)
{
    codec_bench b = {.setup = setup};
    double raw = (double)state->num_values * sizeof(float), stored = 0;
    char size[24];
    chunks_cut(&b, state);
    b.workers = TR_NEW_ARRAY(worker, (size_t)setup->num_threads);
    for (int i = 0; i < setup->num_threads; i++)
        b.workers[i] = (worker){.codec = tr_plane_codec_create(CHUNK_VALUES),
                                .file_hash = tr_hash_stream_create(),
                                .stored = TR_NEW_ARRAY(unsigned char, 4 * CHUNK_VALUES),
                                .decoded = TR_NEW_ARRAY(float, CHUNK_VALUES)};
    printf("\nin memory, with hashes, GB/s of values (medians of %d)\n            %8s %8s   %28s "
           "%8s %8s\n",
           setup->runs, "encode", "decode", "", "encode", "decode");
    tr_status status = threads_print(&b, 1, raw);
    if (status == TR_OK && setup->num_threads > 1)
        status = threads_print(&b, setup->num_threads, raw);
    for (int i = 0; i < b.num_chunks; i++)
        stored += (double)b.chunks[i].stored_bytes;
    tr_ckpt_size_format(size, stored);
    if (status == TR_OK)
        printf(
            "size        %s at level %d: %.3f times smaller than bf16 weights beside fp32 state, "
            "%.3f than the values\n",
            size, setup->level, state->plain_bytes / stored, raw / stored);
    bench_free(&b);
    return status;
}
