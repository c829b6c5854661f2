/* The CUDA device's own struct, for the files of kernels/cuda. */
#ifndef TR_KERNELS_CUDA_DEVICE_INT_H
#define TR_KERNELS_CUDA_DEVICE_INT_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_cudnn_attention.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/cuda_matmul.h"
#include "kernels/device.h"

typedef struct tr_cuda_device {
    tr_device base;
    int index;      /* of the GPU */
    int capability; /* 90 is 9.0 */
    cudaStream_t streams[TR_STREAM_MOST];
    int num_streams;
    void *workspace; /* the compute stream's */
    size_t workspace_bytes;
    tr_cuda_products *products;
    tr_cuda_cudnn *cudnn; /* NULL until it is prepared */
    bool cudnn_used;      /* attention of prepared shapes is cuDNN's, and scratch is for it, too */
    char numerics[512], place[33], name[256];
} tr_cuda_device;

static inline tr_cuda_device *tr_cuda_device_of(tr_device *device)
{
    return (tr_cuda_device *)device;
}

/* cuda_range.c, or cuda_range_absent.c where the toolkit has no NVTX: what tells profilers of ranges. */
void tr_cuda_ranges_set(tr_device *device);

/* cuda_ops.c: the operations of every CUDA device, and the scratch that they need. */
extern const tr_ops tr_cuda_ops;
size_t tr_cuda_ops_workspace(const tr_device *device, const tr_workspace_need *need);

#endif
