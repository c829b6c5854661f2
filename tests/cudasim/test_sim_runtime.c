/* The stand-in for the CUDA runtime: work runs late and in odd order, never against declared events, and every misuse that it promises to
 * report ends the process with its line. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/cudasim/sim_child.h"

enum { SEEDS = 40, BYTES = 1000 };

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static cudaEvent_t make_event(void)
{
    cudaEvent_t event;
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
}

static unsigned char *make_device(void)
{
    void *memory;
    assert_int_equal(cudaMalloc(&memory, BYTES), cudaSuccess);
    return memory;
}

static unsigned char *make_pinned(int value)
{
    void *memory;
    assert_int_equal(cudaHostAlloc(&memory, BYTES, cudaHostAllocPortable), cudaSuccess);
    memset(memory, value, BYTES);
    return memory;
}

static void copy(void *dst, const void *src, cudaStream_t stream)
{
    assert_int_equal(cudaMemcpyAsync(dst, src, BYTES, cudaMemcpyDefault, stream), cudaSuccess);
}

/* ---- order ---- */

/* A copy is seen by the host before it waits with some seeds and not with others, and always after. */
static void test_late(void **state)
{
    int early = 0, late = 0;
    (void)state;
    cudaStream_t stream = make_stream();
    unsigned char *device = make_device(), *from = make_pinned(1), *to = make_pinned(2);
    for (int seed = 0; seed < SEEDS; seed++) {
        cudasim_seed_set((uint64_t)seed);
        memset(to, 2, BYTES);
        copy(device, from, stream);
        copy(to, device, stream);
        early += to[0] == 1;
        late += to[0] == 2;
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        assert_int_equal(to[BYTES - 1], 1);
    }
    assert_true(early > 0 && late > 0);
    cudaStreamDestroy(stream);
    cudaFree(device);
    cudaFreeHost(from);
    cudaFreeHost(to);
}

/* What two streams do without an event comes in either order; with an event always in its order. */
static void test_events_order(void **state)
{
    (void)state;
    for (int with_event = 0; with_event < 2; with_event++) {
        int first = 0, second = 0;
        for (int seed = 0; seed < SEEDS; seed++) {
            cudasim_seed_set((uint64_t)seed);
            cudaStream_t a = make_stream(), b = make_stream();
            cudaEvent_t event = make_event();
            unsigned char *device = make_device(), *one = make_pinned(1), *two = make_pinned(2);
            copy(device, one, a);
            if (with_event) {
                assert_int_equal(cudaEventRecord(event, a), cudaSuccess);
                assert_int_equal(cudaStreamWaitEvent(b, event, cudaEventWaitDefault), cudaSuccess);
            }
            copy(device, two, b);
            assert_int_equal(cudaStreamSynchronize(b), cudaSuccess);
            assert_int_equal(cudaStreamSynchronize(a), cudaSuccess);
            unsigned char *seen = make_pinned(0);
            copy(seen, device, a);
            assert_int_equal(cudaStreamSynchronize(a), cudaSuccess);
            first += seen[0] == 1;
            second += seen[0] == 2;
            cudaEventDestroy(event);
            cudaStreamDestroy(a);
            cudaStreamDestroy(b);
            cudaFree(device);
            cudaFreeHost(one);
            cudaFreeHost(two);
            cudaFreeHost(seen);
        }
        assert_int_equal(first + second, SEEDS);
        assert_true(with_event ? first == 0 : first > 0 && second > 0);
    }
}

/* A wait keeps the point that it saw; the event may be recorded again, elsewhere, or destroyed. */
static void test_event_again(void **state)
{
    (void)state;
    for (int seed = 0; seed < SEEDS; seed++) {
        cudasim_seed_set((uint64_t)seed);
        cudaStream_t a = make_stream(), b = make_stream();
        cudaEvent_t event = make_event();
        unsigned char *device = make_device(), *one = make_pinned(1), *seen = make_pinned(0);
        assert_int_equal(cudaEventQuery(event), cudaSuccess); /* never recorded */
        copy(device, one, a);
        cudaEventRecord(event, a);
        cudaStreamWaitEvent(b, event, cudaEventWaitDefault);
        cudaEventRecord(event, b);
        cudaEventDestroy(event);
        copy(seen, device, b);
        assert_int_equal(cudaStreamSynchronize(b), cudaSuccess);
        assert_int_equal(seen[0], 1);
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
        cudaFree(device);
        cudaFreeHost(one);
        cudaFreeHost(seen);
    }
}

/* Who asks an event again and again sees it reached at last, and what it stands for has happened. */
static void test_query(void **state)
{
    int waits = 0;
    (void)state;
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *device = make_device(), *from = make_pinned(1), *to = make_pinned(0);
    for (int seed = 0; seed < SEEDS; seed++) {
        cudasim_seed_set((uint64_t)seed);
        memset(to, 0, BYTES);
        copy(device, from, stream);
        copy(to, device, stream);
        cudaEventRecord(event, stream);
        int tries = 0;
        while (cudaEventQuery(event) == cudaErrorNotReady)
            assert_true(++tries < 1000);
        assert_int_equal(cudaGetLastError() == cudaErrorNotReady, tries > 0);
        assert_int_equal(to[0], 1);
        waits += tries;
    }
    assert_true(waits > 0);
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaFree(device);
    cudaFreeHost(from);
    cudaFreeHost(to);
}

static uint64_t order_of(uint64_t seed)
{
    uint64_t order = 0;
    cudasim_seed_set(seed);
    cudaStream_t streams[4];
    unsigned char *device[4], *from = make_pinned(1), *to = make_pinned(0);
    for (int s = 0; s < 4; s++) {
        streams[s] = make_stream();
        device[s] = make_device();
    }
    for (int i = 0; i < 40; i++) {
        copy(device[i % 4], from, streams[i % 4]);
        order = order * 31 + (uint64_t)cudasim_count().launches;
    }
    for (int s = 0; s < 4; s++) {
        cudaStreamDestroy(streams[s]);
        order = order * 31 + (uint64_t)cudasim_count().launches;
        cudaFree(device[s]);
    }
    cudaFreeHost(from);
    cudaFreeHost(to);
    return order;
}

/* A seed repeats a run, so that a failure can be looked at. */
static void test_repeatable(void **state)
{
    (void)state;
    int64_t before = cudasim_count().launches;
    uint64_t first = order_of(7);
    int64_t launches = cudasim_count().launches - before;
    assert_int_equal(launches, 40);
    assert_true(order_of(8) != first);
}

/* ---- misuse ---- */

static void double_free(void)
{
    void *memory = make_device();
    cudaFree(memory);
    cudaFree(memory);
}

static void double_free_pinned(void)
{
    void *memory = make_pinned(0);
    cudaFreeHost(memory);
    cudaFreeHost(memory);
}

static void stay_late(void)
{
    for (uint64_t seed = 0; seed < 1000; seed++) { /* until what is enqueued stays in its queue */
        cudasim_seed_set(seed);
        cudaStream_t stream = make_stream();
        unsigned char *device = make_device(), *pinned = make_pinned(0);
        copy(device, pinned, stream);
        if (pinned[0] == 0 && cudaStreamQuery(stream) == cudaErrorNotReady)
            cudaFree(device);
        cudaStreamSynchronize(stream);
    }
}

static void free_pinned_in_use(void)
{
    for (uint64_t seed = 0; seed < 1000; seed++) {
        cudasim_seed_set(seed);
        cudaStream_t stream = make_stream();
        unsigned char *device = make_device(), *pinned = make_pinned(0);
        copy(device, pinned, stream);
        if (cudaStreamQuery(stream) == cudaErrorNotReady)
            cudaFreeHost(pinned);
        cudaStreamSynchronize(stream);
    }
}

static void copy_beyond(void)
{
    unsigned char *device = make_device(), *pinned = make_pinned(0);
    cudaMemcpyAsync(device + 1, pinned, BYTES, cudaMemcpyDefault, make_stream());
}

static void copy_pageable(void)
{
    unsigned char *device = make_device(), *heap = malloc(BYTES);
    cudaMemcpyAsync(device, heap, BYTES, cudaMemcpyDefault, make_stream());
}

static void copy_freed(void)
{
    unsigned char *device = make_device(), *pinned = make_pinned(0);
    cudaFree(device);
    cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDefault, make_stream());
}

static void set_beyond(void)
{
    cudaMemsetAsync(make_device(), 0, BYTES + 1, make_stream());
}

static void dead_stream(void)
{
    cudaStream_t stream = make_stream();
    cudaStreamDestroy(stream);
    cudaStreamSynchronize(stream);
}

static void dead_event(void)
{
    cudaEvent_t event = make_event();
    cudaEventDestroy(event);
    cudaEventRecord(event, make_stream());
}

static void blocking_stream(void)
{
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, 0);
}

static void leave_memory(void)
{
    make_device();
}

static void leave_pinned(void)
{
    cudaFreeHost(make_pinned(0));
    make_pinned(0);
}

static void leave_stream(void)
{
    cudaFree(make_device());
    make_stream();
}

static void leave_event(void)
{
    cudaFree(make_device());
    make_event();
}

static void host_reads(void)
{
    volatile unsigned char *device = make_device();
    exit(device[0]);
}

static void host_writes(void)
{
    memset(make_device(), 0, BYTES);
}

static void test_misuse(void **state)
{
    static const struct {
        const char *name;
        void (*body)(void);
        const char *words;
    } rows[] = {{"double free", double_free, "no allocation that is alive"},
                {"double free of pinned memory", double_free_pinned, "no pinned allocation"},
                {"free in use", stay_late, "which is still queued"},
                {"free of pinned memory in use", free_pinned_in_use, "which is still queued"},
                {"copy beyond its allocation", copy_beyond, "the destination"},
                {"copy of pageable memory", copy_pageable, "the source"},
                {"copy of freed memory", copy_freed, "the source"},
                {"fill beyond its allocation", set_beyond, "living allocation of device memory"},
                {"destroyed stream", dead_stream, "is not alive"},
                {"destroyed event", dead_event, "is not alive"},
                {"stream that waits for the default one", blocking_stream, "NonBlocking"},
                {"device memory left", leave_memory, "1 device allocations, 0 pinned"},
                {"pinned memory left", leave_pinned, "0 device allocations, 1 pinned"},
                {"stream left", leave_stream, "1 streams and 0 events"},
                {"event left", leave_event, "0 streams and 1 events"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        sim_child_expect(rows[i].name, rows[i].body, CUDASIM_EXIT, rows[i].words);
    sim_child_expect("host reads device memory", host_reads, 128 + SIGSEGV, "");
    sim_child_expect("host writes device memory", host_writes, 128 + SIGSEGV, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),        cmocka_unit_test(test_events_order),
        cmocka_unit_test(test_event_again), cmocka_unit_test(test_query),
        cmocka_unit_test(test_repeatable),  cmocka_unit_test(test_misuse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
