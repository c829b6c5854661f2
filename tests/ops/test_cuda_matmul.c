/* Products on the CUDA device beside the CPU's: every form and type, bias, accumulation, operands that are ranges of wider
 * tensors. */
#include "tests/ops/op_parity.h"

typedef struct product_case {
    tr_matmul_form form;
    tr_dtype dtype, c_dtype;
    int64_t M, N, K;
    bool bias, accumulate, parts;
} product_case;

/* Columns beside those of the operand. */
static int64_t width(const product_case *c, int64_t columns, int64_t more)
{
    return c->parts ? columns + more : columns;
}

static void product_run(const product_case *c)
{
    const int64_t largest = c->N > c->K ? c->N : c->K;
    const tr_workspace_need need = {.dtype = c->dtype,
                                    .B = 1,
                                    .T = c->M > c->K ? c->M : c->K,
                                    .H = largest,
                                    .A = 1,
                                    .K = 1,
                                    .D = 1,
                                    .max_matmul = largest > c->M ? largest : c->M};
    op_workspace(&need);
    const int64_t rows_a = c->form == TR_MATMUL_TN ? c->K : c->M;
    const int64_t rows_b = c->form == TR_MATMUL_NT ? c->N : c->K;
    const int64_t lda = width(c, c->form == TR_MATMUL_TN ? c->M : c->K, 3);
    const int64_t ldb = width(c, c->form == TR_MATMUL_NT ? c->K : c->N, 8), ldc = width(c, c->N, 5);
    op_tensor A = op_random(c->dtype, rows_a * lda, 0, 1, 0.1, 1.0);
    op_tensor B = op_random(c->dtype, rows_b * ldb, c->parts, 2, 0.0, 1.0);
    op_tensor C = op_random(c->c_dtype, c->M * ldc, 0, 3, 0.0, 1.0); /* also what must stay */
    op_tensor bias = op_random(c->dtype, c->N, 0, 4, 0.0, 1.0);
    tr_matmul args[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++)
        args[side] = (tr_matmul){.form = c->form,
                                 .M = c->M,
                                 .N = c->N,
                                 .K = c->K,
                                 .dtype = c->dtype,
                                 .c_dtype = c->c_dtype,
                                 .A = A.data[side],
                                 .lda = lda,
                                 .B = B.data[side],
                                 .ldb = ldb,
                                 .bias = c->bias ? bias.data[side] : NULL,
                                 .C = C.data[side],
                                 .ldc = ldc,
                                 .accumulate = c->accumulate,
                                 .parts = c->parts};
    op_both(matmul, &args[side]);
    op_expect_close("matmul", &C, 0);
    op_release();
}

static void test_products(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {{1, 1, 1},   {3, 7, 31},  {31, 3, 65},
                                 {16, 64, 8}, {65, 63, 7}, {40, 257, 96}};
    int number = 0;
    for (int d = 0; d < OP_DTYPES; d++)
        for (int form = 0; form < 3; form++)
            for (int s = 0; s < 6; s++, number++) {
                product_case c = {.form = (tr_matmul_form)form,
                                  .dtype = op_dtypes[d],
                                  .c_dtype = number % 2 == 0 ? TR_F32 : op_dtypes[d],
                                  .M = shapes[s][0],
                                  .N = shapes[s][1],
                                  .K = shapes[s][2],
                                  .bias = form == TR_MATMUL_NT && s % 2 == 1,
                                  .parts = number % 3 == 1};
                c.accumulate = c.c_dtype == TR_F32 && form == TR_MATMUL_TN && s % 3 != 0;
                product_run(&c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
    return op_parity_main("cuda matmul", tests, sizeof tests / sizeof tests[0]);
}
