#include "tests/ops/op_parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/philox.h"
#include "kernels/cuda/cuda_device.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

enum { GUARD = 256, GUARD_BYTE = 0xa5, PINNED = 1 << 18 };

const tr_dtype op_dtypes[OP_DTYPES] = {TR_F32, TR_BF16, TR_F16};
const int64_t op_sizes[OP_SIZES] = {1, 3, 7, 31, 63, 65, 257, 768};

tr_device *op_device[OP_SIDES];

/* A tensor's memory: guard, `begin` elements more of it, the elements, guard. */
typedef struct allocation {
    void *memory[OP_SIDES];
    size_t bytes, head, body; /* all, before the elements, of them */
} allocation;

static allocation allocations[OP_MOST_TENSORS];
static int num_allocations;
static allocation workspaces; /* of both sides; sizes differ */
static size_t workspace_bytes[OP_SIDES];
static void *pinned; /* of the device under test */

void op_check_status(const char *what, tr_status status)
{
    if (status != TR_OK)
        fail_msg("%s: %s", what, tr_error_message());
}

/* `to` or `from` is memory of the side's device, the other one the host's. Through pinned memory where the device has its own. */
static void transfer(int side, void *to, const void *from, size_t bytes, bool upload)
{
    tr_device *device = op_device[side];
    if (device->unified) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t done = 0, some; done < bytes; done += some) {
        some = bytes - done < PINNED ? bytes - done : PINNED;
        if (upload)
            memcpy(pinned, (const char *)from + done, some);
        op_check_status("copy",
                        device->copy(device, TR_STREAM_COMPUTE, upload ? (char *)to + done : pinned,
                                     upload ? pinned : (const char *)from + done, some));
        op_check_status("synchronize", device->synchronize(device, TR_STREAM_COMPUTE));
        if (!upload)
            memcpy((char *)to + done, pinned, some);
    }
}

static void write_side(int side, void *memory, const void *values, size_t bytes)
{
    transfer(side, memory, values, bytes, true);
}

static void read_side(int side, void *values, const void *memory, size_t bytes)
{
    transfer(side, values, memory, bytes, false);
}

/* Closes the guards to kernels where AddressSanitizer watches them, so that what is read there is seen too, or opens them. */
static void guards_close(const allocation *a, bool close)
{
    for (int side = 0; side < OP_SIDES; side++) {
        const unsigned char *head = a->memory[side], *tail = head + a->head + a->body;
        if (close) {
            ASAN_POISON_MEMORY_REGION(head, a->head);
            ASAN_POISON_MEMORY_REGION(tail, GUARD);
        } else {
            ASAN_UNPOISON_MEMORY_REGION(head, a->head);
            ASAN_UNPOISON_MEMORY_REGION(tail, GUARD);
        }
    }
}

op_tensor op_from(tr_dtype dtype, int64_t n, int64_t begin, const void *values)
{
    size_t size = tr_dtype_size(dtype);
    allocation a = {.head = GUARD + (size_t)begin * size, .body = (size_t)n * size};
    a.bytes = a.head + a.body + GUARD;
    unsigned char *image = malloc(a.bytes);
    assert_non_null(image);
    memset(image, GUARD_BYTE, a.bytes);
    if (values != NULL)
        memcpy(image + a.head, values, a.body);
    else
        memset(image + a.head, 0xff, a.body);
    op_tensor tensor = {.dtype = dtype, .n = n};
    for (int side = 0; side < OP_SIDES; side++) {
        op_check_status("memory", op_device[side]->memory_create(op_device[side], TR_MEMORY_DEVICE,
                                                                 a.bytes, &a.memory[side]));
        write_side(side, a.memory[side], image, a.bytes);
        tensor.data[side] = (unsigned char *)a.memory[side] + a.head;
    }
    free(image);
    guards_close(&a, true);
    assert_true(num_allocations < OP_MOST_TENSORS);
    allocations[num_allocations++] = a;
    return tensor;
}

op_tensor op_new(tr_dtype dtype, int64_t n, int64_t begin)
{
    return op_from(dtype, n, begin, NULL);
}

static void element_set(tr_dtype dtype, void *values, int64_t i, float value)
{
    if (dtype == TR_F32)
        ((float *)values)[i] = value;
    else if (dtype == TR_BF16)
        ((uint16_t *)values)[i] = tr_bf16_from_f32(value);
    else
        ((uint16_t *)values)[i] = tr_f16_from_f32(value);
}

double op_element(tr_dtype dtype, const void *values, int64_t i)
{
    if (dtype == TR_F32)
        return (double)((const float *)values)[i];
    uint16_t bits = ((const uint16_t *)values)[i];
    return (double)(dtype == TR_BF16 ? tr_f32_from_bf16(bits) : tr_f32_from_f16(bits));
}

op_tensor op_random(tr_dtype dtype, int64_t n, int64_t begin, uint64_t seed, double center,
                    double width)
{
    void *values = malloc((size_t)n * tr_dtype_size(dtype) + 1);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        tr_philox_block(seed, (uint32_t)i, 0, 0, 0, words);
        element_set(dtype, values, i,
                    (float)(center + width * (2.0 * (double)words[0] / 4294967296.0 - 1.0)));
    }
    op_tensor tensor = op_from(dtype, n, begin, values);
    free(values);
    return tensor;
}

static size_t bytes_of(const op_tensor *tensor)
{
    return (size_t)tensor->n * tr_dtype_size(tensor->dtype);
}

/* A side's values in host memory; the caller frees them. */
static void *values_of(const op_tensor *tensor, int side)
{
    void *values = malloc(bytes_of(tensor) + 1);
    assert_non_null(values);
    read_side(side, values, tensor->data[side], bytes_of(tensor));
    return values;
}

op_tensor op_copy(const op_tensor *other)
{
    void *values = values_of(other, OP_CPU);
    op_tensor tensor = op_from(other->dtype, other->n, 0, values);
    free(values);
    return tensor;
}

void op_download(const op_tensor *tensor, void *values)
{
    read_side(OP_CUDA, values, tensor->data[OP_CUDA], bytes_of(tensor));
}

static void guards_check(int side, const allocation *a)
{
    unsigned char *image = malloc(a->bytes);
    assert_non_null(image);
    read_side(side, image, a->memory[side], a->bytes);
    for (size_t i = 0; i < a->bytes; i++) {
        if ((i < a->head || i >= a->head + a->body) && image[i] != GUARD_BYTE)
            fail_msg("%s: byte %lld of a tensor of %zu bytes was written",
                     op_device[side]->ops->name, (long long)i - (long long)a->head, a->body);
    }
    free(image);
}

void op_release(void)
{
    for (int side = 0; side < OP_SIDES; side++)
        op_check_status("synchronize",
                        op_device[side]->synchronize(op_device[side], TR_STREAM_COMPUTE));
    while (num_allocations > 0) {
        const allocation *a = &allocations[--num_allocations];
        guards_close(a, false);
        for (int side = 0; side < OP_SIDES; side++) {
            guards_check(side, a);
            op_device[side]->memory_destroy(op_device[side], TR_MEMORY_DEVICE, a->memory[side],
                                            a->bytes);
        }
    }
}

static void workspace_free(int side)
{
    tr_device *device = op_device[side];
    op_check_status("synchronize", device->synchronize(device, TR_STREAM_COMPUTE));
    device->memory_destroy(device, TR_MEMORY_DEVICE, workspaces.memory[side],
                           workspace_bytes[side]);
    workspaces.memory[side] = NULL;
}

void op_workspace(const tr_workspace_need *need)
{
    for (int side = 0; side < OP_SIDES; side++) {
        tr_device *device = op_device[side];
        workspace_free(side);
        size_t bytes = device->workspace_bytes(device, need);
        void *poison = malloc(bytes + 1);
        assert_non_null(poison);
        memset(poison, 0xff, bytes);
        op_check_status("workspace", device->memory_create(device, TR_MEMORY_DEVICE, bytes,
                                                           &workspaces.memory[side]));
        workspace_bytes[side] = bytes;
        write_side(side, workspaces.memory[side], poison, bytes);
        device->workspace_set(device, workspaces.memory[side], bytes);
        free(poison);
    }
}

double op_tolerance(tr_dtype dtype)
{
    return dtype == TR_F32 ? 1e-5 : 1e-2;
}

void op_expect_close(const char *what, const op_tensor *tensor, double tolerance)
{
    void *cpu = values_of(tensor, OP_CPU), *cuda = values_of(tensor, OP_CUDA);
    double difference = 0, norm = 0, largest = 0, worst = 0;
    int64_t at = -1;
    if (tolerance == 0)
        tolerance = op_tolerance(tensor->dtype);
    for (int64_t i = 0; i < tensor->n; i++) {
        double a = op_element(tensor->dtype, cuda, i), e = op_element(tensor->dtype, cpu, i);
        if (!isfinite(e) || !isfinite(a)) {
            if (!(isnan(a) && isnan(e)) && a != e)
                fail_msg("%s (%s) element %lld of %lld: %g, the CPU has %g", what,
                         tr_dtype_name(tensor->dtype), (long long)i, (long long)tensor->n, a, e);
            continue;
        }
        difference += (a - e) * (a - e);
        norm += e * e;
        largest = fmax(largest, fabs(e));
        if (fabs(a - e) > worst) {
            worst = fabs(a - e);
            at = i;
        }
    }
    if (sqrt(difference) > tolerance * sqrt(norm) || worst > 8 * tolerance * largest)
        fail_msg("%s (%s), %lld elements: relative difference %.3g, allowed %.3g; worst at element "
                 "%lld: %.9g, the CPU has %.9g",
                 what, tr_dtype_name(tensor->dtype), (long long)tensor->n,
                 sqrt(difference / fmax(norm, 1e-300)), tolerance, (long long)at,
                 op_element(tensor->dtype, cuda, at), op_element(tensor->dtype, cpu, at));
    free(cpu);
    free(cuda);
}

void op_expect_equal(const char *what, const op_tensor *tensor)
{
    void *cpu = values_of(tensor, OP_CPU), *cuda = values_of(tensor, OP_CUDA);
    size_t size = tr_dtype_size(tensor->dtype);
    bool floating = tensor->dtype == TR_F32 || tensor->dtype == TR_BF16 || tensor->dtype == TR_F16;
    for (int64_t i = 0; i < tensor->n; i++) {
        if (memcmp((char *)cpu + (size_t)i * size, (char *)cuda + (size_t)i * size, size) == 0)
            continue;
        if (!floating)
            fail_msg("%s element %lld of %lld differs from the CPU's", what, (long long)i,
                     (long long)tensor->n);
        double a = op_element(tensor->dtype, cuda, i), e = op_element(tensor->dtype, cpu, i);
        if (!isnan(a) || !isnan(e))
            fail_msg("%s (%s) element %lld of %lld: %.9g, the CPU has %.9g", what,
                     tr_dtype_name(tensor->dtype), (long long)i, (long long)tensor->n, a, e);
    }
    free(cpu);
    free(cuda);
}

uint64_t op_device_hash(const op_tensor *tensor)
{
    void *values = values_of(tensor, OP_CUDA);
    uint64_t hash = tr_hash64(values, bytes_of(tensor), 1);
    free(values);
    return hash;
}

/* ---- the program ---- */

static tr_status devices_create(void)
{
    const tr_cuda_options options = {.local_rank = 0, .local_size = 1};
    TR_TRY(tr_cpu_device_create(&op_device[OP_CPU], 1));
    TR_TRY(tr_cuda_device_create(&op_device[OP_CUDA], &options));
    tr_device *device = op_device[OP_CUDA];
    return device->memory_create(device, TR_MEMORY_HOST, PINNED, &pinned);
}

int op_parity_main(const char *group, const struct CMUnitTest *tests, size_t count)
{
    if (!tr_cuda_is_present()) {
        printf("%s: no GPU here\n", group);
        return 77;
    }
    if (devices_create() != TR_OK) {
        printf("%s: %s\n", group, tr_error_message());
        return 1;
    }
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    if (failed != 0) /* what a failed case left behind goes with the process */
        return failed;
    for (int side = 0; side < OP_SIDES; side++)
        workspace_free(side);
    op_device[OP_CUDA]->memory_destroy(op_device[OP_CUDA], TR_MEMORY_HOST, pinned, PINNED);
    for (int side = 0; side < OP_SIDES; side++)
        tr_device_destroy(op_device[side]);
    return failed;
}
