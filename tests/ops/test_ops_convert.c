/* Conversions bit for bit against memory/dtype.h (itself tested against every pattern), zeros, and copies. */
#include "tests/ops/op_test_util.h"

#include <math.h>
#include <string.h>

#include "kernels/copy_list.h"

static void set_bits(op_tensor *tensor, int64_t i, uint32_t bits)
{
    if (tensor->dtype == TR_F32)
        ((uint32_t *)tensor->data)[i] = bits;
    else
        ((uint16_t *)tensor->data)[i] = (uint16_t)bits;
}

static uint32_t get_bits(const op_tensor *tensor, int64_t i)
{
    if (tensor->dtype == TR_F32)
        return ((const uint32_t *)tensor->data)[i];
    return ((const uint16_t *)tensor->data)[i];
}

static float widen(tr_dtype dtype, uint32_t bits)
{
    float value;
    if (dtype == TR_BF16)
        return tr_f32_from_bf16((uint16_t)bits);
    if (dtype == TR_F16)
        return tr_f32_from_f16((uint16_t)bits);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t narrow(tr_dtype dtype, float value)
{
    uint32_t bits;
    if (dtype == TR_BF16)
        return tr_bf16_from_f32(value);
    if (dtype == TR_F16)
        return tr_f16_from_f32(value);
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void convert_and_compare(op_env *env, op_tensor *src, tr_dtype to)
{
    op_tensor dst = op_tensor_new(env, to, src->n);
    env->ops.convert(env->device, src->n, src->dtype, src->data, to, dst.data);
    for (int64_t i = 0; i < src->n; i++) {
        uint32_t bits = get_bits(src, i), got = get_bits(&dst, i);
        float value = widen(src->dtype, bits);
        if (isnan(value) && src->dtype != to) /* the quiet bit of fp16 depends on the processor */
            assert_true(isnan(widen(to, got)));
        else if (got != (src->dtype == to ? bits : narrow(to, value)))
            fail_msg("%s 0x%x to %s: 0x%x, expected 0x%x", tr_dtype_name(src->dtype), bits,
                     tr_dtype_name(to), got, narrow(to, value));
    }
    op_record(env, &dst);
}

/* Every bf16 and fp16; floats around every rounding border of both. */
static void patterns_case(op_env *env, void *context)
{
    (void)context;
    for (int from = 1; from < OP_NUM_DTYPES; from++) {
        op_tensor src = op_tensor_new(env, op_dtypes[from], 65536);
        for (int64_t i = 0; i < src.n; i++)
            set_bits(&src, i, (uint32_t)i);
        for (int to = 0; to < OP_NUM_DTYPES; to++)
            convert_and_compare(env, &src, op_dtypes[to]);
    }
    const uint32_t lows[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2fff,
                             0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { NUM_LOWS = sizeof lows / sizeof lows[0] };
    op_tensor src = op_tensor_new(env, TR_F32, 65536 * NUM_LOWS);
    for (int64_t i = 0; i < src.n; i++)
        set_bits(&src, i, (uint32_t)(i / NUM_LOWS) << 16 | lows[i % NUM_LOWS]);
    for (int to = 0; to < OP_NUM_DTYPES; to++)
        convert_and_compare(env, &src, op_dtypes[to]);
}

static void test_every_pattern(void **state)
{
    (void)state;
    op_run_case(patterns_case, NULL);
}

static void sizes_case(op_env *env, void *context)
{
    const int64_t n = *(const int64_t *)context;
    for (int from = 0; from < OP_NUM_DTYPES; from++) {
        op_tensor src = op_tensor_random(env, op_dtypes[from], n, 7, 0.0, 3.0);
        for (int to = 0; to < OP_NUM_DTYPES; to++)
            convert_and_compare(env, &src, op_dtypes[to]);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    for (int s = 0; s < OP_NUM_SIZES; s++) {
        int64_t n = op_sizes[s];
        op_run_case(sizes_case, &n);
    }
    int64_t pieces = 65536 * 2 + 9;
    op_run_case(sizes_case, &pieces);
}

static void zero_case(op_env *env, void *context)
{
    const int64_t n = *(const int64_t *)context;
    op_tensor tensor = op_tensor_new(env, TR_F32, n);
    env->ops.fill_zero(env->device, tensor.data, n * 4);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(get_bits(&tensor, i), 0);
}

static void test_fill_zero(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 65, 16384 * 3 + 1};
    for (int s = 0; s < 4; s++) {
        int64_t n = sizes[s];
        op_run_case(zero_case, &n);
    }
}

/* Ranges of any alignment, some together large enough for the threads, through a list that is filled more than once: what lies between them stays as it was. */
static void copies_case(op_env *env, void *context)
{
    const int64_t bytes = *(const int64_t *)context, stride = bytes + 5, num = 150;
    op_tensor src = op_tensor_random(env, TR_F32, (num * stride + 7) / 4 + 1, 3, 0.0, 1.0);
    op_tensor dst = op_tensor_copy(env, &src), expected = op_tensor_copy(env, &src);
    tr_copy_list list;
    tr_copy_list_begin(&list, env->device);
    for (int64_t i = 0; i < num; i++) { /* the i-th range from the end goes to the i-th place */
        const char *from = (const char *)src.data + (num - 1 - i) * stride + i % 3;
        size_t size = i % 10 == 0 ? 0 : (size_t)(bytes - i % 3);
        assert_int_equal(tr_copy_list_add(&list, (char *)dst.data + i * stride, from, size), TR_OK);
        memcpy((char *)expected.data + i * stride, from, size);
    }
    assert_int_equal(tr_copy_list_flush(&list), TR_OK);
    op_expect_same_bits("copies", &dst, &expected);
}

static void test_copy_many(void **state)
{
    (void)state;
    const int64_t sizes[] = {3, 64, 1001, 70000};
    for (int s = 0; s < 4; s++) {
        int64_t bytes = sizes[s];
        op_run_case(copies_case, &bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_fill_zero),
        cmocka_unit_test(test_copy_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
