/* The CUDA device of a build without the CUDA toolkit: there is none. */
#include "kernels/cuda/cuda_device.h"

void tr_cuda_prepare(bool waits)
{
    (void)waits;
}

bool tr_cuda_is_present(void)
{
    return false;
}

tr_status tr_cuda_driver_check(void)
{
    return TR_OK;
}

static tr_status refuse(void)
{
    return tr_fail(
        TR_ERR_MEMORY,
        "this build of trine has no CUDA device: TRINE_CUDA was OFF, or CMake found no whole CUDA "
        "toolkit; configure again with -DTRINE_CUDA=ON, which says what is missing, or use "
        "device.kind=cpu");
}

tr_status tr_cuda_device_create(tr_device **device, const tr_cuda_options *options)
{
    (void)device;
    (void)options;
    return refuse();
}

tr_status tr_cuda_device_create_counting(tr_device **device, bool cudnn)
{
    (void)device;
    (void)cudnn;
    return refuse();
}

bool tr_cuda_attention_is_served(const tr_attention *shape)
{
    (void)shape;
    return false;
}

size_t tr_cuda_attention_scratch(const tr_attention *shape)
{
    (void)shape;
    return 0;
}

tr_status tr_cuda_device_cudnn_prepare(tr_device *device, const tr_attention *shape)
{
    (void)device;
    (void)shape;
    return refuse();
}

void tr_cuda_device_cudnn_use(tr_device *device, bool use)
{
    (void)device;
    (void)use;
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
