/* The device that a run computes on, or is planned for. */
#include "engine/peak.h"
#include "engine/plan.h"
#include "engine/run_int.h"
#include "kernels/cuda/cuda_device.h"

static tr_status cuda_create(tr_run *run)
{
    if (run->cfg.derived.num_ranks > 1)
        return tr_fail(TR_ERR_SETTINGS, "device.kind=cuda with more than one rank is not in this "
                                        "version; use one rank, or device.kind=cpu");
    const tr_cuda_options options = {.local_rank = tr_world_local_rank(run->world),
                                     .local_size = tr_world_local_size(run->world),
                                     .tf32 = run->cfg.train.tf32};
    return tr_cuda_device_create(&run->device, &options);
}

tr_status tr_run_device_create(tr_run *run)
{
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
    if (cfg->device.kind == TR_DEVICE_CHOICE_CUDA)
        return tr_cuda_device_create_counting(device);
    return tr_cpu_device_create(device,
                                tr_peak_threads(cfg->device.threads, (int)cfg->derived.num_ranks));
}
