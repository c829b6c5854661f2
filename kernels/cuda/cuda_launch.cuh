/* Starting a kernel, and its shared memory. The simulator's build reads tests/cudasim/twins/kernels/cuda/cuda_launch.cuh instead.
 *
 *     tr_status TR_LAUNCH((kernel<T>), grid, block, shared_bytes, stream, args...)
 *
 * enqueues the kernel on the stream and checks that it was accepted; a fault while it runs is reported by the device's next
 * synchronisation. Arguments are converted to the kernel's parameter types and passed by value. A grid without blocks does nothing.
 * shared_bytes: dynamic shared memory; above 48 KiB the kernel's limit is raised.
 *
 *     TR_SHARED(float, tile, [32][33]);        static shared memory, 16-byte aligned, not initialised
 *     TR_SHARED_DYNAMIC(__half, rows);         __half *rows: the block's dynamic shared memory, 128-byte aligned */
#ifndef TR_KERNELS_CUDA_LAUNCH_CUH
#define TR_KERNELS_CUDA_LAUNCH_CUH

#include <stddef.h>

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_error.h"

#define TR_SHARED(type, name, dims) __shared__ __align__(16) type name dims

#define TR_SHARED_DYNAMIC(type, name)                                                              \
    extern __shared__ __align__(128) unsigned char tr_shared_dynamic[];                            \
    type *name = reinterpret_cast<type *>(tr_shared_dynamic)

#define TR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                  \
    tr_cuda_launch(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

enum { TR_SHARED_DEFAULT_LIMIT = 48 * 1024 };

/* T itself, in a place from which it is not deduced: launch arguments take the types of the kernel's parameters. */
template <typename T> struct tr_as_declared {
    typedef T type;
};

/* name: the kernel as written in TR_LAUNCH, with its parentheses. */
template <typename... P>
tr_status tr_cuda_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t stream,
                         typename tr_as_declared<P>::type... args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return TR_OK;
    const void *function = reinterpret_cast<const void *>(kernel);
    void *params[] = {const_cast<void *>(static_cast<const void *>(&args))...};
    cudaError_t error = cudaSuccess;
    if (shared_bytes > TR_SHARED_DEFAULT_LIMIT)
        error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernel(function, grid, block, params, shared_bytes, stream);
    return tr_cuda_check_launch(error, name, grid, block, shared_bytes);
}

#endif
