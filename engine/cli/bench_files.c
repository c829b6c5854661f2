/* The files' part of `trine bench checkpoint`: shards written and read, a thread each, alternating
 * with plain writes and reads of the very same bytes. Writes end with fsync; before a read the files
 * leave the page cache, as far as the system follows that advice. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "engine/cli/bench_checkpoint.h"
#include "engine/cli/cmd_bench_int.h"
#include "io/file_commit.h"
#include "io/shard_read.h"

enum { BLOCK = 4 << 20 }; /* bytes of a plain read or write */

typedef struct writer {
    char *shard_path, *plain_path;
    int first_part, num_parts;
    unsigned char *bytes; /* of the shard's file */
    size_t size;
    unsigned char *block; /* [BLOCK] */
    tr_shard_scratch *scratch;
    tr_status status;
    char *message; /* of a failure; tr_free */
} writer;

typedef struct files_bench {
    const bench_state *state;
    const bench_setup *setup;
    writer *writers; /* [threads] */
} files_bench;

static tr_status shard_write(files_bench *b, writer *w)
{
    tr_shard_summary summary;
    return tr_shard_write(w->shard_path, b->state->parts + w->first_part, w->num_parts,
                          b->setup->level, TR_SHARD_CHUNK_DEFAULT, &summary);
}

static tr_status shard_read(files_bench *b, writer *w)
{
    tr_shard *shard;
    const float *values;
    (void)b;
    TR_TRY(tr_shard_open(&shard, w->shard_path));
    tr_status status = TR_OK;
    for (int i = 0; i < tr_shard_num_chunks(shard) && status == TR_OK; i++)
        status = tr_shard_read_chunk(shard, i, w->scratch, &values);
    tr_shard_close(shard);
    return status;
}

static tr_status plain_open(const char *path, int flags, int *fd)
{
    *fd = open(path, flags | O_CLOEXEC, 0666);
    return *fd >= 0 ? TR_OK : tr_fail_errno(TR_ERR_IO, errno, "%s: cannot open the file", path);
}

static tr_status plain_write(files_bench *b, writer *w)
{
    int fd;
    (void)b;
    TR_TRY(plain_open(w->plain_path, O_WRONLY | O_CREAT | O_TRUNC, &fd));
    tr_status status = TR_OK;
    for (size_t at = 0; at < w->size && status == TR_OK; at += BLOCK)
        status = tr_file_write_all(fd, w->bytes + at, w->size - at < BLOCK ? w->size - at : BLOCK,
                                   w->plain_path);
    return tr_file_end(fd, w->plain_path, status);
}

/* Calls take(context, block, bytes) for every block of a file. */
static tr_status plain_read_each(const char *path, unsigned char *block,
                                 void (*take)(void *, const unsigned char *, size_t), void *context)
{
    int fd;
    ssize_t got;
    TR_TRY(plain_open(path, O_RDONLY, &fd));
    while ((got = read(fd, block, BLOCK)) > 0)
        if (take != NULL)
            take(context, block, (size_t)got);
    tr_status status =
        got == 0 ? TR_OK : tr_fail_errno(TR_ERR_IO, errno, "%s: reading failed", path);
    close(fd);
    return status;
}

static tr_status plain_read(files_bench *b, writer *w)
{
    (void)b;
    return plain_read_each(w->plain_path, w->block, NULL, NULL);
}

static void bytes_append(void *context, const unsigned char *block, size_t size)
{
    writer *w = context;
    w->bytes = tr_realloc(w->bytes, w->size + size, 1);
    memcpy(w->bytes + w->size, block, size);
    w->size += size;
}

/* ---- on all threads ---- */

typedef struct task {
    files_bench *b;
    tr_status (*run)(files_bench *b, writer *w);
} task;

static void piece_run(void *context, int piece, int thread)
{
    const task *t = context;
    writer *w = &t->b->writers[piece];
    (void)thread;
    w->status = t->run(t->b, w);
    if (w->status != TR_OK)
        w->message = tr_strdup(tr_error_message());
}

static tr_status all_run(files_bench *b, tr_thread_pool *pool,
                         tr_status (*run)(files_bench *b, writer *w), double *seconds)
{
    task t = {b, run};
    tr_status status = TR_OK;
    double begin = tr_clock_seconds();
    tr_thread_pool_run(pool, b->setup->num_threads, piece_run, &t);
    *seconds = tr_clock_seconds() - begin;
    for (int i = 0; i < b->setup->num_threads; i++) {
        writer *w = &b->writers[i];
        if (w->status != TR_OK && status == TR_OK)
            status = tr_fail(w->status, "%s", w->message);
        tr_free(w->message);
        w->message = NULL;
    }
    return status;
}

static void cache_drop(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

enum { WRITE, PLAIN_WRITE, READ, PLAIN_READ, NUM_TASKS };

static tr_status round_run(files_bench *b, tr_thread_pool *pool, double seconds[NUM_TASKS])
{
    static tr_status (*const tasks[NUM_TASKS])(files_bench *,
                                               writer *) = {[WRITE] = shard_write,
                                                            [PLAIN_WRITE] = plain_write,
                                                            [READ] = shard_read,
                                                            [PLAIN_READ] = plain_read};
    for (int i = 0; i < NUM_TASKS; i++) {
        for (int n = 0; n < b->setup->num_threads; n++) {
            writer *w = &b->writers[n];
            char *path = i == WRITE || i == READ ? w->shard_path : w->plain_path;
            if (i == WRITE || i == PLAIN_WRITE)
                unlink(path);
            else
                cache_drop(path);
        }
        TR_TRY(all_run(b, pool, tasks[i], &seconds[i]));
    }
    return TR_OK;
}

static void line_print(const char *name, double raw, double size, double ours, double plain)
{
    printf("%-6s %9.3f s %7.2f GB/s of values %7.2f GB/s of the file   plain %9.3f s %7.2f GB/s   "
           "%4.0f%%\n",
           name, ours, raw * 1e-9 / ours, size * 1e-9 / ours, plain, size * 1e-9 / plain,
           100 * plain / ours);
}

static tr_status rounds_run(files_bench *b, tr_thread_pool *pool)
{
    double seconds[NUM_TASKS][BENCH_RUNS_MAX], round[NUM_TASKS], median[NUM_TASKS];
    double raw = (double)b->state->num_values * sizeof(float), size = 0;
    TR_TRY(all_run(b, pool, shard_write, round));
    for (int i = 0; i < b->setup->num_threads; i++) {
        writer *w = &b->writers[i];
        TR_TRY(plain_read_each(w->shard_path, w->block, bytes_append, w));
        size += (double)w->size;
    }
    for (int run = 0; run < b->setup->runs; run++) {
        TR_TRY(round_run(b, pool, round));
        for (int i = 0; i < NUM_TASKS; i++)
            seconds[i][run] = round[i];
    }
    for (int i = 0; i < NUM_TASKS; i++)
        median[i] = bench_median(seconds[i], b->setup->runs);
    line_print("save", raw, size, median[WRITE], median[PLAIN_WRITE]);
    line_print("load", raw, size, median[READ], median[PLAIN_READ]);
    return TR_OK;
}

/* Deals the parts out, about equally many bytes to each. */
static void writers_fill(files_bench *b)
{
    int num = b->setup->num_threads, part = 0;
    int64_t dealt = 0;
    for (int i = 0; i < num; i++) {
        writer *w = &b->writers[i];
        w->shard_path = tr_format("%s/trine-bench-%d.shard", b->setup->dir, i);
        w->plain_path = tr_format("%s/trine-bench-%d.plain", b->setup->dir, i);
        w->block = TR_NEW_ARRAY(unsigned char, BLOCK);
        w->scratch = tr_shard_scratch_create();
        w->first_part = part;
        while (part < b->state->num_parts && dealt < b->state->num_values * (i + 1) / num)
            dealt += tr_box_volume(&b->state->parts[part++].box);
        w->num_parts = part - w->first_part;
    }
}

static void writers_clear(files_bench *b)
{
    for (int i = 0; i < b->setup->num_threads; i++) {
        writer *w = &b->writers[i];
        unlink(w->shard_path);
        unlink(w->plain_path);
        tr_free(w->shard_path);
        tr_free(w->plain_path);
        tr_free(w->bytes);
        tr_free(w->block);
        tr_shard_scratch_destroy(w->scratch);
    }
    tr_free(b->writers);
}

tr_status bench_files(const bench_state *state, const bench_setup *setup)
{
    files_bench b = {.state = state, .setup = setup};
    tr_thread_pool *pool;
    TR_TRY(tr_thread_pool_create(setup->num_threads, &pool));
    b.writers = TR_NEW_ARRAY(writer, (size_t)setup->num_threads);
    writers_fill(&b);
    printf(
        "\nfiles in %s, %d at once (medians of %d; alternating with plain writes and reads of the "
        "same bytes)\n",
        setup->dir, setup->num_threads, setup->runs);
    tr_status status = rounds_run(&b, pool);
    writers_clear(&b);
    tr_thread_pool_destroy(pool);
    return status;
}
