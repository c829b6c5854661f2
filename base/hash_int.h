/* Inside of base/hash: the functions that go through many bytes, for one instruction set. */
#ifndef TR_BASE_HASH_INT_H
#define TR_BASE_HASH_INT_H

#include "base/hash.h"

typedef struct tr_hash_functions {
    tr_hash128 (*compute)(const void *data, size_t bytes);
    /* state: an XXH3_state_t, whose layout is that of the header on every instruction set */
    void (*add)(void *state, const void *data, size_t bytes);
} tr_hash_functions;

/* NULL where the processor, or the compiler's target, has no AVX2. */
const tr_hash_functions *tr_hash_avx2(void);

#endif
