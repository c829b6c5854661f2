/* Which attention cuDNN serves, and the scratch that is planned for it: nobody asks the library, which need not be there (cuda_cudnn_attention.h). */
#include "kernels/cuda/cuda_cudnn_attention.h"
#include "kernels/cuda/cuda_scratch.h"

/* The widest tile of the library's kernels, and what a plan takes besides what grows with the shape. */
enum { HEAD_STEP = 8, HEAD_MOST = 128, TILE = 128, PLAN_BYTES = 1 << 16 };

bool tr_cuda_cudnn_serves(const tr_attention *args)
{
    return args->dtype != TR_F32 && args->dropout.probability == 0.0f && args->kv_parts <= 1 &&
           args->B > 0 && args->T > 1 && args->D % HEAD_STEP == 0 && args->D <= HEAD_MOST;
}

/* The gradient of the scores in whole tiles, and with grouped queries each query head's part of dk and dv, in fp32 at most: what
 * version 9.19 asks for at most on the GPUs where it is used. */
size_t tr_cuda_cudnn_workspace(const tr_workspace_need *need)
{
    const tr_attention args = {.B = need->B, .T = need->T, .D = need->D, .dtype = need->dtype};
    if (!tr_cuda_cudnn_serves(&args))
        return 0;
    int64_t padded = tr_cuda_ceil(need->T, TILE) * TILE;
    size_t scores = (size_t)(need->B * need->A * padded * padded) * 2;
    size_t parts = 2 * (size_t)(need->B * need->A * need->T * need->D) * sizeof(float);
    return tr_cuda_cudnn_delta_bytes(need->B, need->T, need->A) + scores +
           (need->A != need->K ? parts : 0) + PLAN_BYTES;
}
