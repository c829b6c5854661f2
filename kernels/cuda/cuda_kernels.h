/* The launchers of the CUDA device's own kernels: one per entry of the operation table (kernels/ops.h) but products and attention.
 *
 * Shapes, rounding and meaning are those of the entry. Each enqueues on `stream` and returns; a status other than TR_OK says
 * that a launch was refused. Every pointer is device memory, also ids, labels, dropout->samples, limbs, sums, states and scales; tree_sum's array of
 * pointers and copy_many's copies are the host's and have been read when the call returns. Grids and blocks are functions of shapes alone: neither the
 * number of multiprocessors nor an address changes a bit, since operands that are not 16-byte aligned take the same elements in
 * the same order with narrower loads.
 *
 * `workspace`, where there is one, is 256-byte aligned device memory of at least tr_cuda_kernels_workspace bytes; its contents
 * mean nothing before and after, and work on one stream may use the same. C17 and C++17; any thread that has the device current. */
#ifndef TR_KERNELS_CUDA_KERNELS_H
#define TR_KERNELS_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "kernels/device.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch bytes that any launcher of this header needs up to these sizes; pure. */
size_t tr_cuda_kernels_workspace(const tr_workspace_need *need);

tr_status tr_cuda_embed_forward(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t H,
                                int64_t V, int64_t vocab_begin, const int32_t *ids,
                                const void *table, float *out);
tr_status tr_cuda_embed_finish(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t H,
                               int64_t row_begin, const float *in, const void *positions,
                               const tr_dropout *dropout, void *out);
tr_status tr_cuda_embed_backward(cudaStream_t stream, void *workspace, tr_dtype dtype, int64_t R,
                                 int64_t H, int64_t V, int64_t vocab_begin, const int32_t *ids,
                                 const void *dx, float *dtable, bool accumulate);
tr_status tr_cuda_position_backward(cudaStream_t stream, tr_dtype dtype, int64_t B, int64_t T,
                                    int64_t H, const void *dx, float *dpositions, bool accumulate);

tr_status tr_cuda_norm_forward(cudaStream_t stream, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                               int64_t H, float eps, const void *x, const void *weight,
                               const void *bias, void *out, float *mean, float *rstd);
tr_status tr_cuda_residual_norm(cudaStream_t stream, const tr_residual_norm *args);
tr_status tr_cuda_norm_backward(cudaStream_t stream, void *workspace, tr_norm_kind kind,
                                tr_dtype dtype, int64_t R, int64_t H, const float *dy,
                                const void *x, const void *weight, const float *mean,
                                const float *rstd, const void *dresidual, void *dx, float *dweight,
                                float *dbias, bool accumulate);

tr_status tr_cuda_residual_add(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t H,
                               int64_t row_begin, const void *x, const float *y, const void *bias,
                               const tr_dropout *dropout, void *out);
tr_status tr_cuda_dropout_backward(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t H,
                                   int64_t row_begin, const void *dy, const tr_dropout *dropout,
                                   void *out);
tr_status tr_cuda_column_sum(cudaStream_t stream, void *workspace, tr_dtype dtype, int64_t R,
                             int64_t N, const void *dy, float *out, bool accumulate);

tr_status tr_cuda_rope(cudaStream_t stream, tr_dtype dtype, int64_t B, int64_t T, int64_t heads,
                       int64_t D, const float *cos_sin, bool backward, void *x);

tr_status tr_cuda_swiglu_forward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *gate,
                                 const void *up, void *out);
tr_status tr_cuda_swiglu_backward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *gate,
                                  const void *up, const void *dout, void *dgate, void *dup);
tr_status tr_cuda_gelu_forward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *x,
                               void *out);
tr_status tr_cuda_gelu_backward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *x,
                                const void *dout, void *dx);
/* The same on [M,N] with `ld` elements between rows of all three: what tr_matmul.gelu_input asks for where the library cannot. */
tr_status tr_cuda_gelu_backward_rows(cudaStream_t stream, tr_dtype dtype, int64_t M, int64_t N,
                                     int64_t ld, const void *x, const void *dout, void *dx);

tr_status tr_cuda_xent_max(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t V,
                           int64_t stride, const void *logits, float *max);
tr_status tr_cuda_xent_sum(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t V,
                           int64_t stride, int64_t vocab_begin, const void *logits,
                           const int32_t *labels, const float *max, float *sum_target);
tr_status tr_cuda_xent_backward(cudaStream_t stream, tr_dtype dtype, int64_t R, int64_t V,
                                int64_t stride, int64_t vocab_begin, void *logits,
                                const int32_t *labels, const float *max, const float *sum_target,
                                const float *scale);
tr_status tr_cuda_loss_sum(cudaStream_t stream, int64_t R, const int32_t *labels, const float *max,
                           const float *sum_target, int64_t *limbs);

tr_status tr_cuda_decide(cudaStream_t stream, const tr_decision *args);
tr_status tr_cuda_adamw(cudaStream_t stream, const tr_adamw *args);
tr_status tr_cuda_sgd(cudaStream_t stream, const tr_adamw *args);
tr_status tr_cuda_square_sum(cudaStream_t stream, int64_t n, const float *x, int64_t *limbs);

tr_status tr_cuda_convert(cudaStream_t stream, int64_t n, tr_dtype src_dtype, const void *src,
                          tr_dtype dst_dtype, void *dst);
tr_status tr_cuda_fill_zero(cudaStream_t stream, void *dst, int64_t bytes);
tr_status tr_cuda_copy_many(cudaStream_t stream, int count, const tr_copy *copies);
tr_status tr_cuda_tree_sum(cudaStream_t stream, void *workspace, int64_t n, int count,
                           const float *const *src, float *dst);

/* tr_device's combine. */
tr_status tr_cuda_combine(cudaStream_t stream, const tr_combine *args);

#ifdef __cplusplus
}
#endif

#endif
