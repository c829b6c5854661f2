/* The table of rotary positions, and the rotation of heads against double; backward is the transposed rotation. */
#include "tests/ops/op_test_util.h"

#include <math.h>

#include "kernels/rope_table.h"

typedef struct rope_case {
    tr_dtype dtype;
    int64_t B, T, heads, D;
} rope_case;

static const double theta = 10000.0;

static double angle(int64_t t, int64_t j, int64_t D)
{
    return (double)t / exp(log(theta) * 2.0 * (double)j / (double)D);
}

static void test_table(void **state)
{
    (void)state;
    enum { T = 513, D = 6 };
    static float table[T][D / 2][2], moved[T][D / 2][2];
    tr_rope_table_fill(theta, D, T, NULL, &table[0][0][0]);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < D / 2; j++) {
            assert_true(fabs((double)table[t][j][0] - cos(angle(t, j, D))) < 1e-7);
            assert_true(fabs((double)table[t][j][1] - sin(angle(t, j, D))) < 1e-7);
        }
    int64_t positions[T];
    for (int64_t t = 0; t < T; t++)
        positions[t] = T - 1 - t;
    tr_rope_table_fill(theta, D, T, positions, &moved[0][0][0]);
    for (int64_t t = 0; t < T; t++)
        assert_memory_equal(moved[t], table[T - 1 - t], sizeof moved[t]);
}

/* x[b, t, head, :] rotated by +-angle */
static void reference(const rope_case *c, double *x, double sign)
{
    int64_t half = c->D / 2;
    for (int64_t row = 0; row < c->B * c->T * c->heads; row++) {
        int64_t t = row / c->heads % c->T;
        for (int64_t j = 0; j < half; j++) {
            double *a = &x[row * c->D + j], *b = &x[row * c->D + j + half];
            double cosine = cos(angle(t, j, c->D)), sine = sign * sin(angle(t, j, c->D));
            double first = *a * cosine - *b * sine;
            *b = *b * cosine + *a * sine;
            *a = first;
        }
    }
}

static void rotation_case(op_env *env, void *context)
{
    const rope_case *c = context;
    int64_t n = c->B * c->T * c->heads * c->D;
    op_tensor table = op_tensor_new(env, TR_F32, c->T * c->D);
    tr_rope_table_fill(theta, c->D, c->T, NULL, table.data);
    for (int backward = 0; backward < 2; backward++) {
        op_tensor x = op_tensor_random(env, c->dtype, n, 3, 0.0, 2.0);
        double *expected = op_values(&x);
        reference(c, expected, backward ? -1.0 : 1.0);
        env->ops.rope(env->device, c->dtype, c->B, c->T, c->heads, c->D, table.data, backward,
                      x.data);
        op_expect_close("rope", &x, expected, 0.0, 1e-6);
        op_record(env, &x);
        op_free(expected);
    }
}

static void test_rotation(void **state)
{
    (void)state;
    const rope_case shapes[] = {{TR_F32, 1, 1, 1, 2},   {TR_F32, 2, 3, 1, 6},
                                {TR_F32, 3, 7, 5, 34},  {TR_F32, 2, 65, 3, 64},
                                {TR_F32, 1, 2, 2, 514}, {TR_F32, 1, 17, 2, 126}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < OP_NUM_DTYPES; d++) {
            rope_case c = shapes[s];
            c.dtype = op_dtypes[d];
            op_run_case(rotation_case, &c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
