/* The device that a run computes on, or is planned for, and what it can do at best. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/peak.h"
#include "engine/peak_gpu.h"
#include "engine/plan.h"
#include "engine/run_int.h"
#include "kernels/cuda/cuda_device.h"

bool tr_run_shares_device(void)
{
    const char *share = getenv("TRINE_SHARE_GPU");
    return share != NULL && strcmp(share, "1") == 0;
}

static tr_status cuda_create(tr_run *run)
{
    const tr_cuda_options options = {.local_rank = tr_world_local_rank(run->world),
                                     .local_size = tr_world_local_size(run->world),
                                     .share = tr_run_shares_device(),
                                     .tf32 = run->cfg.train.tf32};
    TR_TRY(tr_cuda_device_create(&run->device, &options));
    return tr_run_attention_choose(run);
}

/* Rank 0 says which node keeps all ranks on the CPU. bare: the lowest rank that sees no GPU. */
static tr_status bare_node_tell(tr_run *run, int64_t bare)
{
    char node[64] = "";
    int64_t words[sizeof node / sizeof(int64_t)] = {0};
    if (run->mesh.rank == bare && gethostname(node, sizeof node - 1) == 0)
        memcpy(words, node, sizeof node);
    TR_TRY(tr_run_sum(run, words, sizeof node / sizeof(int64_t))); /* zeros but of one rank */
    memcpy(node, words, sizeof node);
    if (run->mesh.rank == 0)
        tr_log_warning("device.kind=auto: all ranks compute on the CPU, since rank %lld on node %s "
                       "sees no GPU and others do; device.kind=cuda says what is missing there, "
                       "device.kind=cpu takes the CPU without this line",
                       (long long)bare, node);
    return TR_OK;
}

/* What device.kind=auto takes: the GPU where all ranks see one. */
static tr_status auto_choose(tr_run *run, bool *cuda)
{
    int64_t present = tr_cuda_is_present(), seen = present, bare = INT64_MAX;
    if (!present)
        bare = run->mesh.rank;
    TR_TRY(tr_run_max(run, &seen, 1));
    TR_TRY(tr_run_min(run, &bare, 1));
    *cuda = bare == INT64_MAX;
    if (seen && !*cuda)
        return bare_node_tell(run, bare);
    if (run->mesh.rank == 0 && tr_cuda_driver_check() != TR_OK)
        tr_log_warning("device.kind=auto: computing on the CPU: %s", tr_error_message());
    return TR_OK;
}

/* Of all ranks' GPUs together; one that ranks share, for a test, counts for each. */
static tr_status gpu_peak(tr_run *run)
{
    const char *name = tr_cuda_device_name(run->device);
    double own = tr_peak_gpu_flops(name, run->cfg.train.precision, run->cfg.train.tf32);
    int64_t sum = (int64_t)own, unknown = own == 0 ? run->mesh.rank : INT64_MAX;
    TR_TRY(tr_run_sum(run, &sum, 1));
    TR_TRY(tr_run_min(run, &unknown, 1));
    run->peak_flops = unknown == INT64_MAX ? (double)sum : 0;
    if (run->mesh.rank == 0 && unknown != INT64_MAX)
        tr_log_info("mfu is 0 in this run: trine knows no peak of rank %lld's GPU%s%s%s",
                    (long long)unknown, unknown == 0 ? " (" : "", unknown == 0 ? name : "",
                    unknown == 0 ? ")" : "");
    return TR_OK;
}

tr_status tr_run_device_create(tr_run *run)
{
    bool cuda = run->cfg.device.kind == TR_DEVICE_CHOICE_CUDA;
    if (run->cfg.device.kind != TR_DEVICE_CHOICE_CPU)
        tr_cuda_prepare(run->cfg.derived.num_ranks > 1);
    if (run->cfg.device.kind == TR_DEVICE_CHOICE_AUTO) {
        TR_TRY(auto_choose(run, &cuda));
        TR_TRY(tr_config_check_device(&run->cfg, cuda));
    }
    if (cuda) {
        TR_TRY(cuda_create(run));
        return gpu_peak(run);
    }
    run->peak_flops =
        tr_peak_flops(run->cfg.train.precision) * (double)tr_world_num_nodes(run->world);
    int threads = tr_peak_threads(run->cfg.device.threads, tr_world_local_size(run->world));
    return tr_cpu_device_create(&run->device, threads);
}

/* NCCL's sums of gradients are part of the arithmetic where native takes them. */
void tr_run_numerics_set(tr_run *run)
{
    int nccl = tr_world_nccl_version(run->world);
    run->numerics = run->cfg.train.reduction_order == TR_REDUCTION_NATIVE && nccl != 0
                        ? tr_format("%s nccl %d.%d.%d sums", run->device->numerics, nccl / 10000,
                                    nccl / 100 % 100, nccl % 100)
                        : tr_strdup(run->device->numerics);
}

const char *tr_run_device_numerics(const tr_run *run)
{
    return run->numerics;
}

size_t tr_run_device_bytes(const tr_device *device, const size_t bytes[TR_MEM_NUM])
{
    size_t total = 0;
    for (int c = 0; c < TR_MEM_NUM; c++)
        total += c == TR_MEM_SNAPSHOT && !device->unified ? 0 : bytes[c];
    return total;
}

tr_status tr_plan_device_create(tr_device **device, const tr_config *cfg)
{
    bool cuda = cfg->device.kind == TR_DEVICE_CHOICE_CUDA;
    if (cfg->device.kind == TR_DEVICE_CHOICE_AUTO) {
        cuda = tr_cuda_is_present();
        TR_TRY(tr_config_check_device(cfg, cuda));
    }
    if (cuda)
        return tr_cuda_device_create_counting(device, tr_attention_may_be_cudnns(cfg));
    return tr_cpu_device_create(device,
                                tr_peak_threads(cfg->device.threads, (int)cfg->derived.num_ranks));
}
