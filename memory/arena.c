#include "memory/arena.h"

const char *tr_mem_category_name(tr_mem_category category)
{
    static const char *const names[] = {
#define MEM_NAME(name, text) text,
        TR_MEM_LIST(MEM_NAME)
#undef MEM_NAME
    };
    return names[category];
}

void tr_arena_init_counting(tr_arena *arena, tr_mem_category category)
{
    /* A base that is aligned, not NULL, and faults when touched. */
    *arena = (tr_arena){.category = category, .counting = true, .capacity = SIZE_MAX};
    arena->base = (unsigned char *)(uintptr_t)TR_ARENA_ALIGNMENT;
}

void tr_arena_init(tr_arena *arena, tr_mem_category category, void *base, size_t capacity)
{
    TR_ASSERT((uintptr_t)base % TR_ARENA_ALIGNMENT == 0);
    *arena = (tr_arena){.category = category, .base = base, .capacity = capacity};
}

void *tr_arena_alloc(tr_arena *arena, size_t bytes)
{
    size_t rounded = (bytes + TR_ARENA_ALIGNMENT - 1) / TR_ARENA_ALIGNMENT * TR_ARENA_ALIGNMENT;
    TR_ASSERT(rounded >= bytes && rounded <= arena->capacity - arena->used);
    void *pointer = (void *)((uintptr_t)arena->base + arena->used);
    arena->used += rounded;
    if (arena->used > arena->peak)
        arena->peak = arena->used;
    return pointer;
}

size_t tr_arena_mark(const tr_arena *arena)
{
    return arena->used;
}

void tr_arena_reset(tr_arena *arena, size_t mark)
{
    TR_ASSERT(mark <= arena->used);
    arena->used = mark;
}
