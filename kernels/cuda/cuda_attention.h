/* Attention of the CUDA device (kernels/ops.h, tr_attention).
 *
 * bf16 and fp16 with a head size that is a multiple of 8 run on tensor cores (cuda_attention_forward.cu, cuda_attention_dq.cu,
 * cuda_attention_dkv.cu); fp32 and other head sizes on fused multiply-adds in fp32 (cuda_attention_fma.cu,
 * cuda_attention_fma_backward.cu). Which one, its tiles and the order of every sum are functions of dtype and shape alone. Every
 * pointer of `args` is device memory, dropout.samples too; q, k, v, out, dout, dq, dk, dv are 16-byte aligned, as tensors and their
 * ranges of heads are, unless a head's row is no multiple of 16 bytes. */
#ifndef TR_KERNELS_CUDA_ATTENTION_H
#define TR_KERNELS_CUDA_ATTENTION_H

#include <stddef.h>

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch bytes of the backward of shapes up to `need` (delta, one float per query); the forward needs none. */
size_t tr_cuda_attention_workspace(const tr_workspace_need *need);

/* Both enqueue on `stream`, for heads of up to TR_CUDA_HEAD_DIM_MAX columns. TR_ERR_INTERNAL when a launch is refused. */
tr_status tr_cuda_attention_forward(cudaStream_t stream, const tr_attention *args);
/* workspace: device memory, 256-byte aligned, as large as tr_cuda_attention_workspace says. */
tr_status tr_cuda_attention_backward(cudaStream_t stream, const tr_attention *args,
                                     void *workspace);

#ifdef __cplusplus
}
#endif

#endif
