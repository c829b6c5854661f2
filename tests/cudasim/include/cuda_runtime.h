/* What device code sees of CUDA, for kernels compiled as C++ and run by the emulator (tests/cudasim/simt.h): the subset that
 * Trine's kernels use. Names and meanings are CUDA's; what is undefined there is an error here where it can be seen. Shared
 * memory has no keyword: it is declared with TR_SHARED and TR_SHARED_DYNAMIC. There are no atomic operations on floats: their
 * result depends on the order of threads. */
#ifndef TR_TESTS_CUDASIM_CUDA_RUNTIME_H
#define TR_TESTS_CUDASIM_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "tests/cudasim/simt.h"
#include "tests/cudasim/simt_access.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__                                                                                 \
    _Pragma("GCC error \"declare shared memory with TR_SHARED or TR_SHARED_DYNAMIC\"")

enum { warpSize = SIMT_WARP };

/* Where the call of a synchronising function stands in the source. */
#define CUDASIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* Barriers and fences. */

inline void __syncthreads(CUDASIM_SITE)
{
    simt_barrier({file, line});
}

inline void __syncwarp(unsigned int mask = 0xffffffffu, CUDASIM_SITE)
{
    simt_warp_barrier(mask, {file, line});
}

/* Threads run one at a time, so that every store is seen at once by whoever runs later. */
inline void __threadfence()
{
}

inline void __threadfence_block()
{
}

[[noreturn]] inline void __trap()
{
    simt_fail("__trap()");
}

/* Exchanges between the lanes of a warp. */

template <typename T>
inline T cudasim_shuffle(unsigned int mask, T value, int source, const char *name, simt_site site)
{
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8),
                  "shuffles take integers and floats of 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = simt_shuffle(mask, bits, source, name, site);
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline int cudasim_lane()
{
    return simt_lane();
}

/* Groups of `width` lanes (a power of two) exchange among themselves; a lane whose partner lies outside keeps its own value. */
template <typename T>
inline T __shfl_sync(unsigned int mask, T value, int source, int width = SIMT_WARP, CUDASIM_SITE)
{
    int lane = cudasim_lane();
    return cudasim_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)),
                           "__shfl_sync", {file, line});
}

template <typename T>
inline T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = SIMT_WARP, CUDASIM_SITE)
{
    int lane = cudasim_lane(), source = lane ^ lanes;
    if (source >= (lane & ~(width - 1)) + width) /* a group below may be read, one above not */
        source = lane;
    return cudasim_shuffle(mask, value, source, "__shfl_xor_sync", {file, line});
}

template <typename T>
inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = SIMT_WARP,
                          CUDASIM_SITE)
{
    int lane = cudasim_lane(), source = lane + (int)delta;
    if (source >= (lane & ~(width - 1)) + width)
        source = lane;
    return cudasim_shuffle(mask, value, source, "__shfl_down_sync", {file, line});
}

template <typename T>
inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = SIMT_WARP,
                        CUDASIM_SITE)
{
    int lane = cudasim_lane(), source = lane - (int)delta;
    if (source < (lane & ~(width - 1)))
        source = lane;
    return cudasim_shuffle(mask, value, source, "__shfl_up_sync", {file, line});
}

inline unsigned int __ballot_sync(unsigned int mask, int predicate, CUDASIM_SITE)
{
    return simt_ballot(mask, predicate != 0, "__ballot_sync", {file, line});
}

inline int __any_sync(unsigned int mask, int predicate, CUDASIM_SITE)
{
    return simt_ballot(mask, predicate != 0, "__any_sync", {file, line}) != 0;
}

inline int __all_sync(unsigned int mask, int predicate, CUDASIM_SITE)
{
    return simt_ballot(mask, predicate == 0, "__all_sync", {file, line}) == 0;
}

#undef CUDASIM_SITE

/* Atomic operations; each returns the old value. Their accesses are told to the emulator as what they are. */

#define CUDASIM_ATOMIC __attribute__((no_sanitize("thread")))
#define CUDASIM_ATOMICS(T)                                                                         \
    CUDASIM_ATOMIC inline T atomicAdd(T *address, T value)                                         \
    {                                                                                              \
        simt_access(SIMT_ATOMIC, address, sizeof *address, __builtin_return_address(0));           \
        T old = *address;                                                                          \
        *address = (T)((unsigned long long)old + (unsigned long long)value);                       \
        return old;                                                                                \
    }                                                                                              \
    CUDASIM_ATOMIC inline T atomicOr(T *address, T value)                                          \
    {                                                                                              \
        simt_access(SIMT_ATOMIC, address, sizeof *address, __builtin_return_address(0));           \
        T old = *address;                                                                          \
        *address = old | value;                                                                    \
        return old;                                                                                \
    }                                                                                              \
    CUDASIM_ATOMIC inline T atomicMax(T *address, T value)                                         \
    {                                                                                              \
        simt_access(SIMT_ATOMIC, address, sizeof *address, __builtin_return_address(0));           \
        T old = *address;                                                                          \
        *address = old > value ? old : value;                                                      \
        return old;                                                                                \
    }                                                                                              \
    CUDASIM_ATOMIC inline T atomicMin(T *address, T value)                                         \
    {                                                                                              \
        simt_access(SIMT_ATOMIC, address, sizeof *address, __builtin_return_address(0));           \
        T old = *address;                                                                          \
        *address = old < value ? old : value;                                                      \
        return old;                                                                                \
    }                                                                                              \
    CUDASIM_ATOMIC inline T atomicExch(T *address, T value)                                        \
    {                                                                                              \
        simt_access(SIMT_ATOMIC, address, sizeof *address, __builtin_return_address(0));           \
        T old = *address;                                                                          \
        *address = value;                                                                          \
        return old;                                                                                \
    }                                                                                              \
    CUDASIM_ATOMIC inline T atomicCAS(T *address, T compare, T value)                              \
    {                                                                                              \
        simt_access(SIMT_ATOMIC, address, sizeof *address, __builtin_return_address(0));           \
        T old = *address;                                                                          \
        *address = old == compare ? value : old;                                                   \
        return old;                                                                                \
    }

CUDASIM_ATOMICS(int)
CUDASIM_ATOMICS(unsigned int)
CUDASIM_ATOMICS(unsigned long long)
#undef CUDASIM_ATOMICS
#undef CUDASIM_ATOMIC

/* Loads and stores with a caching hint. */

template <typename T> inline T __ldg(const T *p)
{
    return *p;
}

template <typename T> inline T __ldcs(const T *p)
{
    return *p;
}

template <typename T> inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> inline void __stcs(T *p, T value)
{
    *p = value;
}

template <typename T> inline void __stcg(T *p, T value)
{
    *p = value;
}

/* Numbers. */

#define CUDASIM_MIN_MAX(T)                                                                         \
    inline T min(T a, T b)                                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    inline T max(T a, T b)                                                                         \
    {                                                                                              \
        return b > a ? b : a;                                                                      \
    }

CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned int)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
#undef CUDASIM_MIN_MAX

inline float min(float a, float b)
{
    return fminf(a, b);
}

inline float max(float a, float b)
{
    return fmaxf(a, b);
}

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

/* On the device within 2 units in the last place, and 0 for large denominators. */
inline float __fdividef(float x, float y)
{
    return fabsf(y) > 0x1p126f ? 0.0f : x / y;
}

template <typename To, typename From> inline To cudasim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline unsigned int __float_as_uint(float x)
{
    return cudasim_bits<unsigned int>(x);
}

inline int __float_as_int(float x)
{
    return cudasim_bits<int>(x);
}

inline float __uint_as_float(unsigned int x)
{
    return cudasim_bits<float>(x);
}

inline float __int_as_float(int x)
{
    return cudasim_bits<float>(x);
}

inline long long __double_as_longlong(double x)
{
    return cudasim_bits<long long>(x);
}

inline double __longlong_as_double(long long x)
{
    return cudasim_bits<double>(x);
}

inline int __popc(unsigned int x)
{
    return __builtin_popcount(x);
}

inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}

inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned int)x);
}

inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}

inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}

inline unsigned int __umulhi(unsigned int a, unsigned int b)
{
    return (unsigned int)(((unsigned long long)a * b) >> 32);
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

/* Short vectors. */

inline float2 make_float2(float x, float y)
{
    return {x, y};
}

inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

inline uint2 make_uint2(unsigned int x, unsigned int y)
{
    return {x, y};
}

inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w)
{
    return {x, y, z, w};
}

inline int2 make_int2(int x, int y)
{
    return {x, y};
}

inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}

inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
    return {x, y};
}

#endif
