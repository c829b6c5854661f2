/* Inside of the CPU device, read by kernels/cpu only.
 *
 * An operation runs on the threads of one pool: it cuts its work into pieces by a grid that is a function of shapes
 * only, and threads take whole pieces, so that results never depend on the number of threads. Scratch is one block that
 * belongs to whichever operation runs; the operation lays it out itself (shared part first, then a slice per thread).
 * Piece functions may be called from any thread of the pool, several at once, and never call an operation. */
#ifndef TR_KERNELS_CPU_DEVICE_INT_H
#define TR_KERNELS_CPU_DEVICE_INT_H

#include "base/thread_pool.h"
#include "kernels/device.h"

typedef struct tr_cpu_device {
    tr_device base; /* first: a tr_device of this kind is a tr_cpu_device */
    tr_thread_pool *pool;
    int num_threads;
    unsigned char *workspace; /* owned by the caller of workspace_set */
    size_t workspace_bytes;
    struct tr_cpu_product_cache *products; /* bf16 products of oneDNN; NULL where it has none on this processor */
} tr_cpu_device;

static inline tr_cpu_device *tr_cpu_device_of(tr_device *device)
{
    return (tr_cpu_device *)device;
}

/* Calls fn(ctx, piece, thread) for every piece of 0 ... num_pieces-1, thread in 0 ... num_threads-1, and returns when all
 * have finished. Which thread takes which piece is not fixed. */
void tr_cpu_parallel_for(tr_device *device, int64_t num_pieces,
                         void (*fn)(void *ctx, int64_t piece, int thread), void *ctx);
int tr_cpu_num_threads(const tr_device *device);

/* Scratch of the running operation: the first `bytes` of the workspace, contents undefined, 256-byte aligned. The workspace
 * is large enough when it was sized by workspace_bytes (a broken invariant otherwise). An operation calls it once. */
void *tr_cpu_workspace(tr_device *device, size_t bytes);

/* Rounds a size up so that slices of a workspace stay 256-byte aligned. */
static inline size_t tr_cpu_align(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* Scratch bytes of each family of operations for the sizes of `need`; the device takes the largest. */
size_t tr_cpu_matmul_workspace(const tr_workspace_need *need, int num_threads);
size_t tr_cpu_attention_workspace(const tr_workspace_need *need, int num_threads);
/* Of norms, column sums, embedding gradients and everything else that sums rows in fixed blocks. */
size_t tr_cpu_rowwise_workspace(const tr_workspace_need *need, int num_threads);

/* The entries of the operation table (kernels/ops.h). */
tr_status tr_cpu_matmul(tr_device *device, const tr_matmul *args);
tr_status tr_cpu_attention_forward(tr_device *device, const tr_attention *args);
tr_status tr_cpu_attention_backward(tr_device *device, const tr_attention *args);

tr_status tr_cpu_embed_forward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                               int64_t vocab_begin, const int32_t *ids, const void *table,
                               float *out);
tr_status tr_cpu_embed_finish(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const float *in, const void *positions,
                              const tr_dropout *dropout, void *out);
tr_status tr_cpu_embed_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                                int64_t vocab_begin, const int32_t *ids, const void *dx,
                                float *dtable, bool accumulate);
tr_status tr_cpu_position_backward(tr_device *device, tr_dtype dtype, int64_t B, int64_t T,
                                   int64_t H, const void *dx, float *dpositions, bool accumulate);
tr_status tr_cpu_norm_forward(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                              int64_t H, float eps, const void *x, const void *weight,
                              const void *bias, void *out, float *mean, float *rstd);
tr_status tr_cpu_norm_backward(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                               int64_t H, const float *dy, const void *x, const void *weight,
                               const float *mean, const float *rstd, const void *dresidual,
                               void *dx, float *dweight, float *dbias, bool accumulate);
tr_status tr_cpu_residual_add(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const void *x, const float *y, const void *bias,
                              const tr_dropout *dropout, void *out);
tr_status tr_cpu_dropout_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                  int64_t row_begin, const void *dy, const tr_dropout *dropout,
                                  void *out);
tr_status tr_cpu_column_sum(tr_device *device, tr_dtype dtype, int64_t R, int64_t N, const void *dy,
                            float *out, bool accumulate);
tr_status tr_cpu_rope(tr_device *device, tr_dtype dtype, int64_t B, int64_t T, int64_t heads,
                      int64_t D, const float *cos_sin, bool backward, void *x);
tr_status tr_cpu_swiglu_forward(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                const void *up, void *out);
tr_status tr_cpu_swiglu_backward(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                 const void *up, const void *dout, void *dgate, void *dup);
tr_status tr_cpu_gelu_forward(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                              void *out);
tr_status tr_cpu_gelu_backward(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                               const void *dout, void *dx);
tr_status tr_cpu_xent_max(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          const void *logits, float *max);
tr_status tr_cpu_xent_sum(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          int64_t vocab_begin, const void *logits, const int32_t *labels,
                          const float *max, float *sum_target);
tr_status tr_cpu_xent_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t V,
                               int64_t stride, int64_t vocab_begin, void *logits,
                               const int32_t *labels, const float *max, const float *sum_target,
                               float scale);
tr_status tr_cpu_adamw(tr_device *device, const tr_adamw *args);
tr_status tr_cpu_sgd(tr_device *device, const tr_adamw *args);
tr_status tr_cpu_square_sum(tr_device *device, int64_t n, const float *x, int64_t *limbs);
tr_status tr_cpu_convert(tr_device *device, int64_t n, tr_dtype src_dtype, const void *src,
                         tr_dtype dst_dtype, void *dst);
tr_status tr_cpu_fill_zero(tr_device *device, void *dst, int64_t bytes);
tr_status tr_cpu_tree_sum(tr_device *device, int64_t n, int count, const float *const *src,
                          float *dst);

#endif
