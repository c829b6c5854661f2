/* Where the toolkit has no NVTX: profilers are told no ranges. */
#include "kernels/cuda/cuda_device_int.h"

void tr_cuda_ranges_set(tr_device *device)
{
    (void)device;
}
