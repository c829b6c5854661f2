/* Device memory, pinned host memory, and copies between them (sim_runtime.h).
 *
 * A device allocation is pages of its own between pages that nobody may touch; what the last page has beyond the allocation is
 * poisoned for AddressSanitizer. While the gate is closed all of them are without access. */
#include "tests/cudasim/runtime/sim_memory.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cudasim/runtime/sim_device.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_nccl.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/cudasim/runtime/sim_stream.h"

enum {
    PAGE = 4096,
    POISON = 0xff,
    PINNED_ALIGN = 4096,
    FILL_END = 1 << 20,
    FILL_PINNED = 64 << 10,
    MOST_FREED = 4
};

struct sim_allocation {
    size_t bytes, mapped; /* mapped: of device memory, without the guard pages */
};

struct memory_state {
    std::map<uintptr_t, sim_allocation> device, host;
    std::vector<std::pair<void *, size_t>> freed; /* pinned blocks */
    size_t device_bytes;
    int open; /* nested openings of the gate */
    bool pages_open;
    uint64_t closings;
};

static memory_state &state()
{
    static memory_state *the_state = new memory_state();
    return *the_state;
}

/* ---- the gate ---- */

/* The protection key of device memory (pkeys(7)): the gate is a register of the running thread. -1 where the processor has none: then the gate is
 * the protection of the pages, which costs time with their number, so that it is not closed each time while there are many. */
static int gate_key()
{
    static int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key;
}

enum { CLOSE_EACH_TIME = 4 << 20, CLOSE_ONE_IN = 16 }; /* bytes; times */

static void protect_all(int access)
{
    for (const auto &entry : state().device)
        if (mprotect((void *)entry.first, entry.second.mapped, access) != 0)
            cudasim_fail("mprotect of device memory failed");
}

void sim_memory_open()
{
    memory_state &s = state();
    if (s.open++ > 0)
        return;
    if (gate_key() >= 0)
        pkey_set(gate_key(), 0);
    else if (!s.pages_open)
        protect_all(PROT_READ | PROT_WRITE);
    s.pages_open = true;
}

void sim_memory_close()
{
    memory_state &s = state();
    if (--s.open > 0)
        return;
    if (gate_key() >= 0) {
        pkey_set(gate_key(), PKEY_DISABLE_ACCESS);
    } else if (s.device_bytes <= CLOSE_EACH_TIME || s.closings++ % CLOSE_ONE_IN == 0) {
        protect_all(PROT_NONE);
        s.pages_open = false;
    }
}

static void make_accessible(void *memory, size_t bytes)
{
    int access = PROT_READ | PROT_WRITE;
    int failed = gate_key() >= 0 ? pkey_mprotect(memory, bytes, access, gate_key())
                                 : mprotect(memory, bytes, access);
    if (failed != 0)
        cudasim_fail("mprotect of device memory failed");
}

/* ---- where an address lies ---- */

typedef std::map<uintptr_t, sim_allocation> allocation_map;

/* The allocation that holds all of the bytes, or end(). An empty range may begin where an allocation ends. */
static allocation_map::const_iterator find(const allocation_map &map, const void *pointer,
                                           size_t bytes)
{
    uintptr_t begin = (uintptr_t)pointer;
    auto at = map.upper_bound(begin);
    if (at == map.begin())
        return map.end();
    --at;
    return begin - at->first + bytes <= at->second.bytes ? at : map.end();
}

sim_side sim_memory_side(const void *pointer, size_t bytes)
{
    const memory_state &s = state();
    if (find(s.device, pointer, bytes) != s.device.end())
        return SIM_DEVICE;
    return find(s.host, pointer, bytes) != s.host.end() ? SIM_HOST : SIM_NOWHERE;
}

void cudasim_check_device(const char *what, const void *pointer, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    if (sim_memory_side(pointer, bytes) != SIM_DEVICE)
        cudasim_fail("%s: %p ... %zu bytes is not in one living allocation of device memory", what,
                     pointer, bytes);
}

/* ---- what is left at the end ---- */

static void check_left(int exit_status, void *)
{
    cudasim_counts left = cudasim_count();
    if (exit_status == 0 && cudasim_nccl_count() != 0)
        cudasim_fail("the process ends with %lld communicators that nobody destroyed",
                     (long long)cudasim_nccl_count());
    if (exit_status == 0 &&
        (left.device_memory != 0 || left.host_memory != 0 || left.streams != 0 || left.events != 0))
        cudasim_fail("the process ends with %lld device allocations, %lld pinned ones, %lld "
                     "streams and %lld events "
                     "that nobody destroyed",
                     (long long)left.device_memory, (long long)left.host_memory,
                     (long long)left.streams, (long long)left.events);
}

void sim_check_at_exit()
{
    static bool registered;
    if (!registered)
        on_exit(check_left, NULL);
    registered = true;
}

cudasim_counts cudasim_count(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    cudasim_counts counts = {};
    sim_stream_count(&counts);
    counts.device_memory = (int64_t)state().device.size();
    counts.host_memory = (int64_t)state().host.size();
    return counts;
}

/* ---- device memory ---- */

/* Large memory is filled at its ends only: most of an arena is never touched, and need not be there. */
static void poison(unsigned char *memory, size_t bytes)
{
    if (bytes <= 2 * FILL_END) {
        memset(memory, POISON, bytes);
        return;
    }
    memset(memory, POISON, FILL_END);
    memset(memory + bytes - FILL_END, POISON, FILL_END);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_check_at_exit();
    memory_state &s = state();
    if (sim_lost() != cudaSuccess)
        return sim_lost();
    if (bytes == 0) {
        *pointer = NULL;
        return cudaSuccess;
    }
    if (bytes > sim_machine().memory_bytes - s.device_bytes)
        return sim_error_set(cudaErrorMemoryAllocation);
    size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    unsigned char *start = (unsigned char *)mmap(
        NULL, mapped + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return sim_error_set(cudaErrorMemoryAllocation);
    sim_memory_open();
    unsigned char *memory = start + PAGE;
    s.device[(uintptr_t)memory] = {bytes, mapped};
    s.device_bytes += bytes;
    make_accessible(memory, mapped);
    poison(memory, bytes);
    ASAN_POISON_MEMORY_REGION(memory + bytes, mapped - bytes);
    sim_memory_close();
    *pointer = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    memory_state &s = state();
    if (pointer == NULL)
        return sim_lost();
    auto at = s.device.find((uintptr_t)pointer);
    if (at == s.device.end())
        cudasim_fail("cudaFree(%p): no allocation that is alive begins there", pointer);
    const char *user = sim_user_of(pointer, at->second.bytes);
    if (user != NULL)
        cudasim_fail("cudaFree(%p): %s, which is still queued, may use it", pointer, user);
    ASAN_UNPOISON_MEMORY_REGION(pointer, at->second.mapped);
    munmap((unsigned char *)pointer - PAGE, at->second.mapped + 2 * PAGE);
    s.device_bytes -= at->second.bytes;
    s.device.erase(at);
    return sim_lost();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    *total_bytes = sim_machine().memory_bytes;
    *free_bytes = *total_bytes - state().device_bytes;
    return sim_lost();
}

/* ---- pinned memory: the host's heap, and known ---- */

/* Large blocks that were freed are handed out again, since new pages cost more than all that is done with them; until then they are closed. */
static void *take_freed(size_t bytes)
{
    auto &freed = state().freed;
    for (auto at = freed.begin(); at != freed.end(); ++at)
        if (at->second == bytes) {
            void *memory = at->first;
            freed.erase(at);
            ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
            return memory;
        }
    return NULL;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)flags;
    sim_check_at_exit();
    if (sim_lost() != cudaSuccess)
        return sim_lost();
    if (bytes == 0) {
        *pointer = NULL;
        return cudaSuccess;
    }
    void *memory = take_freed(bytes);
    if (memory == NULL && posix_memalign(&memory, PINNED_ALIGN, bytes) != 0)
        return sim_error_set(cudaErrorMemoryAllocation);
    memset(memory, POISON, std::min(bytes, (size_t)FILL_PINNED));
    state().host[(uintptr_t)memory] = {bytes, 0};
    *pointer = memory;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    memory_state &s = state();
    if (pointer == NULL)
        return sim_lost();
    auto at = s.host.find((uintptr_t)pointer);
    if (at == s.host.end())
        cudasim_fail("cudaFreeHost(%p): no pinned allocation that is alive begins there", pointer);
    size_t bytes = at->second.bytes;
    const char *user = sim_user_of(pointer, bytes);
    if (user != NULL)
        cudasim_fail("cudaFreeHost(%p): %s, which is still queued, may use it", pointer, user);
    s.host.erase(at);
    if (bytes >= FILL_END && s.freed.size() < MOST_FREED) {
        ASAN_POISON_MEMORY_REGION(pointer, bytes);
        s.freed.push_back({pointer, bytes});
    } else {
        free(pointer);
    }
    return sim_lost();
}

/* ---- copies ---- */

static void check_kind(enum cudaMemcpyKind kind, sim_side dst, sim_side src)
{
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault &&
        (from_device != (src == SIM_DEVICE) || to_device != (dst == SIM_DEVICE)))
        cudasim_fail("cudaMemcpyAsync: its kind (%d) is not what its pointers are", (int)kind);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    if (bytes == 0)
        return sim_lost();
    sim_side dst_side = sim_memory_side(dst, bytes), src_side = sim_memory_side(src, bytes);
    if (dst_side == SIM_NOWHERE || src_side == SIM_NOWHERE)
        cudasim_fail("cudaMemcpyAsync: %s %p ... %zu bytes is in no living allocation of device or "
                     "pinned memory",
                     dst_side == SIM_NOWHERE ? "the destination" : "the source",
                     dst_side == SIM_NOWHERE ? dst : src, bytes);
    uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;
    if (d < s + bytes && s < d + bytes)
        cudasim_fail("cudaMemcpyAsync: destination and source overlap");
    check_kind(kind, dst_side, src_side);
    const sim_range ranges[] = {{dst, bytes}, {src, bytes}};
    return sim_enqueue(stream, "cudaMemcpyAsync", ranges, 2, [=] {
        memcpy(dst, src, bytes);
        return true;
    });
}

/* Whole pages that become zero are given back: they are zero when they are touched again. */
static void fill(unsigned char *memory, int value, size_t bytes)
{
    size_t head = (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    if (value != 0 || bytes < head + FILL_END) {
        memset(memory, value, bytes);
        return;
    }
    size_t pages = (bytes - head) / PAGE * PAGE;
    memset(memory, 0, head);
    madvise(memory + head, pages, MADV_DONTNEED);
    memset(memory + head + pages, 0, bytes - head - pages);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    if (bytes == 0)
        return sim_lost();
    cudasim_check_device("cudaMemsetAsync", pointer, bytes);
    const sim_range ranges[] = {{pointer, bytes}};
    return sim_enqueue(stream, "cudaMemsetAsync", ranges, 1, [=] {
        fill((unsigned char *)pointer, value, bytes);
        return true;
    });
}
