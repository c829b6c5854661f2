/* RMSNorm and LayerNorm: forward against double, backward against finite differences of the double forward, block sums of
 * many rows, accumulation, and the residual gradient in place. */
#include "tests/ops/op_test_util.h"

#include <math.h>
#include <string.h>

typedef struct norm_case {
    tr_norm_kind kind;
    tr_dtype dtype;
    int64_t R, H;
    bool bias;
} norm_case;

static const double eps = 1e-5;

typedef struct reference {
    norm_case c;
    double *x, *weight, *bias, *dy;
} reference;

static void reference_row(const reference *ref, int64_t r, double *mean, double *rstd)
{
    const double *x = ref->x + r * ref->c.H;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < ref->c.H; i++)
        sum += x[i];
    *mean = ref->c.kind == TR_NORM_KIND_LAYER ? sum / (double)ref->c.H : 0.0;
    for (int64_t i = 0; i < ref->c.H; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1.0 / sqrt(squares / (double)ref->c.H + eps);
}

static double reference_value(const reference *ref, int64_t r, int64_t i, double mean, double rstd)
{
    double y = (ref->x[r * ref->c.H + i] - mean) * rstd * ref->weight[i];
    return ref->bias != NULL ? y + ref->bias[i] : y;
}

/* sum of dy y */
static double reference_loss(void *context)
{
    const reference *ref = context;
    double loss = 0.0;
    for (int64_t r = 0; r < ref->c.R; r++) {
        double mean, rstd;
        reference_row(ref, r, &mean, &rstd);
        for (int64_t i = 0; i < ref->c.H; i++)
            loss += ref->dy[r * ref->c.H + i] * reference_value(ref, r, i, mean, rstd);
    }
    return loss;
}

typedef struct inputs {
    op_tensor x, weight, bias, dy, residual, mean, rstd;
} inputs;

static inputs inputs_new(op_env *env, const norm_case *c)
{
    return (inputs){.x = op_tensor_random(env, c->dtype, c->R * c->H, 1, 0.5, 2.0),
                    .weight = op_tensor_random(env, c->dtype, c->H, 2, 1.0, 0.5),
                    .bias = op_tensor_random(env, c->dtype, c->H, 3, 0.0, 0.5),
                    .dy = op_tensor_random(env, TR_F32, c->R * c->H, 4, 0.0, 1.0),
                    .residual = op_tensor_random(env, c->dtype, c->R * c->H, 5, 0.0, 1.0),
                    .mean = op_tensor_new(env, TR_F32, c->R),
                    .rstd = op_tensor_new(env, TR_F32, c->R)};
}

static reference reference_new(const norm_case *c, const inputs *in)
{
    return (reference){.c = *c,
                       .x = op_values(&in->x),
                       .weight = op_values(&in->weight),
                       .bias = c->bias ? op_values(&in->bias) : NULL,
                       .dy = op_values(&in->dy)};
}

static void reference_free(reference *ref)
{
    op_free(ref->x);
    op_free(ref->weight);
    op_free(ref->bias);
    op_free(ref->dy);
}

static void forward(op_env *env, const norm_case *c, inputs *in, op_tensor *out)
{
    bool layer = c->kind == TR_NORM_KIND_LAYER;
    assert_int_equal(env->ops.norm_forward(env->device, c->kind, c->dtype, c->R, c->H, (float)eps,
                                           in->x.data, in->weight.data,
                                           c->bias ? in->bias.data : NULL, out->data,
                                           layer ? in->mean.data : NULL, in->rstd.data),
                     TR_OK);
}

static void forward_case(op_env *env, void *context)
{
    const norm_case *c = context;
    inputs in = inputs_new(env, c);
    op_tensor out = op_tensor_new(env, c->dtype, c->R * c->H);
    forward(env, c, &in, &out);
    reference ref = reference_new(c, &in);
    double *y = op_zeros(c->R * c->H), *mean = op_zeros(c->R), *rstd = op_zeros(c->R);
    for (int64_t r = 0; r < c->R; r++) {
        reference_row(&ref, r, &mean[r], &rstd[r]);
        for (int64_t i = 0; i < c->H; i++)
            y[r * c->H + i] = reference_value(&ref, r, i, mean[r], rstd[r]);
    }
    /* A row of one element has variance 0: rstd is 1/sqrt(eps), which magnifies the rounding of x - mean. */
    double absolute = c->H == 1 && c->kind == TR_NORM_KIND_LAYER ? 1e-4 : 4e-6;
    op_expect_close("norm y", &out, y, 4e-6, absolute);
    op_expect_close("norm rstd", &in.rstd, rstd, 1e-5, 0.0);
    if (c->kind == TR_NORM_KIND_LAYER)
        op_expect_close("norm mean", &in.mean, mean, 2e-6, 1e-6);
    op_record(env, &out);
    op_record(env, &in.rstd);
    op_free(y);
    op_free(mean);
    op_free(rstd);
    reference_free(&ref);
}

static void for_each_case(op_case run, const int64_t *rows, int num_rows, const int64_t *sizes,
                          int num_sizes)
{
    for (int kind = TR_NORM_KIND_RMS; kind <= TR_NORM_KIND_LAYER; kind++)
        for (int d = 0; d < OP_NUM_DTYPES; d++)
            for (int s = 0; s < num_sizes; s++)
                for (int r = 0; r < num_rows; r++) {
                    norm_case c = {(tr_norm_kind)kind, op_dtypes[d], rows[r], sizes[s],
                                   kind == TR_NORM_KIND_LAYER && s % 2 == 0};
                    op_run_case(run, &c);
                }
}

static void test_forward(void **state)
{
    (void)state;
    const int64_t rows[] = {1, 3, 65};
    for_each_case(forward_case, rows, 3, op_sizes, OP_NUM_SIZES);
}

static void backward(op_env *env, const norm_case *c, inputs *in, const void *residual,
                     op_tensor *dx, op_tensor *dweight, op_tensor *dbias, bool accumulate)
{
    assert_int_equal(env->ops.norm_backward(env->device, c->kind, c->dtype, c->R, c->H, in->dy.data,
                                            in->x.data, in->weight.data,
                                            c->kind == TR_NORM_KIND_LAYER ? in->mean.data : NULL,
                                            in->rstd.data, residual, dx->data, dweight->data,
                                            c->bias ? dbias->data : NULL, accumulate),
                     TR_OK);
}

static void backward_case(op_env *env, void *context)
{
    const norm_case *c = context;
    inputs in = inputs_new(env, c);
    op_tensor out = op_tensor_new(env, c->dtype, c->R * c->H);
    forward(env, c, &in, &out);
    op_tensor dx = op_tensor_new(env, c->dtype, c->R * c->H);
    op_tensor dweight = op_tensor_new(env, TR_F32, c->H), dbias = op_tensor_new(env, TR_F32, c->H);
    backward(env, c, &in, in.residual.data, &dx, &dweight, &dbias, false);
    reference ref = reference_new(c, &in);
    double *gradient = op_zeros(c->R * c->H), *residual = op_values(&in.residual);
    op_finite_difference(reference_loss, &ref, ref.x, c->R * c->H, gradient);
    for (int64_t i = 0; i < c->R * c->H; i++)
        gradient[i] += residual[i];
    op_expect_close("norm dx", &dx, gradient, 1e-5, c->H == 1 ? 1e-3 : 2e-5);
    op_finite_difference(reference_loss, &ref, ref.weight, c->H, gradient);
    op_expect_close("norm dweight", &dweight, gradient, 1e-5, 5e-5);
    if (c->bias) {
        op_finite_difference(reference_loss, &ref, ref.bias, c->H, gradient);
        op_expect_close("norm dbias", &dbias, gradient, 1e-6, 1e-5);
    }
    /* In place over the residual gradient: the same bits. */
    op_tensor in_place = op_tensor_copy(env, &in.residual);
    backward(env, c, &in, in_place.data, &in_place, &dweight, &dbias, false);
    op_expect_same_bits("norm dx in place", &in_place, &dx);
    op_record(env, &dx);
    op_record(env, &dweight);
    op_free(gradient);
    op_free(residual);
    reference_free(&ref);
}

static void test_backward_by_finite_differences(void **state)
{
    (void)state;
    const int64_t rows[] = {1, 3}, sizes[] = {1, 3, 7, 31, 65};
    for_each_case(backward_case, rows, 2, sizes, 5);
}

/* More rows than a block: weight gradients against double sums, then added to what is there. */
static void many_rows_case(op_env *env, void *context)
{
    const norm_case *c = context;
    inputs in = inputs_new(env, c);
    op_tensor out = op_tensor_new(env, c->dtype, c->R * c->H);
    forward(env, c, &in, &out);
    op_tensor dx = op_tensor_new(env, c->dtype, c->R * c->H);
    op_tensor dweight = op_tensor_new(env, TR_F32, c->H), dbias = op_tensor_new(env, TR_F32, c->H);
    backward(env, c, &in, NULL, &dx, &dweight, &dbias, false);
    reference ref = reference_new(c, &in);
    double *weight = op_zeros(c->H), *bias = op_zeros(c->H);
    for (int64_t r = 0; r < c->R; r++) {
        double mean, rstd;
        reference_row(&ref, r, &mean, &rstd);
        for (int64_t i = 0; i < c->H; i++) {
            weight[i] += ref.dy[r * c->H + i] * (ref.x[r * c->H + i] - mean) * rstd;
            bias[i] += ref.dy[r * c->H + i];
        }
    }
    op_expect_close("norm dweight", &dweight, weight, 1e-5, 1e-4);
    if (c->bias)
        op_expect_close("norm dbias", &dbias, bias, 1e-5, 1e-4);
    op_record(env, &dx);
    op_record(env, &dweight);
    op_tensor twice = op_tensor_copy(env, &dweight), twice_bias = op_tensor_copy(env, &dbias);
    backward(env, c, &in, NULL, &dx, &twice, &twice_bias, true);
    for (int64_t i = 0; i < c->H; i++) {
        assert_true(op_get(&twice, i) == 2.0 * op_get(&dweight, i));
        if (c->bias)
            assert_true(op_get(&twice_bias, i) == 2.0 * op_get(&dbias, i));
    }
    op_free(weight);
    op_free(bias);
    reference_free(&ref);
}

static void test_weight_gradients_of_many_rows(void **state)
{
    (void)state;
    const int64_t rows[] = {64, 257}, sizes[] = {63, 65};
    for_each_case(many_rows_case, rows, 2, sizes, 2);
}

/* A NaN in a row stays in that row. */
static void nan_case(op_env *env, void *context)
{
    const norm_case *c = context;
    inputs in = inputs_new(env, c);
    op_set(&in.x, c->H + 1, NAN);
    op_tensor out = op_tensor_new(env, c->dtype, c->R * c->H);
    forward(env, c, &in, &out);
    for (int64_t i = 0; i < c->R * c->H; i++)
        assert_int_equal(isnan(op_get(&out, i)) != 0, i / c->H == 1);
}

static void test_nan_is_not_hidden(void **state)
{
    (void)state;
    const int64_t rows[] = {3}, sizes[] = {7, 65};
    for_each_case(nan_case, rows, 1, sizes, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward_by_finite_differences),
        cmocka_unit_test(test_weight_gradients_of_many_rows),
        cmocka_unit_test(test_nan_is_not_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
