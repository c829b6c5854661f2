/* The scheduler: which thread of the block runs next.
 *
 * Every fiber (simt_fiber.h) runs worker_loop, which calls the kernel for one thread after the other. A thread that must wait keeps its
 * fiber, and another fiber goes on with the next thread that may run; the fiber of a thread that ended takes the next one that has not begun,
 * so that a kernel without barriers runs in a plain loop. */
#include "tests/cudasim/simt.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>
#include <vector>

#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/simt_access.h"
#include "tests/cudasim/simt_int.h"

/* In a section of their own, by which the checks of accesses know them. */
#define BUILTIN __attribute__((section("simt_builtin")))
BUILTIN uint3 threadIdx, blockIdx;
BUILTIN dim3 blockDim, gridDim;
uint64_t simt_launch_number;
uint32_t simt_now, simt_block_start, simt_launch_start;
simt_fiber *simt_running_fiber = &simt_fiber_host;
int simt_running = -1;

struct thread_state {
    simt_fiber *fiber; /* null until it begins */
    simt_site site;    /* of the call that it waits in */
    const simt_collective *collective;
    const char *call;
    uint32_t mask; /* lanes that take part in it */
    void *arg;
};

/* Sets of lanes. */
struct warp_state {
    uint32_t live;       /* not ended */
    uint32_t ready;      /* may run */
    uint32_t collecting; /* wait in a collective */
    uint16_t barriers;   /* of the warp since the last one of the block */
};

/* Where a choice among up to 32 candidates begins, and in which direction it goes. */
struct turn {
    unsigned int begin;
    bool down;
};

static struct {
    const char *name;
    const std::function<void()> *thread;
    int num_threads, num_warps;
    uint64_t blocks_left, num_blocks, block,
        block_step;                 /* blocks are numbered along x, then y, then z */
    uint3 places[SIMT_MAX_THREADS]; /* of threads */
} grid;

static struct {
    thread_state threads[SIMT_MAX_THREADS];
    warp_state warps[SIMT_MAX_THREADS / SIMT_WARP];
    uint32_t ready_warps;
    int warp; /* the one that goes on while it can */
    int num_live, num_waiting;
    simt_site barrier; /* where the waiting threads wait */
    turn warp_turn, lane_turns[SIMT_MAX_THREADS / SIMT_WARP];
} block;

static struct {
    bool set;
    simt_order kind;
    uint64_t state; /* of the random numbers */
} order;

static std::vector<simt_fiber *> idle_fibers;

/* ---- messages */

static void place_write(char *text, size_t size, int thread)
{
    const uint3 &t = grid.places[thread];
    snprintf(text, size, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", grid.name,
             blockIdx.x, blockIdx.y, blockIdx.z, t.x, t.y, t.z);
}

[[noreturn]] static void fail_thread(int thread, const char *format, va_list args)
{
    char message[1024], place[512];
    vsnprintf(message, sizeof message, format, args);
    place_write(place, sizeof place, thread);
    cudasim_fail("%s: %s", place, message);
}

void simt_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_thread(simt_running, format, args);
}

void simt_fail_lane(int lane, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_thread(simt_running / SIMT_WARP * SIMT_WARP + lane, format, args);
}

/* The sanitizers call these when they have found an error. */
static void sanitizer_note()
{
    char place[512];
    if (simt_running < 0)
        return;
    place_write(place, sizeof place, simt_running);
    fprintf(stderr, "cudasim: %s: an error that the sanitizer reports\n", place);
}

extern "C" __attribute__((visibility("default"))) void __asan_on_error()
{
    sanitizer_note();
}

extern "C" __attribute__((visibility("default"))) void __ubsan_on_report()
{
    sanitizer_note();
}

/* ---- order */

void simt_order_set(simt_order kind, uint64_t seed)
{
    order.set = true;
    order.kind = kind;
    order.state = seed;
}

static void order_read()
{
    const char *text = getenv("CUDASIM_ORDER"), *seed = getenv("CUDASIM_SEED");
    simt_order kind = SIMT_SEEDED;
    if (text != nullptr && strcmp(text, "forward") == 0)
        kind = SIMT_FORWARD;
    else if (text != nullptr && strcmp(text, "reverse") == 0)
        kind = SIMT_REVERSE;
    else if (text != nullptr && strcmp(text, "seeded") != 0)
        cudasim_fail("CUDASIM_ORDER=%s: it is forward, reverse or seeded", text);
    simt_order_set(kind, seed != nullptr ? strtoull(seed, nullptr, 0) : 1);
}

/* SplitMix64 (Steele et al. 2014). */
static uint64_t order_random()
{
    uint64_t z = order.state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static turn turn_of(uint64_t random)
{
    if (order.kind == SIMT_SEEDED)
        return {(unsigned int)random % 32, (random & 32) != 0};
    return {0, order.kind == SIMT_REVERSE};
}

static int turn_choose(turn t, uint32_t candidates)
{
    uint32_t rotated = candidates >> t.begin | candidates << (-t.begin & 31);
    int position = t.down ? 31 - __builtin_clz(rotated) : __builtin_ctz(rotated);
    return (position + (int)t.begin) & 31;
}

/* A new order, for the block's beginning and after every barrier. */
static void turns_draw()
{
    uint64_t random = 0;
    for (int w = 0; w < grid.num_warps; w++) {
        if (order.kind == SIMT_SEEDED)
            random = w % 8 == 0 ? order_random() : random >> 8;
        block.lane_turns[w] = turn_of(random);
    }
    block.warp_turn = turn_of(order.kind == SIMT_SEEDED ? order_random() : 0);
    block.warp = turn_choose(block.warp_turn, block.ready_warps);
}

/* After an exchange another warp may go on. */
static void warp_leave()
{
    if (order.kind != SIMT_SEEDED)
        return;
    uint64_t random = order_random();
    if ((random >> 32) % 4 == 0)
        block.warp = turn_choose(turn_of(random), block.ready_warps);
}

/* ---- running threads */

static void thread_enter(int thread)
{
    simt_running = thread;
    threadIdx = grid.places[thread];
}

/* The next thread that may run, no longer counted as ready, or -1. */
static int ready_take()
{
    if (block.ready_warps == 0)
        return -1;
    if (block.warps[block.warp].ready == 0)
        block.warp = turn_choose(block.warp_turn, block.ready_warps);
    int w = block.warp;
    warp_state *warp = &block.warps[w];
    int lane = turn_choose(block.lane_turns[w], warp->ready);
    warp->ready &= ~(1u << lane);
    if (warp->ready == 0)
        block.ready_warps &= ~(1u << w);
    return w * SIMT_WARP + lane;
}

static void ready_add(int w, uint32_t lanes)
{
    block.warps[w].ready |= lanes;
    block.ready_warps |= 1u << w;
}

static void worker_loop();

static simt_fiber *fiber_take()
{
    if (idle_fibers.empty())
        return simt_fiber_create(worker_loop);
    simt_fiber *fiber = idle_fibers.back();
    idle_fibers.pop_back();
    return fiber;
}

static void fiber_continue(simt_fiber *to)
{
    simt_fiber *from = simt_running_fiber;
    simt_running_fiber = to;
    simt_fiber_switch(from, to);
}

[[noreturn]] static void fail_stuck()
{
    for (int t = 0; t < grid.num_threads; t++) {
        const warp_state *warp = &block.warps[t / SIMT_WARP];
        if (!(warp->collecting >> t % SIMT_WARP & 1))
            continue;
        const thread_state *thread = &block.threads[t];
        simt_running = t;
        simt_fail(
            "%s at %s:%d waits for lanes that do not come: its mask is 0x%08x, of which 0x%08x "
            "came; the others wait at the barrier at %s:%d",
            thread->call, thread->site.file, thread->site.line, thread->mask,
            thread->mask & warp->collecting, block.barrier.file, block.barrier.line);
    }
    cudasim_fail("kernel %s: the emulator lost a thread", grid.name);
}

/* Runs other threads until the running one may go on; it is in the ready set, or will be put there. */
static void thread_wait()
{
    int self = simt_running, next = ready_take();
    if (next < 0)
        fail_stuck();
    if (next == self)
        return;
    thread_state *thread = &block.threads[next];
    thread_enter(next);
    if (thread->fiber == nullptr)
        thread->fiber = fiber_take();
    fiber_continue(thread->fiber);
}

static void collective_try(int w, int lane);

/* The thread that ran has returned from the kernel. */
static void thread_end()
{
    int self = simt_running, w = self / SIMT_WARP, lane = self % SIMT_WARP;
    simt_copy_thread_end();
    if (block.num_waiting > 0)
        simt_fail("the thread ended while %d others wait at the barrier at %s:%d",
                  block.num_waiting, block.barrier.file, block.barrier.line);
    block.num_live--;
    warp_state *warp = &block.warps[w];
    warp->live &= ~(1u << lane);
    if (warp->collecting != 0)
        collective_try(w, __builtin_ctz(warp->collecting));
}

static void block_begin()
{
    uint64_t number = grid.block;
    blockIdx.x = (unsigned int)(number % gridDim.x);
    blockIdx.y = (unsigned int)(number / gridDim.x % gridDim.y);
    blockIdx.z = (unsigned int)(number / gridDim.x / gridDim.y);
    grid.block = (number + grid.block_step) % grid.num_blocks;
    grid.blocks_left--;
    simt_shared_block();
    block.num_live = grid.num_threads;
    block.num_waiting = 0;
    for (int t = 0; t < grid.num_threads; t++)
        block.threads[t].fiber = nullptr;
    for (int w = 0; w < grid.num_warps; w++) {
        int lanes = grid.num_threads - w * SIMT_WARP;
        uint32_t all = lanes >= SIMT_WARP ? 0xffffffffu : (1u << lanes) - 1u;
        block.warps[w] = {.live = all, .ready = all, .collecting = 0, .barriers = 0};
    }
    block.ready_warps = (uint32_t)((1ull << grid.num_warps) - 1);
    turns_draw();
    simt_block_start = ++simt_now;
}

/* The next thread of this block, of a block that this begins, or -1 when the grid is done. */
static int thread_next()
{
    if (block.num_live == 0) {
        if (grid.blocks_left == 0)
            return -1;
        block_begin();
    }
    int next = ready_take();
    if (next < 0)
        fail_stuck();
    return next;
}

static void worker_loop()
{
    for (;;) {
        simt_access_thread();
        (*grid.thread)();
        thread_end();
        int next = thread_next();
        if (next < 0) {
            idle_fibers.push_back(simt_running_fiber);
            fiber_continue(&simt_fiber_host);
            continue; /* with the thread that the next grid entered */
        }
        thread_state *thread = &block.threads[next];
        thread_enter(next);
        if (thread->fiber == nullptr) {
            thread->fiber = simt_running_fiber;
            continue;
        }
        idle_fibers.push_back(simt_running_fiber);
        fiber_continue(thread->fiber);
    }
}

/* ---- barriers and collectives */

/* The same literal may stand in several places. */
static bool text_same(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

static bool site_same(simt_site a, simt_site b)
{
    return a.line == b.line && text_same(a.file, b.file);
}

void simt_barrier(simt_site site)
{
    if (block.num_live < grid.num_threads)
        simt_fail("the barrier at %s:%d is reached after %d threads of the block have ended",
                  site.file, site.line, grid.num_threads - block.num_live);
    if (block.num_waiting == 0)
        block.barrier = site;
    else if (!site_same(site, block.barrier))
        simt_fail("the barrier at %s:%d is reached while %d threads wait at the one at %s:%d",
                  site.file, site.line, block.num_waiting, block.barrier.file, block.barrier.line);
    block.num_waiting++;
    if (block.num_waiting == block.num_live) {
        for (int w = 0; w < grid.num_warps; w++) {
            ready_add(w, block.warps[w].live);
            block.warps[w].barriers = 0;
        }
        turns_draw();
        block.num_waiting = 0;
        simt_now++;
    }
    thread_wait();
}

[[noreturn]] static void fail_mixed(const thread_state *a, const thread_state *b)
{
    simt_fail("lanes of a warp meet in different calls: %s at %s:%d with mask 0x%08x, %s at %s:%d "
              "with mask 0x%08x",
              a->call, a->site.file, a->site.line, a->mask, b->call, b->site.file, b->site.line,
              b->mask);
}

/* Completes the collective that `lane` waits in when all lanes that it needs have come. */
static void collective_try(int w, int lane)
{
    warp_state *warp = &block.warps[w];
    thread_state *threads = &block.threads[w * SIMT_WARP];
    const thread_state *first = &threads[lane];
    uint32_t lanes = first->mask & warp->live;
    if ((warp->collecting & lanes) != lanes)
        return;
    void *args[SIMT_WARP] = {nullptr};
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        const thread_state *thread = &threads[l];
        if (thread->mask != first->mask || !text_same(thread->call, first->call) ||
            !site_same(thread->site, first->site))
            fail_mixed(first, thread);
        args[l] = thread->arg;
    }
    if (first->collective != nullptr)
        first->collective->complete(args, lanes);
    else
        warp->barriers++;
    warp->collecting &= ~lanes;
    ready_add(w, lanes);
    warp_leave();
}

void simt_collect(const simt_collective *collective, const char *name, uint32_t mask, void *arg,
                  simt_site site)
{
    int self = simt_running, w = self / SIMT_WARP, lane = self % SIMT_WARP;
    if (!(mask >> lane & 1))
        simt_fail("%s at %s:%d: the calling lane %d is not in its mask 0x%08x", name, site.file,
                  site.line, lane, mask);
    thread_state *thread = &block.threads[self];
    thread->site = site;
    thread->collective = collective;
    thread->call = name;
    thread->mask = mask;
    thread->arg = arg;
    block.warps[w].collecting |= 1u << lane;
    collective_try(w, lane);
    thread_wait();
}

void simt_warp_barrier(uint32_t mask, simt_site site)
{
    simt_collect(nullptr, "__syncwarp", mask, nullptr, site);
}

struct shuffle_arg {
    uint64_t bits, result;
    int source;
};

static void shuffle_complete(void *const args[SIMT_WARP], uint32_t lanes)
{
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        shuffle_arg *arg = (shuffle_arg *)args[lane];
        if (arg->source < 0 || arg->source >= SIMT_WARP || !(lanes >> arg->source & 1))
            simt_fail_lane(lane,
                           "a shuffle reads lane %d, which takes no part in it (lanes 0x%08x do)",
                           arg->source, lanes);
        arg->result = ((const shuffle_arg *)args[arg->source])->bits;
    }
}

uint64_t simt_shuffle(uint32_t mask, uint64_t bits, int source, const char *name, simt_site site)
{
    static const simt_collective shuffle = {shuffle_complete};
    shuffle_arg arg = {bits, 0, source};
    simt_collect(&shuffle, name, mask, &arg, site);
    return arg.result;
}

struct ballot_arg {
    bool predicate;
    uint32_t result;
};

static void ballot_complete(void *const args[SIMT_WARP], uint32_t lanes)
{
    uint32_t ballot = 0;
    for (int lane = 0; lane < SIMT_WARP; lane++)
        if (lanes >> lane & 1 && ((const ballot_arg *)args[lane])->predicate)
            ballot |= 1u << lane;
    for (int lane = 0; lane < SIMT_WARP; lane++)
        if (lanes >> lane & 1)
            ((ballot_arg *)args[lane])->result = ballot;
}

uint32_t simt_ballot(uint32_t mask, bool predicate, const char *name, simt_site site)
{
    static const simt_collective ballot = {ballot_complete};
    ballot_arg arg = {predicate, 0};
    simt_collect(&ballot, name, mask, &arg, site);
    return arg.result;
}

uint16_t simt_warp_barriers()
{
    return block.warps[simt_running / SIMT_WARP].barriers;
}

int simt_lane()
{
    return simt_running % SIMT_WARP;
}

/* ---- grids */

bool simt_launch_valid(dim3 grid_size, dim3 block_size, size_t shared_bytes)
{
    uint64_t threads = (uint64_t)block_size.x * block_size.y * block_size.z;
    return threads >= 1 && threads <= SIMT_MAX_THREADS && block_size.z <= 64 &&
           grid_size.x <= 0x7fffffffu && grid_size.y <= 65535 && grid_size.z <= 65535 &&
           shared_bytes <= SIMT_SHARED_LIMIT;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* Blocks begin at a random one and go by a random step that meets all of them. */
static void block_order_draw()
{
    uint64_t n = grid.num_blocks;
    grid.block = 0;
    grid.block_step = 1;
    if (order.kind == SIMT_REVERSE) {
        grid.block = n - 1;
        grid.block_step = n - 1;
    } else if (order.kind == SIMT_SEEDED) {
        grid.block = order_random() % n;
        do {
            grid.block_step = order_random() % n;
        } while (gcd(grid.block_step, n) != 1);
    }
}

void simt_run(const char *name, dim3 grid_size, dim3 block_size, size_t shared_bytes,
              const std::function<void()> &thread)
{
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (!order.set)
        order_read();
    simt_launch_number++;
    simt_launch_start = ++simt_now;
    simt_access_launch();
    grid.name = name;
    grid.thread = &thread;
    gridDim = grid_size;
    blockDim = block_size;
    grid.num_blocks = (uint64_t)grid_size.x * grid_size.y * grid_size.z;
    grid.blocks_left = grid.num_blocks;
    grid.num_threads = (int)(block_size.x * block_size.y * block_size.z);
    grid.num_warps = (grid.num_threads + SIMT_WARP - 1) / SIMT_WARP;
    for (unsigned int t = 0; t < (unsigned int)grid.num_threads; t++)
        grid.places[t] = {t % block_size.x, t / block_size.x % block_size.y,
                          t / block_size.x / block_size.y};
    block_order_draw();
    simt_shared_launch(shared_bytes);
    block.num_live = 0;
    thread_enter(thread_next());
    simt_fiber *fiber = fiber_take();
    block.threads[simt_running].fiber = fiber;
    fiber_continue(fiber);
    simt_running = -1;
}
