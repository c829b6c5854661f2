/* From the CUDA runtime's errors to a tr_status with its message. */
#ifndef TR_KERNELS_CUDA_ERROR_H
#define TR_KERNELS_CUDA_ERROR_H

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* TR_OK, or the error as a status whose message names `what` (a call or a kernel). An error of work enqueued earlier, which the
 * runtime repeats from then on, says that it is one. */
tr_status tr_cuda_check(cudaError_t error, const char *what);

/* The same of the launch of a kernel, named as TR_LAUNCH does. */
tr_status tr_cuda_check_launch(cudaError_t error, const char *kernel, dim3 grid, dim3 block,
                               size_t shared_bytes);

#define TR_CUDA_TRY(call) TR_TRY(tr_cuda_check((call), #call))
#define TR_CUDA_TRY_GOTO(status_var, call, label)                                                  \
    TR_TRY_GOTO(status_var, tr_cuda_check((call), #call), label)

#ifdef __cplusplus
}
#endif

#endif
