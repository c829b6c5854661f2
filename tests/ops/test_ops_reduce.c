/* Column sums against double, and the tree sum against its definition, bit for bit. */
#include "tests/ops/op_test_util.h"

#include <stdlib.h>
#include <string.h>

typedef struct sum_case {
    tr_dtype dtype;
    int64_t R, N;
} sum_case;

static void column_case(op_env *env, void *context)
{
    const sum_case *c = context;
    op_tensor dy = op_tensor_random(env, c->dtype, c->R * c->N, 1, 0.3, 1.0);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        op_tensor out = accumulate ? op_tensor_random(env, TR_F32, c->N, 2, 0.0, 1.0)
                                   : op_tensor_new(env, TR_F32, c->N);
        double *expected = accumulate ? op_values(&out) : op_zeros(c->N);
        for (int64_t i = 0; i < c->R * c->N; i++)
            expected[i % c->N] += op_get(&dy, i);
        env->ops.column_sum(env->device, c->dtype, c->R, c->N, dy.data, out.data, accumulate);
        op_expect_close("column sum", &out, expected, 1e-6, 2e-5);
        op_record(env, &out);
        op_free(expected);
    }
}

static void test_column_sum(void **state)
{
    (void)state;
    const int64_t rows[] = {1, 3, 63, 64, 65, 257};
    for (int d = 0; d < OP_NUM_DTYPES; d++)
        for (int r = 0; r < 6; r++)
            for (int s = 0; s < OP_NUM_SIZES; s++) {
                sum_case c = {op_dtypes[d], rows[r], op_sizes[s]};
                op_run_case(column_case, &c);
            }
}

/* Blocks of 64 rows are summed first: 2^24 and 63 ones lose the ones, a block of 64 ones keeps them. */
static void block_case(op_env *env, void *context)
{
    (void)context;
    op_tensor dy = op_tensor_random(env, TR_F32, 128, 1, 1.0, 0.0);
    op_tensor out = op_tensor_new(env, TR_F32, 1);
    op_set(&dy, 0, 16777216.0);
    env->ops.column_sum(env->device, TR_F32, 128, 1, dy.data, out.data, false);
    assert_true(op_get(&out, 0) == 16777216.0 + 64.0);
}

static void test_column_sum_adds_blocks(void **state)
{
    (void)state;
    op_run_case(block_case, NULL);
}

static float tree_of(const float *const *src, int count, int64_t i)
{
    if (count == 1)
        return src[0][i];
    int split = 1;
    while (2 * split < count)
        split *= 2;
    return tree_of(src, split, i) + tree_of(src + split, count - split, i);
}

typedef struct tree_case {
    int64_t n;
    int count;
} tree_case;

static void tree_sum_case(op_env *env, void *context)
{
    const tree_case *c = context;
    op_tensor all = op_tensor_random(env, TR_F32, c->n * c->count, 1, 0.1, 1.0);
    op_tensor expected = op_tensor_new(env, TR_F32, c->n), dst = op_tensor_new(env, TR_F32, c->n);
    const float **src = calloc((size_t)c->count, sizeof *src);
    assert_non_null(src);
    for (int k = 0; k < c->count; k++)
        src[k] = (const float *)all.data + k * c->n;
    for (int64_t i = 0; i < c->n; i++)
        ((float *)expected.data)[i] = tree_of(src, c->count, i);
    env->ops.tree_sum(env->device, c->n, c->count, src, dst.data);
    op_expect_same_bits("tree sum", &dst, &expected);
    op_record(env, &dst);
    int alias = c->count / 2;
    env->ops.tree_sum(env->device, c->n, c->count, src, (float *)all.data + alias * c->n);
    memcpy(dst.data, (float *)all.data + alias * c->n, (size_t)c->n * sizeof(float));
    op_expect_same_bits("tree sum over a source", &dst, &expected);
    free(src);
}

static void test_tree_sum(void **state)
{
    (void)state;
    const tree_case shapes[] = {{1, 1},    {65, 2},    {257, 3},    {1000, 4}, {63, 5},
                                {2049, 6}, {16385, 7}, {40000, 12}, {31, 64},  {3, 4096}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        tree_case c = shapes[s];
        op_run_case(tree_sum_case, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column_sum),
        cmocka_unit_test(test_column_sum_adds_blocks),
        cmocka_unit_test(test_tree_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
