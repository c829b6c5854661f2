/* Named ranges of the host's time for profilers, by NVTX: its calls return at once where none is attached. */
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/cuda_device_int.h"

static void range_begin(tr_device *device, const char *name)
{
    (void)device;
    nvtxRangePushA(name);
}

static void range_end(tr_device *device)
{
    (void)device;
    nvtxRangePop();
}

void tr_cuda_ranges_set(tr_device *device)
{
    device->range_begin = range_begin;
    device->range_end = range_end;
}
