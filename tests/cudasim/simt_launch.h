/* Where the twin of TR_LAUNCH meets the stand-in for the CUDA runtime. */
#ifndef TR_TESTS_CUDASIM_SIMT_LAUNCH_H
#define TR_TESTS_CUDASIM_SIMT_LAUNCH_H

#include <functional>

#include <cuda_runtime_api.h>

/* Enqueues `run`, which runs the kernel `name`, on the stream. */
cudaError_t cudasim_launch(cudaStream_t stream, const char *name, std::function<void()> run);

#endif
