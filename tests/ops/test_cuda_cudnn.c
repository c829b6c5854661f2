/* Attention by cuDNN beside the CPU's and the device's own, over shapes that it serves; and that the rest stays with the device's own kernels. */
#include "tests/ops/op_parity.h"

#include <math.h>

#include "kernels/cuda/cuda_device.h"

/* Odd lengths, groups, head sizes; a tile of 128 and more. */
static const tr_attention shapes[] = {
    {.B = 1, .T = 2, .A = 1, .K = 1, .D = 8},    {.B = 2, .T = 33, .A = 6, .K = 2, .D = 16},
    {.B = 3, .T = 64, .A = 4, .K = 4, .D = 32},  {.B = 1, .T = 131, .A = 2, .K = 1, .D = 64},
    {.B = 2, .T = 100, .A = 3, .K = 3, .D = 40}, {.B = 1, .T = 65, .A = 4, .K = 2, .D = 128},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static tr_attention shape_of(int i)
{
    tr_attention shape = shapes[i];
    shape.dtype = i % 2 == 0 ? TR_BF16 : TR_F16;
    return shape;
}

typedef struct call {
    op_tensor q, k, v, dout, out, lse, dq, dk, dv;
    tr_attention args[OP_SIDES];
} call;

static call call_make(const tr_attention *shape)
{
    const tr_workspace_need need = {.dtype = shape->dtype,
                                    .B = shape->B,
                                    .T = shape->T,
                                    .H = 1,
                                    .A = shape->A,
                                    .K = shape->K,
                                    .D = shape->D};
    int64_t queries = shape->B * shape->T * shape->A * shape->D;
    int64_t keys = shape->B * shape->T * shape->K * shape->D;
    tr_dtype dtype = shape->dtype;
    op_workspace(&need);
    call c = {.q = op_random(dtype, queries, 0, 1, 0.0, 2.0),
              .k = op_random(dtype, keys, 0, 2, 0.0, 2.0),
              .v = op_random(dtype, keys, 0, 3, 0.0, 2.0),
              .dout = op_random(dtype, queries, 0, 4, 0.0, 2.0),
              .out = op_new(dtype, queries, 0),
              .lse = op_new(TR_F32, shape->B * shape->A * shape->T, 0),
              .dq = op_new(dtype, queries, 0),
              .dk = op_new(dtype, keys, 0),
              .dv = op_new(dtype, keys, 0)};
    for (int side = 0; side < OP_SIDES; side++) {
        tr_attention *args = &c.args[side];
        *args = *shape;
        args->scale = (float)(1.0 / sqrt((double)shape->D));
        args->q = c.q.data[side];
        args->k = c.k.data[side];
        args->v = c.v.data[side];
        args->out = c.out.data[side];
        args->lse = c.lse.data[side];
        args->dout = c.dout.data[side];
        args->dq = c.dq.data[side];
        args->dk = c.dk.data[side];
        args->dv = c.dv.data[side];
    }
    return c;
}

static void call_run(call *c)
{
    op_both(attention_forward, &c->args[side]);
    op_both(attention_backward, &c->args[side]);
}

/* Of all outputs. */
static uint64_t call_hash(const call *c)
{
    const op_tensor *outputs[] = {&c->out, &c->lse, &c->dq, &c->dk, &c->dv};
    uint64_t hash = 0;
    for (int i = 0; i < 5; i++)
        hash = 31 * hash + op_device_hash(outputs[i]);
    return hash;
}

static uint64_t hashes_own[SHAPES], hashes_other[2];

/* A shape that is served but was not prepared, and one that is not served. */
static tr_attention other(int i)
{
    return (tr_attention){.B = 1, .T = 20, .A = 2, .K = 1, .D = i == 0 ? 24 : 20, .dtype = TR_BF16};
}

static void expect_close(call *c)
{
    op_expect_close("out", &c->out, 0);
    op_expect_close("lse", &c->lse, 1e-5);
    op_expect_close("dq", &c->dq, 0);
    op_expect_close("dk", &c->dk, 0);
    op_expect_close("dv", &c->dv, 0);
}

/* First, since a device that has chosen stays with it. */
static void test_own(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        tr_attention shape = shape_of(i);
        call c = call_make(&shape);
        call_run(&c);
        expect_close(&c);
        hashes_own[i] = call_hash(&c);
        op_release();
    }
    for (int i = 0; i < 2; i++) {
        tr_attention shape = other(i);
        call c = call_make(&shape);
        call_run(&c);
        hashes_other[i] = call_hash(&c);
        op_release();
    }
}

static bool is_there;

static void test_prepare(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        tr_attention shape = shape_of(i);
        assert_true(tr_cuda_attention_is_served(&shape));
        tr_status status = tr_cuda_device_cudnn_prepare(op_device[OP_CUDA], &shape);
        if (status == TR_ERR_MEMORY) {
            print_message("%s\n", tr_error_message());
            skip();
        }
        op_check_status("cuDNN", status);
    }
    tr_cuda_device_cudnn_use(op_device[OP_CUDA], true);
    is_there = true;
}

/* The CPU's values, the same bits twice, and not those of the device's own kernels. */
static void test_parity(void **state)
{
    (void)state;
    if (!is_there)
        skip();
    int differ = 0;
    for (int i = 0; i < SHAPES; i++) {
        tr_attention shape = shape_of(i);
        call c = call_make(&shape);
        call_run(&c);
        expect_close(&c);
        uint64_t hash = call_hash(&c);
        op_release();
        c = call_make(&shape);
        call_run(&c);
        assert_true(call_hash(&c) == hash);
        differ += hash != hashes_own[i];
        op_release();
    }
    assert_true(differ >= SHAPES - 1); /* two keys may leave nothing to round otherwise */
}

static void test_others_stay(void **state)
{
    (void)state;
    if (!is_there)
        skip();
    for (int i = 0; i < 2; i++) {
        tr_attention shape = other(i);
        call c = call_make(&shape);
        call_run(&c);
        assert_true(call_hash(&c) == hashes_other[i]);
        op_release();
    }
}

static void test_served(void **state)
{
    (void)state;
    const tr_attention good = {.B = 1, .T = 8, .A = 2, .K = 2, .D = 64, .dtype = TR_F16};
    tr_attention bad[] = {good, good, good, good, good, good};
    assert_true(tr_cuda_attention_is_served(&good));
    bad[0].dtype = TR_F32;
    bad[1].dropout.probability = 0.1f;
    bad[2].kv_parts = 2;
    bad[3].T = 1;
    bad[4].D = 20;
    bad[5].D = 136;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(tr_cuda_attention_is_served(&bad[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own), cmocka_unit_test(test_prepare), cmocka_unit_test(test_parity),
        cmocka_unit_test(test_others_stay), cmocka_unit_test(test_served)};
    return op_parity_main("attention by cuDNN", tests, sizeof tests / sizeof tests[0]);
}
