/* An arena: one block of device memory, handed out front to back, with marks to give the tail back.
 *
 * The engine is built twice (DESIGN section 6): first on counting arenas, which return addresses that must not be
 * touched and only measure, then on real ones of exactly the measured size. Both run the same code, so the plan is
 * the allocation. A step allocates nothing: all tensors of a step get their address before the first one.
 *
 * Every allocation names a category; `peak` per category is what `trine plan` prints. Not thread-safe: one owner. */
#ifndef TR_MEMORY_ARENA_H
#define TR_MEMORY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, text. One arena each; TR_MEM_COMMUNICATION is backed by memory that the node's ranks share, and so is TR_MEM_PARAMETERS
 * where peers gather weights from it (ZeRO 3). */
#define TR_MEM_LIST(X)                                                                             \
    X(PARAMETERS, "parameters")                                                                    \
    X(GRADIENTS, "gradients")                                                                      \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(ACTIVATIONS, "activations")                                                                  \
    X(COMMUNICATION, "communication")                                                              \
    X(WORKSPACE, "workspace")                                                                      \
    X(SNAPSHOT, "snapshot")

typedef enum tr_mem_category {
#define TR_MEM_ENUM(name, text) TR_MEM_##name,
    TR_MEM_LIST(TR_MEM_ENUM)
#undef TR_MEM_ENUM
        TR_MEM_NUM
} tr_mem_category;

const char *tr_mem_category_name(tr_mem_category category);

enum {
    TR_ARENA_ALIGNMENT = 256
}; /* bytes; of every allocation, so that kernels see aligned operands */

typedef struct tr_arena {
    tr_mem_category category;
    bool counting; /* addresses start at a fake base and must not be dereferenced */
    unsigned char *base;
    size_t capacity; /* bytes; SIZE_MAX when counting */
    size_t used;     /* bytes */
    size_t peak;     /* bytes; the largest `used` so far */
} tr_arena;

void tr_arena_init_counting(tr_arena *arena, tr_mem_category category);
/* `base` (256-byte aligned, `capacity` bytes) stays with the caller, who frees it after the arena's last use. */
void tr_arena_init(tr_arena *arena, tr_mem_category category, void *base, size_t capacity);

/* `bytes` may be 0 (returns a valid, unusable address). Running past the capacity is a broken invariant: the counting
 * pass measured it. */
void *tr_arena_alloc(tr_arena *arena, size_t bytes);

/* Everything allocated after the mark is given back by reset. Used for buffers that live in turn. */
size_t tr_arena_mark(const tr_arena *arena);
void tr_arena_reset(tr_arena *arena, size_t mark);

#ifdef __cplusplus
}
#endif

#endif
