/* The CUDA device's table of operations: each entry hands its arguments, the compute stream and the workspace to a launcher. */
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_device_int.h"
#include "kernels/cuda/cuda_kernels.h"

static cudaStream_t stream_of(tr_device *device)
{
    return tr_cuda_device_of(device)->streams[TR_STREAM_COMPUTE];
}

/* Scratch of whichever operation runs: the stream runs them one by one. */
static void *workspace_of(tr_device *device)
{
    return tr_cuda_device_of(device)->workspace;
}

static tr_status matmul(tr_device *base, const tr_matmul *args)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    TR_ASSERT(args->gelu_input == NULL ||
              (args->c_dtype == args->dtype && args->bias == NULL && !args->accumulate));
    if (args->M == 0 || args->N == 0)
        return TR_OK;
    TR_ASSERT(device->workspace_bytes >= TR_CUDA_MATMUL_WORKSPACE);
    return tr_cuda_products_multiply(device->products, stream_of(base), device->workspace, args);
}

static tr_status embed_forward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                               int64_t vocab_begin, const int32_t *ids, const void *table,
                               float *out)
{
    return tr_cuda_embed_forward(stream_of(device), dtype, R, H, V, vocab_begin, ids, table, out);
}

static tr_status embed_finish(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const float *in, const void *positions,
                              const tr_dropout *dropout, void *out)
{
    return tr_cuda_embed_finish(stream_of(device), dtype, R, H, row_begin, in, positions, dropout,
                                out);
}

static tr_status embed_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                                int64_t vocab_begin, const int32_t *ids, const void *dx,
                                float *dtable, bool accumulate)
{
    return tr_cuda_embed_backward(stream_of(device), workspace_of(device), dtype, R, H, V,
                                  vocab_begin, ids, dx, dtable, accumulate);
}

static tr_status position_backward(tr_device *device, tr_dtype dtype, int64_t B, int64_t T,
                                   int64_t H, const void *dx, float *dpositions, bool accumulate)
{
    return tr_cuda_position_backward(stream_of(device), dtype, B, T, H, dx, dpositions, accumulate);
}

static tr_status norm_forward(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                              int64_t H, float eps, const void *x, const void *weight,
                              const void *bias, void *out, float *mean, float *rstd)
{
    return tr_cuda_norm_forward(stream_of(device), kind, dtype, R, H, eps, x, weight, bias, out,
                                mean, rstd);
}

static tr_status norm_backward(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                               int64_t H, const float *dy, const void *x, const void *weight,
                               const float *mean, const float *rstd, const void *dresidual,
                               void *dx, float *dweight, float *dbias, bool accumulate)
{
    return tr_cuda_norm_backward(stream_of(device), workspace_of(device), kind, dtype, R, H, dy, x,
                                 weight, mean, rstd, dresidual, dx, dweight, dbias, accumulate);
}

static tr_status residual_add(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const void *x, const float *y, const void *bias,
                              const tr_dropout *dropout, void *out)
{
    return tr_cuda_residual_add(stream_of(device), dtype, R, H, row_begin, x, y, bias, dropout,
                                out);
}

static tr_status residual_norm(tr_device *device, const tr_residual_norm *args)
{
    return tr_cuda_residual_norm(stream_of(device), args);
}

static tr_status dropout_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                  int64_t row_begin, const void *dy, const tr_dropout *dropout,
                                  void *out)
{
    return tr_cuda_dropout_backward(stream_of(device), dtype, R, H, row_begin, dy, dropout, out);
}

static tr_status column_sum(tr_device *device, tr_dtype dtype, int64_t R, int64_t N, const void *dy,
                            float *out, bool accumulate)
{
    return tr_cuda_column_sum(stream_of(device), workspace_of(device), dtype, R, N, dy, out,
                              accumulate);
}

static tr_status rope(tr_device *device, tr_dtype dtype, int64_t B, int64_t T, int64_t heads,
                      int64_t D, const float *cos_sin, bool backward, void *x)
{
    return tr_cuda_rope(stream_of(device), dtype, B, T, heads, D, cos_sin, backward, x);
}

static tr_status xent_max(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          const void *logits, float *max)
{
    return tr_cuda_xent_max(stream_of(device), dtype, R, V, stride, logits, max);
}

static tr_status xent_sum(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          int64_t vocab_begin, const void *logits, const int32_t *labels,
                          const float *max, float *sum_target)
{
    return tr_cuda_xent_sum(stream_of(device), dtype, R, V, stride, vocab_begin, logits, labels,
                            max, sum_target);
}

static tr_status xent_backward(tr_device *device, tr_dtype dtype, int64_t R, int64_t V,
                               int64_t stride, int64_t vocab_begin, void *logits,
                               const int32_t *labels, const float *max, const float *sum_target,
                               const float *scale)
{
    return tr_cuda_xent_backward(stream_of(device), dtype, R, V, stride, vocab_begin, logits,
                                 labels, max, sum_target, scale);
}

static tr_status loss_sum(tr_device *device, int64_t R, const int32_t *labels, const float *max,
                          const float *sum_target, int64_t *limbs)
{
    return tr_cuda_loss_sum(stream_of(device), R, labels, max, sum_target, limbs);
}

static tr_status decide(tr_device *device, const tr_decision *args)
{
    return tr_cuda_decide(stream_of(device), args);
}

static tr_status adamw(tr_device *device, const tr_adamw *args)
{
    return tr_cuda_adamw(stream_of(device), args);
}

static tr_status sgd(tr_device *device, const tr_adamw *args)
{
    return tr_cuda_sgd(stream_of(device), args);
}

static tr_status square_sum(tr_device *device, int64_t n, const float *x, int64_t *limbs)
{
    return tr_cuda_square_sum(stream_of(device), n, x, limbs);
}

static tr_status convert(tr_device *device, int64_t n, tr_dtype src_dtype, const void *src,
                         tr_dtype dst_dtype, void *dst)
{
    return tr_cuda_convert(stream_of(device), n, src_dtype, src, dst_dtype, dst);
}

static tr_status fill_zero(tr_device *device, void *dst, int64_t bytes)
{
    return tr_cuda_fill_zero(stream_of(device), dst, bytes);
}

static tr_status copy_many(tr_device *device, int count, const tr_copy *copies)
{
    return tr_cuda_copy_many(stream_of(device), count, copies);
}

static tr_status tree_sum(tr_device *device, int64_t n, int count, const float *const *src,
                          float *dst)
{
    return tr_cuda_tree_sum(stream_of(device), workspace_of(device), n, count, src, dst);
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

/* Decided by the shape, which is the same in all of a run's calls. */
static bool is_cudnns(const tr_cuda_device *device, const tr_attention *args)
{
    return device->cudnn_used && tr_cuda_cudnn_serves(args) &&
           tr_cuda_cudnn_bytes(device->cudnn, args) > 0;
}

static tr_status attention_forward(tr_device *base, const tr_attention *args)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    if (!is_cudnns(device, args))
        return tr_cuda_attention_forward(stream_of(base), args);
    TR_ASSERT(device->workspace_bytes >= tr_cuda_cudnn_bytes(device->cudnn, args));
    return tr_cuda_cudnn_forward(device->cudnn, stream_of(base), args, device->workspace);
}

static tr_status attention_backward(tr_device *base, const tr_attention *args)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    if (!is_cudnns(device, args))
        return tr_cuda_attention_backward(stream_of(base), args, device->workspace);
    return tr_cuda_cudnn_backward(device->cudnn, stream_of(base), args, device->workspace);
}

const tr_ops tr_cuda_ops = {
    .name = "cuda",
    .matmul = matmul,
    .embed_forward = embed_forward,
    .embed_finish = embed_finish,
    .embed_backward = embed_backward,
    .position_backward = position_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .residual_add = residual_add,
    .residual_norm = residual_norm,
    .dropout_backward = dropout_backward,
    .column_sum = column_sum,
    .rope = rope,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .xent_max = xent_max,
    .xent_sum = xent_sum,
    .xent_backward = xent_backward,
    .loss_sum = loss_sum,
    .decide = decide,
    .adamw = adamw,
    .sgd = sgd,
    .square_sum = square_sum,
    .convert = convert,
    .fill_zero = fill_zero,
    .copy_many = copy_many,
    .tree_sum = tree_sum,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
};

size_t tr_cuda_ops_workspace(const tr_device *device, const tr_workspace_need *need)
{
    bool cudnn = ((const tr_cuda_device *)device)->cudnn_used;
    const size_t all[] = {need->max_matmul > 0 ? TR_CUDA_MATMUL_WORKSPACE : 0,
                          tr_cuda_kernels_workspace(need), tr_cuda_attention_workspace(need),
                          cudnn ? tr_cuda_cudnn_workspace(need) : 0};
    size_t most = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        most = all[i] > most ? all[i] : most;
    return most;
}
