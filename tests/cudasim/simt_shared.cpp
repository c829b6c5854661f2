/* Shared memory of the block that runs, and the asynchronous copies into it.
 *
 * Static variables lie one after the other in one region, in the order in which a grid first reaches them, dynamic memory in another.
 * What belongs to no variable is poisoned for AddressSanitizer. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <vector>

#include "tests/cudasim/simt_access.h"
#include "tests/cudasim/simt_int.h"

extern "C" {
void __asan_poison_memory_region(const volatile void *memory, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *memory, size_t bytes) __attribute__((weak));
}

enum { POISON = 0xff, GAP = 32, MAX_STATIC = 3 * SIMT_STATIC_SHARED_LIMIT };

struct variable_place {
    unsigned char *memory;
    size_t bytes;
};

static struct {
    alignas(128) unsigned char fixed[MAX_STATIC];
    alignas(128) unsigned char dynamic[SIMT_SHARED_LIMIT + 128];
    std::vector<variable_place> variables; /* in `fixed` */
    size_t fixed_end;                      /* of `fixed`, with gaps */
    size_t static_bytes, dynamic_bytes;
} shared;

static void poison(const void *memory, size_t bytes)
{
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(memory, bytes);
}

static void unpoison(const void *memory, size_t bytes)
{
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(memory, bytes);
}

void simt_shared_launch(size_t dynamic_bytes)
{
    static bool begun;
    if (!begun) {
        poison(shared.fixed, sizeof shared.fixed);
        poison(shared.dynamic, sizeof shared.dynamic);
        begun = true;
    }
    poison(shared.fixed, shared.fixed_end);
    poison(shared.dynamic, shared.dynamic_bytes);
    unpoison(shared.dynamic, dynamic_bytes);
    shared.variables.clear();
    shared.fixed_end = GAP;
    shared.static_bytes = 0;
    shared.dynamic_bytes = dynamic_bytes;
}

void simt_shared_block()
{
    for (const variable_place &variable : shared.variables)
        memset(variable.memory, POISON, variable.bytes);
    memset(shared.dynamic, POISON, shared.dynamic_bytes);
}

static void shared_place(simt_shared_variable *variable, size_t bytes, const char *name)
{
    size_t aligned = (bytes + 15) / 16 * 16;
    shared.static_bytes += aligned;
    if (shared.static_bytes > SIMT_STATIC_SHARED_LIMIT)
        simt_fail("static shared memory passes 48 KiB with variable %s", name);
    if (shared.static_bytes + shared.dynamic_bytes > SIMT_SHARED_LIMIT)
        simt_fail("static and dynamic shared memory together are more than %d bytes",
                  SIMT_SHARED_LIMIT);
    variable->launch = simt_launch_number;
    variable->memory = shared.fixed + shared.fixed_end;
    shared.variables.push_back({(unsigned char *)variable->memory, bytes});
    shared.fixed_end += aligned + GAP;
    unpoison(variable->memory, bytes);
    memset(variable->memory, POISON, bytes);
}

void *simt_shared(simt_shared_variable *variable, size_t bytes, const char *name)
{
    if (variable->launch != simt_launch_number)
        shared_place(variable, bytes, name);
    return variable->memory;
}

void *simt_shared_dynamic()
{
    return shared.dynamic;
}

bool simt_is_shared(const void *memory, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)memory;
    return (p >= shared.fixed && p + bytes <= shared.fixed + shared.fixed_end) ||
           (p >= shared.dynamic && p + bytes <= shared.dynamic + shared.dynamic_bytes);
}

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    int group;
};

/* A thread's copies that have not landed, oldest first, and the number of groups that it has closed. */
struct copy_list {
    std::vector<copy> copies;
    int groups;
};
static copy_list copy_lists[SIMT_MAX_THREADS];

void simt_copy_start(void *dst, const void *src, size_t bytes)
{
    if ((uintptr_t)dst % bytes != 0 || (uintptr_t)src % bytes != 0)
        simt_fail("an asynchronous copy of %zu bytes from %p to %p: both must be aligned to it",
                  bytes, src, dst);
    if (!simt_is_shared(dst, bytes))
        simt_fail("an asynchronous copy to %p, which is not in the block's shared memory", dst);
    copy_list *list = &copy_lists[simt_running];
    simt_access_copy_begin(dst, bytes, __builtin_return_address(0));
    memset(dst, POISON, bytes);
    list->copies.push_back({dst, src, bytes, list->groups});
}

void simt_copy_commit()
{
    copy_lists[simt_running].groups++;
}

/* Copies since the last commit belong to no group yet: no wait covers them. */
void simt_copy_wait(int groups_left)
{
    copy_list *list = &copy_lists[simt_running];
    size_t landed = 0;
    for (; landed < list->copies.size(); landed++) {
        const copy &c = list->copies[landed];
        if (c.group >= list->groups - groups_left)
            break;
        simt_access_copy_end(c.dst, c.bytes, __builtin_return_address(0));
        if (c.src != nullptr)
            memcpy(c.dst, c.src, c.bytes);
        else
            memset(c.dst, 0, c.bytes);
    }
    list->copies.erase(list->copies.begin(), list->copies.begin() + (ptrdiff_t)landed);
}

void simt_copy_thread_end()
{
    copy_list *list = &copy_lists[simt_running];
    if (!list->copies.empty())
        simt_fail("the thread ended and had not waited for %zu asynchronous copies",
                  list->copies.size());
    list->groups = 0;
}
