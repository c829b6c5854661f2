/* A rank that does not come, in whole runs on simulated GPUs: the others end against the deadline, name the operation that it has not joined, and get away.
 *
 * Rank 1 sleeps in its callback for data, past the others' deadline. Nothing is taken from the command line but `others`: more layouts, an evaluation. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/parallel/run_fixture.h"

enum { DEADLINE_S = 4 }; /* more than a step takes on a busy machine */

static int my_rank;
static int64_t late_step; /* -1: in evaluation */
static bool slept;

static bool counts_late(int64_t step, uint64_t sample, int64_t position)
{
    (void)sample;
    (void)position;
    if (my_rank == 1 && step == late_step && !slept)
        sleep(2 * DEADLINE_S);
    slept = slept || step == late_step;
    return true;
}

static void expect_named(fx_job *job, const char *layout, int64_t step, const char *named)
{
    char settings[400];
    fx_source source = {.counts = counts_late};
    fx_run fx;
    tr_metrics metrics;
    double valid;
    snprintf(settings, sizeof settings,
             "device.kind=cuda train.seq_len=16 train.global_batch=2 train.micro_batch=1 "
             "train.eval_batches=3 parallel.timeout_s=%d %s",
             DEADLINE_S, layout);
    late_step = step;
    slept = false;
    fx_open(job, &fx, "l", settings, &source, NULL);
    tr_status status = TR_OK;
    for (int s = 0; s < 2 && status == TR_OK; s++)
        status = tr_run_step(fx.run, &metrics);
    if (step < 0 && status == TR_OK)
        status = tr_run_evaluate(fx.run, &valid);
    fx_check(job, status != TR_OK, "%s: a late rank was waited for", layout);
    if (job->rank == 0) {
        fx_check(job, status == TR_ERR_TIMEOUT, "%s: status %d", layout, (int)status);
        fx_check(job, strstr(tr_error_message(), named) != NULL, "%s: %s", layout,
                 tr_error_message());
        printf("%s\n", tr_error_message());
    }
    double begin = tr_clock_seconds();
    fx_close(&fx);
    fx_check(job, tr_clock_seconds() - begin < 30, "%s: closing took %.1f s", layout,
             tr_clock_seconds() - begin);
}

/* Step 1 is the second one. */
static void test_step(fx_job *job)
{
    expect_named(job, "parallel.data=2 parallel.zero=1", 1, "of group data, at its rank 0 of 2");
}

static void test_others(fx_job *job)
{
    expect_named(job, "parallel.tensor=2", 1, "of group tensor, at its rank 0 of 2");
    expect_named(job, "parallel.pipeline=2", 1, "of group pipeline, at its rank 0 of 2");
    expect_named(job, "parallel.pipeline=2", -1, "of group pipeline, at its rank 0 of 2");
}

int main(int argc, char **argv)
{
    static const fx_named_case step = {"step", test_step}, others = {"others", test_others};
    bool more = argc > 1 && strcmp(argv[1], "others") == 0;
    argc = 1;
    fx_job job = fx_begin(&argc, &argv);
    my_rank = job.rank;
    fx_cases_run(&job, more ? &others : &step, 1);
    return fx_end(&job);
}
