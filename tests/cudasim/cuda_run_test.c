/* Whole runs on the CUDA device, one rank: near the CPU's numbers, the same bits on every layout that one rank has, TF32, checkpoints that either device goes
 * on from, and what a plan says of its memory.
 *
 * What the host may touch only through the device (weights, tokens, sums, state on its way to files) is checked by the simulator: a load or store of device memory by the
 * host, or work that is not ordered by an event, ends the process. */
#include <math.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "engine/plan.h"
#include "tests/parallel/run_fixture.h"

static char folder[FX_FOLDER];

#define BATCH "train.seq_len=16 train.global_batch=4 train.micro_batch=1"

/* The CPU's gradients within rounding, and losses of three steps. */
static void test_near_the_cpu(fx_job *job)
{
    static const struct {
        const char *model, *settings;
        double gradients, losses; /* relative */
    } cases[] = {
        {"g", BATCH " model.dropout=0.1", 2e-5, 1e-6},
        {"g", BATCH " train.tensor_slices=4", 2e-5, 1e-6},
        {"l", BATCH, 2e-5, 1e-6},
        {"l", BATCH " train.precision=bf16", 4e-2, 2e-3},
        {"g", BATCH " train.precision=fp16", 2e-2, 1e-3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char cuda[256];
        fx_outcome a, b;
        snprintf(cuda, sizeof cuda, "%s device.kind=cuda", cases[i].settings);
        fx_measure(job, cases[i].model, cases[i].settings, 3, NULL, &a);
        fx_measure(job, cases[i].model, cuda, 3, NULL, &b);
        double difference = fx_grad_difference(job, &a, &b);
        fx_check(job, difference <= cases[i].gradients, "%s %s: gradients differ by %g",
                 cases[i].model, cuda, difference);
        fx_check(job, difference > 0, "%s %s: the same bits as on the CPU: was it another device?",
                 cases[i].model, cuda);
        for (int s = 0; s < 3; s++) {
            double loss = a.metrics[s].loss, other = b.metrics[s].loss;
            fx_check(job, fabs(loss - other) <= cases[i].losses * loss,
                     "%s %s: loss of step %d is %.9g, on the CPU %.9g", cases[i].model, cuda, s + 1,
                     other, loss);
        }
        fx_check(job, fabs(a.valid - b.valid) <= cases[i].losses * a.valid,
                 "%s %s: the evaluation's loss is %.9g, on the CPU %.9g", cases[i].model, cuda,
                 b.valid, a.valid);
        fx_outcome_clear(&a);
        fx_outcome_clear(&b);
    }
}

/* Layouts of one rank. */
static void test_same_bits(fx_job *job)
{
    static const char *const layouts[] = {
        "memory.recompute=selective",
        "memory.recompute=full",
        "parallel.virtual=2 parallel.schedule=interleaved",
        "parallel.virtual=2 parallel.schedule=zb-v",
        "parallel.zero=3 parallel.overlap=false",
    };
    static const struct {
        const char *model, *settings;
    } cases[] = {
        {"g", BATCH " model.dropout=0.1 train.precision=bf16 train.reduction_leaves=4 "
                    "device.kind=cuda"},
        {"l", BATCH " train.reduction_order=rounds train.reduction_leaves=2 device.kind=cuda"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fx_outcome first, other;
        fx_measure(job, cases[c].model, cases[c].settings, 2, NULL, &first);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            char settings[400];
            snprintf(settings, sizeof settings, "%s %s", cases[c].settings, layouts[i]);
            fx_measure(job, cases[c].model, settings, 2, NULL, &other);
            fx_check_equal(job, &first, &other, settings);
            fx_outcome_clear(&other);
        }
        fx_outcome_clear(&first);
    }
}

/* Within the rounding of inputs to TF32, and not nearer. */
static void test_tf32(fx_job *job)
{
    fx_outcome without, with;
    fx_measure(job, "g", BATCH " device.kind=cuda", 1, NULL, &without);
    fx_measure(job, "g", BATCH " device.kind=cuda train.tf32=true", 1, NULL, &with);
    double difference = fx_grad_difference(job, &without, &with);
    double loss = without.metrics[0].loss, other = with.metrics[0].loss;
    fx_check(job, difference > 1e-5 && difference < 5e-3, "gradients differ by %g", difference);
    fx_check(job, fabs(loss - other) < 1e-4 * loss, "loss %.9g, with TF32 %.9g", loss, other);
    fx_outcome_clear(&without);
    fx_outcome_clear(&with);
}

static void resume(fx_run *fx)
{
    bool resumed;
    fx_need(fx->job, tr_run_resume(fx->run, &resumed));
    fx_check(fx->job, resumed && tr_run_steps_done(fx->run) == 2, "not resumed at step 2");
}

/* Two steps, a save that goes on beside two more, and from there again: on the same device bit for bit, on the other one the state that was saved. */
static void save_and_go_on(fx_job *job, const char *device, const char *other)
{
    char settings[300], elsewhere[300];
    tr_metrics straight[2], again[2];
    fx_run fx;
    const char *name = fx_in_folder(folder, device);
    snprintf(settings, sizeof settings,
             BATCH
             " checkpoint.every=100 checkpoint.snapshot_mb=1 device.kind=%s checkpoint.dir=%s",
             device, name);
    snprintf(elsewhere, sizeof elsewhere, BATCH " device.kind=%s checkpoint.dir=%s", other, name);
    fx_open(job, &fx, "l", settings, NULL, NULL);
    fx_steps(&fx, 2, straight);
    fx_state saved = fx_state_take(&fx);
    fx_need(job, tr_run_save(fx.run));
    fx_steps(&fx, 2, straight);
    fx_need(job, tr_run_save_wait(fx.run));
    fx_check(job, !tr_run_save_failed(fx.run), "the save failed");
    fx_state expected = fx_state_take(&fx);
    fx_close(&fx);

    fx_open(job, &fx, "l", settings, NULL, NULL);
    resume(&fx);
    fx_steps(&fx, 2, again);
    fx_state got = fx_state_take(&fx);
    fx_check(job, fx_state_equal(&expected, &got), "%s: state after a resume differs", device);
    fx_check(job, straight[1].loss == again[1].loss, "%s: the loss after a resume differs", device);
    fx_close(&fx);
    tr_free(got.values);

    fx_open(job, &fx, "l", elsewhere, NULL, NULL);
    resume(&fx);
    got = fx_state_take(&fx);
    fx_check(job, fx_state_equal(&saved, &got), "saved on %s, %s has another state", device, other);
    fx_close(&fx);
    tr_free(got.values);
    tr_free(expected.values);
    tr_free(saved.values);
}

static void test_checkpoints(fx_job *job)
{
    save_and_go_on(job, "cuda", "cpu");
    save_and_go_on(job, "cpu", "cuda");
}

/* The price of an order of sums is the difference of two totals: the pool of copies, which is the host's, is in neither. */
static void test_price(fx_job *job)
{
    static const char *const settings[] = {
        "parallel.data=2 checkpoint.every=1 device.kind=cuda train.reduction_leaves=8",
        "parallel.data=2 checkpoint.every=1 device.kind=cuda train.reduction_leaves=2"};
    tr_plan_rank ranks[2][2];
    tr_plan_order order[2];
    for (int i = 0; i < 2; i++) {
        tr_config cfg;
        tr_device *device;
        fx_need(job, fx_resolve(&cfg, "l", settings[i]));
        fx_need(job, tr_plan_device_create(&device, &cfg));
        fx_need(job, tr_plan_count(&cfg, device, ranks[i]));
        fx_need(job, tr_plan_order_count(&cfg, device, ranks[i], &order[i]));
        tr_device_destroy(device);
        tr_config_clear(&cfg);
    }
    int64_t more = (int64_t)ranks[0][0].total - (int64_t)ranks[1][0].total;
    fx_check(job, ranks[0][0].bytes[TR_MEM_SNAPSHOT] > 0, "there is no pool of copies");
    fx_check(job, more > 0 && order[0].memory == more, "8 leaves: a price of %lld, totals %lld",
             (long long)order[0].memory, (long long)more);
    fx_check(job, order[1].natural && order[1].memory == 0, "the natural order has a price");
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    static const fx_named_case cases[] = {{"near_the_cpu", test_near_the_cpu},
                                          {"same_bits", test_same_bits},
                                          {"tf32", test_tf32},
                                          {"checkpoints", test_checkpoints},
                                          {"price", test_price}};
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
