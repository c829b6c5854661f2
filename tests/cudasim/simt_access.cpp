#include "tests/cudasim/simt_access.h"

#include <stdio.h>
#include <string.h>

#include <memory>
#include <unordered_map>

#include "tests/cudasim/simt_int.h"

extern "C" {
void *__asan_region_is_poisoned(void *memory, size_t bytes) __attribute__((weak));
void __asan_report_load_n(void *memory, size_t bytes) __attribute__((weak));
void __asan_report_store_n(void *memory, size_t bytes) __attribute__((weak));
void __sanitizer_symbolize_pc(void *pc, const char *format, char *text, size_t bytes)
    __attribute__((weak));
}

/* Who accessed a place last. Times of other grids are long past. */
struct trace {
    uint32_t time;
    uint16_t thread;
    uint16_t warp_barriers;
    const void *pc;
};

/* reader.thread is SEVERAL when threads of more than one warp have read at reader.time, SEVERAL_LANES + warp when lanes of one have. */
enum { SEVERAL = 0xffff, SEVERAL_LANES = 0x8000 };

struct place {
    trace writer, reader;
    uint32_t other_block; /* time of a read by a block before the one of `reader` */
    bool atomic;          /* the last write */
    bool copying;         /* a copy to it is on its way */
};

enum { PLACE_BYTES = 2, PAGE_BYTES = 4096, PLACES = PAGE_BYTES / PLACE_BYTES, MAX_PAGES = 4096 };

struct page {
    place places[PLACES];
};

/* Around threadIdx and its kind (simt.cpp). */
extern "C" const char __start_simt_builtin[], __stop_simt_builtin[];

enum check_mode {
    OFF,
    ACCESSES,
    ACCESSES_OF_DEVICE /* and nothing else */
};

static bool compiled_in; /* some kernel of the program makes calls */
static check_mode mode;
static std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
static struct {
    uintptr_t number;
    page *memory;
} last_pages[64]; /* found by the low bits of the number */

static page *page_of(uintptr_t number)
{
    auto *last = &last_pages[number % 64];
    if (last->memory != nullptr && last->number == number)
        return last->memory;
    std::unique_ptr<page> &found = pages[number];
    if (found == nullptr)
        found.reset(new page());
    last->number = number;
    last->memory = found.get();
    return last->memory;
}

static place *place_of(uintptr_t address)
{
    return &page_of(address / PAGE_BYTES)->places[address % PAGE_BYTES / PLACE_BYTES];
}

/* ---- messages */

/* Where the instruction stands: file and line, then those into which it was inlined. */
static const char *pc_text(const void *pc, char *text, size_t bytes)
{
    char frames[1024] = ""; /* strings one after the other, the last one empty */
    size_t length = 0;
    if (__sanitizer_symbolize_pc)
        __sanitizer_symbolize_pc((void *)((uintptr_t)pc - 1), "%s:%l", frames, sizeof frames - 1);
    snprintf(text, bytes, "%p", pc);
    for (const char *frame = frames; *frame != 0 && length < bytes; frame += strlen(frame) + 1) {
        const char *name = strrchr(frame, '/');
        if (strstr(frame, "/bits/") != nullptr) /* std::function, which calls the kernel */
            break;
        length += (size_t)snprintf(text + length, bytes - length, "%s%s", length > 0 ? " in " : "",
                                   name != nullptr ? name + 1 : frame);
    }
    return text;
}

static const char *access_name(simt_access_kind kind)
{
    return kind == SIMT_READ ? "read" : kind == SIMT_WRITE ? "write" : "atomic operation";
}

static const char *memory_name(const void *memory)
{
    return simt_is_shared(memory, 1) ? "shared" : "global";
}

static void thread_text(const trace *other, char *text, size_t bytes)
{
    if (other->time < simt_block_start)
        snprintf(text, bytes, "another block");
    else if (other->thread == SEVERAL)
        snprintf(text, bytes, "several threads");
    else if (other->thread >= SEVERAL_LANES)
        snprintf(text, bytes, "several lanes of warp %d", other->thread - SEVERAL_LANES);
    else
        snprintf(text, bytes, "thread %d of the block", other->thread);
}

[[noreturn]] static void fail_race(simt_access_kind kind, uintptr_t address, const void *pc,
                                   const trace *other, const char *other_kind)
{
    char here[512], there[512], who[64];
    thread_text(other, who, sizeof who);
    simt_fail("a race in %s memory at %p: this %s at %s and the %s by %s at %s have no barrier "
              "between them",
              memory_name((const void *)address), (const void *)address, access_name(kind),
              pc_text(pc, here, sizeof here), other_kind, who,
              pc_text(other->pc, there, sizeof there));
}

/* ---- the rules */

/* True when the access that left the trace comes before the running thread's next one. Nothing from before `start` matters. */
static bool is_ordered(const trace *before, uint32_t start)
{
    if (before->time < start)
        return true;
    if (before->time < simt_block_start)
        return false;
    if (before->time < simt_now)
        return true;
    if (before->thread == simt_running)
        return true;
    int warp = simt_running / SIMT_WARP;
    bool same_warp = before->thread >= SEVERAL_LANES ? before->thread == SEVERAL_LANES + warp
                                                     : before->thread / SIMT_WARP == warp;
    return same_warp && before->warp_barriers < simt_warp_barriers();
}

static trace trace_now(const void *pc)
{
    return {simt_now, (uint16_t)simt_running, simt_warp_barriers(), pc};
}

static void read_note(place *p, const void *pc)
{
    trace now = trace_now(pc);
    if (p->reader.time == simt_now && p->reader.thread != now.thread) {
        int warp = simt_running / SIMT_WARP, before = p->reader.thread;
        bool same_warp =
            before >= SEVERAL_LANES ? before == SEVERAL_LANES + warp : before / SIMT_WARP == warp;
        now.thread = (uint16_t)(same_warp ? SEVERAL_LANES + warp : SEVERAL);
    } else if (p->reader.time < simt_block_start && p->reader.time >= simt_launch_start) {
        p->other_block = p->reader.time;
    }
    p->reader = now;
}

static void place_access(simt_access_kind kind, uintptr_t address, const void *pc)
{
    place *p = place_of(address);
    bool is_shared = simt_is_shared((const void *)address, 1);
    uint32_t start = is_shared ? simt_block_start : simt_launch_start;
    char here[512];
    if (p->copying)
        simt_fail(
            "the %s at %s touches shared memory to which an asynchronous copy goes that has not "
            "been waited for",
            access_name(kind), pc_text(pc, here, sizeof here));
    if (!(kind == SIMT_ATOMIC && p->atomic) && !is_ordered(&p->writer, start))
        fail_race(kind, address, pc, &p->writer, p->atomic ? "atomic operation" : "write");
    if (kind == SIMT_READ) {
        if (is_shared && p->writer.time < simt_block_start)
            simt_fail("the read at %s takes shared memory that no thread of the block has written",
                      pc_text(pc, here, sizeof here));
        read_note(p, pc);
        return;
    }
    if (!is_ordered(&p->reader, start))
        fail_race(kind, address, pc, &p->reader, "read");
    if (p->other_block >= start) {
        trace other = p->reader;
        other.time = p->other_block;
        fail_race(kind, address, pc, &other, "read");
    }
    p->writer = trace_now(pc);
    p->atomic = kind == SIMT_ATOMIC;
}

static void access_check(simt_access_kind kind, const void *memory, size_t bytes, const void *pc)
{
    if (mode == OFF || simt_running < 0)
        return;
    uintptr_t address = (uintptr_t)memory;
    if (address - (uintptr_t)simt_running_fiber->stack_base < simt_running_fiber->stack_bytes)
        return;
    if (memory >= __start_simt_builtin && memory < __stop_simt_builtin)
        return;
    if (__asan_region_is_poisoned && __asan_region_is_poisoned((void *)address, bytes)) {
        if (kind == SIMT_READ)
            __asan_report_load_n((void *)address, bytes);
        else
            __asan_report_store_n((void *)address, bytes);
    }
    uintptr_t end = address + bytes;
    for (address -= address % PLACE_BYTES; address < end; address += PLACE_BYTES)
        place_access(kind, address, pc);
}

/* ---- callers */

void simt_access(simt_access_kind kind, const void *memory, size_t bytes, const void *pc)
{
    access_check(kind, memory, bytes, pc);
}

void simt_access_copy_begin(const void *memory, size_t bytes, const void *pc)
{
    if (mode == OFF)
        return;
    access_check(SIMT_WRITE, memory, bytes, pc);
    for (size_t i = 0; i < bytes; i += PLACE_BYTES)
        place_of((uintptr_t)memory + i)->copying = true;
}

void simt_access_copy_end(const void *memory, size_t bytes, const void *pc)
{
    if (mode == OFF)
        return;
    for (size_t i = 0; i < bytes; i += PLACE_BYTES)
        place_of((uintptr_t)memory + i)->copying = false;
    access_check(SIMT_WRITE, memory, bytes, pc);
}

void simt_access_kernel_begin()
{
    if (mode != OFF)
        mode = ACCESSES_OF_DEVICE;
}

void simt_access_launch()
{
    if (pages.size() > MAX_PAGES) {
        pages.clear();
        for (auto &last : last_pages)
            last = {0, nullptr};
    }
}

void simt_access_thread()
{
    mode = compiled_in ? ACCESSES : OFF;
}

/* The compiler's calls. */
extern "C" {

void __tsan_init()
{
    compiled_in = true;
}

#define SIMT_CALLS(bytes)                                                                          \
    void __tsan_read##bytes(void *memory)                                                          \
    {                                                                                              \
        access_check(SIMT_READ, memory, bytes, __builtin_return_address(0));                       \
    }                                                                                              \
    void __tsan_write##bytes(void *memory)                                                         \
    {                                                                                              \
        access_check(SIMT_WRITE, memory, bytes, __builtin_return_address(0));                      \
    }                                                                                              \
    void __tsan_unaligned_read##bytes(void *memory)                                                \
    {                                                                                              \
        access_check(SIMT_READ, memory, bytes, __builtin_return_address(0));                       \
    }                                                                                              \
    void __tsan_unaligned_write##bytes(void *memory)                                               \
    {                                                                                              \
        access_check(SIMT_WRITE, memory, bytes, __builtin_return_address(0));                      \
    }

SIMT_CALLS(1)
SIMT_CALLS(2)
SIMT_CALLS(4)
SIMT_CALLS(8)
SIMT_CALLS(16)

void __tsan_read_range(void *memory, size_t bytes)
{
    access_check(SIMT_READ, memory, bytes, __builtin_return_address(0));
}

void __tsan_write_range(void *memory, size_t bytes)
{
    access_check(SIMT_WRITE, memory, bytes, __builtin_return_address(0));
}
}
