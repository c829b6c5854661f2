/* Whole runs whose attention is cuDNN's (device.attention), on one and two simulated GPUs: near the device's own kernels and not them, the same bits on every layout
 * of one rank and on two ranks, what is refused or given up where the library does not do what it should or takes too much, and that all ranks compute alike. */
#include <math.h>
#include <string.h>

#include "engine/plan.h"
#include "engine/run_int.h"
#include "tests/cudasim/runtime/sim_cudnn.h"
#include "tests/parallel/run_fixture.h"

#define RUN                                                                                        \
    "train.seq_len=16 train.global_batch=4 train.micro_batch=2 train.reduction_leaves=2 "          \
    "device.kind=cuda train.precision=bf16 "

static const cudasim_cudnn plain, wrong = {.wrong = true}, missing = {.missing = true};

static void measure(fx_job *job, const cudasim_cudnn *library, const char *more, fx_outcome *out)
{
    char settings[300];
    snprintf(settings, sizeof settings, RUN "%s", more);
    cudasim_cudnn_set(library);
    fx_measure(job, "l", settings, 2, NULL, out);
}

/* Whether it ran both passes since; the comparison at a run's start takes six of each. */
static bool has_run(cudasim_cudnn_counts before)
{
    cudasim_cudnn_counts now = cudasim_cudnn_count();
    return now.forwards >= before.forwards + 14 && now.backwards >= before.backwards + 14;
}

/* In bf16 and fp16: near, other bits, and plans that ran. */
static void test_near_own(fx_job *job)
{
    static const char *const precisions[] = {"train.precision=bf16", "train.precision=fp16"};
    static const double tolerances[] = {4e-2, 1e-2};
    for (int i = 0; i < 2; i++) {
        char own[100], cudnn[100];
        fx_outcome a, b;
        snprintf(own, sizeof own, "%s device.attention=own", precisions[i]);
        snprintf(cudnn, sizeof cudnn, "%s device.attention=cudnn", precisions[i]);
        cudasim_cudnn_counts before = cudasim_cudnn_count();
        measure(job, &plain, own, &a);
        fx_check(job, cudasim_cudnn_count().forwards == before.forwards, "%s: cuDNN ran", own);
        measure(job, &plain, cudnn, &b);
        fx_check(job, job->rank > 0 || has_run(before), "%s: cuDNN did not run", cudnn);
        double difference = fx_grad_difference(job, &a, &b);
        fx_check(job, job->rank > 0 || (difference > 0 && difference <= tolerances[i]),
                 "%s: gradients differ by %g", cudnn, difference);
        for (int s = 0; s < 2 && job->rank == 0; s++)
            fx_check(job, fabs(a.metrics[s].loss - b.metrics[s].loss) <= 2e-3 * a.metrics[s].loss,
                     "%s: loss of step %d is %.9g, by our own kernels %.9g", cudnn, s + 1,
                     b.metrics[s].loss, a.metrics[s].loss);
        fx_outcome_clear(&a);
        fx_outcome_clear(&b);
    }
}

/* Layouts of one rank. */
static void test_same_bits(fx_job *job)
{
    static const char *const layouts[] = {
        "device.attention=cudnn memory.recompute=selective",
        "device.attention=cudnn memory.recompute=full",
        "device.attention=cudnn parallel.virtual=2 parallel.schedule=interleaved",
        "device.attention=auto",
    };
    fx_outcome first, other;
    measure(job, &plain, "device.attention=cudnn", &first);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        measure(job, &plain, layouts[i], &other);
        fx_check_equal(job, &first, &other, layouts[i]);
        fx_outcome_clear(&other);
    }
    fx_outcome_clear(&first);
}

/* Two ranks by data have one rank's bits; where one of them has no cuDNN, neither uses it. */
static void test_two_ranks(fx_job *job)
{
    fx_outcome one, two;
    if (job->size < 2)
        return;
    measure(job, &plain, "device.attention=cudnn", &one);
    cudasim_cudnn_counts before = cudasim_cudnn_count();
    measure(job, &plain, "device.attention=auto parallel.data=2", &two);
    fx_check_equal(job, &one, &two, "cuDNN on two ranks");
    fx_check(job, has_run(before), "cuDNN did not run on rank %d", job->rank);
    fx_outcome_clear(&one);
    fx_outcome_clear(&two);
    measure(job, &plain, "device.attention=own", &one);
    measure(job, job->rank == 1 ? &missing : &plain, "device.attention=auto parallel.data=2", &two);
    fx_check_equal(job, &one, &two, "cuDNN on one of two ranks");
    fx_outcome_clear(&one);
    fx_outcome_clear(&two);
}

/* Where auto cannot have cuDNN, it is as if nobody had asked; so it is for what cuDNN does not serve. */
static void test_own_instead(fx_job *job)
{
    static const struct {
        const cudasim_cudnn *cudnn;
        const char *settings, *as;
    } cases[] = {
        {&missing, "device.attention=auto", "device.attention=own"},
        {&wrong, "device.attention=auto", "device.attention=own"},
        {&plain, "device.attention=cudnn model.dropout=0.1",
         "device.attention=own model.dropout=0.1"},
        {&plain, "device.attention=cudnn train.precision=fp32",
         "device.attention=own train.precision=fp32"},
        {&plain, "device.attention=cudnn train.tensor_slices=2",
         "device.attention=own train.tensor_slices=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fx_outcome expected, got;
        measure(job, &plain, cases[i].as, &expected);
        measure(job, cases[i].cudnn, cases[i].settings, &got);
        fx_check_equal(job, &expected, &got, cases[i].settings);
        fx_outcome_clear(&expected);
        fx_outcome_clear(&got);
    }
}

/* auto spends 2 GiB of scratch on it, whoever asks for it more. Two sequences of four heads: 16 bytes for each query and key. */
static void test_scratch_bound(fx_job *job)
{
    static const struct {
        const char *settings;
        bool taken;
    } cases[] = {{"train.seq_len=8192 device.attention=auto", true},
                 {"train.seq_len=16384 device.attention=auto", false},
                 {"train.seq_len=16384 device.attention=cudnn", true},
                 {"train.seq_len=8192 device.attention=own", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char settings[300];
        tr_config cfg;
        snprintf(settings, sizeof settings, RUN "%s", cases[i].settings);
        fx_need(job, fx_resolve(&cfg, "l", settings));
        fx_check(job, tr_attention_may_be_cudnns(&cfg) == cases[i].taken, "%s: cuDNN %s",
                 cases[i].settings, cases[i].taken ? "is kept out" : "is planned for");
        tr_config_clear(&cfg);
    }
}

static void refused(fx_job *job, const cudasim_cudnn *library, tr_status status, const char *words)
{
    fx_run fx;
    cudasim_cudnn_set(library);
    tr_status got = fx_try_open(job, &fx, "l", RUN "device.attention=cudnn", NULL, NULL);
    fx_check(job, job->rank > 0 || (got == status && strstr(tr_error_message(), words) != NULL),
             "expected status %d with \"%s\", got %d: %s", status, words, got, tr_error_message());
}

static void test_refused(fx_job *job)
{
    refused(job, &missing, TR_ERR_MEMORY, "cannot open cuDNN");
    refused(job, &wrong, TR_ERR_NUMERICS, "differs from trine's own on this GPU");
}

/* The numerics name it, and a plan made without a GPU has the run's bytes. */
static void test_recorded(fx_job *job)
{
    static const char *const kinds[] = {"own", "cudnn"};
    for (int i = 0; i < 2; i++) {
        char settings[300];
        fx_run fx;
        tr_device *device;
        tr_plan_rank planned;
        snprintf(settings, sizeof settings, RUN "device.attention=%s", kinds[i]);
        cudasim_cudnn_set(&plain);
        fx_open(job, &fx, "l", settings, NULL, NULL);
        if (fx.run == NULL) {
            fx_close(&fx);
            continue;
        }
        const char *named = strstr(tr_run_device_numerics(fx.run), " cudnn 9.19.0 attention");
        fx_check(job, (named != NULL) == (i == 1), "numerics are %s",
                 tr_run_device_numerics(fx.run));
        fx_need(job, tr_plan_device_create(&device, &fx.cfg));
        fx_need(job, tr_plan_count(&fx.cfg, device, &planned));
        fx_check(job, memcmp(planned.bytes, tr_run_memory(fx.run), sizeof planned.bytes) == 0,
                 "%s: planned bytes are not the run's", kinds[i]);
        tr_device_destroy(device);
        fx_close(&fx);
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    static const fx_named_case cases[] = {{"near_own", test_near_own},
                                          {"same_bits", test_same_bits},
                                          {"two_ranks", test_two_ranks},
                                          {"own_instead", test_own_instead},
                                          {"refused", test_refused},
                                          {"recorded", test_recorded},
                                          {"scratch_bound", test_scratch_bound}};
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    return fx_end(&job);
}
