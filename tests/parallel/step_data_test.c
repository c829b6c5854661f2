/* Runs on token files: an evaluation counts every sequence once, whatever the batch, the ranks and the padding; training sees the same
 * samples on every layout. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "io/token_write.h"
#include "tests/parallel/run_fixture.h"

static char folder[64];

/* `sequences` sequences of 32 tokens of one long text, from sequence `first` on. */
static void tokens_write(fx_job *job, const char *name, int first, int sequences)
{
    char *prefix = tr_format("%s/%s", folder, name);
    const tr_token_writer_options options = {.prefix = prefix, .vocab = 257};
    tr_token_writer *writer;
    fx_need(job, tr_token_writer_open(&writer, &options));
    for (int t = first * 32; t <= (first + sequences) * 32; t++) {
        int32_t id = (int32_t)(tr_hash_mix(7, (uint64_t)(t / 3)) % 257);
        fx_need(job, tr_token_writer_append(writer, &id, 1));
    }
    fx_need(job, tr_token_writer_end_document(writer));
    fx_need(job, tr_token_writer_commit(writer));
    tr_token_writer_close(writer);
    tr_free(prefix);
}

static tr_run *open_run(fx_job *job, tr_config *cfg, const char *valid, const char *more)
{
    tr_run *run = NULL;
    char *text = tr_format("data.train=%s/train data.valid=%s/%s %s", folder, folder, valid, more);
    fx_need(job, fx_resolve(cfg, "l", text));
    tr_free(text);
    int size = (int)cfg->derived.num_ranks;
    if (job->rank < size)
        fx_need(job, tr_run_open(&run, cfg, job->first[size], NULL));
    return run;
}

static double evaluate(fx_job *job, const char *valid, const char *more)
{
    tr_config cfg;
    double loss = 0, again = 0;
    tr_run *run = open_run(job, &cfg, valid, more);
    if (run != NULL) {
        fx_need(job, tr_run_evaluate(run, &loss));
        fx_need(job, tr_run_evaluate(run, &again));
        fx_check(job, loss == again, "%s %s: a second evaluation differs", valid, more);
    }
    tr_run_close(run);
    tr_config_clear(&cfg);
    fx_gather(job);
    return loss;
}

static void every_sequence_counts_once(fx_job *job)
{
    if (!fx_case(job, "every sequence counts once"))
        return;
    static const char *const layouts[] = {
        "parallel.data=2", "parallel.data=4", "parallel.data=2 parallel.pipeline=2",
        "parallel.pipeline=4 train.global_batch=12", "parallel.data=4 train.global_batch=40"};
    /* 29 = 24 + 5 sequences: 4 k + 1, and no multiple of the batch; 3: fewer than ranks. */
    double all = evaluate(job, "all", ""), few = evaluate(job, "few", "");
    double first = evaluate(job, "first", ""), rest = evaluate(job, "rest", "");
    fx_check(job, job->rank > 0 || fabs(all - (24 * first + 5 * rest) / 29) < 1e-12 * all,
             "29 sequences: %.17g, but %.17g and %.17g", all, first, rest);
    for (int i = 0; i < 5; i++) {
        double same = evaluate(job, "all", layouts[i]), few_same = evaluate(job, "few", layouts[i]);
        fx_check(job, job->rank > 0 || (same == all && few_same == few),
                 "%s: %.17g and %.17g, not %.17g and %.17g", layouts[i], same, few_same, all, few);
    }
}

static void training_sees_the_same_samples(fx_job *job)
{
    if (!fx_case(job, "training sees the same samples"))
        return;
    static const char *const layouts[] = {"", "parallel.data=4", "parallel.pipeline=4",
                                          "parallel.data=2 parallel.pipeline=2"};
    tr_metrics first[4], metrics;
    for (int i = 0; i < 4; i++) {
        tr_config cfg;
        char *text = tr_format("train.reduction_leaves=8 %s", layouts[i]);
        tr_run *run = open_run(job, &cfg, "all", text);
        tr_free(text);
        for (int s = 0; s < 4 && run != NULL; s++) { /* 96 samples of 50: into the second epoch */
            fx_need(job, tr_run_step(run, i == 0 ? &first[s] : &metrics));
            if (i > 0 && job->rank == 0)
                fx_check(job,
                         metrics.loss == first[s].loss && metrics.last_epoch == first[s].last_epoch,
                         "%s: step %d: loss %a, expected %a", layouts[i], s + 1, metrics.loss,
                         first[s].loss);
        }
        fx_check(job, job->rank > 0 || first[3].last_epoch == 1, "epoch %d",
                 (int)first[3].last_epoch);
        tr_run_close(run);
        tr_config_clear(&cfg);
        fx_gather(job);
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    strcpy(folder, "/tmp/trine-data-XXXXXX");
    if (job.rank == 0 && mkdtemp(folder) == NULL)
        abort();
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (job.rank == 0) {
        tokens_write(&job, "train", 100, 50);
        tokens_write(&job, "all", 0, 29);
        tokens_write(&job, "first", 0, 24);
        tokens_write(&job, "rest", 24, 5);
        tokens_write(&job, "few", 0, 3);
    }
    fx_gather(&job);
    every_sequence_counts_once(&job);
    training_sees_the_same_samples(&job);
    fx_gather(&job);
    if (job.rank == 0) {
        char *command = tr_format("rm -rf %s", folder);
        fx_check(&job, system(command) == 0, "cannot remove %s", folder);
        tr_free(command);
    }
    return fx_end(&job);
}
