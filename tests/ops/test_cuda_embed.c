/* Embeddings on the CUDA device: the CPU's bits, since every output is a sum of rows in order. */
#include "tests/ops/op_parity.h"

#include <stdlib.h>

static uint64_t samples_of(int b)
{
    return b % 2 == 0 ? (uint64_t)b + 5 : ((uint64_t)b << 33) + 7;
}

static op_tensor samples_new(int64_t B)
{
    uint64_t values[16];
    for (int b = 0; b < B; b++)
        values[b] = samples_of(b);
    return op_from(TR_I64, B, 0, values);
}

static void finish_case(tr_dtype dtype, int64_t B, int64_t T, int64_t H, float probability,
                        bool positions, int64_t begin)
{
    int64_t first = B > 1 ? T / 2 : 0, R = B * T - first;
    op_tensor in = op_random(TR_F32, R * H, begin, 1, 0.0, 2.0);
    op_tensor table = op_random(dtype, T * H, 0, 2, 0.0, 1.0), out = op_new(dtype, R * H, 0);
    op_tensor samples = samples_new(B);
    tr_dropout dropout[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++)
        dropout[side] = (tr_dropout){probability, 0x123456789abcdefu, samples.data[side], T};
    op_both(embed_finish, dtype, R, H, first, in.data[side], positions ? table.data[side] : NULL,
            &dropout[side], out.data[side]);
    op_expect_equal("embed_finish", &out);
    op_release();
}

static void test_finish(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int s = 0; s < OP_SIZES; s++) {
            finish_case(op_dtypes[d], 2, 5, op_sizes[s], s % 2 ? 0.3f : 0.0f, s % 3 != 0, 0);
            finish_case(op_dtypes[d], 3, 2, 8 * op_sizes[s] > 2100 ? 2304 : 8 * op_sizes[s], 0.1f,
                        true, s % 2);
        }
        finish_case(op_dtypes[d], 1, 1, 768, 0.5f, true, 0);
    }
}

typedef struct table_case {
    tr_dtype dtype;
    int64_t R, H, V, vocab_begin, vocab; /* ids below `vocab` */
    int hot;                             /* of eight rows, those that all have one id */
    int64_t begin;
} table_case;

static op_tensor ids_new(const table_case *c)
{
    int32_t *ids = malloc((size_t)c->R * sizeof *ids + 1);
    assert_non_null(ids);
    uint32_t word = 12345;
    for (int64_t r = 0; r < c->R; r++) {
        word = word * 1664525u + 1013904223u;
        ids[r] = r % 8 < c->hot ? (int32_t)(c->vocab_begin + c->V / 2)
                                : (int32_t)((word >> 8) % (uint32_t)c->vocab);
    }
    op_tensor tensor = op_from(TR_I32, c->R, 0, ids);
    free(ids);
    return tensor;
}

static void table_run(const table_case *c)
{
    const tr_workspace_need need = {.dtype = c->dtype,
                                    .B = 1,
                                    .T = c->R,
                                    .H = c->H,
                                    .A = 1,
                                    .K = 1,
                                    .D = 1,
                                    .max_matmul = c->H};
    op_workspace(&need);
    op_tensor ids = ids_new(c), table = op_random(c->dtype, c->V * c->H, c->begin, 2, 0.0, 1.0);
    op_tensor out = op_new(TR_F32, c->R * c->H, 0);
    op_both(embed_forward, c->dtype, c->R, c->H, c->V, c->vocab_begin, ids.data[side],
            table.data[side], out.data[side]);
    op_expect_equal("embed_forward", &out);
    op_tensor dx = op_random(c->dtype, c->R * c->H, c->begin, 3, 0.0, 1.0);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        op_tensor dtable = accumulate ? op_random(TR_F32, c->V * c->H, 0, 4, 0.0, 1.0)
                                      : op_new(TR_F32, c->V * c->H, 0);
        op_both(embed_backward, c->dtype, c->R, c->H, c->V, c->vocab_begin, ids.data[side],
                dx.data[side], dtable.data[side], accumulate != 0);
        op_expect_equal("embed_backward", &dtable);
    }
    op_release();
}

static void test_table(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int s = 0; s < OP_SIZES; s++) {
            table_case c = {op_dtypes[d], 70, op_sizes[s], 20, s % 2 ? 7 : 0, 40, s % 4, s % 2};
            table_run(&c);
        }
    }
    /* More digits than one pass sorts, more tiles than one, all rows with one id, none of this rank's. */
    const table_case cases[] = {{TR_BF16, 2500, 16, 1300, 100, 1500, 2, 0},
                                {TR_F32, 1025, 8, 511, 0, 511, 1, 0},
                                {TR_BF16, 1023, 8, 512, 0, 512, 1, 0},
                                {TR_F32, 300, 72, 9, 3, 12, 8, 0},
                                {TR_F16, 33, 40, 5, 1000, 900, 0, 0},
                                {TR_BF16, 40, 2056, 6, 0, 6, 3, 0},
                                {TR_BF16, 1, 8, 1, 0, 1, 0, 0},
                                {TR_BF16, 0, 8, 3, 0, 1, 0, 0},
                                {TR_F32, 200, 8, 300000, 5, 300005, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        table_run(&cases[i]);
}

static void test_positions(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        for (int s = 0; s < OP_SIZES; s++) {
            const int64_t B = 1 + s % 5, T = 3, H = op_sizes[s];
            op_tensor dx = op_random(op_dtypes[d], B * T * H, s % 2, 3, 0.0, 1.0);
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                op_tensor sum = accumulate ? op_random(TR_F32, T * H, 0, 4, 0.0, 1.0)
                                           : op_new(TR_F32, T * H, 0);
                op_both(position_backward, op_dtypes[d], B, T, H, dx.data[side], sum.data[side],
                        accumulate != 0);
                op_expect_equal("position_backward", &sum);
            }
            op_release();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_positions),
    };
    return op_parity_main("cuda embed", tests, sizeof tests / sizeof tests[0]);
}
