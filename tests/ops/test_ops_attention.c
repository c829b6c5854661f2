/* Attention against double: odd lengths and head sizes, grouped heads, dropout; its backward against a backward in double, which is
 * itself checked by finite differences of the forward in double. */
#include "tests/ops/op_test_util.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/dropout.h"

typedef struct shape {
    int64_t B, T, A, K, D;
    float dropout;
} shape;

static const uint64_t samples[] = {5, 3000000000u, 5000000000u}; /* also above 32 bits */
enum { HEAD_OFFSET = 3 };

/* Inputs, outputs and gradients in double, laid out as in kernels/ops.h. */
typedef struct reference {
    const shape *s;
    double scale;
    double *q, *k, *v, *dout; /* inputs */
    double *out, *lse;        /* forward */
    double *dq, *dk, *dv;     /* backward */
} reference;

static int64_t query_index(const shape *s, int64_t b, int64_t t, int64_t a)
{
    return ((b * s->T + t) * s->A + a) * s->D;
}

static int64_t key_index(const shape *s, int64_t b, int64_t t, int64_t a)
{
    return ((b * s->T + t) * s->K + a / (s->A / s->K)) * s->D;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* 1 / (1 - p) or 0. */
static double mask(const shape *s, int64_t b, int64_t a, int64_t query, int64_t key)
{
    if (s->dropout == 0.0f)
        return 1.0;
    uint32_t word = tr_dropout_word(77, samples[b], (uint32_t)(HEAD_OFFSET + a), (uint32_t)query,
                                    (uint32_t)key);
    return (double)word >= (double)s->dropout * 4294967296.0 ? 1.0 / (1.0 - (double)s->dropout)
                                                             : 0.0;
}

/* Softmax of one row, p[0 ... query]; returns log sum exp. */
static double probabilities(const reference *r, int64_t b, int64_t a, int64_t query, double *p)
{
    const shape *s = r->s;
    double top = -INFINITY, sum = 0.0;
    for (int64_t key = 0; key <= query; key++) {
        p[key] = r->scale *
                 dot(r->q + query_index(s, b, query, a), r->k + key_index(s, b, key, a), s->D);
        top = fmax(top, p[key]);
    }
    for (int64_t key = 0; key <= query; key++)
        sum += p[key] = exp(p[key] - top);
    for (int64_t key = 0; key <= query; key++)
        p[key] /= sum;
    return top + log(sum);
}

static void add_scaled(double *x, double factor, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += factor * y[i];
}

static void zero(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 0.0;
}

/* Calls row(r, b, a, query, p) for every row. */
static void each_row(reference *r,
                     void (*row)(reference *, int64_t, int64_t, int64_t, const double *))
{
    const shape *s = r->s;
    double *p = op_zeros(s->T);
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t a = 0; a < s->A; a++)
            for (int64_t query = 0; query < s->T; query++) {
                r->lse[(b * s->A + a) * s->T + query] = probabilities(r, b, a, query, p);
                row(r, b, a, query, p);
            }
    op_free(p);
}

static void forward_row(reference *r, int64_t b, int64_t a, int64_t query, const double *p)
{
    for (int64_t key = 0; key <= query; key++)
        add_scaled(r->out + query_index(r->s, b, query, a), p[key] * mask(r->s, b, a, query, key),
                   r->v + key_index(r->s, b, key, a), r->s->D);
}

static void backward_row(reference *r, int64_t b, int64_t a, int64_t query, const double *p)
{
    const shape *s = r->s;
    int64_t at = query_index(s, b, query, a);
    double delta = dot(r->dout + at, r->out + at, s->D);
    for (int64_t key = 0; key <= query; key++) {
        int64_t k = key_index(s, b, key, a);
        double kept = mask(s, b, a, query, key);
        double dp = kept * dot(r->dout + at, r->v + k, s->D);
        double ds = r->scale * p[key] * (dp - delta);
        add_scaled(r->dv + k, p[key] * kept, r->dout + at, s->D);
        add_scaled(r->dq + at, ds, r->k + k, s->D);
        add_scaled(r->dk + k, ds, r->q + at, s->D);
    }
}

static int64_t num_query(const shape *s)
{
    return s->B * s->T * s->A * s->D;
}
static int64_t num_key(const shape *s)
{
    return s->B * s->T * s->K * s->D;
}

static void reference_forward(reference *r)
{
    zero(r->out, num_query(r->s));
    each_row(r, forward_row);
}

/* Reads r->out, exact as reference_forward left it: rounding of the output must not reach the gradients. */
static void reference_backward(reference *r)
{
    zero(r->dq, num_query(r->s));
    zero(r->dk, num_key(r->s));
    zero(r->dv, num_key(r->s));
    each_row(r, backward_row);
}

static reference make_reference(const shape *s)
{
    reference r = {.s = s, .scale = (double)(float)(1.0 / sqrt((double)s->D))};
    r.out = op_zeros(num_query(s));
    r.lse = op_zeros(s->B * s->A * s->T);
    r.dq = op_zeros(num_query(s));
    r.dk = op_zeros(num_key(s));
    r.dv = op_zeros(num_key(s));
    return r;
}

static void free_reference(reference *r)
{
    double *all[] = {r->q, r->k, r->v, r->dout, r->out, r->lse, r->dq, r->dk, r->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        op_free(all[i]);
}

static double loss(void *context)
{
    reference *r = context;
    reference_forward(r);
    return dot(r->out, r->dout, num_query(r->s));
}

static void expect_gradient(reference *r, const char *name, double *values, const double *actual,
                            int64_t n)
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
    static const shape shapes[] = {{2, 5, 4, 2, 3, 0.0f}, {1, 6, 4, 1, 2, 0.3f}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        reference r = make_reference(&shapes[i]);
        r.q = random_values(num_query(r.s), 1);
        r.k = random_values(num_key(r.s), 2);
        r.v = random_values(num_key(r.s), 3);
        r.dout = random_values(num_query(r.s), 4);
        reference_forward(&r);
        reference_backward(&r);
        expect_gradient(&r, "dq", r.q, r.dq, num_query(r.s));
        expect_gradient(&r, "dk", r.k, r.dk, num_key(r.s));
        expect_gradient(&r, "dv", r.v, r.dv, num_key(r.s));
        free_reference(&r);
    }
}

static void attention_case(op_env *env, void *context)
{
    const shape *s = context;
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        tr_dtype dtype = op_dtypes[d];
        const tr_workspace_need need = {
            .dtype = dtype, .B = s->B, .T = s->T, .A = s->A, .K = s->K, .D = s->D};
        op_workspace(env, &need);
        op_tensor q = op_tensor_random(env, dtype, num_query(s), 1, 0.0, 2.0);
        op_tensor k = op_tensor_random(env, dtype, num_key(s), 2, 0.0, 2.0);
        op_tensor v = op_tensor_random(env, dtype, num_key(s), 3, 0.0, 2.0);
        op_tensor dout = op_tensor_random(env, dtype, num_query(s), 4, 0.0, 2.0);
        op_tensor out = op_tensor_new(env, dtype, num_query(s));
        op_tensor lse = op_tensor_new(env, TR_F32, s->B * s->A * s->T);
        op_tensor dq = op_tensor_new(env, dtype, num_query(s));
        op_tensor dk = op_tensor_new(env, dtype, num_key(s));
        op_tensor dv = op_tensor_new(env, dtype, num_key(s));
        reference r = make_reference(s);
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
                                   .head_offset = HEAD_OFFSET,
                                   .dropout = {s->dropout, 77, samples, s->T},
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
        reference_forward(&r);
        /* Scores of sqrt(D) size have errors of a few 2^-24 of themselves, which exp makes relative errors of P. */
        double bound = 16.0 * 0x1p-24 * (4.0 + sqrt((double)s->D));
        op_expect_close("out", &out, r.out, 0.0, 4.0 * bound);
        op_expect_close("lse", &lse, r.lse, 0.0, bound);

        assert_int_equal(env->ops.attention_backward(env->device, &args), TR_OK);
        reference_backward(&r);
        double size = bound * sqrt((double)(s->D * s->T)) * (double)(s->A / s->K);
        op_expect_close("dq", &dq, r.dq, 0.0, 8.0 * size);
        op_expect_close("dk", &dk, r.dk, 0.0, 8.0 * size);
        op_expect_close("dv", &dv, r.dv, 0.0, 8.0 * size);
        op_record(env, &out);
        op_record(env, &lse);
        op_record(env, &dq);
        op_record(env, &dk);
        op_record(env, &dv);
        free_reference(&r);
        op_release(env, 0);
    }
}

static void shapes_run(op_case one, const shape *shapes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        shape s = shapes[i];
        op_run_case(one, &s);
    }
}

static void test_shapes(void **state)
{
    static const shape shapes[] = {{1, 1, 1, 1, 1, 0.0f},    {2, 3, 2, 2, 5, 0.0f},
                                   {1, 16, 2, 1, 8, 0.0f},   {2, 17, 4, 2, 7, 0.0f},
                                   {1, 33, 4, 1, 16, 0.0f},  {1, 97, 2, 2, 64, 0.0f},
                                   {1, 131, 3, 1, 31, 0.0f}, {1, 300, 1, 1, 20, 0.0f}};
    (void)state;
    shapes_run(attention_case, shapes, sizeof shapes / sizeof shapes[0]);
}

static void test_dropout(void **state)
{
    static const shape shapes[] = {
        {3, 19, 4, 2, 8, 0.25f}, {1, 150, 2, 1, 12, 0.5f}, {2, 1, 2, 2, 3, 0.75f}};
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
    const shape *s = context;
    const tr_workspace_need need = {
        .dtype = TR_F32, .B = s->B, .T = s->T, .A = s->A, .K = s->K * PARTS, .D = s->D};
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        tr_dtype dtype = op_dtypes[d];
        op_workspace(env, &need);
        op_tensor q = op_tensor_random(env, dtype, num_query(s), 1, 0.0, 2.0);
        op_tensor k = op_tensor_random(env, dtype, num_key(s), 2, 0.0, 2.0);
        op_tensor v = op_tensor_random(env, dtype, num_key(s), 3, 0.0, 2.0);
        op_tensor dout = op_tensor_random(env, dtype, num_query(s), 4, 0.0, 2.0);
        op_tensor out = op_tensor_new(env, dtype, num_query(s));
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
                             .dropout = {s->dropout, 77, samples, s->T},
                             .q = q.data,
                             .out = out.data,
                             .lse = lse.data,
                             .dout = dout.data};
        for (int own = 0; own < 2; own++) {
            for (int g = 0; g < 3; g++)
                gradients[own][g] =
                    op_tensor_new(env, dtype, g == 0 ? num_query(s) : num_key(s) * PARTS);
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
    static const shape shapes[] = {
        {2, 37, 4, 1, 16, 0.0f}, {1, 70, 8, 2, 24, 0.2f}, {1, 5, 4, 2, 8, 0.0f}};
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
                               .dropout = {(float)p, 123, samples, T},
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
