/* SwiGLU and GELU on the CUDA device beside the CPU's: odd lengths and addresses, outputs that are inputs. */
#include "tests/ops/op_parity.h"

static void swiglu_case(tr_dtype dtype, int64_t n, int64_t begin, bool in_place)
{
    op_tensor gate = op_random(dtype, n, begin, 1, 0.0, 12.0),
              up = op_random(dtype, n, 0, 2, 0.0, 2.0);
    op_tensor out = op_new(dtype, n, begin), dout = op_random(dtype, n, 0, 3, 0.0, 1.0);
    op_tensor dgate = op_new(dtype, n, 0), dup = op_new(dtype, n, begin);
    op_both(swiglu_forward, dtype, n, gate.data[side], up.data[side], out.data[side]);
    op_expect_close("swiglu_forward", &out, 0);
    op_both(swiglu_backward, dtype, n, gate.data[side], up.data[side], dout.data[side],
            in_place ? gate.data[side] : dgate.data[side],
            in_place ? up.data[side] : dup.data[side]);
    op_expect_close("dgate", in_place ? &gate : &dgate, 0);
    op_expect_close("dup", in_place ? &up : &dup, 0);
    op_release();
}

/* dx: a tensor of its own, x, or dout. */
static void gelu_case(tr_dtype dtype, int64_t n, int64_t begin, int into)
{
    op_tensor x = op_random(dtype, n, begin, 1, 0.0, 6.0),
              dout = op_random(dtype, n, 0, 2, 0.0, 1.0);
    op_tensor out = op_new(dtype, n, 0), dx = op_new(dtype, n, begin);
    const op_tensor *to = into == 0 ? &dx : into == 1 ? &x : &dout;
    op_both(gelu_forward, dtype, n, x.data[side], out.data[side]);
    op_expect_close("gelu_forward", &out, 0);
    op_both(gelu_backward, dtype, n, x.data[side], dout.data[side], to->data[side]);
    op_expect_close("gelu_backward", to, 0);
    op_release();
}

static const int64_t lengths[] = {0, 1, 3, 7, 8, 63, 65, 257, 768, 4103};
enum { NUM_LENGTHS = sizeof lengths / sizeof lengths[0] };

static void test_swiglu(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++)
        for (int i = 0; i < NUM_LENGTHS; i++)
            for (int begin = 0; begin < 2; begin++)
                swiglu_case(op_dtypes[d], lengths[i], begin, (i + begin) % 2 == 0);
}

static void test_gelu(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++)
        for (int i = 0; i < NUM_LENGTHS; i++)
            for (int begin = 0; begin < 2; begin++)
                gelu_case(op_dtypes[d], lengths[i], begin, (i + begin) % 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_gelu),
    };
    return op_parity_main("cuda activation", tests, sizeof tests / sizeof tests[0]);
}
