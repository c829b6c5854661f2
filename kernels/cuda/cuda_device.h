/* The CUDA device: one GPU for one process.
 *
 * A build without the CUDA toolkit has these functions too (cuda_absent.c): none is present, and creation says so. A build with it runs
 * on machines without a driver; CUDA is touched only by the functions here. A device's numerics read
 * "cuda sm_90 NVIDIA H200 x 132 driver 13.0 runtime 13.0 cublasLt 130000". */
#ifndef TR_KERNELS_CUDA_DEVICE_H
#define TR_KERNELS_CUDA_DEVICE_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_cuda_options {
    int local_rank; /* of this process on its node, from 0 */
    int local_size; /* processes on the node */
    bool share;     /* several processes may use one GPU: rank r takes GPU r mod count */
    bool tf32;      /* fp32 products may round their inputs to TF32 */
} tr_cuda_options;

/* Whether this process sees at least one GPU through a working driver. Starts the driver, not a context. */
bool tr_cuda_is_present(void);

/* A device that only answers for the scratch that its operations need, for plans; needs no GPU. TR_ERR_MEMORY in a build without the toolkit. */
tr_status tr_cuda_device_create_counting(tr_device **device);

/* The device of GPU local_rank of those that the process sees; where it sees one, of that. TR_ERR_MEMORY, with what was seen and what to
 * do, for: no toolkit in the build, no driver or one too old, fewer GPUs (two or more) than processes on the node unless `share`,
 * compute capability below 8.0, a library that is missing or too old. */
tr_status tr_cuda_device_create(tr_device **device, const tr_cuda_options *options);

/* Text that is the same for two processes of a node only when they use one GPU (the GPU's UUID); valid while the device lives. */
const char *tr_cuda_device_place(const tr_device *device);

/* The GPU's name as the driver has it ("NVIDIA H200"); valid while the device lives. */
const char *tr_cuda_device_name(const tr_device *device);

/* The cudaStream_t of a stream, for libraries that enqueue themselves (NCCL). */
void *tr_cuda_device_stream(tr_device *device, tr_stream stream);

#ifdef __cplusplus
}
#endif

#endif
