/* Several ranks, each with a simulated GPU of its own: the layout is not part of the mathematics there either.
 *
 * Losses, norms, step-1 gradients, weights after the last step and an evaluation have the bits of one such rank, on every layout that the promise
 * says it of (E2; E3 along the recorded tree; E4 in tensor slices); tensor ranks without slices those of the same tensor size. A checkpoint
 * goes on in another layout. That ranks did exchange through NCCL is looked at, else a run that ignored its layout would pass. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "tests/cudasim/runtime/sim_nccl.h"
#include "tests/parallel/run_fixture.h"

enum { STEPS = 2, MAX_LAYOUTS = 12 };

static char folder[FX_FOLDER];

/* One mathematics: its plainest layout, and others. */
typedef struct part {
    const char *name, *model, *math, *plain;
    const char *layouts[MAX_LAYOUTS];
} part;

#define BATCH                                                                                      \
    "device.kind=cuda train.seq_len=16 train.global_batch=4 train.micro_batch=1 "                  \
    "train.eval_batches=1 train.clip=0.5 "

static const part data_blocks = {
    "data_blocks",
    "g",
    BATCH "model.dropout=0.1 train.reduction_order=blocks train.reduction_leaves=4",
    "",
    {"parallel.data=2 parallel.zero=0", "parallel.data=2 parallel.zero=1 parallel.bucket_mb=0.037",
     "parallel.data=4 parallel.zero=2 parallel.shard_ranks=2",
     "parallel.data=4 parallel.zero=3 parallel.overlap=false memory.recompute=selective"}};

static const part data_rounds = {
    "data_rounds",
    "l",
    BATCH "train.precision=bf16 train.reduction_order=rounds train.reduction_leaves=4",
    "",
    {"parallel.data=2 parallel.zero=3 parallel.bucket_mb=0.0005",
     "parallel.data=4 parallel.zero=1 parallel.bucket_mb=0.037",
     "parallel.data=2 parallel.zero=2 parallel.pipeline=2"}};

static const part pipeline = {
    "pipeline",
    "g",
    BATCH "model.dropout=0.1 train.reduction_leaves=2",
    "",
    {"parallel.pipeline=2", "parallel.pipeline=4 parallel.schedule=gpipe memory.recompute=full",
     "parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual=2",
     "parallel.pipeline=2 parallel.schedule=zb-v parallel.virtual=2",
     "parallel.pipeline=2 parallel.schedule=zb-h1 parallel.data=2 parallel.zero=3"}};

static const part slices = {
    "slices",
    "l",
    BATCH "train.precision=bf16 train.reduction_leaves=2 train.tensor_slices=4",
    "",
    {"parallel.tensor=2 parallel.sequence=true", "parallel.tensor=4 parallel.sequence=false",
     "parallel.tensor=4 parallel.sequence=true parallel.overlap=false",
     "parallel.tensor=2 parallel.data=2 parallel.zero=2",
     "parallel.tensor=2 parallel.sequence=false parallel.pipeline=2 parallel.schedule=zb-v "
     "parallel.virtual=2"}};

static const part tensor = {"tensor",
                            "g",
                            BATCH "model.dropout=0.1 train.reduction_leaves=2",
                            "parallel.tensor=2",
                            {"parallel.tensor=2",
                             "parallel.tensor=2 parallel.data=2 parallel.zero=3",
                             "parallel.tensor=2 parallel.pipeline=2 parallel.schedule=1f1b"}};

/* fx_measure, and a look at whether the ranks exchanged what they should by NCCL. */
static void measure(fx_job *job, const part *p, const char *layout, fx_outcome *outcome)
{
    char *settings = tr_format("%s %s", p->math, layout);
    tr_config cfg;
    int64_t before = cudasim_nccl_works();
    fx_need(job, fx_resolve(&cfg, p->model, settings));
    int num_ranks = (int)cfg.derived.num_ranks;
    tr_config_clear(&cfg);
    fx_measure(job, p->model, settings, STEPS, NULL, outcome);
    bool takes_part = num_ranks > 1 && job->rank < num_ranks;
    bool exchanged = cudasim_nccl_works() > before + STEPS;
    fx_check(job, exchanged == takes_part, "%s: %lld exchanges through NCCL on a rank of %d",
             settings, (long long)(cudasim_nccl_works() - before), num_ranks);
    tr_free(settings);
}

static void part_run(fx_job *job, const part *p)
{
    fx_outcome reference, outcome;
    measure(job, p, p->plain, &reference);
    for (int i = 0; i < MAX_LAYOUTS && p->layouts[i] != NULL; i++) {
        char *what = tr_format("%s %s", p->model, p->layouts[i]);
        measure(job, p, p->layouts[i], &outcome);
        fx_check_equal(job, &reference, &outcome, what);
        fx_outcome_clear(&outcome);
        tr_free(what);
    }
    fx_outcome_clear(&reference);
}

static void test_data_blocks(fx_job *job)
{
    part_run(job, &data_blocks);
}

static void test_data_rounds(fx_job *job)
{
    part_run(job, &data_rounds);
}

static void test_pipeline(fx_job *job)
{
    part_run(job, &pipeline);
}

static void test_slices(fx_job *job)
{
    part_run(job, &slices);
}

static void test_tensor(fx_job *job)
{
    part_run(job, &tensor);
}

/* ---- sums of NCCL's own ---- */

/* The same layout has the same bits (E1), which are near those of the tree, and in no tensor the same, though hardly a bucket has equal parts. */
static void test_native(fx_job *job)
{
    static const part native = {"native", "l", BATCH "train.reduction_order=native", "", {0}};
    static const part ordered = {"ordered", "l", BATCH "train.reduction_order=rounds", "", {0}};
    static const char layout[] = "parallel.data=4 parallel.zero=2";
    fx_outcome own, again, tree;
    measure(job, &native, layout, &own);
    measure(job, &native, layout, &again);
    fx_check_equal(job, &own, &again, "NCCL's sums, again");
    measure(job, &ordered, layout, &tree);
    double difference = fx_grad_difference(job, &own, &tree);
    fx_check(job, job->rank > 0 || (difference > 0 && difference < 1e-5),
             "NCCL's sums of gradients differ by %g from the tree's", difference);
    for (int i = 0; job->rank == 0 && i < own.num_params; i++)
        fx_check(job,
                 memcmp(own.grads[i], tree.grads[i], (size_t)own.counts[i] * sizeof(float)) != 0,
                 "%s: the gradient is the tree's", own.names[i]);
    fx_outcome_clear(&own);
    fx_outcome_clear(&again);
    fx_outcome_clear(&tree);
}

/* ---- checkpoints ---- */

/* Steps `first` to `last` of run `name` in a layout; saves behind them. The state at the end, and the metrics of the steps. */
static fx_state go_on(fx_job *job, const char *name, const char *layout, int first, int last,
                      tr_metrics *metrics)
{
    char *settings = tr_format(BATCH "train.reduction_order=blocks train.reduction_leaves=4 "
                                     "checkpoint.dir=%s %s",
                               fx_in_folder(folder, name), layout);
    fx_run fx;
    fx_open(job, &fx, "l", settings, NULL, NULL);
    if (fx.run != NULL && first > 0) {
        bool resumed;
        fx_need(job, tr_run_resume(fx.run, &resumed));
        fx_check(job, resumed && tr_run_steps_done(fx.run) == first, "%s: not resumed at step %d",
                 layout, first);
    }
    fx_steps(&fx, last - first, metrics + first);
    fx_state state = fx_state_take(&fx);
    if (fx.run != NULL) {
        fx_need(job, tr_run_save(fx.run));
        fx_need(job, tr_run_save_wait(fx.run));
        fx_check(job, !tr_run_save_failed(fx.run), "%s: the save failed", layout);
    }
    fx_close(&fx);
    tr_free(settings);
    return state;
}

/* One rank straight on, against a run that changes its layout after every step. */
static void test_resume(fx_job *job)
{
    static const char *const layouts[] = {
        "parallel.data=4 parallel.zero=3", "parallel.pipeline=2 parallel.data=2 parallel.zero=1",
        "parallel.data=2 parallel.zero=2 parallel.shard_ranks=2", "parallel.data=1"};
    enum { NUM = sizeof layouts / sizeof layouts[0] };
    tr_metrics straight[NUM], moved[NUM];
    fx_state expected = go_on(job, "straight", "parallel.data=1", 0, NUM, straight);
    for (int i = 0; i < NUM; i++) {
        fx_state state = go_on(job, "moved", layouts[i], i, i + 1, moved);
        if (job->rank == 0)
            fx_check(job, straight[i].loss == moved[i].loss,
                     "%s: loss of step %d is %.17g, not %.17g", layouts[i], i + 1, moved[i].loss,
                     straight[i].loss);
        if (job->rank == 0 && i == NUM - 1)
            fx_check(job, fx_state_equal(&expected, &state), "the state after the moves differs");
        tr_free(state.values);
    }
    tr_free(expected.values);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    static const fx_named_case cases[] = {{"data_blocks", test_data_blocks},
                                          {"data_rounds", test_data_rounds},
                                          {"pipeline", test_pipeline},
                                          {"slices", test_slices},
                                          {"tensor", test_tensor},
                                          {"native", test_native},
                                          {"resume", test_resume}};
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
