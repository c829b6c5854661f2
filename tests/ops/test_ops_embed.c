/* Token embeddings over a cut vocabulary, positions and dropout, and both gradients. */
#include "tests/ops/op_test_util.h"

#include <string.h>

#include "kernels/dropout.h"

typedef struct embed_case {
    tr_dtype dtype;
    int64_t B, T, H;
    float probability;
} embed_case;

enum { VOCABULARY = 257, MAX_RANKS = 4, MAX_SAMPLES = 8 };
static const uint64_t samples[MAX_SAMPLES] = {3, 1, 4, 1 + ((uint64_t)5 << 33), 9, 2, 6, 5};

static op_tensor random_ids(op_env *env, int64_t R)
{
    op_tensor ids = op_tensor_new(env, TR_I32, R);
    for (int64_t r = 0; r < R; r++)
        op_set(&ids, r, (double)(int64_t)(op_random(11, (uint64_t)r) * VOCABULARY));
    op_set(&ids, 0, VOCABULARY - 1);
    return ids;
}

/* Real vocabulary rows of rank `rank` of 4 when 65 rows each are planned: the last has 62. */
static void rank_range(int rank, int64_t *begin, int64_t *V)
{
    *begin = 65 * rank;
    *V = *begin + 65 < VOCABULARY ? 65 : VOCABULARY - *begin;
}

static const void *at(const op_tensor *tensor, int64_t i)
{
    return (const char *)tensor->data + (size_t)i * tr_dtype_size(tensor->dtype);
}

static void forward_case(op_env *env, void *context)
{
    const embed_case *c = context;
    int64_t R = c->B * c->T, n = R * c->H;
    op_tensor ids = random_ids(env, R);
    op_tensor table = op_tensor_random(env, c->dtype, VOCABULARY * c->H, 1, 0.0, 1.0);
    double *sum = op_zeros(n);
    for (int rank = 0; rank < MAX_RANKS; rank++) {
        int64_t begin, V;
        rank_range(rank, &begin, &V);
        op_tensor part = op_tensor_new(env, TR_F32, n);
        env->ops.embed_forward(env->device, c->dtype, R, c->H, V, begin, ids.data,
                               at(&table, begin * c->H), part.data);
        for (int64_t i = 0; i < n; i++) {
            int64_t id = (int64_t)op_get(&ids, i / c->H);
            bool mine = id >= begin && id < begin + V;
            double expected = mine ? op_get(&table, id * c->H + i % c->H) : 0.0;
            assert_true(op_get(&part, i) == expected);
            sum[i] += op_get(&part, i);
        }
        op_record(env, &part);
    }
    for (int64_t i = 0; i < n; i++)
        assert_true(sum[i] == op_get(&table, (int64_t)op_get(&ids, i / c->H) * c->H + i % c->H));
    op_free(sum);
    op_tensor nothing = op_tensor_new(env, TR_F32, n); /* a rank that owns padding only */
    env->ops.embed_forward(env->device, c->dtype, R, c->H, 0, 260, ids.data, table.data,
                           nothing.data);
    for (int64_t i = 0; i < n; i++)
        assert_true(op_get(&nothing, i) == 0.0);
}

static void finish_case(op_env *env, void *context)
{
    const embed_case *c = context;
    int64_t R = c->B * c->T, n = R * c->H;
    tr_dropout dropout = {c->probability, 1234, samples, c->T};
    op_tensor in = op_tensor_random(env, TR_F32, n, 1, 0.0, 1.0);
    op_tensor positions = op_tensor_random(env, c->dtype, (c->T + 1) * c->H, 2, 0.0, 1.0);
    for (int with = 0; with < 2; with++) {
        op_tensor out = op_tensor_new(env, c->dtype, n);
        const void *table = with ? positions.data : NULL;
        env->ops.embed_finish(env->device, c->dtype, R, c->H, 0, in.data, table, &dropout,
                              out.data);
        double *expected = op_values(&in);
        for (int64_t i = 0; i < n; i++) {
            int64_t b = i / c->H / c->T, t = i / c->H % c->T, feature = i % c->H;
            if (with)
                expected[i] += op_get(&positions, t * c->H + feature);
            uint32_t word = tr_dropout_word(1234, samples[b], 0, (uint32_t)t, (uint32_t)feature);
            if (word < tr_dropout_threshold(c->probability))
                expected[i] = 0.0;
            else
                expected[i] /= 1.0 - (double)c->probability;
        }
        op_expect_close("embedding", &out, expected, 1e-6, 1e-6);
        op_record(env, &out);
        op_free(expected);
        int64_t cut = R / 2;
        op_tensor parts = op_tensor_new(env, c->dtype, n);
        env->ops.embed_finish(env->device, c->dtype, cut, c->H, 0, in.data, table, &dropout,
                              parts.data);
        env->ops.embed_finish(env->device, c->dtype, R - cut, c->H, cut,
                              (float *)in.data + cut * c->H, table, &dropout,
                              (char *)parts.data + (size_t)(cut * c->H) * tr_dtype_size(c->dtype));
        op_expect_same_bits("embedding in two parts", &parts, &out);
    }
}

/* The gradient of a table row is the sum of its rows of dx, in fp32 and in row order: exact against the same loop. */
static void backward_case(op_env *env, void *context)
{
    const embed_case *c = context;
    int64_t R = c->B * c->T;
    op_tensor ids = random_ids(env, R);
    op_tensor dx = op_tensor_random(env, c->dtype, R * c->H, 1, 0.0, 1.0);
    int64_t begin, V;
    rank_range(3, &begin, &V);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        op_tensor gradient = op_tensor_new(env, TR_F32, V * c->H);
        op_tensor expected =
            op_tensor_random(env, TR_F32, V * c->H, 2, 0.0, accumulate ? 1.0 : 0.0);
        if (accumulate)
            memcpy(gradient.data, expected.data, (size_t)(V * c->H) * 4);
        float *sum = expected.data;
        for (int64_t i = 0; i < R * c->H; i++) {
            int64_t id = (int64_t)op_get(&ids, i / c->H) - begin;
            if (id >= 0 && id < V)
                sum[id * c->H + i % c->H] += (float)op_get(&dx, i);
        }
        env->ops.embed_backward(env->device, c->dtype, R, c->H, V, begin, ids.data, dx.data,
                                gradient.data, accumulate);
        op_expect_same_bits("dtable", &gradient, &expected);
        op_record(env, &gradient);
    }
    op_tensor empty = op_tensor_new(env, TR_F32, 0);
    env->ops.embed_backward(env->device, c->dtype, R, c->H, 0, 260, ids.data, dx.data, empty.data,
                            false);
}

static void position_case(op_env *env, void *context)
{
    const embed_case *c = context;
    int64_t n = c->T * c->H;
    op_tensor dx = op_tensor_random(env, c->dtype, c->B * n, 1, 0.0, 1.0);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        op_tensor gradient = accumulate ? op_tensor_random(env, TR_F32, n, 2, 0.0, 1.0)
                                        : op_tensor_new(env, TR_F32, n);
        double *expected = accumulate ? op_values(&gradient) : op_zeros(n);
        for (int64_t i = 0; i < c->B * n; i++)
            expected[i % n] += op_get(&dx, i);
        env->ops.position_backward(env->device, c->dtype, c->B, c->T, c->H, dx.data, gradient.data,
                                   accumulate);
        op_expect_close("dpositions", &gradient, expected, 1e-6, 1e-6);
        op_record(env, &gradient);
        op_free(expected);
    }
}

static void for_each_case(op_case run)
{
    const int64_t shapes[][3] = {{1, 1, 1},   {2, 3, 7},   {3, 21, 63},
                                 {1, 33, 65}, {4, 5, 257}, {2, 70, 128}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < OP_NUM_DTYPES; d++) {
            embed_case c = {op_dtypes[d], shapes[s][0], shapes[s][1], shapes[s][2],
                            s % 2 == 0 ? 0.0f : 0.2f};
            op_run_case(run, &c);
        }
}

static void test_forward(void **state)
{
    (void)state;
    for_each_case(forward_case);
}

static void test_finish(void **state)
{
    (void)state;
    for_each_case(finish_case);
}

static void test_backward(void **state)
{
    (void)state;
    for_each_case(backward_case);
}

static void test_position_backward(void **state)
{
    (void)state;
    for_each_case(position_case);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_position_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
