/* AdamW and SGD over several steps against double, the compute copy, and the exact sum of squares. */
#include "tests/ops/op_test_util.h"

#include <math.h>
#include <string.h>

#include "base/exact_sum.h"

typedef struct step_case {
    tr_dtype dtype;
    int64_t n;
    bool compute;
} step_case;

enum { STEPS = 5 };

static tr_step_state step_state(int step)
{
    return (tr_step_state){.grad_scale = 0.5f,
                           .lr = 0.01f,
                           .bias1 = (float)(1.0 - pow(0.9, step)),
                           .bias2 = (float)(1.0 - pow(0.95, step))};
}

static void fill_step(tr_adamw *args, const tr_step_state *step)
{
    args->step = step;
    args->beta1 = 0.9f;
    args->beta2 = 0.95f;
    args->eps = 1e-8f;
    args->weight_decay = 0.1f;
}

static void compute_check(const step_case *c, const op_tensor *master, const op_tensor *compute)
{
    for (int64_t i = 0; c->compute && i < c->n; i++) {
        float value = (float)op_get(master, i);
        float rounded = c->dtype == TR_BF16  ? tr_f32_from_bf16(tr_bf16_from_f32(value))
                        : c->dtype == TR_F16 ? tr_f32_from_f16(tr_f16_from_f32(value))
                                             : value;
        assert_true(op_get(compute, i) == (double)rounded);
    }
}

static void adamw_case(op_env *env, void *context)
{
    const step_case *c = context;
    op_tensor master = op_tensor_random(env, TR_F32, c->n, 1, 0.0, 1.0);
    op_tensor m = op_tensor_random(env, TR_F32, c->n, 2, 0.0, 0.0);
    op_tensor v = op_tensor_random(env, TR_F32, c->n, 3, 0.0, 0.0);
    op_tensor compute = op_tensor_new(env, c->dtype, c->n);
    double *p = op_values(&master), *first = op_zeros(c->n), *second = op_zeros(c->n);
    for (int step = 1; step <= STEPS; step++) {
        op_tensor grad = op_tensor_random(env, TR_F32, c->n, 10 + (uint64_t)step, 0.1, 2.0);
        tr_adamw args = {.n = c->n,
                         .master = master.data,
                         .m = m.data,
                         .v = v.data,
                         .grad = grad.data,
                         .compute = c->compute ? compute.data : NULL,
                         .dtype = c->dtype};
        tr_step_state made = step_state(step);
        fill_step(&args, &made);
        assert_int_equal(env->ops.adamw(env->device, &args), TR_OK);
        for (int64_t i = 0; i < c->n; i++) {
            double g = op_get(&grad, i) * 0.5;
            first[i] = 0.9 * first[i] + 0.1 * g;
            second[i] = 0.95 * second[i] + 0.05 * g * g;
            double mean = first[i] / (1.0 - pow(0.9, step));
            double square = second[i] / (1.0 - pow(0.95, step));
            p[i] = p[i] * (1.0 - 0.01 * 0.1) - 0.01 * mean / (sqrt(square) + 1e-8);
        }
        compute_check(c, &master, &compute);
    }
    op_expect_close("adamw m", &m, first, 1e-6, 1e-6);
    op_expect_close("adamw v", &v, second, 2e-6, 1e-9);
    op_expect_close("adamw master", &master, p, 1e-6, 1e-6);
    op_record(env, &master);
    op_record(env, &m);
    op_record(env, &v);
    op_free(p);
    op_free(first);
    op_free(second);
}

static void sgd_case(op_env *env, void *context)
{
    const step_case *c = context;
    op_tensor master = op_tensor_random(env, TR_F32, c->n, 1, 0.0, 1.0);
    op_tensor grad = op_tensor_random(env, TR_F32, c->n, 2, 0.0, 1.0);
    op_tensor compute = op_tensor_new(env, c->dtype, c->n);
    double *p = op_values(&master);
    tr_adamw args = {.n = c->n,
                     .master = master.data,
                     .grad = grad.data,
                     .compute = c->compute ? compute.data : NULL,
                     .dtype = c->dtype};
    tr_step_state made = step_state(1);
    fill_step(&args, &made);
    assert_int_equal(env->ops.sgd(env->device, &args), TR_OK);
    for (int64_t i = 0; i < c->n; i++)
        p[i] -= 0.01 * (op_get(&grad, i) * 0.5 + 0.1 * p[i]);
    compute_check(c, &master, &compute);
    op_expect_close("sgd master", &master, p, 1e-6, 1e-9);
    op_record(env, &master);
    op_free(p);
}

/* A skipped step leaves everything as it is, whatever the gradients are. */
static void skipped_case(op_env *env, void *context)
{
    const step_case *c = context;
    op_tensor master = op_tensor_random(env, TR_F32, c->n, 1, 0.0, 1.0);
    op_tensor m = op_tensor_random(env, TR_F32, c->n, 2, 0.0, 1.0);
    op_tensor v = op_tensor_random(env, TR_F32, c->n, 3, 1.0, 1.0);
    op_tensor grad = op_tensor_random(env, TR_F32, c->n, 4, 0.0, 1.0);
    op_tensor compute = op_tensor_random(env, c->dtype, c->n, 5, 0.0, 1.0);
    op_tensor *const all[] = {&master, &m, &v, &compute};
    op_tensor before[4];
    for (int i = 0; i < 4; i++)
        before[i] = op_tensor_copy(env, all[i]);
    op_set(&grad, c->n / 2, NAN);
    tr_adamw args = {.n = c->n,
                     .master = master.data,
                     .m = m.data,
                     .v = v.data,
                     .grad = grad.data,
                     .compute = compute.data,
                     .dtype = c->dtype};
    tr_step_state skipped = step_state(1);
    skipped.skipped = 1;
    fill_step(&args, &skipped);
    assert_int_equal(env->ops.adamw(env->device, &args), TR_OK);
    assert_int_equal(env->ops.sgd(env->device, &args), TR_OK);
    for (int i = 0; i < 4; i++)
        op_expect_same_bits("a skipped step", &before[i], all[i]);
}

static void for_each_case(op_case run)
{
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        for (int s = 0; s < OP_NUM_SIZES; s++) {
            step_case c = {op_dtypes[d], op_sizes[s], s % 3 != 2};
            op_run_case(run, &c);
        }
        step_case pieces = {op_dtypes[d], 16384 * 2 + 77, true};
        op_run_case(run, &pieces);
    }
}

static void test_adamw(void **state)
{
    (void)state;
    for_each_case(adamw_case);
}

static void test_sgd(void **state)
{
    (void)state;
    for_each_case(sgd_case);
}

static void test_skipped(void **state)
{
    (void)state;
    for_each_case(skipped_case);
}

/* Values of sizes that no double sum could hold exactly; the order and the cut of calls do not matter. */
static void square_sum_case(op_env *env, void *context)
{
    const int64_t n = *(const int64_t *)context;
    op_tensor x = op_tensor_random(env, TR_F32, n, 5, 0.0, 1.0);
    __extension__ __int128 units = 0; /* of 2^-100 */
    for (int64_t i = 0; i < n; i++) {
        /* multiples of 2^-40 and of 2^-10: squares are whole numbers of 2^-80 */
        double value = ldexp(floor(op_get(&x, i) * 1024.0), i % 3 == 0 ? -40 : -10);
        op_set(&x, i, value);
        double scaled = ldexp(value, 40);
        units += (__int128)scaled * (__int128)scaled;
    }
    int64_t limbs[TR_SQUARE_SUM_LIMBS] = {0}, parts[TR_SQUARE_SUM_LIMBS] = {0};
    env->ops.square_sum(env->device, n, x.data, limbs);
    int64_t cut = n / 3;
    env->ops.square_sum(env->device, n - cut, (float *)x.data + cut, parts);
    env->ops.square_sum(env->device, cut, x.data, parts);
    assert_memory_equal(limbs, parts, sizeof limbs);
    bool finite;
    double expected = ldexp((double)units, -80);
    assert_true(tr_square_sum_from_limbs(limbs, &finite) == expected && finite);
    if (n > 2) {
        op_set(&x, n - 1, INFINITY);
        env->ops.square_sum(env->device, n, x.data, limbs);
        tr_square_sum_from_limbs(limbs, &finite);
        assert_false(finite);
    }
}

static void test_square_sum(void **state)
{
    (void)state;
    for (int s = 0; s < OP_NUM_SIZES; s++) {
        int64_t n = op_sizes[s];
        op_run_case(square_sum_case, &n);
    }
    int64_t pieces = (1 << 18) * 2 + 3;
    op_run_case(square_sum_case, &pieces);
}

/* Many calls into the same limbs keep digits below 2^32, so that ranks can still be added. */
static void carry_case(op_env *env, void *context)
{
    (void)context;
    op_tensor x = op_tensor_random(env, TR_F32, 4, 5, 3e38, 0.0);
    int64_t limbs[TR_SQUARE_SUM_LIMBS] = {0};
    for (int call = 0; call < 1000; call++)
        env->ops.square_sum(env->device, 4, x.data, limbs);
    for (int i = 0; i < TR_SQUARE_SUM_DIGITS; i++)
        assert_true(limbs[i] >= 0 && limbs[i] < (int64_t)1 << 32);
    bool finite;
    double value = (double)3e38f;
    assert_true(fabs(tr_square_sum_from_limbs(limbs, &finite) / (4000.0 * value * value) - 1.0) <
                1e-15);
    assert_true(finite);
}

static void test_square_sum_carries(void **state)
{
    (void)state;
    op_run_case(carry_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_square_sum),
        cmocka_unit_test(test_square_sum_carries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
