#include "tests/ops/op_test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/philox.h"

const tr_dtype op_dtypes[OP_NUM_DTYPES] = {TR_F32, TR_BF16, TR_F16};
const int64_t op_sizes[OP_NUM_SIZES] = {1, 3, 7, 31, 63, 65, 257, 768};

enum { GUARD = 256, GUARD_BYTE = 0xa5, WORKSPACE = 8 << 20, POISON = 1 << 20, MAX_THREADS = 3 };

static void guards_check(const unsigned char *memory, int64_t bytes)
{
    for (int64_t i = 0; i < GUARD; i++) {
        if (memory[i] != GUARD_BYTE || memory[GUARD + bytes + i] != GUARD_BYTE)
            fail_msg("bytes outside of a tensor of %lld bytes were written", (long long)bytes);
    }
}

void op_release(op_env *env, int mark)
{
    while (env->num_memory > mark) {
        int i = --env->num_memory;
        guards_check(env->memory[i], env->bytes[i]);
        free(env->memory[i]);
    }
}

/* Devices live as long as the program: making one takes far longer than most cases. */
static tr_device *device_of(int num_threads)
{
    static tr_device *devices[MAX_THREADS + 1];
    static void *workspace; /* one for all: devices run in turn */
    tr_device **device = &devices[num_threads];
    if (*device == NULL)
        assert_int_equal(tr_cpu_device_create(device, num_threads), TR_OK);
    if (workspace == NULL)
        assert_int_equal((*device)->memory_create(*device, TR_MEMORY_DEVICE, WORKSPACE, &workspace),
                         TR_OK);
    memset(workspace, 0xff, POISON); /* NaN: nothing may be taken for zero */
    (*device)->workspace_set(*device, workspace, WORKSPACE);
    return *device;
}

static uint64_t run_variant(op_case run, void *context, tr_cpu_isa isa, int num_threads)
{
    op_env env = {.device = device_of(num_threads), .isa = isa, .num_threads = num_threads};
    env.ops = *env.device->ops;
    tr_cpu_vector_ops(&env.ops, isa);
    run(&env, context);
    for (int i = 0; i < env.num_memory; i++) {
        guards_check(env.memory[i], env.bytes[i]);
        free(env.memory[i]);
    }
    return env.recorded;
}

void op_run_case(op_case run, void *context)
{
    uint64_t of_isa[TR_CPU_ISA_NUM] = {0};
    for (int isa = 0; isa < TR_CPU_ISA_NUM; isa++) {
        if (!tr_cpu_isa_supported((tr_cpu_isa)isa))
            continue;
        of_isa[isa] = run_variant(run, context, (tr_cpu_isa)isa, 1);
        for (int threads = 2; threads <= MAX_THREADS; threads++) {
            if (run_variant(run, context, (tr_cpu_isa)isa, threads) != of_isa[isa])
                fail_msg("%s: %d threads give other bits than 1", tr_cpu_isa_name((tr_cpu_isa)isa),
                         threads);
        }
    }
#if defined(__x86_64__)
    if (tr_cpu_isa_supported(TR_CPU_ISA_AVX512) &&
        of_isa[TR_CPU_ISA_AVX512] != of_isa[TR_CPU_ISA_AVX2])
        fail_msg("avx512 gives other bits than avx2");
#endif
}

op_tensor op_tensor_new(op_env *env, tr_dtype dtype, int64_t n)
{
    int64_t bytes = n * (int64_t)tr_dtype_size(dtype);
    unsigned char *memory = aligned_alloc(GUARD, (size_t)((2 * GUARD + bytes + 255) / 256 * 256));
    assert_non_null(memory);
    memset(memory, GUARD_BYTE, (size_t)(2 * GUARD + bytes));
    memset(memory + GUARD, 0xff, (size_t)bytes);
    assert_true(env->num_memory < OP_MAX_TENSORS);
    env->memory[env->num_memory] = memory;
    env->bytes[env->num_memory++] = bytes;
    return (op_tensor){dtype, n, memory + GUARD};
}

double op_random(uint64_t seed, uint64_t index)
{
    uint32_t words[4];
    tr_philox_block(seed, (uint32_t)index, (uint32_t)(index >> 32), 0, 0, words);
    return (double)words[0] / 4294967296.0;
}

op_tensor op_tensor_random(op_env *env, tr_dtype dtype, int64_t n, uint64_t seed, double center,
                           double width)
{
    op_tensor tensor = op_tensor_new(env, dtype, n);
    for (int64_t i = 0; i < n; i++)
        op_set(&tensor, i, center + width * (2.0 * op_random(seed, (uint64_t)i) - 1.0));
    return tensor;
}

void op_workspace(op_env *env, const tr_workspace_need *need)
{
    size_t bytes = env->device->workspace_bytes(env->device, need);
    op_tensor workspace = op_tensor_new(env, TR_U8, (int64_t)bytes);
    env->device->workspace_set(env->device, workspace.data, bytes);
}

op_tensor op_tensor_copy(op_env *env, const op_tensor *other)
{
    op_tensor tensor = op_tensor_new(env, other->dtype, other->n);
    memcpy(tensor.data, other->data, (size_t)other->n * tr_dtype_size(other->dtype));
    return tensor;
}

double op_get(const op_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case TR_F32:
        return (double)((const float *)tensor->data)[i];
    case TR_BF16:
        return (double)tr_f32_from_bf16(((const uint16_t *)tensor->data)[i]);
    case TR_F16:
        return (double)tr_f32_from_f16(((const uint16_t *)tensor->data)[i]);
    default:
        return (double)((const int32_t *)tensor->data)[i];
    }
}

void op_set(op_tensor *tensor, int64_t i, double value)
{
    switch (tensor->dtype) {
    case TR_F32:
        ((float *)tensor->data)[i] = (float)value;
        break;
    case TR_BF16:
        ((uint16_t *)tensor->data)[i] = tr_bf16_from_f32((float)value);
        break;
    case TR_F16:
        ((uint16_t *)tensor->data)[i] = tr_f16_from_f32((float)value);
        break;
    default:
        ((int32_t *)tensor->data)[i] = (int32_t)value;
    }
}

double *op_zeros(int64_t n)
{
    double *values = calloc((size_t)(n > 0 ? n : 1), sizeof *values);
    assert_non_null(values);
    return values;
}

double *op_values(const op_tensor *tensor)
{
    double *values = op_zeros(tensor->n);
    for (int64_t i = 0; i < tensor->n; i++)
        values[i] = op_get(tensor, i);
    return values;
}

void op_free(double *values)
{
    free(values);
}

void op_record(op_env *env, const op_tensor *tensor)
{
    env->recorded =
        tr_hash64(tensor->data, (size_t)tensor->n * tr_dtype_size(tensor->dtype), env->recorded);
}

/* Half a unit in the last place, relative; fp16 adds half of its smallest subnormal below. */
static double rounding_of(tr_dtype dtype)
{
    return dtype == TR_BF16 ? 0x1p-8 : dtype == TR_F16 ? 0x1p-11 : 0x1p-24;
}

void op_expect_close(const char *what, const op_tensor *actual, const double *expected,
                     double relative, double absolute)
{
    double slack = actual->dtype == TR_F16 ? 0x1p-25 : 0.0;
    for (int64_t i = 0; i < actual->n; i++) {
        double value = op_get(actual, i);
        double allowed =
            absolute + slack + 1.01 * (relative + rounding_of(actual->dtype)) * fabs(expected[i]);
        if (!(fabs(value - expected[i]) <= allowed))
            fail_msg("%s (%s) element %lld of %lld: %.9g, expected %.9g within %.3g", what,
                     tr_dtype_name(actual->dtype), (long long)i, (long long)actual->n, value,
                     expected[i], allowed);
    }
}

void op_expect_same_bits(const char *what, const op_tensor *a, const op_tensor *b)
{
    assert_int_equal(a->n, b->n);
    size_t size = tr_dtype_size(a->dtype);
    for (int64_t i = 0; i < a->n; i++) {
        if (memcmp((const char *)a->data + (size_t)i * size,
                   (const char *)b->data + (size_t)i * size, size) != 0)
            fail_msg("%s (%s) element %lld: %.9g and %.9g", what, tr_dtype_name(a->dtype),
                     (long long)i, op_get(a, i), op_get(b, i));
    }
}

void op_finite_difference(double (*loss)(void *context), void *context, double *values, int64_t n,
                          double *gradient)
{
    for (int64_t i = 0; i < n; i++) {
        double value = values[i], step = 1e-5 * (1.0 + fabs(value));
        values[i] = value + step;
        double above = loss(context);
        values[i] = value - step;
        double below = loss(context);
        values[i] = value;
        gradient[i] = (above - below) / (2.0 * step);
    }
}
