/* The data of a run that was stopped: every rank goes on with the sequences that it would have had, in the order of the epoch that it is in,
 * however often it was resumed; no sequence is lost or read twice, also when the number of ranks changes inside an epoch.
 *
 * Linked with --wrap=tr_feed_next: what each rank's feed gives a step is written down. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/checkpoint.h"
#include "engine/feed.h"
#include "io/token_write.h"
#include "tests/parallel/run_fixture.h"

enum { SEQUENCES = 80, BATCH = 8, EPOCH = SEQUENCES / BATCH, STEPS = 20, LENGTH = 32 };

static char folder[FX_FOLDER];

/* ---- what is read ---- */

/* Of one step on one rank: sequences, and the numbers that they go by. */
typedef struct step_read {
    int count;
    uint64_t numbers[BATCH], sequences[BATCH]; /* a sequence: the hash of its tokens */
} step_read;

typedef struct run_read {
    step_read steps[STEPS + 1]; /* [step], from 1 */
} run_read;

static run_read *reading; /* where it is written down; NULL: nowhere */
static int64_t reading_step, reading_count;

tr_status __real_tr_feed_next(tr_feed *feed, tr_batch *batch);
tr_status __wrap_tr_feed_next(tr_feed *feed, tr_batch *batch);

tr_status __wrap_tr_feed_next(tr_feed *feed, tr_batch *batch)
{
    tr_status status = __real_tr_feed_next(feed, batch);
    if (status != TR_OK || reading == NULL)
        return status;
    step_read *step = &reading->steps[reading_step];
    step->count = (int)reading_count;
    for (int i = 0; i < step->count; i++) {
        step->numbers[i] = batch->samples[i];
        step->sequences[i] =
            tr_hash64(batch->tokens + (ptrdiff_t)i * LENGTH, LENGTH * sizeof(int32_t), 5);
    }
    return status;
}

/* ---- runs ---- */

/* Documents of 1 to 200 tokens, SEQUENCES sequences in all. */
static void tokens_write(fx_job *job)
{
    char *prefix = tr_format("%s/train", folder);
    const tr_token_writer_options options = {.prefix = prefix, .vocab = 257};
    tr_token_writer *writer;
    fx_need(job, tr_token_writer_open(&writer, &options));
    int left = 1 + (int)(tr_hash_mix(3, 0) % 200);
    for (int t = 0; t <= SEQUENCES * LENGTH; t++) {
        int32_t id = (int32_t)(tr_hash_mix(7, (uint64_t)t) % 257);
        fx_need(job, tr_token_writer_append(writer, &id, 1));
        if (--left == 0 || t == SEQUENCES * LENGTH) {
            fx_need(job, tr_token_writer_end_document(writer));
            left = 1 + (int)(tr_hash_mix(3, (uint64_t)t + 1) % 200);
        }
    }
    fx_need(job, tr_token_writer_commit(writer));
    tr_token_writer_close(writer);
    tr_free(prefix);
}

/* Steps [from + 1, to] of the run in FOLDER/NAME, resumed when from > 0, and saved. */
static void go(fx_job *job, const char *name, const char *layout, int from, int to, run_read *read,
               double *losses)
{
    tr_config cfg;
    tr_run *run = NULL;
    bool resumed = false;
    char *text = tr_format("data.train=%s/train train.global_batch=%d train.reduction_leaves=4 "
                           "checkpoint.dir=%s/%s %s",
                           folder, BATCH, folder, name, layout);
    fx_need(job, fx_resolve(&cfg, "l", text));
    int size = (int)cfg.derived.num_ranks;
    if (job->rank < size) {
        fx_need(job, tr_run_open(&run, &cfg, job->first[size], NULL));
        if (from > 0)
            fx_need(job, tr_run_resume(run, &resumed));
        fx_check(job, resumed == (from > 0) && tr_run_steps_done(run) == from,
                 "%s: at step %d, not %d", name, (int)tr_run_steps_done(run), from);
        reading = read;
        reading_count = BATCH / cfg.parallel.data;
        for (int step = from + 1; step <= to; step++) {
            tr_metrics metrics;
            reading_step = step;
            fx_need(job, tr_run_step(run, &metrics));
            losses[step] = metrics.loss;
        }
        reading = NULL;
        fx_need(job, tr_run_save(run));
        fx_need(job, tr_run_save_wait(run));
    }
    tr_run_close(run);
    tr_config_clear(&cfg);
    tr_free(text);
    fx_gather(job);
}

/* Every rank had the sequences of the straight run in steps [from, to]. */
static void check_same(fx_job *job, const char *what, int from, int to, const run_read *a,
                       const double *a_losses, const run_read *b, const double *b_losses)
{
    for (int step = from; step <= to; step++) {
        fx_check(job, memcmp(&a->steps[step], &b->steps[step], sizeof a->steps[0]) == 0,
                 "%s: step %d has other sequences: first number %llu, expected %llu", what, step,
                 (unsigned long long)b->steps[step].numbers[0],
                 (unsigned long long)a->steps[step].numbers[0]);
        fx_check(job, job->rank > 0 || a_losses[step] == b_losses[step],
                 "%s: step %d: loss %a, expected %a", what, step, b_losses[step], a_losses[step]);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The ranks' sequences of an epoch are all there are, each once. */
static void check_epoch(fx_job *job, const char *what, int first_step, const run_read *read)
{
    uint64_t own[SEQUENCES] = {0}, all[FX_MAX_RANKS * SEQUENCES];
    int count = 0, distinct = 0;
    for (int step = first_step; step < first_step + EPOCH; step++)
        for (int i = 0; i < read->steps[step].count; i++)
            own[count++] = read->steps[step].sequences[i];
    MPI_Gather(own, SEQUENCES, MPI_UINT64_T, all, SEQUENCES, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (job->rank > 0)
        return;
    qsort(all, (size_t)job->size * SEQUENCES, sizeof all[0], by_value);
    for (int i = 0; i < job->size * SEQUENCES; i++)
        distinct += all[i] != 0 && (i == 0 || all[i] != all[i - 1]);
    fx_check(job, distinct == SEQUENCES, "%s: an epoch of %d different sequences, not %d", what,
             distinct, SEQUENCES);
}

/* ---- cases ---- */

/* Stopped in the first epoch and in the second, and resumed again without a step in between. */
static void test_stopped(fx_job *job, const char *name, const char *layout)
{
    static const int stops[] = {0, 5, 5, 9, 13, 17, STEPS};
    static run_read straight, stopped;
    double losses[STEPS + 1], again[STEPS + 1];
    memset(&straight, 0, sizeof straight);
    memset(&stopped, 0, sizeof stopped);
    char *straight_name = tr_format("%s-straight", name);
    go(job, straight_name, layout, 0, STEPS, &straight, losses);
    check_epoch(job, layout, 1, &straight);
    check_epoch(job, layout, 1 + EPOCH, &straight);
    for (int i = 1; i < (int)(sizeof stops / sizeof stops[0]); i++)
        go(job, name, layout, stops[i - 1], stops[i], &stopped, again);
    check_same(job, layout, 1, STEPS, &straight, losses, &stopped, again);
    int same_place = 0;
    for (int step = 1; step <= EPOCH; step++)
        same_place +=
            straight.steps[step].sequences[0] == straight.steps[step + EPOCH].sequences[0];
    fx_check(job, straight.steps[1].count == 0 || same_place < EPOCH / 2,
             "%s: the second epoch has the order of the first", layout);
    tr_free(straight_name);
}

/* Other numbers of data ranks inside the epochs. */
static void test_moved(fx_job *job)
{
    static const char *const layouts[] = {"parallel.data=4", "parallel.data=1", "parallel.data=2",
                                          "parallel.data=4 parallel.zero=3", "parallel.data=2"};
    static run_read moved;
    double losses[STEPS + 1];
    for (int i = 0; i < 5; i++)
        go(job, "moved", layouts[i], i * 4, i * 4 + 4, &moved, losses);
    check_epoch(job, "moved", 1, &moved);
    check_epoch(job, "moved", 1 + EPOCH, &moved);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    fx_folder_make(&job, folder);
    if (job.rank == 0)
        tokens_write(&job);
    fx_gather(&job);
    if (fx_case(&job, "stopped and resumed on two data ranks"))
        test_stopped(&job, "two", "parallel.data=2");
    if (fx_case(&job, "stopped and resumed on four data ranks"))
        test_stopped(&job, "four", "parallel.data=4 checkpoint.async=false");
    if (fx_case(&job, "another number of ranks inside an epoch"))
        test_moved(&job);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
