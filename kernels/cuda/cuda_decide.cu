/* A step's decision where its sums are: a thread adds up a limb of all ranks, and one of them decides, for that is some hundred instructions that wait for one
 * another. */
#include "kernels/cuda/cuda_kernel.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/decide.h"

static_assert((int)TR_STEP_SUMS <= (int)TR_WARP, "a thread has one limb");

__global__ void decide_kernel(tr_decision args)
{
    TR_SHARED(int64_t, sums, [TR_WARP]);
    if (threadIdx.x < TR_STEP_SUMS)
        sums[threadIdx.x] = tr_decide_limb(&args, (int)threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0)
        tr_decide(&args, sums);
}

extern "C" tr_status tr_cuda_decide(cudaStream_t stream, const tr_decision *args)
{
    return TR_LAUNCH(decide_kernel, 1, TR_WARP, 0, stream, *args);
}
