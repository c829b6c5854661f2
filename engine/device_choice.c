/* The device that a run computes on. */
#include "engine/peak.h"
#include "engine/run_int.h"

tr_status tr_run_device_create(tr_run *run)
{
    int threads = tr_peak_threads(run->cfg.device.threads, tr_world_local_size(run->world));
    return tr_cpu_device_create(&run->device, threads);
}

const char *tr_run_device_numerics(const tr_run *run)
{
    return run->device->numerics;
}
