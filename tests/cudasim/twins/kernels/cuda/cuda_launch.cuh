/* The simulator's twin of kernels/cuda/cuda_launch.cuh: a launch captures its arguments by value and is enqueued on the stand-in's stream,
 * where the emulator runs it; it refuses the sizes that a device refuses. */
#ifndef TR_KERNELS_CUDA_LAUNCH_CUH
#define TR_KERNELS_CUDA_LAUNCH_CUH

#include <stddef.h>

#include <functional>

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_error.h"
#include "tests/cudasim/simt.h"
#include "tests/cudasim/simt_access.h"
#include "tests/cudasim/simt_launch.h"

#define TR_SHARED(type, name, dims)                                                                \
    typedef type name##_shared_type dims;                                                          \
    static simt_shared_variable name##_shared_variable;                                            \
    name##_shared_type &name = *static_cast<name##_shared_type *>(                                 \
        simt_shared(&name##_shared_variable, sizeof(name##_shared_type), #name))

#define TR_SHARED_DYNAMIC(type, name) type *name = static_cast<type *>(simt_shared_dynamic())

#define TR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                  \
    tr_cuda_launch(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

/* What a launch has captured lies in host memory, where the hardware has constant memory. */
#define CUDASIM_UNCHECKED __attribute__((no_sanitize("thread")))

template <typename T> struct tr_as_declared {
    typedef T type;
};

template <typename... P>
tr_status tr_cuda_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t stream,
                         typename tr_as_declared<P>::type... args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return TR_OK;
    cudaError_t error = cudaErrorInvalidConfiguration;
    if (simt_launch_valid(grid, block, shared_bytes))
        error = cudasim_launch(stream, name, [=] {
            simt_run(name, grid, block, shared_bytes, [=]() CUDASIM_UNCHECKED {
                simt_access_kernel_begin();
                kernel(args...);
            });
        });
    return tr_cuda_check_launch(error, name, grid, block, shared_bytes);
}

#endif
