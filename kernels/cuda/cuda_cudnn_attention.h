/* Attention by cuDNN's fused kernels (kernels/ops.h, tr_attention), for the shapes that it serves; beside our own (cuda_attention.h).
 *
 * A plan each for forward and backward is built for a shape before the first step and kept. Backward asks for the form of
 * the algorithm that adds in a fixed order: the gradient of the scores is stored (2 bytes per query and key) and multiplied by the keys as a
 * whole, where the library's default adds parts in whatever order they come. Unlike our kernel it reads `out`, and with grouped queries it rounds each query head's
 * part of dk and dv before they are added. Which engine runs is the library's choice by shape and GPU, nothing is timed. */
#ifndef TR_KERNELS_CUDA_CUDNN_ATTENTION_H
#define TR_KERNELS_CUDA_CUDNN_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's handle and plans; one thread uses it. */
typedef struct tr_cuda_cudnn tr_cuda_cudnn;

/* Opens the library for the current GPU, of compute capability `capability` (90 is 9.0). TR_ERR_MEMORY when it is missing or too old, or this build of trine was made
 * without its header; TR_ERR_INTERNAL when it does not start. */
tr_status tr_cuda_cudnn_create(tr_cuda_cudnn **cudnn, int capability);
void tr_cuda_cudnn_destroy(tr_cuda_cudnn *cudnn);
/* "9.19.0"; lives as long as `cudnn`. */
const char *tr_cuda_cudnn_version(const tr_cuda_cudnn *cudnn);

/* Whether attention of this form is cuDNN's to compute where it is chosen: bf16 or fp16, no dropout, dk and dv whole, more than one position, a head size that is a multiple of 8,
 * to 128. Reads dtype, shape, dropout's probability and kv_parts only; pure. */
bool tr_cuda_cudnn_serves(const tr_attention *args);

/* Scratch bytes that are planned for shapes up to `need`, of which nobody asks the library: 0 for those that it does not serve. Pure. */
size_t tr_cuda_cudnn_workspace(const tr_workspace_need *need);

/* Builds the plans of a shape (B, T, A, K, D and dtype of `args`, which is served) unless they are there. TR_ERR_INTERNAL with the library's words when it has none
 * that repeats itself bit for bit. */
tr_status tr_cuda_cudnn_prepare(tr_cuda_cudnn *cudnn, const tr_attention *args);
/* Scratch that the plans of this shape take; 0 when it was not prepared. */
size_t tr_cuda_cudnn_bytes(const tr_cuda_cudnn *cudnn, const tr_attention *args);

/* Both enqueue on `stream`, for a shape that was prepared. workspace: tr_cuda_cudnn_bytes of device memory, 256-byte aligned. */
tr_status tr_cuda_cudnn_forward(tr_cuda_cudnn *cudnn, cudaStream_t stream, const tr_attention *args,
                                void *workspace);
tr_status tr_cuda_cudnn_backward(tr_cuda_cudnn *cudnn, cudaStream_t stream,
                                 const tr_attention *args, void *workspace);

#ifdef __cplusplus
}
#endif

#endif
