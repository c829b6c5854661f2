/* XXH3 with 256-bit vectors. Distributions build libxxhash for the oldest processor of the
 * architecture, where it runs at a third of this speed; the header holds the same functions, which
 * this file compiles for AVX2 (base/CMakeLists.txt). */
#include "base/hash_int.h"

#if defined(__AVX2__)

#define XXH_INLINE_ALL
#include <xxhash.h>

static tr_hash128 compute(const void *data, size_t bytes)
{
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    return (tr_hash128){.low = hash.low64, .high = hash.high64};
}

static void add(void *state, const void *data, size_t bytes)
{
    XXH3_128bits_update(state, data, bytes);
}

static const tr_hash_functions functions = {compute, add};

const tr_hash_functions *tr_hash_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? &functions : NULL;
}

#else

const tr_hash_functions *tr_hash_avx2(void)
{
    return NULL;
}

#endif
