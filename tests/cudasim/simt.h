/* An emulator of the GPU's threads: runs a kernel's grid on the calling thread, block after block, each GPU thread as a fiber.
 *
 * A thread runs without interruption until it meets a barrier, an exchange of its warp or its end; then another one runs, in an
 * order that is forward, reverse or random (simt_order_set). So what a missing barrier lets happen does happen in some order, and
 * a result that depends on the order shows. Barriers wait for every thread of the block, exchanges for the lanes named in their
 * mask, which all must make the same call. Shared memory is filled with the byte 0xff, in floats a NaN, when a block begins, and lies
 * between zones that AddressSanitizer guards.
 *
 * What a GPU leaves undefined is an error here: barriers that part of the block reaches or that threads reach at different
 * places, lanes that are missing in an exchange, copies that nobody waited for. An error names kernel, block and thread and ends the
 * process, as cudasim_fail does; reports of the sanitizers get the same line.
 *
 * One grid runs at a time in a process. Kernels and the twins of kernels/cuda's headers are the only callers of all but simt_run,
 * simt_order_set and simt_launch_valid. */
#ifndef TR_TESTS_CUDASIM_SIMT_H
#define TR_TESTS_CUDASIM_SIMT_H

#include <stddef.h>
#include <stdint.h>

#include <functional>

#include <vector_types.h>

enum { SIMT_WARP = 32, SIMT_MAX_THREADS = 1024 };
/* Shared memory of a block: what a kernel gets unasked, and the most that compute capability 8.0, the smallest of those that we build for,
 * gives to static and dynamic shared memory together. */
enum { SIMT_STATIC_SHARED_LIMIT = 48 * 1024, SIMT_SHARED_LIMIT = 163 * 1024 };

/* Forward: warps and lanes in rising order. Seeded: warps and lanes begin anywhere and go in either direction, another way after
 * every barrier; blocks in a random order too. */
enum simt_order { SIMT_FORWARD, SIMT_REVERSE, SIMT_SEEDED };

/* For the launches that follow. Without a call the environment decides: CUDASIM_ORDER (forward, reverse, seeded; default seeded) and
 * CUDASIM_SEED (default 1). */
void simt_order_set(simt_order order, uint64_t seed);

/* True when a device accepts a launch of these sizes. */
bool simt_launch_valid(dim3 grid, dim3 block, size_t shared_bytes);

/* Runs `thread` once for every thread of the grid. name: the kernel, for messages. */
void simt_run(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()> &thread);

/* The running thread's place, as CUDA names it. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* The call that a thread waits in. */
struct simt_site {
    const char *file;
    int line;
};

/* Ends the process with a message about the running thread. */
[[noreturn]] void simt_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

int simt_lane();
void simt_barrier(simt_site site);
void simt_warp_barrier(uint32_t mask, simt_site site);
/* The `bits` of lane `source`. */
uint64_t simt_shuffle(uint32_t mask, uint64_t bits, int source, const char *name, simt_site site);
/* Bit l: the predicate of lane l. */
uint32_t simt_ballot(uint32_t mask, bool predicate, const char *name, simt_site site);

/* An operation that the lanes of a warp perform together: `complete` runs once all have come, with each lane's argument (NULL
 * for lanes not in `lanes`). name: the call, for messages. */
struct simt_collective {
    void (*complete)(void *const args[SIMT_WARP], uint32_t lanes);
};
void simt_collect(const simt_collective *collective, const char *name, uint32_t mask, void *arg,
                  simt_site site);
/* simt_fail about a lane of the running thread's warp, for use in `complete`. */
[[noreturn]] void simt_fail_lane(int lane, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The memory of a TR_SHARED variable, which `variable` stands for: the same for all threads of a block. */
struct simt_shared_variable {
    uint64_t launch;
    void *memory;
};
void *simt_shared(simt_shared_variable *variable, size_t bytes, const char *name);
void *simt_shared_dynamic();
/* True when all of memory[bytes] is shared memory of this block. */
bool simt_is_shared(const void *memory, size_t bytes);

/* Asynchronous copies of the running thread to shared memory. A destination holds 0xff from the start of the copy to the wait that covers
 * it. src NULL: zeros. */
void simt_copy_start(void *dst, const void *src, size_t bytes);
void simt_copy_commit();
void simt_copy_wait(int groups_left);

#endif
