/* trine verify: one step of the same batch through several layouts, compared: loss, gradient norm, every gradient. */
#include "engine/cli/cli.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/cli/job.h"

static const char usage[] =
    "usage: mpiexec -n RANKS trine verify CONFIG LAYOUT LAYOUT... [section.key=value ...]\n"
    "\n"
    "Takes one step of the first batch of data.train through each LAYOUT, a comma-separated list "
    "of\n"
    "parallel settings such as data=2,tensor=2,zero=1 (what is not named is as in CONFIG; data, "
    "tensor\n"
    "and pipeline default to 1), and compares loss, gradient norm and every gradient with the "
    "first\n"
    "layout's. Ranks that a layout does not need are idle. The order of sums is resolved once,\n"
    "train.reduction_order from the first layout and train.reduction_leaves from the largest data\n"
    "size among them, so that data sizes and ZeRO stages can agree bit for bit. Exit 7 when a\n"
    "gradient differs by more than the precision explains.\n";

typedef struct outcome {
    double loss, grad_norm;
    float **grads; /* [params], rank 0's */
} outcome;

/* What rounding may do: relative L2 of one gradient. */
static double tolerance(tr_dtype precision)
{
    return precision == TR_F32 ? 1e-5 : 5e-2;
}

static bool is_layout(const char *word)
{
    const char *equals = strchr(word, '=');
    return equals != NULL && memchr(word, '.', (size_t)(equals - word)) == NULL;
}

/* The configuration of one layout: data, tensor, pipeline 1 unless named. */
static tr_status layout_config(const tr_config *base, const char *layout, tr_config *cfg)
{
    tr_config_copy(cfg, base);
    cfg->parallel.data = cfg->parallel.tensor = cfg->parallel.pipeline = 1;
    char *copy = tr_strdup(layout), *rest = copy, *part;
    tr_status status = TR_OK;
    while (status == TR_OK && (part = strsep(&rest, ",")) != NULL) {
        char *assignment = tr_format("parallel.%s", part);
        status = tr_config_override(cfg, assignment);
        tr_free(assignment);
    }
    tr_free(copy);
    if (status != TR_OK)
        tr_config_clear(cfg);
    return status;
}

static tr_status outcome_take(tr_run *run, bool keep, outcome *result)
{
    tr_metrics metrics;
    TR_TRY(tr_run_step(run, &metrics));
    result->loss = metrics.loss;
    result->grad_norm = metrics.grad_norm;
    int count = tr_run_num_params(run);
    result->grads = TR_NEW_ARRAY(float *, (size_t)count);
    for (int i = 0; i < count; i++) {
        int64_t shape[2];
        tr_run_param_name(run, i, shape);
        float *values = TR_NEW_ARRAY(float, (size_t)(shape[0] * shape[1]));
        tr_status status = tr_run_param_get(run, i, TR_TENSOR_GRAD, values);
        if (keep)
            result->grads[i] = values;
        else
            tr_free(values);
        TR_TRY(status);
    }
    return TR_OK;
}

/* Prints one layout's line; true when it agrees with the first. */
static bool outcome_compare(tr_run *run, const char *layout, const outcome *first,
                            const outcome *result)
{
    double worst = 0;
    bool equal = first->loss == result->loss && first->grad_norm == result->grad_norm;
    const char *worst_name = "none";
    for (int i = 0; i < tr_run_num_params(run); i++) {
        int64_t shape[2];
        double difference = 0, norm = 0;
        const char *name = tr_run_param_name(run, i, shape);
        for (int64_t e = 0; e < shape[0] * shape[1]; e++) {
            double a = first->grads[i][e], b = result->grads[i][e];
            difference += (a - b) * (a - b);
            norm += a * a;
            equal = equal && memcmp(&first->grads[i][e], &result->grads[i][e], 4) == 0;
        }
        double relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
        if (!(relative <= worst) && !isnan(worst)) { /* the first NaN stays */
            worst = relative;
            worst_name = name;
        }
    }
    tr_log_info("%-40s loss %.9f  gradient norm %.9f  largest difference %.2e (%s)  %s", layout,
                result->loss, result->grad_norm, worst, worst_name,
                equal ? "bits equal" : "bits differ");
    return worst <= tolerance(tr_run_config(run)->train.precision);
}

static void outcome_clear(outcome *result, int count)
{
    for (int i = 0; result->grads != NULL && i < count; i++)
        tr_free(result->grads[i]);
    tr_free(result->grads);
    *result = (outcome){0};
}

/* Runs one layout on the first ranks of the job. */
static bool layout_run(tr_job *job, const char *layout, const tr_config *cfg, outcome *first)
{
    MPI_Comm comm;
    bool agrees = true;
    int size = (int)cfg->derived.num_ranks;
    MPI_Comm_split(MPI_COMM_WORLD, job->rank < size ? 0 : MPI_UNDEFINED, job->rank, &comm);
    if (comm == MPI_COMM_NULL)
        return true;
    tr_run *run;
    outcome result;
    TR_JOB_TRY(job, tr_run_open(&run, cfg, comm, NULL));
    TR_JOB_TRY(job, outcome_take(run, job->rank == 0, &result));
    if (job->rank == 0 && first->grads == NULL) {
        *first = result;
        agrees = outcome_compare(run, layout, first, first);
    } else if (job->rank == 0) {
        agrees = outcome_compare(run, layout, first, &result);
    }
    if (result.grads != first->grads)
        outcome_clear(&result, tr_run_num_params(run));
    tr_run_close(run);
    MPI_Comm_free(&comm);
    return agrees;
}

/* Fails, with the layout's name, where a layout by itself cannot be: what all share is resolved after that. */
static tr_status layout_check(const tr_config *cfg, const char *layout)
{
    tr_config alone;
    tr_config_copy(&alone, cfg);
    tr_status status = tr_config_resolve(&alone, 0);
    tr_config_clear(&alone);
    if (status == TR_OK)
        return TR_OK;
    char *message = tr_format("layout %s: %s", layout, tr_error_message());
    status = tr_fail(status, "%s", message);
    tr_free(message);
    return status;
}

/* Resolves every layout, the order of sums from the first one and the leaves from the largest data size; sizes must fit the job. */
static tr_status layouts_resolve(tr_job *job, char **layouts, int count, tr_config *cfgs)
{
    int64_t leaves = 0;
    for (int i = 0; i < count; i++) {
        TR_TRY(layout_config(&job->cfg, layouts[i], &cfgs[i]));
        TR_TRY(layout_check(&cfgs[i], layouts[i]));
        if (cfgs[i].parallel.data > leaves)
            leaves = cfgs[i].parallel.data;
    }
    for (int i = 0; i < count; i++) {
        if (cfgs[i].train.reduction_order == TR_REDUCTION_OPEN)
            cfgs[i].train.reduction_order =
                i > 0 ? cfgs[0].train.reduction_order : tr_config_natural_order(&cfgs[0]);
        if (cfgs[i].train.reduction_leaves == 0)
            cfgs[i].train.reduction_leaves = leaves;
        TR_TRY(tr_config_resolve(&cfgs[i], 0));
        if (cfgs[i].derived.num_ranks > job->size)
            return tr_fail(TR_ERR_SETTINGS,
                           "layout %s needs %lld ranks, the job has %d; use mpiexec -n %lld",
                           layouts[i], (long long)cfgs[i].derived.num_ranks, job->size,
                           (long long)cfgs[i].derived.num_ranks);
    }
    return TR_OK;
}

static tr_status run(int argc, char **argv)
{
    tr_job job;
    int num_layouts = 0, kept = 2;
    TR_TRY(tr_job_start(&job));
    TR_TRY(tr_job_check(&job, tr_cli_words(argc, argv, 2, -1)));
    char **layouts = TR_NEW_ARRAY(char *, (size_t)argc);
    for (int i = 2; i < argc; i++) {
        if (is_layout(argv[i]))
            layouts[num_layouts++] = argv[i];
        else
            argv[kept++] = argv[i];
    }
    TR_TRY(tr_job_read(&job, kept, argv, true));
    TR_TRY(tr_job_override(&job, "checkpoint.every=0")); /* nothing is saved */
    tr_config *cfgs = TR_NEW_ARRAY(tr_config, (size_t)num_layouts + 1);
    tr_status status = layouts_resolve(&job, layouts, num_layouts, cfgs);
    if (status == TR_OK && num_layouts == 0)
        status = tr_fail(TR_ERR_SETTINGS, "trine verify needs layouts, e.g. data=1 data=2,zero=1");
    TR_TRY(tr_job_check(&job, status));
    outcome first = {0};
    int agree = 1;
    for (int i = 0; i < num_layouts; i++)
        agree = layout_run(&job, layouts[i], &cfgs[i], &first) && agree;
    MPI_Bcast(&agree, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!agree)
        status = tr_fail(TR_ERR_NUMERICS,
                         "a gradient differs from the first layout's by more than "
                         "%g, see the lines above",
                         tolerance(job.cfg.train.precision));
    tr_free(layouts);
    return tr_job_end(&job, status);
}

const tr_verb tr_verb_verify = {
    .name = "verify",
    .summary = "the same batch through several layouts, compared",
    .usage = usage,
    .run = run,
};
