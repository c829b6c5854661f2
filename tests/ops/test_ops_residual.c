/* Adding to the residual stream, and dropout: masks bit for bit from the counters of kernels/dropout.h, alike in forward and
 * backward, whatever the split of rows; how many values stay, and on what a mask depends. */
#include "tests/ops/op_test_util.h"

#include <math.h>

#include "kernels/dropout.h"

typedef struct residual_case {
    tr_dtype dtype;
    int64_t B, T, H;
    float probability;
    bool bias;
} residual_case;

enum { MAX_SAMPLES = 8 };
/* Also samples that differ only above bit 31. */
static const uint64_t samples[MAX_SAMPLES] = {7,  1, 1 + ((uint64_t)1 << 32), 900000000000, 12, 13,
                                              14, 15};

static tr_dropout dropout_of(const residual_case *c)
{
    return (tr_dropout){.probability = c->probability,
                        .key = 0x123456789abcdef0u,
                        .samples = samples,
                        .seq_len = c->T};
}

/* v scaled or 0, by the scalar generator */
static double masked(const tr_dropout *dropout, int64_t row, int64_t feature, double v)
{
    if (dropout->probability == 0.0f)
        return v;
    uint32_t word = tr_dropout_word(dropout->key, dropout->samples[row / dropout->seq_len], 0,
                                    (uint32_t)(row % dropout->seq_len), (uint32_t)feature);
    if ((double)word < (double)dropout->probability * 4294967296.0)
        return 0.0;
    return v / (1.0 - (double)dropout->probability);
}

static void add_case(op_env *env, void *context)
{
    const residual_case *c = context;
    const int64_t R = c->B * c->T, n = R * c->H;
    tr_dropout dropout = dropout_of(c);
    op_tensor x = op_tensor_random(env, c->dtype, n, 1, 0.0, 2.0);
    op_tensor y = op_tensor_random(env, TR_F32, n, 2, 3.0, 1.0);
    op_tensor bias = op_tensor_random(env, c->dtype, c->H, 3, 0.0, 1.0);
    op_tensor out = op_tensor_new(env, c->dtype, n);
    const void *bias_data = c->bias ? bias.data : NULL;
    env->ops.residual_add(env->device, c->dtype, R, c->H, 0, x.data, y.data, bias_data, &dropout,
                          out.data);
    double *expected = op_values(&x);
    for (int64_t i = 0; i < n; i++) {
        double branch = op_get(&y, i) + (c->bias ? op_get(&bias, i % c->H) : 0.0);
        expected[i] += masked(&dropout, i / c->H, i % c->H, branch);
    }
    op_expect_close("residual", &out, expected, 1e-6, 1e-6);
    op_record(env, &out);
    op_free(expected);
    /* In two parts, the second over x itself. */
    op_tensor parts = op_tensor_copy(env, &x);
    int64_t cut = R / 3, at = cut * c->H, size = (int64_t)tr_dtype_size(c->dtype);
    env->ops.residual_add(env->device, c->dtype, R - cut, c->H, cut, (char *)x.data + at * size,
                          (float *)y.data + at, bias_data, &dropout,
                          (char *)parts.data + at * size);
    env->ops.residual_add(env->device, c->dtype, cut, c->H, 0, parts.data, y.data, bias_data,
                          &dropout, parts.data);
    op_expect_same_bits("residual in two parts", &parts, &out);
}

static void backward_case(op_env *env, void *context)
{
    const residual_case *c = context;
    const int64_t R = c->B * c->T, n = R * c->H;
    tr_dropout dropout = dropout_of(c);
    op_tensor dy = op_tensor_random(env, c->dtype, n, 1, 3.0, 1.0);
    op_tensor dx = op_tensor_new(env, c->dtype, n);
    env->ops.dropout_backward(env->device, c->dtype, R, c->H, 0, dy.data, &dropout, dx.data);
    double *expected = op_values(&dy);
    for (int64_t i = 0; i < n; i++)
        expected[i] = masked(&dropout, i / c->H, i % c->H, expected[i]);
    op_expect_close("dropout backward", &dx, expected, 1e-6, 0.0);
    op_record(env, &dx);
    op_free(expected);
    int64_t cut = R / 2, at = cut * c->H * (int64_t)tr_dtype_size(c->dtype);
    env->ops.dropout_backward(env->device, c->dtype, cut, c->H, 0, dy.data, &dropout, dy.data);
    env->ops.dropout_backward(env->device, c->dtype, R - cut, c->H, cut, (char *)dy.data + at,
                              &dropout, (char *)dy.data + at);
    op_expect_same_bits("dropout backward in place, in two parts", &dy, &dx);
}

static void for_each_case(op_case run)
{
    const int64_t shapes[][3] = {{1, 1, 1},   {2, 3, 7},    {3, 5, 63}, {1, 7, 65},
                                 {4, 9, 257}, {2, 17, 768}, {2, 2, 513}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < OP_NUM_DTYPES; d++)
            for (int p = 0; p < 3; p++) {
                const float probabilities[] = {0.0f, 0.1f, 0.75f};
                residual_case c = {op_dtypes[d], shapes[s][0],     shapes[s][1],
                                   shapes[s][2], probabilities[p], (s + (size_t)p) % 2 == 0};
                op_run_case(run, &c);
            }
}

static void test_residual_add(void **state)
{
    (void)state;
    for_each_case(add_case);
}

static void test_dropout_backward(void **state)
{
    (void)state;
    for_each_case(backward_case);
}

/* The mask of one tensor of ones: which are kept. */
static int64_t kept(op_env *env, const tr_dropout *dropout, int64_t R, int64_t H, op_tensor *out)
{
    op_tensor one = op_tensor_random(env, TR_F32, R * H, 1, 1.0, 0.0);
    *out = op_tensor_new(env, TR_F32, R * H);
    env->ops.dropout_backward(env->device, TR_F32, R, H, 0, one.data, dropout, out->data);
    int64_t count = 0;
    for (int64_t i = 0; i < R * H; i++)
        count += op_get(out, i) != 0.0;
    return count;
}

static double same_share(const op_tensor *a, const op_tensor *b)
{
    int64_t same = 0;
    for (int64_t i = 0; i < a->n; i++)
        same += (op_get(a, i) != 0.0) == (op_get(b, i) != 0.0);
    return (double)same / (double)a->n;
}

static void mask_case(op_env *env, void *context)
{
    (void)context;
    enum { T = 64, H = 256 };
    static const uint64_t first[1] = {5}, second[1] = {6}, high[1] = {5 + ((uint64_t)1 << 32)};
    tr_dropout dropout = {.probability = 0.3f, .key = 99, .samples = first, .seq_len = T};
    op_tensor base, other;
    double rate = (double)kept(env, &dropout, T, H, &base) / (T * H);
    assert_true(fabs(rate - 0.7) < 4.0 * sqrt(0.21 / (T * H)));
    for (int64_t i = 0; i < T * H; i++) /* kept values make up for the dropped ones */
        assert_true(op_get(&base, i) == 0.0 || fabs(op_get(&base, i) * 0.7 - 1.0) < 1e-6);
    /* Independent masks agree in 0.7^2 + 0.3^2 = 0.58 of places. */
    tr_dropout changed = dropout;
    changed.samples = second;
    kept(env, &changed, T, H, &other);
    assert_true(fabs(same_share(&base, &other) - 0.58) < 0.03);
    changed.samples = high;
    kept(env, &changed, T, H, &other);
    assert_true(fabs(same_share(&base, &other) - 0.58) < 0.03);
    changed = dropout;
    changed.key = 100;
    kept(env, &changed, T, H, &other);
    assert_true(fabs(same_share(&base, &other) - 0.58) < 0.03);
    /* Positions and features: rows differ from each other, and so do columns. */
    int64_t rows_same = 0, columns_same = 0;
    for (int64_t i = 0; i + H < T * H; i++)
        rows_same += (op_get(&base, i) != 0.0) == (op_get(&base, i + H) != 0.0);
    for (int64_t i = 0; i + 1 < T * H; i++)
        columns_same += (op_get(&base, i) != 0.0) == (op_get(&base, i + 1) != 0.0);
    assert_true(fabs((double)rows_same / (T * H) - 0.58) < 0.03);
    assert_true(fabs((double)columns_same / (T * H) - 0.58) < 0.03);
}

static void test_what_a_mask_depends_on(void **state)
{
    (void)state;
    op_run_case(mask_case, NULL);
}

static void test_dropout_key(void **state)
{
    (void)state;
    assert_true(tr_dropout_key(42, 0xffffffffu) == 42);
    assert_true(tr_dropout_key(42, (uint64_t)1 << 32) != 42);
    assert_true(tr_dropout_key(42, (uint64_t)1 << 32) != tr_dropout_key(42, (uint64_t)2 << 32));
    assert_true(tr_dropout_threshold(0.5f) == 0x80000000u);
    assert_true(tr_dropout_scale(0.5f) == 2.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residual_add),
        cmocka_unit_test(test_dropout_backward),
        cmocka_unit_test(test_what_a_mask_depends_on),
        cmocka_unit_test(test_dropout_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
