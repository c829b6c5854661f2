/* Norms on the CUDA device beside the CPU's: every way of giving a row to threads, both kinds, odd widths, narrow and wide addresses. */
#include "tests/ops/op_parity.h"

typedef struct norm_case {
    tr_norm_kind kind;
    tr_dtype dtype;
    int64_t R, H;
    bool bias, accumulate, dresidual;
} norm_case;

static void norm_run(const norm_case *c)
{
    int64_t n = c->R * c->H;
    bool layer = c->kind == TR_NORM_KIND_LAYER;
    const tr_workspace_need need = {.dtype = c->dtype,
                                    .B = 1,
                                    .T = c->R,
                                    .H = c->H,
                                    .A = 1,
                                    .K = 1,
                                    .D = c->H,
                                    .max_matmul = c->H};
    op_workspace(&need);
    op_tensor x = op_random(c->dtype, n, 0, 1, 0.3, 2.0);
    op_tensor weight = op_random(c->dtype, c->H, 0, 2, 1.0, 0.5);
    op_tensor bias = op_random(c->dtype, c->H, 0, 3, 0.0, 0.5), out = op_new(c->dtype, n, 0);
    op_tensor mean = op_new(TR_F32, c->R, 0), rstd = op_new(TR_F32, c->R, 0);
    op_both(norm_forward, c->kind, c->dtype, c->R, c->H, 1e-5f, x.data[side], weight.data[side],
            c->bias ? bias.data[side] : NULL, out.data[side], layer ? mean.data[side] : NULL,
            rstd.data[side]);
    op_expect_close("norm_forward", &out, 0);
    op_expect_close("rstd", &rstd, 0);
    if (layer)
        op_expect_close("mean", &mean, 0);

    op_tensor dy = op_random(TR_F32, n, 0, 4, 0.0, 1.0);
    op_tensor dresidual = op_random(c->dtype, n, 0, 5, 0.0, 1.0), dx = op_copy(&dresidual);
    op_tensor dweight = op_random(TR_F32, c->H, 0, 6, 0.0, 1.0);
    op_tensor dbias = op_random(TR_F32, c->H, 0, 7, 0.0, 1.0);
    /* dresidual may be dx itself. */
    op_both(norm_backward, c->kind, c->dtype, c->R, c->H, dy.data[side], x.data[side],
            weight.data[side], mean.data[side], rstd.data[side],
            c->dresidual ? dx.data[side] : NULL, dx.data[side], dweight.data[side],
            c->bias ? dbias.data[side] : NULL, c->accumulate);
    op_expect_close("dx", &dx, 0);
    op_expect_close("dweight", &dweight, 0);
    op_expect_close("dbias", &dbias, 0);
    op_release();
}

static void test_norm_widths(void **state)
{
    (void)state;
    /* Each team and each number of groups. */
    const int64_t widths[] = {1, 7, 31, 64, 65, 120, 257, 768, 1001, 2048, 3072};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        for (int d = 0; d < OP_DTYPES; d++) {
            norm_case c = {.kind = (w + (size_t)d) % 2 ? TR_NORM_KIND_LAYER : TR_NORM_KIND_RMS,
                           .dtype = op_dtypes[d],
                           .R = widths[w] < 300 ? 39 : 5,
                           .H = widths[w],
                           .bias = (w + (size_t)d) % 2 && w % 3 != 0,
                           .accumulate = w % 2 == 1,
                           .dresidual = w % 3 != 1};
            norm_run(&c);
        }
    }
    for (int kind = 0; kind < 2; kind++) {
        norm_case c = {(tr_norm_kind)kind, TR_BF16, 3, 5000, kind == 1, false, true};
        norm_run(&c);
        c.H = 8201 + 7 * kind; /* the long kernels */
        norm_run(&c);
    }
}

static void test_norm_many_rows(void **state)
{
    (void)state;
    const int64_t rows[] = {0, 1, 16, 17, 63, 600};
    for (int r = 0; r < 6; r++) {
        for (int kind = 0; kind < 2; kind++) {
            norm_case c = {(tr_norm_kind)kind, TR_BF16, rows[r], 64, kind == 1, r % 2 == 0, true};
            norm_run(&c);
        }
    }
}

/* The addition with the norm of its sum: near the CPU's two operations, and the same bits as the two on the device. */
static void residual_norm_run(const norm_case *c, bool dropped, int64_t begin, bool in_place)
{
    enum { T = 5 };
    int64_t n = c->R * c->H;
    bool layer = c->kind == TR_NORM_KIND_LAYER;
    uint64_t numbers[64];
    for (int i = 0; i < 64; i++)
        numbers[i] = 0x100000000u * (uint64_t)(i % 3) + 17u * (uint64_t)i;
    op_tensor samples = op_from(TR_I64, 64, 0, numbers);
    op_tensor x = op_random(c->dtype, n, begin, 1, 0.3, 2.0);
    op_tensor y = op_random(TR_F32, n, begin, 2, 0.0, 2.0);
    op_tensor bias = op_random(c->dtype, c->H, 0, 3, 0.0, 0.5);
    op_tensor weight = op_random(c->dtype, c->H, 0, 4, 1.0, 0.5);
    op_tensor norm_bias = op_random(c->dtype, c->H, 0, 5, 0.0, 0.5);
    op_tensor alone = op_new(c->dtype, n, begin), alone_normed = op_new(c->dtype, n, 0);
    op_tensor alone_mean = op_new(TR_F32, c->R, 0), alone_rstd = op_new(TR_F32, c->R, 0);
    op_tensor out = op_new(c->dtype, n, begin), normed = op_new(c->dtype, n, 0);
    op_tensor mean = op_new(TR_F32, c->R, 0), rstd = op_new(TR_F32, c->R, 0);
    for (int side = 0; side < OP_SIDES; side++) {
        const tr_ops *ops = op_device[side]->ops;
        tr_residual_norm args = {.kind = c->kind,
                                 .dtype = c->dtype,
                                 .R = c->R,
                                 .H = c->H,
                                 .row_begin = 3,
                                 .x = x.data[side],
                                 .y = y.data[side],
                                 .bias = c->bias ? bias.data[side] : NULL,
                                 .dropout = {.probability = dropped ? 0.3f : 0.0f,
                                             .key = 77,
                                             .samples = samples.data[side],
                                             .seq_len = T},
                                 .out = in_place ? x.data[side] : out.data[side],
                                 .eps = 1e-5f,
                                 .weight = weight.data[side],
                                 .norm_bias = layer ? norm_bias.data[side] : NULL,
                                 .normed = normed.data[side],
                                 .mean = layer ? mean.data[side] : NULL,
                                 .rstd = rstd.data[side]};
        op_check_status("residual_add",
                        ops->residual_add(op_device[side], c->dtype, c->R, c->H, 3, args.x, args.y,
                                          args.bias, &args.dropout, alone.data[side]));
        op_check_status("norm_forward",
                        ops->norm_forward(
                            op_device[side], c->kind, c->dtype, c->R, c->H, 1e-5f, alone.data[side],
                            args.weight, args.norm_bias, alone_normed.data[side],
                            layer ? alone_mean.data[side] : NULL, alone_rstd.data[side]));
        op_check_status("residual_norm", ops->residual_norm(op_device[side], &args));
    }
    op_expect_equal("sum", in_place ? &x : &out);
    op_expect_close("normed", &normed, 0);
    assert_true(op_device_hash(in_place ? &x : &out) == op_device_hash(&alone));
    assert_true(op_device_hash(&normed) == op_device_hash(&alone_normed));
    assert_true(op_device_hash(&rstd) == op_device_hash(&alone_rstd));
    if (layer)
        assert_true(op_device_hash(&mean) == op_device_hash(&alone_mean));
    op_release();
}

static void test_residual_norm(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 31, 64, 65, 120, 257, 768, 2048, 3072};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (int d = 0; d < OP_DTYPES; d++) {
            norm_case c = {.kind = (w + (size_t)d) % 2 ? TR_NORM_KIND_LAYER : TR_NORM_KIND_RMS,
                           .dtype = op_dtypes[d],
                           .R = widths[w] < 300 ? 39 : 3,
                           .H = widths[w],
                           .bias = w % 2 == 0};
            residual_norm_run(&c, (w + (size_t)d) % 3 != 0, 0, w % 4 == 1);
        }
    for (int kind = 0; kind < 2; kind++) {
        norm_case c = {(tr_norm_kind)kind, TR_BF16, 3, 8201 + 7 * kind, true, false, false};
        residual_norm_run(&c, true, 0, kind == 1); /* the long kernels */
        c.H = 256;
        residual_norm_run(&c, kind == 1, 1, false); /* narrow addresses */
        c.R = 0;
        residual_norm_run(&c, true, 0, false);
    }
}

/* The bits of a row do not depend on where its tensor lies. */
static void test_norm_addresses(void **state)
{
    (void)state;
    for (int w = 0; w < 4; w++) {
        const int64_t H = (const int64_t[]){64, 256, 768, 2048}[w], R = 3;
        const tr_workspace_need need = {
            .dtype = TR_BF16, .B = 1, .T = R, .H = H, .A = 1, .K = 1, .D = H, .max_matmul = H};
        op_workspace(&need);
        uint64_t hash[2][4];
        for (int begin = 0; begin < 2; begin++) {
            op_tensor x = op_random(TR_BF16, R * H, begin, 1, 0.3, 2.0);
            op_tensor weight = op_random(TR_BF16, H, 0, 2, 1.0, 0.5), y = op_new(TR_BF16, R * H, 0);
            op_tensor mean = op_new(TR_F32, R, 0), rstd = op_new(TR_F32, R, 0);
            op_tensor dy = op_random(TR_F32, R * H, 0, 4, 0.0, 1.0), dx = op_new(TR_BF16, R * H, 0);
            op_tensor dweight = op_new(TR_F32, H, 0), dbias = op_new(TR_F32, H, 0);
            op_both(norm_forward, TR_NORM_KIND_LAYER, TR_BF16, R, H, 1e-5f, x.data[side],
                    weight.data[side], NULL, y.data[side], mean.data[side], rstd.data[side]);
            op_both(norm_backward, TR_NORM_KIND_LAYER, TR_BF16, R, H, dy.data[side], x.data[side],
                    weight.data[side], mean.data[side], rstd.data[side], NULL, dx.data[side],
                    dweight.data[side], dbias.data[side], false);
            hash[begin][0] = op_device_hash(&y);
            hash[begin][1] = op_device_hash(&rstd);
            hash[begin][2] = op_device_hash(&dx);
            hash[begin][3] = op_device_hash(&dweight);
            op_release();
        }
        assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_widths),
        cmocka_unit_test(test_norm_many_rows),
        cmocka_unit_test(test_residual_norm),
        cmocka_unit_test(test_norm_addresses),
    };
    return op_parity_main("cuda norm", tests, sizeof tests / sizeof tests[0]);
}
