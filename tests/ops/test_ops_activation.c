/* SwiGLU and GELU against double and finite differences, at the ends of the number range, and in place. */
#include "tests/ops/op_test_util.h"

#include <math.h>

typedef struct activation_case {
    tr_dtype dtype;
    int64_t n;
    double width; /* of the inputs */
} activation_case;

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

/* Central difference of a function of one variable. */
static double slope(double (*f)(double), double x)
{
    double step = 1e-5 * (1.0 + fabs(x));
    return (f(x + step) - f(x - step)) / (2.0 * step);
}

static void swiglu_case(op_env *env, void *context)
{
    const activation_case *c = context;
    op_tensor gate = op_tensor_random(env, c->dtype, c->n, 1, 0.0, c->width);
    op_tensor up = op_tensor_random(env, c->dtype, c->n, 2, 0.0, 2.0);
    op_tensor dout = op_tensor_random(env, c->dtype, c->n, 3, 0.0, 1.0);
    op_tensor out = op_tensor_new(env, c->dtype, c->n);
    op_tensor dgate = op_tensor_new(env, c->dtype, c->n), dup = op_tensor_new(env, c->dtype, c->n);
    env->ops.swiglu_forward(env->device, c->dtype, c->n, gate.data, up.data, out.data);
    env->ops.swiglu_backward(env->device, c->dtype, c->n, gate.data, up.data, dout.data, dgate.data,
                             dup.data);
    double *y = op_zeros(c->n), *dg = op_zeros(c->n), *du = op_zeros(c->n);
    for (int64_t i = 0; i < c->n; i++) {
        double g = op_get(&gate, i), u = op_get(&up, i), d = op_get(&dout, i);
        y[i] = silu(g) * u;
        dg[i] = d * u * slope(silu, g);
        du[i] = d * silu(g);
    }
    op_expect_close("swiglu", &out, y, 1e-6, 1e-7);
    op_expect_close("swiglu dgate", &dgate, dg, 1e-6, 4e-6);
    op_expect_close("swiglu dup", &dup, du, 1e-6, 1e-7);
    op_record(env, &out);
    op_record(env, &dgate);
    op_record(env, &dup);
    env->ops.swiglu_backward(env->device, c->dtype, c->n, gate.data, up.data, dout.data, gate.data,
                             up.data);
    op_expect_same_bits("dgate over gate", &gate, &dgate);
    op_expect_same_bits("dup over up", &up, &dup);
    op_free(y);
    op_free(dg);
    op_free(du);
}

static void gelu_case(op_env *env, void *context)
{
    const activation_case *c = context;
    op_tensor x = op_tensor_random(env, c->dtype, c->n, 1, 0.0, c->width);
    op_tensor dout = op_tensor_random(env, c->dtype, c->n, 3, 0.0, 1.0);
    op_tensor out = op_tensor_new(env, c->dtype, c->n), dx = op_tensor_new(env, c->dtype, c->n);
    env->ops.gelu_forward(env->device, c->dtype, c->n, x.data, out.data);
    env->ops.gelu_backward(env->device, c->dtype, c->n, x.data, dout.data, dx.data);
    double *y = op_zeros(c->n), *d = op_zeros(c->n);
    for (int64_t i = 0; i < c->n; i++) {
        y[i] = gelu(op_get(&x, i));
        d[i] = op_get(&dout, i) * slope(gelu, op_get(&x, i));
    }
    op_expect_close("gelu", &out, y, 2e-6, 1e-6);
    op_expect_close("gelu dx", &dx, d, 2e-6, 4e-6);
    op_record(env, &out);
    op_record(env, &dx);
    op_tensor over_x = op_tensor_copy(env, &x);
    env->ops.gelu_backward(env->device, c->dtype, c->n, over_x.data, dout.data, over_x.data);
    op_expect_same_bits("dx over x", &over_x, &dx);
    env->ops.gelu_backward(env->device, c->dtype, c->n, x.data, dout.data, dout.data);
    op_expect_same_bits("dx over dout", &dout, &dx);
    op_free(y);
    op_free(d);
}

static void for_each_case(op_case run)
{
    const double widths[] = {4.0, 30.0};
    for (int d = 0; d < OP_NUM_DTYPES; d++)
        for (int w = 0; w < 2; w++) {
            for (int s = 0; s < OP_NUM_SIZES; s++) {
                activation_case c = {op_dtypes[d], op_sizes[s], widths[w]};
                op_run_case(run, &c);
            }
            activation_case pieces = {op_dtypes[d], 3 * 16384 + 5, widths[w]};
            op_run_case(run, &pieces);
        }
}

static void test_swiglu(void **state)
{
    (void)state;
    for_each_case(swiglu_case);
}

static void test_gelu(void **state)
{
    (void)state;
    for_each_case(gelu_case);
}

/* Large finite inputs give finite results; NaN comes through. */
static void extremes_case(op_env *env, void *context)
{
    (void)context;
    const double values[] = {0.0,   -0.0,  1e-30,  88.0, 89.0, -88.0,
                             -89.0, 200.0, -200.0, 1e15, -1e15};
    enum { N = sizeof values / sizeof values[0] };
    op_tensor x = op_tensor_new(env, TR_F32, N + 1), one = op_tensor_new(env, TR_F32, N + 1);
    op_tensor out = op_tensor_new(env, TR_F32, N + 1), d = op_tensor_new(env, TR_F32, N + 1);
    op_tensor du = op_tensor_new(env, TR_F32, N + 1);
    for (int i = 0; i <= N; i++) {
        op_set(&x, i, i < N ? values[i] : NAN);
        op_set(&one, i, 1.0);
    }
    env->ops.swiglu_forward(env->device, TR_F32, N + 1, x.data, one.data, out.data);
    env->ops.swiglu_backward(env->device, TR_F32, N + 1, x.data, one.data, one.data, d.data,
                             du.data);
    for (int i = 0; i < N; i++) {
        double v = (double)(float)values[i];
        assert_true(fabs(op_get(&out, i) - silu(v)) <= 1e-6 * fabs(silu(v)) + 1e-20);
        assert_true(fabs(op_get(&d, i) - slope(silu, v)) <= 1e-5);
    }
    assert_true(isnan(op_get(&out, N)) && isnan(op_get(&d, N)) && isnan(op_get(&du, N)));
    env->ops.gelu_forward(env->device, TR_F32, N + 1, x.data, out.data);
    env->ops.gelu_backward(env->device, TR_F32, N + 1, x.data, one.data, d.data);
    for (int i = 0; i < N; i++) {
        assert_true(isfinite(op_get(&out, i)) && isfinite(op_get(&d, i)));
        assert_true(fabs(op_get(&out, i) - gelu((double)(float)values[i])) <=
                    1e-6 * fabs(values[i]) + 1e-20);
    }
    assert_true(isnan(op_get(&out, N)) && isnan(op_get(&d, N)));
}

static void test_extremes(void **state)
{
    (void)state;
    op_run_case(extremes_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
