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
    unsigned char *stored; /* [raw bytes] */
    size_t stored_bytes;   /* equal to the raw bytes: not encoded */
    tr_hash128 hash;       /* of what is stored */
} chunk;

typedef struct worker {
    tr_plane_codec *codec;
    tr_hash_stream *file_hash;
    float *decoded; /* [most values of a chunk] */
    double seconds; /* of processor time */
    bool wrong;     /* what came back is not what went in */
} worker;

typedef struct codec_bench {
    const bench_setup *setup;
    chunk *chunks;
    int num_chunks;
    worker *workers; /* [threads] */
    bool compare;    /* decoded values with the state's */
} codec_bench;

enum { CHUNK_VALUES = TR_SHARD_CHUNK_DEFAULT / 4 };

static double thread_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void piece_encode(void *context, int piece, int thread)
{
    codec_bench *b = context;
    worker *w = &b->workers[thread];
    chunk *c = &b->chunks[piece];
    double begin = thread_seconds();
    size_t raw = c->num_values * sizeof(float);
    const void *bytes = c->stored;
    c->stored_bytes =
        tr_plane_encode(w->codec, b->setup->level, c->values, c->num_values, c->stored, raw - 1);
    if (c->stored_bytes == 0) {
        bytes = c->values;
        c->stored_bytes = raw;
    }
    c->hash = tr_hash128_compute(bytes, c->stored_bytes);
    tr_hash_stream_add(w->file_hash, bytes, c->stored_bytes);
    w->seconds += thread_seconds() - begin;
}

static void piece_decode(void *context, int piece, int thread)
{
    codec_bench *b = context;
    worker *w = &b->workers[thread];
    const chunk *c = &b->chunks[piece];
    double begin = thread_seconds();
    bool raw = c->stored_bytes == c->num_values * sizeof(float), good = true;
    const void *bytes = raw ? (const void *)c->values : c->stored;
    good = tr_hash128_equal(c->hash, tr_hash128_compute(bytes, c->stored_bytes));
    if (raw)
        memcpy(w->decoded, bytes, c->stored_bytes);
    else
        good = tr_plane_decode(w->codec, bytes, c->stored_bytes, w->decoded, c->num_values) && good;
    w->seconds += thread_seconds() - begin;
    if (b->compare)
        good = good && memcmp(w->decoded, c->values, c->num_values * sizeof(float)) == 0;
    w->wrong = w->wrong || !good;
}

/* Rates in GB/s of values: of all threads by the clock, and of one core by processor time. */
typedef struct rates {
    double all, core;
} rates;

static double workers_seconds(codec_bench *b)
{
    double seconds = 0;
    for (int i = 0; i < b->setup->num_threads; i++) {
        seconds += b->workers[i].seconds;
        b->workers[i].seconds = 0;
    }
    return seconds;
}

static tr_status rates_measure(codec_bench *b, int num_threads, double bytes, rates result[2])
{
    static void (*const pieces[2])(void *, int, int) = {piece_encode, piece_decode};
    double clock[2][BENCH_RUNS_MAX], core[2][BENCH_RUNS_MAX];
    tr_thread_pool *pool;
    TR_TRY(tr_thread_pool_create(num_threads, &pool));
    for (int run = -1; run < b->setup->runs; run++) /* run -1 warms up, and compares */
        for (int i = 0; i < 2; i++) {
            double begin = tr_clock_seconds();
            b->compare = run < 0;
            tr_thread_pool_run(pool, b->num_chunks, pieces[i], b);
            double seconds = tr_clock_seconds() - begin, used = workers_seconds(b);
            if (run >= 0) {
                clock[i][run] = seconds;
                core[i][run] = used;
            }
        }
    tr_thread_pool_destroy(pool);
    for (int i = 0; i < 2; i++)
        result[i] = (rates){bytes * 1e-9 / bench_median(clock[i], b->setup->runs),
                            bytes * 1e-9 / bench_median(core[i], b->setup->runs)};
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
            c->stored = TR_NEW_ARRAY(unsigned char, c->num_values * sizeof(float));
        }
    }
}

static void bench_free(codec_bench *b)
{
    for (int i = 0; i < b->num_chunks; i++)
        tr_free(b->chunks[i].stored);
    for (int i = 0; i < b->setup->num_threads; i++) {
        tr_plane_codec_destroy(b->workers[i].codec);
        tr_hash_stream_destroy(b->workers[i].file_hash);
        tr_free(b->workers[i].decoded);
    }
    tr_free(b->workers);
    tr_free(b->chunks);
}

static tr_status threads_print(codec_bench *b, int num_threads, double bytes)
{
    rates r[2];
    TR_TRY(rates_measure(b, num_threads, bytes, r));
    printf("%2d thread%s  %8.2f %8.2f   for each second of a core %8.2f %8.2f\n", num_threads,
           num_threads == 1 ? " " : "s", r[0].all, r[1].all, r[0].core, r[1].core);
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
                                .decoded = TR_NEW_ARRAY(float, CHUNK_VALUES)};
    printf("\nin memory, with hashes, GB/s of values (medians of %d)\n            %8s %8s   %25s "
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
