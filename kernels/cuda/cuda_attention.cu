/* Attention of the CUDA device: which kernels a call takes, and in which order. */
#include "kernels/cuda/cuda_attention.h"

#include "kernels/cuda/cuda_attention_tile.cuh"
#include "kernels/cuda/cuda_device.h"

namespace
{

tr_attention_launch launch_make(const tr_attention *args)
{
    tr_attention_launch launch = {};
    float probability = args->dropout.probability;
    launch.args = *args;
    launch.threshold = tr_dropout_threshold(probability);
    launch.kept_scale = probability > 0.0f ? tr_dropout_scale(probability) : 1.0f;
    return launch;
}

/* Rows are read and written in pieces of 16 bytes where they consist of whole ones. */
bool is_aligned(const tr_attention *args)
{
    const void *all[] = {args->q,    args->k,  args->v,  args->out,
                         args->dout, args->dq, args->dk, args->dv};
    if (args->D * (int64_t)tr_dtype_size(args->dtype) % 16 == 0)
        for (const void *tensor : all)
            if (!tr_vec_aligned(tensor))
                return false;
    return true;
}

bool is_served(const tr_attention *args)
{
    return args->A % args->K == 0 && args->D <= TR_CUDA_HEAD_DIM_MAX && args->scale > 0.0f &&
           is_aligned(args);
}

/* Tensor cores take rows of whole pieces only. */
bool on_tensor_cores(const tr_attention *args)
{
    return args->dtype != TR_F32 && args->D % 8 == 0;
}

} /* namespace */

size_t tr_cuda_attention_workspace(const tr_workspace_need *need)
{
    return sizeof(float) * (size_t)(need->B * need->A * need->T);
}

tr_status tr_cuda_attention_forward(cudaStream_t stream, const tr_attention *args)
{
    TR_ASSERT(is_served(args));
    if (args->B == 0 || args->T == 0)
        return TR_OK;
    if (on_tensor_cores(args))
        return tr_attention_forward_tensor(stream, launch_make(args));
    return tr_attention_forward_fma(stream, launch_make(args));
}

tr_status tr_cuda_attention_backward(cudaStream_t stream, const tr_attention *args, void *workspace)
{
    TR_ASSERT(is_served(args) && args->A % tr_attention_gradient_heads(args) == 0);
    if (args->B == 0 || args->T == 0)
        return TR_OK;
    tr_attention_launch launch = launch_make(args);
    launch.delta = static_cast<float *>(workspace);
    if (on_tensor_cores(args)) {
        TR_TRY(tr_attention_dq_tensor(stream, launch));
        return tr_attention_dkv_tensor(stream, launch);
    }
    TR_TRY(tr_attention_dq_fma(stream, launch));
    return tr_attention_dkv_fma(stream, launch);
}
