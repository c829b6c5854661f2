/* The device that a run computes on, or is planned for. */
#include <stdlib.h>
#include <string.h>

#include "engine/peak.h"
#include "engine/plan.h"
#include "engine/run_int.h"
#include "kernels/cuda/cuda_device.h"

bool tr_run_shares_device(void)
{
    const char *share = getenv("TRINE_SHARE_GPU");
    return share != NULL && strcmp(share, "1") == 0;
}

/* Between GPUs tensors go by NCCL, between CPUs they cannot. */
static tr_status transport_check(const tr_config *cfg, bool on_gpus, const char *name,
                                 tr_config_transport asked)
{
    bool nccl = asked == TR_CONFIG_TRANSPORT_NCCL;
    if (!on_gpus && nccl)
        return tr_fail(
            TR_ERR_SETTINGS,
            "%s = nccl: NCCL exchanges the memory of GPUs, this run computes on the CPU; "
            "use %s=auto, or device.kind=cuda",
            name, name);
    if (!on_gpus || nccl || asked == TR_CONFIG_TRANSPORT_AUTO || cfg->derived.num_ranks == 1)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS,
                   "%s = %s is not in this version for several ranks with device.kind=cuda, which "
                   "exchange tensors by NCCL; use %s=auto",
                   name, asked == TR_CONFIG_TRANSPORT_SHM ? "shm" : "mpi", name);
}

static tr_status transports_check(const tr_config *cfg, bool on_gpus)
{
    TR_TRY(transport_check(cfg, on_gpus, "parallel.inside", cfg->parallel.inside));
    return transport_check(cfg, on_gpus, "parallel.across", cfg->parallel.across);
}

static tr_status cuda_create(tr_run *run)
{
    if (run->cfg.derived.num_ranks > 1)
        return tr_fail(TR_ERR_SETTINGS, "device.kind=cuda with more than one rank is not in this "
                                        "version; use one rank, or device.kind=cpu");
    const tr_cuda_options options = {.local_rank = tr_world_local_rank(run->world),
                                     .local_size = tr_world_local_size(run->world),
                                     .share = tr_run_shares_device(),
                                     .tf32 = run->cfg.train.tf32};
    return tr_cuda_device_create(&run->device, &options);
}

tr_status tr_run_device_create(tr_run *run)
{
    TR_TRY(transports_check(&run->cfg, run->cfg.device.kind == TR_DEVICE_CHOICE_CUDA));
    if (run->cfg.device.kind == TR_DEVICE_CHOICE_CUDA)
        return cuda_create(run);
    int threads = tr_peak_threads(run->cfg.device.threads, tr_world_local_size(run->world));
    return tr_cpu_device_create(&run->device, threads);
}

const char *tr_run_device_numerics(const tr_run *run)
{
    return run->device->numerics;
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
    TR_TRY(transports_check(cfg, cfg->device.kind == TR_DEVICE_CHOICE_CUDA));
    if (cfg->device.kind == TR_DEVICE_CHOICE_CUDA)
        return tr_cuda_device_create_counting(device);
    return tr_cpu_device_create(device,
                                tr_peak_threads(cfg->device.threads, (int)cfg->derived.num_ranks));
}
