/* The CUDA device itself, on simulated machines: which GPU it takes and what it says where there is none for it, memory, copies, events,
 * and a GPU that is lost. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda_device.h"
#include "tests/cudasim/runtime/sim_runtime.h"

static const cudasim_machine whole = {
    .driver_version = 13000, .num_devices = 4, .capability = 90, .memory_bytes = 1 << 30};

static void must(tr_status status)
{
    if (status != TR_OK)
        fail_msg("%s", tr_error_message());
}

static tr_device *make(int local_rank)
{
    const tr_cuda_options options = {.local_rank = local_rank, .local_size = local_rank + 1};
    tr_device *device;
    cudasim_machine_set(&whole);
    must(tr_cuda_device_create(&device, &options));
    return device;
}

static void expect_refused(const cudasim_machine *machine, tr_cuda_options options,
                           const char *words)
{
    tr_device *device = NULL;
    cudasim_machine_set(machine);
    assert_int_equal(tr_cuda_device_create(&device, &options), TR_ERR_MEMORY);
    if (strstr(tr_error_message(), words) == NULL)
        fail_msg("expected \"%s\", got \"%s\"", words, tr_error_message());
    assert_null(device);
    assert_int_equal(cudasim_count().streams, 0);
    cudasim_machine_set(&whole);
}

static void test_refused(void **state)
{
    (void)state;
    const tr_cuda_options one = {.local_size = 1}, eight = {.local_size = 8};
    cudasim_machine machine = whole;
    machine.driver_version = 0;
    expect_refused(&machine, one, "no NVIDIA driver");
    machine.driver_version = 12040;
    expect_refused(&machine, one, "it serves CUDA 12.4, trine was built for CUDA 13.0");
    machine = whole;
    machine.num_devices = 0;
    expect_refused(&machine, one, "shows no GPU");
    expect_refused(&whole, eight, "8 processes on this node and 4 GPUs");
    machine = whole;
    machine.capability = 75;
    expect_refused(&machine, one, "compute capability 7.5; trine needs 8.0");
    machine = whole;
    machine.strange = true;
    expect_refused(&machine, one, "capability 9.0); build it with -DCMAKE_CUDA_ARCHITECTURES=90");
}

static void test_present(void **state)
{
    (void)state;
    cudasim_machine machine = whole;
    cudasim_machine_set(&machine);
    assert_true(tr_cuda_is_present());
    machine.num_devices = 0;
    cudasim_machine_set(&machine);
    assert_false(tr_cuda_is_present());
    must(tr_cuda_driver_check());
    machine.driver_version = 0;
    cudasim_machine_set(&machine);
    assert_false(tr_cuda_is_present());
    must(tr_cuda_driver_check());
    machine.driver_version = 12040;
    cudasim_machine_set(&machine);
    assert_false(tr_cuda_is_present());
    assert_int_equal(tr_cuda_driver_check(), TR_ERR_MEMORY);
    cudasim_machine_set(&whole);
}

/* Ranks of a node take GPUs in order; a process that is shown one takes that one; sharing goes round. */
static void test_places(void **state)
{
    (void)state;
    tr_device *first = make(0), *third = make(2), *shared, *only;
    assert_string_not_equal(tr_cuda_device_place(first), tr_cuda_device_place(third));
    const tr_cuda_options sixth = {.local_rank = 6, .local_size = 8, .share = true};
    must(tr_cuda_device_create(&shared, &sixth));
    assert_string_equal(tr_cuda_device_place(shared), tr_cuda_device_place(third));
    cudasim_machine machine = whole;
    machine.num_devices = 1;
    cudasim_machine_set(&machine);
    const tr_cuda_options bound = {.local_rank = 6, .local_size = 8};
    must(tr_cuda_device_create(&only, &bound));
    assert_string_equal(tr_cuda_device_place(only), tr_cuda_device_place(first));
    tr_device_destroy(first);
    tr_device_destroy(third);
    tr_device_destroy(shared);
    tr_device_destroy(only);
    assert_int_equal(cudasim_count().streams, 0);
}

static void test_description(void **state)
{
    (void)state;
    const tr_cuda_options options = {.local_size = 1, .tf32 = true};
    tr_device *plain = make(0), *tf32;
    must(tr_cuda_device_create(&tf32, &options));
    assert_int_equal(plain->kind, TR_DEVICE_CUDA);
    assert_false(plain->unified);
    assert_string_equal(plain->ops->name, "cuda");
    assert_string_equal(plain->numerics,
                        "cuda sm_90 simulated GPU x 132 driver 13.0 runtime 13.0 cublasLt 130000");
    assert_string_equal(
        tf32->numerics,
        "cuda sm_90 simulated GPU x 132 driver 13.0 runtime 13.0 cublasLt 130000 tf32");
    tr_device_destroy(plain);
    tr_device_destroy(tf32);
}

/* ---- memory and copies ---- */

enum { BYTES = 5000 };

static void test_memory(void **state)
{
    (void)state;
    tr_device *device = make(0);
    for (size_t bytes = 0; bytes <= (size_t)8 << 20; bytes = bytes * 3 + 1) {
        void *memory, *pinned;
        must(device->memory_create(device, TR_MEMORY_DEVICE, bytes, &memory));
        must(device->memory_create(device, TR_MEMORY_HOST, bytes, &pinned));
        assert_non_null(memory);
        assert_true((uintptr_t)memory % 256 == 0 && (uintptr_t)pinned % 256 == 0);
        for (size_t i = 0; i < bytes; i += 97)
            assert_int_equal(((unsigned char *)pinned)[i], 0);
        if (bytes > 0)
            memset(pinned, 1, bytes);
        must(device->copy(device, TR_STREAM_COPY, pinned, memory, bytes));
        must(device->synchronize(device, TR_STREAM_COPY));
        for (size_t i = 0; i < bytes; i++)
            if (((unsigned char *)pinned)[i] != 0)
                fail_msg("byte %zu of %zu is not zero", i, bytes);
        device->memory_destroy(device, TR_MEMORY_DEVICE, memory, bytes);
        device->memory_destroy(device, TR_MEMORY_HOST, pinned, bytes);
    }
    device->memory_destroy(device, TR_MEMORY_DEVICE, NULL, 0);
    device->memory_destroy(device, TR_MEMORY_HOST, NULL, 0);
    assert_int_equal(cudasim_count().device_memory, 0);
    tr_device_destroy(device);
}

/* The size, what is free and what there is are told; a failed request leaves the device as it was. */
static void test_memory_full(void **state)
{
    (void)state;
    tr_device *device = make(1);
    void *half, *rest;
    size_t most = whole.memory_bytes;
    must(device->memory_create(device, TR_MEMORY_DEVICE, most / 2, &half));
    assert_int_equal(device->memory_create(device, TR_MEMORY_DEVICE, most / 2 + 1, &rest),
                     TR_ERR_MEMORY);
    assert_string_equal(tr_error_message(), "cannot allocate 536870913 bytes on GPU 1: 536870912 "
                                            "of its 1073741824 bytes are free");
    must(device->memory_create(device, TR_MEMORY_DEVICE, most / 2, &rest));
    must(device->synchronize(device, TR_STREAM_COMPUTE));
    device->memory_destroy(device, TR_MEMORY_DEVICE, half, most / 2);
    device->memory_destroy(device, TR_MEMORY_DEVICE, rest, most / 2);
    tr_device_destroy(device);
}

/* Host to device on one stream, device to device on the next, back on a third, in order of events alone. */
static void test_copies(void **state)
{
    (void)state;
    tr_device *device = make(0);
    void *pinned, *one, *two;
    tr_device_event *up, *across, *back;
    must(device->memory_create(device, TR_MEMORY_HOST, 2 * BYTES, &pinned));
    must(device->memory_create(device, TR_MEMORY_DEVICE, BYTES, &one));
    must(device->memory_create(device, TR_MEMORY_DEVICE, BYTES, &two));
    must(device->event_create(device, &up));
    must(device->event_create(device, &across));
    must(device->event_create(device, &back));
    unsigned char *from = pinned, *to = from + BYTES;
    for (int seed = 0; seed < 20; seed++) {
        bool done = false;
        cudasim_seed_set((uint64_t)seed);
        memset(from, 100 + seed, BYTES);
        must(device->copy(device, TR_STREAM_COPY, one, from, BYTES));
        must(device->event_record(device, up, TR_STREAM_COPY));
        must(device->event_wait(device, TR_STREAM_COMPUTE, up));
        must(device->copy(device, TR_STREAM_COMPUTE, two, one, BYTES));
        must(device->event_record(device, across, TR_STREAM_COMPUTE));
        must(device->event_wait(device, TR_STREAM_TENSOR, across));
        must(device->copy(device, TR_STREAM_TENSOR, to, two, BYTES));
        must(device->event_record(device, back, TR_STREAM_TENSOR));
        if (seed % 2 == 0)
            must(device->event_synchronize(device, back));
        while (!done)
            must(device->event_query(device, back, &done));
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(to[i], 100 + seed);
    }
    device->event_destroy(device, up);
    device->event_destroy(device, across);
    device->event_destroy(device, back);
    device->event_destroy(device, NULL);
    device->memory_destroy(device, TR_MEMORY_HOST, pinned, 2 * BYTES);
    device->memory_destroy(device, TR_MEMORY_DEVICE, one, BYTES);
    device->memory_destroy(device, TR_MEMORY_DEVICE, two, BYTES);
    tr_device_destroy(device);
}

/* ---- other threads ---- */

typedef struct copying {
    tr_device *device;
    void *dst, *src;
} copying;

static void *copy_on_thread(void *argument)
{
    const copying *c = argument;
    must(c->device->copy(c->device, TR_STREAM_COPY, c->dst, c->src, BYTES));
    must(c->device->synchronize(c->device, TR_STREAM_COPY));
    return NULL;
}

/* A checkpoint's writers copy too, and must not make contexts on GPU 0. */
static void test_threads(void **state)
{
    (void)state;
    int before = cudasim_num_contexts();
    tr_device *device = make(3);
    copying c = {.device = device};
    pthread_t thread;
    must(device->memory_create(device, TR_MEMORY_HOST, BYTES, &c.dst));
    must(device->memory_create(device, TR_MEMORY_DEVICE, BYTES, &c.src));
    assert_int_equal(cudasim_num_contexts(), before + 1);
    assert_int_equal(pthread_create(&thread, NULL, copy_on_thread, &c), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(cudasim_num_contexts(), before + 1);
    device->memory_destroy(device, TR_MEMORY_HOST, c.dst, BYTES);
    device->memory_destroy(device, TR_MEMORY_DEVICE, c.src, BYTES);
    tr_device_destroy(device);
}

/* ---- a lost GPU ---- */

static void expect_lost(tr_status status)
{
    assert_int_equal(status, TR_ERR_INTERNAL);
    if (strstr(tr_error_message(), "the GPU failed: cudaErrorIllegalAddress (an illegal memory "
                                   "access was encountered), seen at ") == NULL)
        fail_msg("%s", tr_error_message());
}

static void test_lost(void **state)
{
    (void)state;
    tr_device *device = make(0);
    void *memory, *more;
    tr_device_event *event;
    bool done;
    must(device->memory_create(device, TR_MEMORY_DEVICE, BYTES, &memory));
    must(device->event_create(device, &event));
    cudasim_lose_device(cudaErrorIllegalAddress);
    expect_lost(device->memory_create(device, TR_MEMORY_DEVICE, BYTES, &more));
    expect_lost(device->memory_create(device, TR_MEMORY_HOST, BYTES, &more));
    expect_lost(device->copy(device, TR_STREAM_COPY, (char *)memory + 1000, memory, 1000));
    const tr_combine sum = {.count = 2, .n = 4, .own = memory, .others = memory, .dst = memory};
    expect_lost(device->combine(device, TR_STREAM_DATA, &sum));
    expect_lost(device->event_record(device, event, TR_STREAM_DATA));
    expect_lost(device->event_wait(device, TR_STREAM_DATA, event));
    expect_lost(device->event_query(device, event, &done));
    expect_lost(device->event_synchronize(device, event));
    expect_lost(device->synchronize(device, TR_STREAM_COMPUTE));
    device->event_destroy(device, event);
    device->memory_destroy(device, TR_MEMORY_DEVICE, memory, BYTES);
    tr_device_destroy(device);
    cudasim_lose_device(cudaSuccess);
    cudasim_counts left = cudasim_count();
    assert_int_equal(left.device_memory + left.host_memory + left.streams + left.events, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads), /* first, before GPU 0 has a context */
        cmocka_unit_test(test_refused), cmocka_unit_test(test_present),
        cmocka_unit_test(test_places),  cmocka_unit_test(test_description),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_memory_full),
        cmocka_unit_test(test_copies),  cmocka_unit_test(test_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
