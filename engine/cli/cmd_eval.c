/* trine eval: the loss of a checkpoint on held-out data, under any layout. */
#include "engine/cli/cli.h"

#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "engine/cli/job.h"

static const char usage[] =
    "usage: [mpiexec -n RANKS] trine eval CONFIG [section.key=value ...]\n"
    "\n"
    "Loads the weights that checkpoint.resume names (auto: the newest checkpoint of the run) and "
    "prints\n"
    "the mean loss over data.valid, or over its first train.eval_batches global batches.\n";

static tr_status data_check(const tr_config *cfg)
{
    if (cfg->data.valid != NULL)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS, "trine eval needs data.valid, the token file to evaluate on");
}

static tr_status run(int argc, char **argv)
{
    tr_job job;
    double loss;
    TR_TRY(tr_job_start(&job));
    TR_TRY(tr_job_check(&job, tr_cli_words(argc, argv, 1, -1)));
    TR_TRY(tr_job_read(&job, argc, argv, false));
    TR_TRY(tr_job_override(&job, "checkpoint.weights_only=true"));
    TR_TRY(tr_job_override(&job, "checkpoint.every=0")); /* nothing is saved */
    TR_TRY(tr_job_resolve(&job));
    TR_TRY(tr_job_check(&job, data_check(&job.cfg)));
    TR_JOB_TRY(&job, tr_run_open(&job.run, &job.cfg, MPI_COMM_WORLD, NULL));
    TR_JOB_TRY(&job, tr_job_load_weights(&job));
    TR_JOB_TRY(&job, tr_run_evaluate(job.run, &loss));
    tr_log_info("valid loss %.6f nats per token, perplexity %.4f", loss, exp(loss));
    return tr_job_end(&job, TR_OK);
}

const tr_verb tr_verb_eval = {
    .name = "eval",
    .summary = "the loss of a checkpoint on held-out data",
    .usage = usage,
    .run = run,
};
