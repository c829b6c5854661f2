/* device.kind=auto and mfu on simulated machines: the GPU where every rank sees one, else the CPU on all, with the node named that keeps
 * them there; the peak of the GPU that was taken. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/model/params.h"
#include "kernels/device.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/parallel/run_fixture.h"

static char folder[FX_FOLDER];

#define BATCH "train.seq_len=16 train.global_batch=4 train.micro_batch=1"

static void machine_set(int num_devices, const char *name)
{
    const cudasim_machine machine = {.driver_version = 13000,
                                     .num_devices = num_devices,
                                     .capability = 90,
                                     .memory_bytes = (size_t)1 << 30,
                                     .name = name};
    cudasim_machine_set(&machine);
}

static tr_device_kind seen;

static void device_see(void *context, struct tr_device *device)
{
    (void)context;
    seen = device->kind;
}

/* One step; whether rank 0 has logged `words` meanwhile. Ranks outside of the run have no part. */
static void expect_kind(fx_job *job, const char *settings, tr_device_kind kind, const char *words,
                        bool logged)
{
    const char *path = fx_in_folder(folder, "log.txt");
    tr_metrics metrics;
    fx_run fx;
    if (job->rank == 0) {
        remove(path);
        fx_check(job, tr_log_file_open(path), "cannot write %s", path);
    }
    fx_open(job, &fx, "l", settings, NULL, device_see);
    bool is_in = fx.run != NULL;
    fx_step(&fx, &metrics);
    fx_close(&fx);
    tr_log_file_close();
    fx_check(job, !is_in || seen == kind, "%s: computed on device kind %d, expected %d", settings,
             (int)seen, (int)kind);
    if (job->rank != 0)
        return;
    char text[4096] = "";
    FILE *file = fopen(path, "r");
    size_t bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = '\0';
    if (file != NULL)
        fclose(file);
    fx_check(job, (strstr(text, words) != NULL) == logged, "%s: the log %s \"%s\": %s", settings,
             logged ? "lacks" : "has", words, text);
}

/* The driver reads variables when device.kind=auto looks for a GPU, or never. */
static void test_variables(fx_job *job)
{
    const char *queues, *loading;
    machine_set(2, NULL);
    expect_kind(job, BATCH " parallel.data=2 device.kind=auto", TR_DEVICE_CUDA, "", true);
    queues = cudasim_variable("CUDA_DEVICE_MAX_CONNECTIONS");
    loading = cudasim_variable("CUDA_MODULE_LOADING");
    fx_check(job, queues != NULL && strcmp(queues, "32") == 0, "queues: %s", queues);
    fx_check(job, loading != NULL && strcmp(loading, "EAGER") == 0, "loading: %s", loading);
}

static void test_one_rank(fx_job *job)
{
    machine_set(1, NULL);
    expect_kind(job, BATCH " device.kind=auto", TR_DEVICE_CUDA, "device.kind=auto:", false);
    expect_kind(job, BATCH " device.kind=cpu", TR_DEVICE_CPU, "device.kind=auto:", false);
    machine_set(0, NULL);
    expect_kind(job, BATCH " device.kind=auto", TR_DEVICE_CPU, "device.kind=auto:", false);
    cudasim_machine old = {.driver_version = 12040, .num_devices = 1};
    cudasim_machine_set(&old);
    expect_kind(job, BATCH " device.kind=auto", TR_DEVICE_CPU, "it serves CUDA 12.4", true);
}

/* With GPUs for both, without one on one of the nodes, or on all. */
static void test_two_ranks(fx_job *job)
{
    const char *const settings = BATCH " parallel.data=2 device.kind=auto";
    char node[64] = "", words[200];
    gethostname(node, sizeof node - 1);
    machine_set(2, NULL);
    expect_kind(job, settings, TR_DEVICE_CUDA, "device.kind=auto:", false);
    machine_set(job->rank == 0 ? 2 : 0, NULL);
    snprintf(words, sizeof words, "since rank 1 on node %s sees no GPU", node);
    expect_kind(job, settings, TR_DEVICE_CPU, words, true);
    machine_set(job->rank == 0 ? 0 : 2, NULL);
    snprintf(words, sizeof words, "since rank 0 on node %s sees no GPU", node);
    expect_kind(job, settings, TR_DEVICE_CPU, words, true);
    machine_set(0, NULL);
    expect_kind(job, settings, TR_DEVICE_CPU, "device.kind=auto:", false);
}

/* device.kind=cuda never becomes another one. */
static void test_no_gpu(fx_job *job)
{
    fx_run fx;
    machine_set(0, NULL);
    tr_status status = fx_try_open(job, &fx, "l", BATCH " device.kind=cuda", NULL, device_see);
    if (job->rank == 0) {
        fx_check(job, status == TR_ERR_MEMORY, "status %d without a GPU", (int)status);
        fx_check(job, strstr(tr_error_message(), "shows no GPU") != NULL, "message: %s",
                 tr_error_message());
    } else {
        fx_close(&fx);
        return;
    }
    fx_gather(job);
}

/* peak: of all ranks. */
static void mfu_case(fx_job *job, const char *name, const char *settings, double peak)
{
    tr_metrics metrics;
    fx_run fx;
    machine_set(2, name);
    fx_open(job, &fx, "l", settings, NULL, NULL);
    fx_step(&fx, &metrics);
    double flops = tr_model_flops_per_token(&fx.cfg) * metrics.tokens_per_second;
    double expected = peak > 0 ? flops / peak : 0;
    bool is_in = fx.run != NULL;
    fx_close(&fx);
    fx_check(job, !is_in || fabs(metrics.mfu - expected) <= 1e-9 * expected,
             "%s, %s: mfu %.17g, expected %.17g", name, settings, metrics.mfu, expected);
}

static void test_mfu(fx_job *job)
{
    mfu_case(job, "NVIDIA H200", BATCH " train.precision=bf16 device.kind=cuda", 989.4e12);
    mfu_case(job, "NVIDIA A100-SXM4-80GB", BATCH " device.kind=auto", 19.5e12);
    mfu_case(job, "NVIDIA A100-SXM4-80GB", BATCH " train.tf32=true device.kind=cuda", 156e12);
    mfu_case(job, "NVIDIA H20", BATCH " parallel.data=2 device.kind=cuda", 2 * 44e12);
    mfu_case(job, job->rank == 0 ? "NVIDIA H200" : "NVIDIA H20",
             BATCH " parallel.data=2 train.precision=fp16 device.kind=cuda", 989.4e12 + 148e12);
    mfu_case(job, job->rank == 0 ? "NVIDIA H200" : "Other",
             BATCH " parallel.data=2 device.kind=cuda", 0);
    mfu_case(job, "Other", BATCH " device.kind=cuda", 0);
    machine_set(1, "Other");
    expect_kind(job, BATCH " device.kind=cuda", TR_DEVICE_CUDA, "no peak of rank 0's GPU (Other)",
                true);
    machine_set(1, "NVIDIA H200");
    expect_kind(job, BATCH " device.kind=cuda", TR_DEVICE_CUDA, "no peak", false);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    static const fx_named_case cases[] = {
        {"variables", test_variables}, /* before the driver has started */
        {"one_rank", test_one_rank},
        {"two_ranks", test_two_ranks},
        {"no_gpu", test_no_gpu},
        {"mfu", test_mfu}};
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
