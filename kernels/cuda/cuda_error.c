#include "kernels/cuda/cuda_error.h"

/* After these the context is lost: every later call of the process fails with the same error. */
static bool is_sticky(cudaError_t error)
{
    return error == cudaErrorECCUncorrectable ||
           (error >= cudaErrorIllegalAddress && error <= cudaErrorLaunchFailure &&
            error != cudaErrorLaunchOutOfResources);
}

tr_status tr_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return TR_OK;
    const char *name = cudaGetErrorName(error), *text = cudaGetErrorString(error);
    if (is_sticky(error))
        return tr_fail(TR_ERR_INTERNAL,
                       "the GPU failed: %s (%s), seen at %s but caused by work enqueued before; "
                       "the process cannot use it any more; run again, on one rank with "
                       "CUDA_LAUNCH_BLOCKING=1 to see which work it was (several would hang)",
                       name, text, what);
    if (error == cudaErrorMemoryAllocation)
        return tr_fail(TR_ERR_MEMORY, "the GPU's memory is full at %s (%s)", what, text);
    return tr_fail(TR_ERR_INTERNAL, "CUDA refused %s: %s (%s)", what, name, text);
}

tr_status tr_cuda_check_launch(cudaError_t error, const char *kernel, dim3 grid, dim3 block,
                               size_t shared_bytes)
{
    if (error == cudaSuccess)
        return TR_OK;
    cudaGetLastError(); /* the error is reported here; it must not surface at another call */
    if (is_sticky(error))
        return tr_cuda_check(error, kernel);
    return tr_fail(TR_ERR_INTERNAL,
                   "the GPU refused kernel %s (grid %u x %u x %u, block %u x %u x %u, %zu bytes of "
                   "dynamic shared memory): %s",
                   kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                   cudaGetErrorString(error));
}
