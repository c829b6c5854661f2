/* memory/dtype: sizes and names; conversions against the nearest value found by arithmetic. */
#include "memory/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void test_rows(void **state)
{
    (void)state;
    assert_int_equal(tr_dtype_size(TR_F32), 4);
    assert_int_equal(tr_dtype_size(TR_BF16), 2);
    assert_int_equal(tr_dtype_size(TR_F16), 2);
    assert_int_equal(tr_dtype_size(TR_I64), 8);
    assert_int_equal(tr_dtype_size(TR_U8), 1);
    assert_string_equal(tr_dtype_name(TR_BF16), "bf16");
    assert_string_equal(tr_dtype_name(TR_I32), "i32");
}

/* What 16 bits mean, by the definition of the format (exponent bits, fraction bits, bias). */
static double value_of(uint16_t bits, int fraction_bits, int bias)
{
    int exponent = (bits & 0x7fff) >> fraction_bits;
    int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude =
        exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                      : ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static void test_every_16_bit_value_there_and_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        float from_f16 = tr_f32_from_f16(bits), from_bf16 = tr_f32_from_bf16(bits);
        if ((bits & 0x7c00) == 0x7c00) {
            assert_true((bits & 0x3ff) == 0 ? isinf(from_f16) : isnan(from_f16));
            assert_int_equal(signbit(from_f16) != 0, bits >> 15);
        } else {
            assert_true((double)from_f16 == value_of(bits, 10, 15));
            assert_int_equal(tr_f16_from_f32(from_f16), bits);
        }
        if ((bits & 0x7f80) == 0x7f80) {
            assert_true((bits & 0x7f) == 0 ? isinf(from_bf16) : isnan(from_bf16));
        } else {
            assert_true((double)from_bf16 == value_of(bits, 7, 127));
            assert_int_equal(tr_bf16_from_f32(from_bf16), bits);
        }
    }
}

/* For a float between two neighbours of the format: below the middle to the lower, above it to the upper, in the middle to the
 * one with an even last bit. */
static void neighbours_check(uint16_t lower, int fraction_bits, int bias,
                             uint16_t (*convert)(float))
{
    double low = value_of(lower, fraction_bits, bias),
           high = value_of((uint16_t)(lower + 1), fraction_bits, bias);
    float middle = (float)((low + high) / 2); /* exact: a float has at least one more bit */
    assert_true((double)middle == (low + high) / 2);
    uint16_t even = (uint16_t)(lower % 2 == 0 ? lower : lower + 1);
    for (int sign = 0; sign <= 1; sign++) {
        uint16_t sign_bit = (uint16_t)(sign << 15);
        float s = sign ? -1.0f : 1.0f;
        assert_int_equal(convert(s * middle), even | sign_bit);
        assert_int_equal(convert(s * nextafterf(middle, 0)), lower | sign_bit);
        assert_int_equal(convert(s * nextafterf(middle, INFINITY)), (lower + 1) | sign_bit);
    }
}

static void test_rounding(void **state)
{
    (void)state;
    for (uint32_t lower = 0; lower < 0x7c00;
         lower++) /* the last one rounds to infinity from 65520 on */
        neighbours_check((uint16_t)lower, 10, 15, tr_f16_from_f32);
    for (uint32_t lower = 0; lower < 0x7f7f; lower++)
        neighbours_check((uint16_t)lower, 7, 127, tr_bf16_from_f32);
}

static void test_overflow_and_nan(void **state)
{
    (void)state;
    assert_int_equal(tr_f16_from_f32(65504.0f), 0x7bff);
    assert_int_equal(tr_f16_from_f32(65519.99f), 0x7bff);
    assert_int_equal(tr_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(tr_f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(tr_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(tr_bf16_from_f32(float_of(0x7f7fffff)), 0x7f80);
    assert_int_equal(tr_bf16_from_f32(-INFINITY), 0xff80);
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0xff800001, 0xffffffff, 0x7f801fff};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        assert_true(isnan(tr_f32_from_f16(tr_f16_from_f32(float_of(nans[i])))));
        assert_true(isnan(tr_f32_from_bf16(tr_bf16_from_f32(float_of(nans[i])))));
    }
    assert_int_equal(bits_of(tr_f32_from_bf16(0x8000)), 0x80000000u);
    assert_int_equal(tr_f16_from_f32(-0.0f), 0x8000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_every_16_bit_value_there_and_back),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_overflow_and_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
