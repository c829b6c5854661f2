/* For which GPUs the program has kernels. */
#ifndef TR_KERNELS_CUDA_IMAGE_H
#define TR_KERNELS_CUDA_IMAGE_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether it has them for the current GPU: cudaErrorNoKernelImageForDevice where they were compiled for others only. In cuda_convert.cu: all files are
 * compiled for the same GPUs. */
cudaError_t tr_cuda_image_there(void);

#ifdef __cplusplus
}
#endif

#endif
