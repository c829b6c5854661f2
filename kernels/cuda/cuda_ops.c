/* The CUDA device's table of operations: each entry hands its arguments, the compute stream and the workspace to a launcher. */
#include "kernels/cuda/cuda_device_int.h"
#include "kernels/cuda/cuda_kernels.h"

static cudaStream_t stream_of(tr_device *device)
{
    return tr_cuda_device_of(device)->streams[TR_STREAM_COMPUTE];
}

static tr_status matmul(tr_device *base, const tr_matmul *args)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    if (args->M == 0 || args->N == 0)
        return TR_OK;
    TR_ASSERT(device->workspace_bytes >= TR_CUDA_MATMUL_WORKSPACE);
    return tr_cuda_products_multiply(device->products, stream_of(base), device->workspace, args);
}

static tr_status swiglu_forward(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                const void *up, void *out)
{
    return tr_cuda_swiglu_forward(stream_of(device), dtype, n, gate, up, out);
}

static tr_status swiglu_backward(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                 const void *up, const void *dout, void *dgate, void *dup)
{
    return tr_cuda_swiglu_backward(stream_of(device), dtype, n, gate, up, dout, dgate, dup);
}

static tr_status gelu_forward(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                              void *out)
{
    return tr_cuda_gelu_forward(stream_of(device), dtype, n, x, out);
}

static tr_status gelu_backward(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                               const void *dout, void *dx)
{
    return tr_cuda_gelu_backward(stream_of(device), dtype, n, x, dout, dx);
}

const tr_ops tr_cuda_ops = {
    .name = "cuda",
    .matmul = matmul,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
};

size_t tr_cuda_ops_workspace(const tr_device *device, const tr_workspace_need *need)
{
    (void)device;
    (void)need;
    return TR_CUDA_MATMUL_WORKSPACE;
}
