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

/* Largest head size that its attention takes. */
enum { TR_CUDA_HEAD_DIM_MAX = 256 };

typedef struct tr_cuda_options {
    int local_rank; /* of this process on its node, from 0 */
    int local_size; /* processes on the node */
    bool share;     /* several processes may use one GPU: rank r takes GPU r mod count */
    bool tf32;      /* fp32 products may round their inputs to TF32 */
} tr_cuda_options;

/* Sets the environment variables that the driver reads when it starts, but for those that are set already. Called before anything else here, and
 * before other threads read the environment. waits: the GPU's work will wait for that of other processes. */
void tr_cuda_prepare(bool waits);

/* Whether this process sees at least one GPU through a working driver. Starts the driver, not a context. */
bool tr_cuda_is_present(void);
/* TR_ERR_MEMORY, with both versions, when there is a driver and it is too old for this build; TR_OK also where there is none. */
tr_status tr_cuda_driver_check(void);

/* A device that only answers for the scratch that its operations need, for plans; needs no GPU. cudnn: also for that of attention by
 * cuDNN. TR_ERR_MEMORY in a build without the toolkit. */
tr_status tr_cuda_device_create_counting(tr_device **device, bool cudnn);

/* The device of GPU local_rank of those that the process sees; where it sees one, of that. TR_ERR_MEMORY, with what was seen and what to
 * do, for: no toolkit in the build, no driver or one too old, fewer GPUs (two or more) than processes on the node unless `share`,
 * compute capability below 8.0, a library that is missing or too old. */
tr_status tr_cuda_device_create(tr_device **device, const tr_cuda_options *options);

/* Whether attention of this shape (B, T, A, K, D, dtype, dropout's probability, kv_parts) could be cuDNN's, whatever the GPU; pure. */
bool tr_cuda_attention_is_served(const tr_attention *shape);
/* Scratch bytes that are planned for cuDNN's attention of this shape, which is served; pure. */
size_t tr_cuda_attention_scratch(const tr_attention *shape);

/* Makes attention by cuDNN ready for calls of this shape, which is served: opens the library, builds its plans and compares them with our own
 * kernels on this GPU. Takes memory for its time and waits for the GPU. When it cannot be used: TR_ERR_MEMORY for no library, one too old, or a GPU that it is not
 * used on; TR_ERR_INTERNAL for a shape that the library refuses or needs more scratch for than is planned; TR_ERR_NUMERICS with the figures
 * when the comparison failed. */
tr_status tr_cuda_device_cudnn_prepare(tr_device *device, const tr_attention *shape);
/* Before scratch is asked for. true: attention of the prepared shape is computed by cuDNN, and the numerics say so ("... cudnn 9.19.0 attention"); false: what
 * was prepared, if anything, is given back. */
void tr_cuda_device_cudnn_use(tr_device *device, bool use);

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
