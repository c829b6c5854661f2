/* Cross-entropy and the sum of losses on the CUDA device beside the CPU's: odd vocabularies, padding, parts of rows, extreme
 * logits, uncounted rows. */
#include "tests/ops/op_parity.h"

#include <math.h>
#include <stdlib.h>

typedef struct xent_case {
    tr_dtype dtype;
    int64_t R, V, stride, vocab_begin, begin;
    double width; /* of the logits */
} xent_case;

/* Labels in this rank's part, elsewhere, and of rows that do not count. */
static op_tensor labels_new(const xent_case *c)
{
    int32_t labels[64];
    assert_true(c->R <= 64);
    for (int64_t r = 0; r < c->R; r++) {
        int64_t label = c->vocab_begin + (c->V > 0 ? r * 37 % c->V : 0);
        if (r % 5 == 1)
            label = c->vocab_begin + c->V + r; /* another rank's, or this one's padding */
        else if (r % 5 == 2)
            label = c->vocab_begin - 1 - r;
        labels[r] = r % 5 == 3 || label < 0 ? -1 : (int32_t)label;
    }
    return op_from(TR_I32, c->R, 0, labels);
}

static void xent_run(const xent_case *c)
{
    op_tensor logits = op_random(c->dtype, c->R * c->stride, c->begin, 1, -1.0, c->width);
    op_tensor labels = labels_new(c), max = op_new(TR_F32, c->R, 0);
    const float factor = 0.125f;
    op_tensor sums = op_new(TR_F32, 2 * c->R, 0), scale = op_from(TR_F32, 1, 0, &factor);
    op_both(xent_max, c->dtype, c->R, c->V, c->stride, logits.data[side], max.data[side]);
    op_expect_equal("xent_max", &max);
    op_both(xent_sum, c->dtype, c->R, c->V, c->stride, c->vocab_begin, logits.data[side],
            labels.data[side], max.data[side], sums.data[side]);
    op_expect_close("xent_sum", &sums, 1e-5);
    op_both(xent_backward, c->dtype, c->R, c->V, c->stride, c->vocab_begin, logits.data[side],
            labels.data[side], max.data[side], sums.data[side], scale.data[side]);
    op_expect_close("xent_backward", &logits, 0);
    op_release();
}

static void test_xent(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int s = 0; s < OP_SIZES; s++) {
            int64_t V = op_sizes[s];
            xent_case c = {op_dtypes[d], 9, V, V, 0, s % 2, 4.0};
            xent_run(&c);
            xent_case padded = {op_dtypes[d], 11, V, (V + 15) / 8 * 8, 100, 0, 20.0};
            xent_run(&padded);
        }
        const xent_case cases[] = {{op_dtypes[d], 3, 0, 16, 64, 0, 1.0},
                                   {op_dtypes[d], 0, 16, 16, 0, 0, 1.0},
                                   {op_dtypes[d], 3, 5003, 5008, 0, 0, 10.0},
                                   {op_dtypes[d], 2, 8192, 8192, 0, 0, 10.0}};
        for (int i = 0; i < 4; i++)
            xent_run(&cases[i]);
    }
}

/* Columns of a wider row: a slice of the vocabulary. */
static void slice_case(tr_dtype dtype, int64_t R, int64_t V, int64_t stride, int64_t begin)
{
    const int64_t offset = begin * (int64_t)tr_dtype_size(dtype);
    op_tensor logits = op_random(dtype, R * stride, 0, 1, 0.0, 5.0), max = op_new(TR_F32, R, 0);
    const int32_t values[] = {0, 41, 82, 45, 90, -1};
    assert_true(R <= 6);
    op_tensor labels = op_from(TR_I32, R, 0, values), sums = op_new(TR_F32, 2 * R, 0);
    op_both(xent_max, dtype, R, V, stride, (const char *)logits.data[side] + offset,
            max.data[side]);
    op_expect_equal("xent_max of a slice", &max);
    op_both(xent_sum, dtype, R, V, stride, begin, (const char *)logits.data[side] + offset,
            labels.data[side], max.data[side], sums.data[side]);
    op_expect_close("xent_sum of a slice", &sums, 1e-5);
    op_release();
}

static void test_slice(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int64_t begin = 0; begin < 96; begin += 41)
            slice_case(op_dtypes[d], 6, 40, 136, begin);
        /* The last slice of a padded vocabulary, which begins at half a group and ends with the row. */
        slice_case(op_dtypes[d], 6, 131, 264, 132);
        slice_case(op_dtypes[d], 1, 4, 8, 4);
    }
}

static void test_extreme_logits(void **state)
{
    (void)state;
    const int64_t R = 4, V = 67;
    float *values = malloc((size_t)(R * V) * sizeof *values);
    assert_non_null(values);
    for (int64_t v = 0; v < V; v++) {
        values[v] = v == 2 ? 3.0f : -60000.0f;
        values[V + v] = v % 2 == 0 ? 1.0f : -INFINITY;
        values[2 * V + v] = v == 1 ? INFINITY : 0.0f;
        values[3 * V + v] = v == 9 ? NAN : 0.5f;
    }
    const int32_t label_values[] = {2, 0, 1, 4};
    op_tensor logits = op_from(TR_F32, R * V, 0, values),
              labels = op_from(TR_I32, R, 0, label_values);
    const float one = 1.0f;
    op_tensor max = op_new(TR_F32, R, 0), sums = op_new(TR_F32, 2 * R, 0);
    op_tensor scale = op_from(TR_F32, 1, 0, &one);
    op_both(xent_max, TR_F32, R, V, V, logits.data[side], max.data[side]);
    op_expect_equal("xent_max", &max);
    op_both(xent_sum, TR_F32, R, V, V, 0, logits.data[side], labels.data[side], max.data[side],
            sums.data[side]);
    op_expect_close("xent_sum", &sums, 1e-5);
    op_both(xent_backward, TR_F32, R, V, V, 0, logits.data[side], labels.data[side], max.data[side],
            sums.data[side], scale.data[side]);
    op_expect_close("xent_backward", &logits, 1e-5);
    free(values);
    op_release();
}

/* Limbs hold sums of values that are rounded alike, up to the last bit of a logarithm: compared as numbers. */
static void loss_case(int64_t R, bool bad)
{
    int32_t *labels = malloc((size_t)R * sizeof *labels + 1);
    assert_non_null(labels);
    for (int64_t r = 0; r < R; r++)
        labels[r] = r % 3 == 1 ? -1 : (int32_t)r;
    op_tensor label = op_from(TR_I32, R, 0, labels), max = op_random(TR_F32, R, 0, 1, 0.0, 8.0);
    op_tensor sums = op_random(TR_F32, 2 * R, 0, 2, 50.0, 49.0);
    const int64_t zeros[TR_LOSS_SUM_LIMBS] = {0};
    op_tensor limbs = op_from(TR_I64, TR_LOSS_SUM_LIMBS, 0, zeros);
    if (bad) { /* a row with no value, counted or not */
        const float nan = NAN;
        for (int side = 0; side < OP_SIDES; side++) {
            const tr_copy copy = {max.data[side], op_from(TR_F32, 1, 0, &nan).data[side], 4};
            op_check_status("copy_many",
                            op_device[side]->ops->copy_many(op_device[side], 1, &copy));
        }
    }
    for (int call = 0; call < 3; call++)
        op_both(loss_sum, R, label.data[side], max.data[side], sums.data[side], limbs.data[side]);
    int64_t cuda[TR_LOSS_SUM_LIMBS];
    const int64_t *cpu = limbs.data[OP_CPU]; /* the host's memory too */
    op_download(&limbs, cuda);
    bool finite[OP_SIDES];
    double expected = tr_fixed_sum_from_limbs(cpu, &finite[OP_CPU]);
    double value = tr_fixed_sum_from_limbs(cuda, &finite[OP_CUDA]);
    assert_int_equal(cuda[TR_LOSS_SUM_TOKENS], cpu[TR_LOSS_SUM_TOKENS]);
    assert_true(finite[OP_CUDA] == finite[OP_CPU] && finite[OP_CPU] != bad);
    for (int i = 0; i + 2 < TR_FIXED_SUM_LIMBS; i++)
        assert_true(cuda[i] >= 0 && cuda[i] >> 32 == 0);
    assert_int_equal(cuda[TR_FIXED_SUM_LIMBS - 1], bad);
    assert_true(bad || fabs(value - expected) <= 1e-14 * (double)(R + 1) * 64.0);
    free(labels);
    op_release();
}

static void test_loss_sum(void **state)
{
    (void)state;
    const int64_t rows[] = {0, 1, 31, 33, 128, 129, 1000};
    for (int i = 0; i < 7; i++)
        loss_case(rows[i], false);
    loss_case(70, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_slice),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_loss_sum),
    };
    return op_parity_main("cuda xent", tests, sizeof tests / sizeof tests[0]);
}
