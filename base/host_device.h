/* TR_HOST_DEVICE_INLINE: an inline function that host code and CUDA kernels share, in headers that are valid C17, C++17 and CUDA. */
#ifndef TR_BASE_HOST_DEVICE_H
#define TR_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define TR_HOST_DEVICE_INLINE static __host__ __device__ __forceinline__
#else
#define TR_HOST_DEVICE_INLINE static inline
#endif

#endif
