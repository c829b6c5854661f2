/* When a CUDA device takes cuDNN's attention and what it says when it does not, on simulated machines and libraries; and that plans know the scratch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda_cudnn_attention.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cudasim/runtime/sim_cudnn.h"
#include "tests/cudasim/runtime/sim_runtime.h"

static const tr_attention shape = {.B = 2, .T = 24, .A = 4, .K = 2, .D = 16, .dtype = TR_BF16};

static void machine_set(int capability)
{
    const cudasim_machine machine = {.driver_version = 13000,
                                     .num_devices = 1,
                                     .capability = capability,
                                     .memory_bytes = (size_t)1 << 30};
    cudasim_machine_set(&machine);
}

static void must(tr_status status)
{
    if (status != TR_OK)
        fail_msg("%s", tr_error_message());
}

static tr_device *device_make(int capability)
{
    const tr_cuda_options options = {.local_size = 1};
    tr_device *device;
    machine_set(capability);
    must(tr_cuda_device_create(&device, &options));
    return device;
}

static void expect_nothing_left(void)
{
    cudasim_cudnn_counts counts = cudasim_cudnn_count();
    assert_int_equal(counts.handles, 0);
    assert_int_equal(counts.descriptors, 0);
    assert_int_equal(cudasim_count().device_memory, 0);
    assert_int_equal(cudasim_count().host_memory, 0);
}

static void expect_taken(int capability, cudasim_cudnn library)
{
    cudasim_cudnn_set(&library);
    tr_device *device = device_make(capability);
    must(tr_cuda_device_cudnn_prepare(device, &shape));
    const char *before = device->numerics;
    assert_null(strstr(before, "cudnn"));
    tr_cuda_device_cudnn_use(device, true);
    const char *words = " cudnn 9.19.0 attention";
    size_t length = strlen(device->numerics);
    assert_string_equal(device->numerics + length - strlen(words), words);
    tr_device_destroy(device);
    expect_nothing_left();
}

static void test_taken(void **state)
{
    (void)state;
    const cudasim_cudnn plain = {.missing = false}, noted = {.notes = true};
    expect_taken(90, plain);
    expect_taken(100, plain);
    expect_taken(103, plain);
    expect_taken(90, noted); /* passes over the engine that is noted */
}

static void expect_refused(int capability, cudasim_cudnn library, tr_status status,
                           const char *words, const char *more)
{
    cudasim_cudnn_set(&library);
    tr_device *device = device_make(capability);
    tr_status got = tr_cuda_device_cudnn_prepare(device, &shape);
    if (got != status || strstr(tr_error_message(), words) == NULL ||
        strstr(tr_error_message(), more) == NULL)
        fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", tr_status_text(status), words,
                 more, tr_status_text(got), got == TR_OK ? "" : tr_error_message());
    tr_cuda_device_cudnn_use(device, false);
    assert_null(strstr(device->numerics, "cudnn"));
    assert_int_equal(cudasim_cudnn_count().handles, 0);
    tr_device_destroy(device);
    expect_nothing_left();
}

static void test_refused(void **state)
{
    (void)state;
    const cudasim_cudnn missing = {.missing = true}, old = {.version = 91802},
                        newer = {.version = 92300}, refuses = {.refuses = true},
                        hungry = {.extra_workspace = 1 << 20}, plain = {.missing = false};
    expect_refused(90, missing, TR_ERR_MEMORY, "cannot open cuDNN", "");
    expect_refused(90, old, TR_ERR_MEMORY, "cuDNN 9.18.2 is too old", "device.attention=own");
    expect_refused(100, newer, TR_ERR_MEMORY, "cuDNN 9.23.0 is newer", "10.0");
    expect_refused(80, plain, TR_ERR_MEMORY, "compute capability 9.0 and 10.0 to 10.3",
                   "this one has 8.0");
    expect_refused(120, plain, TR_ERR_MEMORY, "compute capability 9.0 and 10.0 to 10.3",
                   "this one has 12.0");
    expect_refused(90, refuses, TR_ERR_INTERNAL, "no engine", "");
    expect_refused(100, refuses, TR_ERR_INTERNAL, "no engine", "");
    expect_refused(90, hungry, TR_ERR_INTERNAL, "bytes of scratch on this GPU", "are planned");
}

/* What the comparison with our own kernels is for. */
static void test_compared(void **state)
{
    (void)state;
    const cudasim_cudnn wrong = {.wrong = true}, unsteady = {.unsteady = true};
    expect_refused(90, wrong, TR_ERR_NUMERICS, "differs from trine's own on this GPU: out by 0.0",
                   "0.0156 is expected at most (B 1, T 133, 4 heads over 2, head size 16, bf16)");
    expect_refused(100, wrong, TR_ERR_NUMERICS, "differs from trine's own", "9.19.0");
    expect_refused(90, unsteady, TR_ERR_NUMERICS, "does not repeat its bits", "out differs by");
    expect_refused(100, unsteady, TR_ERR_NUMERICS, "does not repeat its bits", "out differs by");
}

/* Every shape's plans fit what is planned for it, on each kind of GPU. */
static void test_scratch(void **state)
{
    (void)state;
    static const int capabilities[] = {90, 100};
    static const int64_t lengths[] = {2, 63, 64, 65, 128, 129, 1000, 8192}, sizes[] = {8, 64, 128};
    const cudasim_cudnn plain = {.missing = false};
    cudasim_cudnn_set(&plain);
    for (int c = 0; c < 2; c++) {
        tr_cuda_cudnn *cudnn;
        machine_set(capabilities[c]);
        must(tr_cuda_cudnn_create(&cudnn, capabilities[c]));
        for (int i = 0; i < 8 * 3 * 2; i++) {
            tr_attention args = {.B = 1 + i % 3,
                                 .T = lengths[i % 8],
                                 .A = 6,
                                 .K = i / 24 == 0 ? 6 : 2,
                                 .D = sizes[i / 8 % 3],
                                 .dtype = TR_F16};
            must(tr_cuda_cudnn_prepare(cudnn, &args));
            size_t planned = tr_cuda_attention_scratch(&args);
            size_t wanted = tr_cuda_cudnn_bytes(cudnn, &args);
            if (wanted > planned || wanted == 0)
                fail_msg("T %d, D %d, %d heads over %d: %zu bytes are planned, %zu wanted",
                         (int)args.T, (int)args.D, (int)args.A, (int)args.K, planned, wanted);
        }
        tr_cuda_cudnn_destroy(cudnn);
    }
    expect_nothing_left();
}

/* A plan's device counts it without a GPU, and a device only when it is used. */
static void test_counted(void **state)
{
    (void)state;
    const tr_workspace_need need = {
        .dtype = TR_BF16, .B = 1, .T = 2000, .H = 64, .A = 4, .K = 2, .D = 64, .max_matmul = 64};
    const cudasim_cudnn plain = {.missing = false};
    tr_device *own, *planned;
    must(tr_cuda_device_create_counting(&own, false));
    must(tr_cuda_device_create_counting(&planned, true));
    size_t without = own->workspace_bytes(own, &need);
    size_t with = planned->workspace_bytes(planned, &need);
    assert_true(with > without);
    tr_device_destroy(own);
    tr_device_destroy(planned);
    cudasim_cudnn_set(&plain);
    tr_device *device = device_make(90);
    assert_int_equal(device->workspace_bytes(device, &need), without);
    must(tr_cuda_device_cudnn_prepare(device, &shape));
    tr_cuda_device_cudnn_use(device, true);
    assert_int_equal(device->workspace_bytes(device, &need), with);
    tr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_compared),
                                       cmocka_unit_test(test_scratch),
                                       cmocka_unit_test(test_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
