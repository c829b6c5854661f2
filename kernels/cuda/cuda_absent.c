/* The CUDA device of a build without the CUDA toolkit: there is none. */
#include "kernels/cuda/cuda_device.h"

bool tr_cuda_is_present(void)
{
    return false;
}

static tr_status refuse(void)
{
    return tr_fail(
        TR_ERR_MEMORY,
        "this build of trine has no CUDA device: CMake found no CUDA toolkit; install it and "
        "configure again with -DTRINE_CUDA=ON, or use device.kind=cpu");
}

tr_status tr_cuda_device_create(tr_device **device, const tr_cuda_options *options)
{
    (void)device;
    (void)options;
    return refuse();
}

tr_status tr_cuda_device_create_counting(tr_device **device)
{
    (void)device;
    return refuse();
}

const char *tr_cuda_device_place(const tr_device *device)
{
    (void)device;
    return "";
}

const char *tr_cuda_device_name(const tr_device *device)
{
    (void)device;
    return "";
}

void *tr_cuda_device_stream(tr_device *device, tr_stream stream)
{
    (void)device;
    (void)stream;
    return NULL;
}
