/* Whether cuDNN's attention computes on this GPU what our own kernels do: asked once, before a run takes it. */
#ifndef TR_KERNELS_CUDA_ATTENTION_CHECK_H
#define TR_KERNELS_CUDA_ATTENTION_CHECK_H

#include "base/status.h"
#include "kernels/cuda/cuda_cudnn_attention.h"
#include "kernels/device.h"

/* Compares forward and backward, on random tensors of shape->dtype and D: two short sequences of shape->A / shape->K query heads to a key/value head, one of them of odd
 * length, and the shape itself. Each tensor's difference has to stay within 2^-6 (bf16) or 2^-9 (fp16) of its norm, lse's within 1e-4, and the same inputs have to give the same bits twice.
 * TR_ERR_NUMERICS with the figures. Takes device memory for the time of the call, and waits for the compute stream. */
tr_status tr_cuda_attention_check(tr_device *device, tr_cuda_cudnn *cudnn,
                                  const tr_attention *shape);

#endif
