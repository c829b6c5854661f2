/* Cross-entropy over one rank and over a vocabulary cut among ranks, with padding and uncounted rows: loss against double,
 * gradient against finite differences. */
#include "tests/ops/op_test_util.h"

#include <math.h>
#include <string.h>

typedef struct xent_case {
    tr_dtype dtype;
    int64_t R, V;   /* V: the whole vocabulary */
    int64_t padded; /* columns of a rank */
    int num_ranks;
    double center, width; /* of the logits */
} xent_case;

enum { MAX_RANKS = 4 };

/* The whole problem: full logits [R, V], and each rank's part [R, padded]. */
typedef struct problem {
    const xent_case *c;
    op_tensor full, labels, max, sum_target;
    op_tensor part[MAX_RANKS];
    double *logits;
    int64_t row; /* of reference_loss */
} problem;

static int64_t rank_columns(const xent_case *c, int rank)
{
    int64_t left = c->V - rank * c->padded;
    return left < 0 ? 0 : left < c->padded ? left : c->padded;
}

static problem problem_new(op_env *env, const xent_case *c)
{
    problem p = {.c = c,
                 .full = op_tensor_random(env, c->dtype, c->R * c->V, 1, c->center, c->width),
                 .labels = op_tensor_new(env, TR_I32, c->R),
                 .max = op_tensor_new(env, TR_F32, c->R),
                 .sum_target = op_tensor_new(env, TR_F32, 2 * c->R)};
    for (int64_t r = 0; r < c->R; r++)
        op_set(&p.labels, r, r % 4 == 3 ? -1.0 : floor(op_random(2, (uint64_t)r) * (double)c->V));
    /* The first column of the second rank, and the last of all. */
    if (c->padded < c->V)
        op_set(&p.labels, 0, (double)c->padded);
    if (c->R > 1)
        op_set(&p.labels, 1, (double)(c->V - 1));
    for (int rank = 0; rank < c->num_ranks; rank++) {
        p.part[rank] = op_tensor_new(env, c->dtype, c->R * c->padded); /* padding is NaN */
        for (int64_t r = 0; r < c->R; r++)
            for (int64_t v = 0; v < rank_columns(c, rank); v++)
                op_set(&p.part[rank], r * c->padded + v,
                       op_get(&p.full, r * c->V + rank * c->padded + v));
    }
    p.logits = op_values(&p.full);
    return p;
}

/* The largest of the real columns, exactly, whatever stands behind them. */
static void check_max(const problem *p, int rank, const op_tensor *max)
{
    const xent_case *c = p->c;
    const op_tensor *part = &p->part[rank];
    for (int64_t r = 0; r < c->R; r++) {
        double expected = -INFINITY;
        for (int64_t v = 0; v < rank_columns(c, rank); v++)
            expected = fmax(expected, op_get(part, r * c->padded + v));
        assert_true(op_get(max, r) == expected);
    }
}

/* Forward on every rank, with the all-reduces (max, then sum) between. */
static void forward(op_env *env, problem *p)
{
    const xent_case *c = p->c;
    op_tensor max = op_tensor_new(env, TR_F32, c->R), sum = op_tensor_new(env, TR_F32, 2 * c->R);
    for (int64_t r = 0; r < c->R; r++)
        op_set(&p->max, r, -INFINITY);
    memset(p->sum_target.data, 0, (size_t)(2 * c->R) * sizeof(float));
    for (int rank = 0; rank < c->num_ranks; rank++) {
        env->ops.xent_max(env->device, c->dtype, c->R, rank_columns(c, rank), c->padded,
                          p->part[rank].data, max.data);
        check_max(p, rank, &max);
        for (int64_t r = 0; r < c->R; r++)
            op_set(&p->max, r, fmax(op_get(&p->max, r), op_get(&max, r)));
        op_record(env, &max);
    }
    for (int rank = 0; rank < c->num_ranks; rank++) {
        env->ops.xent_sum(env->device, c->dtype, c->R, rank_columns(c, rank), c->padded,
                          rank * c->padded, p->part[rank].data, p->labels.data, p->max.data,
                          sum.data);
        for (int64_t i = 0; i < 2 * c->R; i++)
            op_set(&p->sum_target, i, op_get(&p->sum_target, i) + op_get(&sum, i));
        op_record(env, &sum);
    }
}

/* -log softmax of the label of p->row */
static double reference_loss(void *context)
{
    const problem *p = context;
    const double *logits = p->logits + p->row * p->c->V;
    double max = -INFINITY, sum = 0.0;
    for (int64_t v = 0; v < p->c->V; v++)
        max = fmax(max, logits[v]);
    for (int64_t v = 0; v < p->c->V; v++)
        sum += exp(logits[v] - max);
    return max + log(sum) - logits[(int64_t)op_get(&p->labels, p->row)];
}

static void check_loss(problem *p)
{
    for (int64_t r = 0; r < p->c->R; r++) {
        if (op_get(&p->labels, r) < 0.0)
            continue;
        p->row = r;
        double loss = op_get(&p->max, r) + log(op_get(&p->sum_target, 2 * r)) -
                      op_get(&p->sum_target, 2 * r + 1);
        double expected = reference_loss(p);
        if (!(fabs(loss - expected) <= 1e-6 * (1.0 + fabs(expected) + p->c->width)))
            fail_msg("loss of row %lld: %.9g, expected %.9g", (long long)r, loss, expected);
    }
}

static void xent_run(op_env *env, void *context)
{
    const xent_case *c = context;
    const float scale = 0.25f;
    problem p = problem_new(env, c);
    forward(env, &p);
    check_loss(&p);
    double *gradient = op_zeros(c->R * c->V);
    for (p.row = 0; p.row < c->R; p.row++) {
        double *row = gradient + p.row * c->V;
        if (op_get(&p.labels, p.row) >= 0.0)
            op_finite_difference(reference_loss, &p, p.logits + p.row * c->V, c->V, row);
    }
    for (int rank = 0; rank < c->num_ranks; rank++) {
        int64_t begin = rank * c->padded, V = rank_columns(c, rank);
        env->ops.xent_backward(env->device, c->dtype, c->R, V, c->padded, begin, p.part[rank].data,
                               p.labels.data, p.max.data, p.sum_target.data, &scale);
        double *expected = op_zeros(c->R * c->padded);
        for (int64_t r = 0; r < c->R; r++)
            for (int64_t v = 0; v < V; v++)
                expected[r * c->padded + v] = 0.25 * gradient[r * c->V + begin + v];
        op_expect_close("dlogits", &p.part[rank], expected, 1e-5, 1e-6);
        for (int64_t r = 0; r < c->R; r++) /* exactly nothing for padding and uncounted rows */
            for (int64_t v = 0; v < c->padded; v++)
                if (v >= V || op_get(&p.labels, r) < 0.0)
                    assert_true(op_get(&p.part[rank], r * c->padded + v) == 0.0);
        op_record(env, &p.part[rank]);
        op_free(expected);
    }
    op_free(gradient);
    op_free(p.logits);
}

static void test_loss_and_gradient(void **state)
{
    (void)state;
    const xent_case shapes[] = {
        {TR_F32, 1, 1, 1, 1, 0.0, 1.0},    {TR_F32, 5, 3, 3, 1, 0.0, 5.0},
        {TR_F32, 4, 65, 80, 1, -9.0, 3.0}, {TR_F32, 7, 63, 32, 2, 0.0, 10.0},
        {TR_F32, 3, 257, 96, 4, 2.0, 4.0}, {TR_F32, 2, 257, 264, 1, 0.0, 60.0},
        {TR_F32, 6, 100, 128, 1, 0.0, 0.0}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < OP_NUM_DTYPES; d++) {
            xent_case c = shapes[s];
            c.dtype = op_dtypes[d];
            op_run_case(xent_run, &c);
        }
}

/* All logits alike: the loss is ln V. */
static void uniform_case(op_env *env, void *context)
{
    const xent_case *c = context;
    problem p = problem_new(env, c);
    forward(env, &p);
    for (int64_t r = 0; r < c->R; r++) {
        double loss = op_get(&p.max, r) + log(op_get(&p.sum_target, 2 * r)) -
                      op_get(&p.sum_target, 2 * r + 1);
        if (op_get(&p.labels, r) >= 0.0)
            assert_true(fabs(loss - log((double)c->V)) < 1e-6);
    }
    op_free(p.logits);
}

static void test_uniform_loss_is_log_of_vocabulary(void **state)
{
    (void)state;
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        xent_case c = {op_dtypes[d], 5,  257, 96, 4,
                       0.0,          0.0}; /* the fourth rank owns padding only */
        op_run_case(uniform_case, &c);
    }
}

/* Very negative and infinite logits. */
static void extremes_case(op_env *env, void *context)
{
    const xent_case *c = context;
    problem p = problem_new(env, c);
    op_tensor *logits = &p.part[0];
    for (int64_t v = 0; v < c->V; v++) {
        op_set(logits, v, v == 2 ? 3.0 : -60000.0);             /* row 0: one certain choice */
        op_set(logits, c->V + v, v % 2 == 0 ? 1.0 : -INFINITY); /* row 1: half impossible */
        op_set(logits, 2 * c->V + v, v == 1 ? INFINITY : 0.0);  /* row 2: no value */
    }
    op_set(&p.labels, 0, 2.0);
    op_set(&p.labels, 1, 0.0);
    op_set(&p.labels, 2, 1.0);
    forward(env, &p);
    assert_true(op_get(&p.sum_target, 0) == 1.0 && op_get(&p.max, 0) == 3.0);
    assert_true(op_get(&p.sum_target, 2) == (double)((c->V + 1) / 2));
    assert_true(isnan(op_get(&p.sum_target, 4)));
    const float scale = 1.0f;
    env->ops.xent_backward(env->device, c->dtype, c->R, c->V, c->padded, 0, logits->data,
                           p.labels.data, p.max.data, p.sum_target.data, &scale);
    for (int64_t v = 0; v < c->V; v++) {
        assert_true(op_get(logits, v) == 0.0);
        assert_true(isfinite(op_get(logits, c->V + v)));
        assert_true(v % 2 == 0 || op_get(logits, c->V + v) == 0.0);
        assert_true(isnan(op_get(logits, 2 * c->V + v)));
    }
    op_free(p.logits);
}

static void test_extreme_logits(void **state)
{
    (void)state;
    for (int d = 0; d < OP_NUM_DTYPES; d++) {
        xent_case c = {op_dtypes[d], 3, 67, 67, 1, 0.0, 1.0};
        op_run_case(extremes_case, &c);
    }
}

/* The sum of row losses is exact: the limbs of base/exact_sum.h, whatever the pieces, the calls and the threads. */
static void loss_sum_case(op_env *env, void *context)
{
    const int64_t R = *(const int64_t *)context, cut = R / 3;
    op_tensor labels = op_tensor_new(env, TR_I32, R), sums = op_tensor_new(env, TR_F32, 2 * R);
    op_tensor max = op_tensor_random(env, TR_F32, R, 5, 0.0, 8.0);
    int64_t expected[TR_LOSS_SUM_LIMBS] = {0}, limbs[TR_LOSS_SUM_LIMBS] = {0};
    tr_fixed_sum sum;
    tr_fixed_sum_init(&sum);
    for (int64_t r = 0; r < R; r++) {
        op_set(&labels, r, r % 5 == 2 ? -1.0 : (double)r);
        op_set(&sums, 2 * r, 1.0 + 1000.0 * op_random(6, (uint64_t)r));
        op_set(&sums, 2 * r + 1, 20.0 * op_random(7, (uint64_t)r)); /* some losses are below zero */
        if (r % 5 == 2)
            continue;
        tr_fixed_sum_add(&sum,
                         log(op_get(&sums, 2 * r)) + op_get(&max, r) - op_get(&sums, 2 * r + 1));
        expected[TR_LOSS_SUM_TOKENS]++;
    }
    tr_fixed_sum_to_limbs(&sum, expected);
    const float *max_data = max.data, *sums_data = sums.data;
    const int32_t *labels_data = labels.data;
    env->ops.loss_sum(env->device, R - cut, labels_data + cut, max_data + cut, sums_data + 2 * cut,
                      limbs);
    env->ops.loss_sum(env->device, cut, labels_data, max_data, sums_data, limbs);
    assert_memory_equal(limbs, expected, sizeof limbs);
    if (R < 2)
        return;
    op_set(&max, 1, NAN);
    env->ops.loss_sum(env->device, R, labels_data, max_data, sums_data, limbs);
    env->ops.loss_sum(env->device, R, labels_data, max_data, sums_data, limbs);
    assert_int_equal(limbs[TR_FIXED_SUM_LIMBS - 1], 1);
    assert_int_equal(limbs[TR_LOSS_SUM_TOKENS], 3 * expected[TR_LOSS_SUM_TOKENS]);
}

static void test_loss_sum(void **state)
{
    (void)state;
    const int64_t rows[] = {0, 1, 7, 511, 513, 3000};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        op_run_case(loss_sum_case, (void *)(uintptr_t)&rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_sum),
        cmocka_unit_test(test_loss_and_gradient),
        cmocka_unit_test(test_uniform_loss_is_log_of_vocabulary),
        cmocka_unit_test(test_extreme_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
