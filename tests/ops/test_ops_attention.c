/* Attention against double: odd lengths and head sizes, grouped heads, dropout; its backward against a backward in double, which is
 * itself checked by finite differences of the forward in double. */
#include "tests/ops/attention_reference.h"
#include "tests/ops/op_test_util.h"

#include <math.h>
#include <stdlib.h>

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static double loss(void *context)
{
    attention_reference *r = context;
    attention_reference_forward(r);
    return dot(r->out, r->dout, attention_num_query(&r->shape));
}

static void expect_gradient(attention_reference *r, const char *name, double *values,
                            const double *actual, int64_t n)
{
    double *expected = op_zeros(n);
    op_finite_difference(loss, r, values, n, expected);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(actual[i] - expected[i]) <= 1e-8))
            fail_msg("%s %lld: %.12g, finite difference %.12g", name, (long long)i, actual[i],
                     expected[i]);
    op_free(expected);
}

static double *random_values(int64_t n, uint64_t seed)
{
    double *values = op_zeros(n);
    for (int64_t i = 0; i < n; i++)
        values[i] = 4.0 * op_random(seed, (uint64_t)i) - 2.0;
    return values;
}

static void test_reference(void **state)
{
    static const attention_shape shapes[] = {{2, 5, 4, 2, 3, 0.0f, 1}, {1, 6, 4, 1, 2, 0.3f, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        attention_reference r = attention_reference_make(&shapes[i]);
        r.q = random_values(attention_num_query(&r.shape), 1);
        r.k = random_values(attention_num_key(&r.shape), 2);
        r.v = random_values(attention_num_key(&r.shape), 3);
        r.dout = random_values(attention_num_query(&r.shape), 4);
        attention_reference_forward(&r);
        attention_reference_backward(&r);
        expect_gradient(&r, "dq", r.q, r.dq, attention_num_query(&r.shape));
        expect_gradient(&r, "dk", r.k, r.dk, attention_num_key(&r.shape));
        expect_gradient(&r, "dv", r.v, r.dv, attention_num_key(&r.shape));
        attention_reference_free(&r);
    }
}

static void attention_case(op_env *env, void *context)
{
    const attention_shape *s = context;
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        tr_dtype dtype = op_dtypes[d];
        const tr_workspace_need need = {
            .dtype = dtype, .B = s->B, .T = s->T, .A = s->A, .K = s->K, .D = s->D};
        op_workspace(env, &need);
        op_tensor q = op_tensor_random(env, dtype, attention_num_query(s), 1, 0.0, 2.0);
        op_tensor k = op_tensor_random(env, dtype, attention_num_key(s), 2, 0.0, 2.0);
        op_tensor v = op_tensor_random(env, dtype, attention_num_key(s), 3, 0.0, 2.0);
        op_tensor dout = op_tensor_random(env, dtype, attention_num_query(s), 4, 0.0, 2.0);
        op_tensor out = op_tensor_new(env, dtype, attention_num_query(s));
        op_tensor lse = op_tensor_new(env, TR_F32, s->B * s->A * s->T);
        op_tensor dq = op_tensor_new(env, dtype, attention_num_query(s));
        op_tensor dk = op_tensor_new(env, dtype, attention_num_key(s));
        op_tensor dv = op_tensor_new(env, dtype, attention_num_key(s));
        attention_reference r = attention_reference_make(s);
        r.q = op_values(&q);
        r.k = op_values(&k);
        r.v = op_values(&v);
        r.dout = op_values(&dout);
        const tr_attention args = {.B = s->B,
                                   .T = s->T,
                                   .A = s->A,
                                   .K = s->K,
                                   .D = s->D,
                                   .dtype = dtype,
                                   .scale = (float)r.scale,
                                   .head_offset = ATTENTION_HEAD_OFFSET,
                                   .dropout = {s->dropout, ATTENTION_KEY, attention_samples, s->T},
                                   .q = q.data,
                                   .k = k.data,
                                   .v = v.data,
                                   .out = out.data,
                                   .lse = lse.data,
                                   .dout = dout.data,
                                   .dq = dq.data,
                                   .dk = dk.data,
                                   .dv = dv.data};

        assert_int_equal(env->ops.attention_forward(env->device, &args), TR_OK);
        attention_reference_forward(&r);
        /* Scores of sqrt(D) size have errors of a few 2^-24 of themselves, which exp makes relative errors of P. */
        double bound = 16.0 * 0x1p-24 * (4.0 + sqrt((double)s->D));
        op_expect_close("out", &out, r.out, 0.0, 4.0 * bound);
        op_expect_close("lse", &lse, r.lse, 0.0, bound);

        assert_int_equal(env->ops.attention_backward(env->device, &args), TR_OK);
        attention_reference_backward(&r);
        double size = bound * sqrt((double)(s->D * s->T)) * (double)(s->A / s->K);
        op_expect_close("dq", &dq, r.dq, 0.0, 8.0 * size);
        op_expect_close("dk", &dk, r.dk, 0.0, 8.0 * size);
        op_expect_close("dv", &dv, r.dv, 0.0, 8.0 * size);
        op_record(env, &out);
        op_record(env, &lse);
        op_record(env, &dq);
        op_record(env, &dk);
        op_record(env, &dv);
        attention_reference_free(&r);
        op_release(env, 0);
    }
}

static void shapes_run(op_case one, const attention_shape *shapes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        attention_shape s = shapes[i];
        op_run_case(one, &s);
    }
}

static void test_shapes(void **state)
{
    static const attention_shape shapes[] = {
        {1, 1, 1, 1, 1, 0.0f, 1},    {2, 3, 2, 2, 5, 0.0f, 1},   {1, 16, 2, 1, 8, 0.0f, 1},
        {2, 17, 4, 2, 7, 0.0f, 1},   {1, 33, 4, 1, 16, 0.0f, 1}, {1, 97, 2, 2, 64, 0.0f, 1},
        {1, 131, 3, 1, 31, 0.0f, 1}, {1, 300, 1, 1, 20, 0.0f, 1}};
    (void)state;
    shapes_run(attention_case, shapes, sizeof shapes / sizeof shapes[0]);
}

static void test_dropout(void **state)
{
    static const attention_shape shapes[] = {
        {3, 19, 4, 2, 8, 0.25f, 1}, {1, 150, 2, 1, 12, 0.5f, 1}, {2, 1, 2, 2, 3, 0.75f, 1}};
    (void)state;
    shapes_run(attention_case, shapes, sizeof shapes / sizeof shapes[0]);
}

/* [rows,heads,D] with every head `times` times in a row. */
static op_tensor heads_repeat(op_env *env, const op_tensor *tensor, int64_t D, int times)
{
    op_tensor repeated = op_tensor_new(env, tensor->dtype, tensor->n * times);
    for (int64_t i = 0; i < tensor->n; i++)
        for (int t = 0; t < times; t++)
            op_set(&repeated, (i / D * times + t) * D + i % D, op_get(tensor, i));
    return repeated;
}

/* Key/value gradients in parts are those of as many heads of their own with the same keys and values, bit for bit. */
static void parts_case(op_env *env, void *context)
{
    enum { PARTS = 2 };
    const attention_shape *s = context;
    const tr_workspace_need need = {
        .dtype = TR_F32, .B = s->B, .T = s->T, .A = s->A, .K = s->K * PARTS, .D = s->D};
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        tr_dtype dtype = op_dtypes[d];
        op_workspace(env, &need);
        op_tensor q = op_tensor_random(env, dtype, attention_num_query(s), 1, 0.0, 2.0);
        op_tensor k = op_tensor_random(env, dtype, attention_num_key(s), 2, 0.0, 2.0);
        op_tensor v = op_tensor_random(env, dtype, attention_num_key(s), 3, 0.0, 2.0);
        op_tensor dout = op_tensor_random(env, dtype, attention_num_query(s), 4, 0.0, 2.0);
        op_tensor out = op_tensor_new(env, dtype, attention_num_query(s));
        op_tensor lse = op_tensor_new(env, TR_F32, s->B * s->A * s->T);
        op_tensor keys = heads_repeat(env, &k, s->D, PARTS);
        op_tensor values = heads_repeat(env, &v, s->D, PARTS);
        op_tensor gradients[2][3]; /* dq, dk, dv, in parts and of heads of their own */
        tr_attention args = {.B = s->B,
                             .T = s->T,
                             .A = s->A,
                             .D = s->D,
                             .dtype = dtype,
                             .scale = 0.4f,
                             .dropout = {s->dropout, ATTENTION_KEY, attention_samples, s->T},
                             .q = q.data,
                             .out = out.data,
                             .lse = lse.data,
                             .dout = dout.data};
        for (int own = 0; own < 2; own++) {
            for (int g = 0; g < 3; g++)
                gradients[own][g] = op_tensor_new(
                    env, dtype, g == 0 ? attention_num_query(s) : attention_num_key(s) * PARTS);
            args.K = own ? s->K * PARTS : s->K;
            args.kv_parts = own ? 1 : PARTS;
            args.k = own ? keys.data : k.data;
            args.v = own ? values.data : v.data;
            args.dq = gradients[own][0].data;
            args.dk = gradients[own][1].data;
            args.dv = gradients[own][2].data;
            assert_int_equal(env->ops.attention_forward(env->device, &args), TR_OK);
            assert_int_equal(env->ops.attention_backward(env->device, &args), TR_OK);
        }
        op_expect_same_bits("dq", &gradients[0][0], &gradients[1][0]);
        op_expect_same_bits("dk", &gradients[0][1], &gradients[1][1]);
        op_expect_same_bits("dv", &gradients[0][2], &gradients[1][2]);
        op_record(env, &gradients[0][1]);
        op_release(env, 0);
    }
}

static void test_key_value_parts(void **state)
{
    static const attention_shape shapes[] = {
        {2, 37, 4, 1, 16, 0.0f, 1}, {1, 70, 8, 2, 24, 0.2f, 1}, {1, 5, 4, 2, 8, 0.0f, 1}};
    (void)state;
    shapes_run(parts_case, shapes, sizeof shapes / sizeof shapes[0]);
}

/* A single position attends to itself alone: the value comes out bit for bit, whatever the score. */
static void single_case(op_env *env, void *context)
{
    (void)context;
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        tr_dtype dtype = op_dtypes[d];
        op_tensor q = op_tensor_random(env, dtype, 2 * 4 * 24, 1, 0.0, 9.0);
        op_tensor k = op_tensor_random(env, dtype, 2 * 4 * 24, 2, 0.0, 9.0);
        op_tensor v = op_tensor_random(env, dtype, 2 * 4 * 24, 3, 0.0, 9.0);
        op_tensor out = op_tensor_new(env, dtype, 2 * 4 * 24);
        op_tensor lse = op_tensor_new(env, TR_F32, 8);
        const tr_attention args = {.B = 2,
                                   .T = 1,
                                   .A = 4,
                                   .K = 4,
                                   .D = 24,
                                   .dtype = dtype,
                                   .scale = 0.3f,
                                   .q = q.data,
                                   .k = k.data,
                                   .v = v.data,
                                   .out = out.data,
                                   .lse = lse.data};
        assert_int_equal(env->ops.attention_forward(env->device, &args), TR_OK);
        op_expect_same_bits("value", &out, &v);
    }
}

static void test_single_position(void **state)
{
    (void)state;
    op_run_case(single_case, NULL);
}

/* With values of one, an output is the kept share of a row over 1 - p: its mean is one, and a row has about the kept share. */
static void share_case(op_env *env, void *context)
{
    enum { T = 256, A = 4, D = 8 };
    const double p = 0.3;
    (void)context;
    op_tensor q = op_tensor_random(env, TR_F32, T * A * D, 1, 0.0, 0.0);
    op_tensor k = op_tensor_random(env, TR_F32, T * A * D, 2, 0.0, 1.0);
    op_tensor v = op_tensor_random(env, TR_F32, T * A * D, 3, 1.0, 0.0);
    op_tensor out = op_tensor_new(env, TR_F32, T * A * D);
    op_tensor lse = op_tensor_new(env, TR_F32, A * T);
    const tr_attention args = {.B = 1,
                               .T = T,
                               .A = A,
                               .K = A,
                               .D = D,
                               .dtype = TR_F32,
                               .scale = 1.0f,
                               .dropout = {(float)p, 123, attention_samples, T},
                               .q = q.data,
                               .k = k.data,
                               .v = v.data,
                               .out = out.data,
                               .lse = lse.data};
    assert_int_equal(env->ops.attention_forward(env->device, &args), TR_OK);
    double kept = 0.0, count = 0.0;
    for (int t = 0; t < T; t++)
        for (int a = 0; a < A; a++) {
            kept += op_get(&out, (t * A + a) * D) * (1.0 - p) * (t + 1); /* P = 1 / (t + 1) */
            count += t + 1;
        }
    double deviation = sqrt(p * (1.0 - p) / count);
    if (!(fabs(kept / count - (1.0 - p)) <= 5.0 * deviation))
        fail_msg("kept share %.6f of %.0f, expected %.6f", kept / count, count, 1.0 - p);
}

static void test_kept_share(void **state)
{
    (void)state;
    op_run_case(share_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),  cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_dropout),    cmocka_unit_test(test_single_position),
        cmocka_unit_test(test_kept_share), cmocka_unit_test(test_key_value_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
