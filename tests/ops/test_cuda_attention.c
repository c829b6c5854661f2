/* Attention on the CUDA device beside the CPU's: tensor cores and multiply-adds, every tile of head sizes, lengths around the tiles' edges,
 * shared and split key/value heads, dropout; and what bits may not depend on. */
#include "tests/ops/attention_reference.h"
#include "tests/ops/op_parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT, LSE, DQ, DK, DV, RESULTS };
static const char *const result_names[RESULTS] = {"out", "lse", "dq", "dk", "dv"};

/* A call's shape and tensors. */
typedef struct attention_call {
    attention_shape shape;
    tr_dtype dtype;
    int64_t head_offset;
    op_tensor q, k, v, dout, samples, result[RESULTS];
} attention_call;

static void outputs_new(attention_call *call, int64_t begin)
{
    const attention_shape *s = &call->shape;
    call->result[OUT] = op_new(call->dtype, attention_num_query(s), begin);
    call->result[LSE] = op_new(TR_F32, s->B * s->A * s->T, 0);
    call->result[DQ] = op_new(call->dtype, attention_num_query(s), begin);
    call->result[DK] = op_new(call->dtype, attention_num_gradient(s), begin);
    call->result[DV] = op_new(call->dtype, attention_num_gradient(s), begin);
    call->samples = op_from(TR_I64, s->B, 0, attention_samples);
}

/* begin: of every tensor, as of op_new. center: of values, which have a part in common where it is not 0. width: of queries and keys. */
static attention_call call_new(const attention_shape *s, tr_dtype dtype, int64_t begin,
                               double center, double width)
{
    attention_call call = {.shape = *s, .dtype = dtype, .head_offset = ATTENTION_HEAD_OFFSET};
    call.q = op_random(dtype, attention_num_query(s), begin, 1, 0.0, width);
    call.k = op_random(dtype, attention_num_key(s), begin, 2, 0.0, width);
    call.v = op_random(dtype, attention_num_key(s), begin, 3, center, 2.0);
    call.dout = op_random(dtype, attention_num_query(s), begin, 4, 0.0, 2.0);
    outputs_new(&call, begin);
    return call;
}

/* Forward and backward on both sides, with the scratch that the shape needs. */
static void call_run(const attention_call *call)
{
    const attention_shape *s = &call->shape;
    const int parts = s->kv_parts > 1 ? s->kv_parts : 1;
    const tr_workspace_need need = {
        .dtype = call->dtype, .B = s->B, .T = s->T, .A = s->A, .K = s->K * parts, .D = s->D};
    op_workspace(&need);
    tr_attention args[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++)
        args[side] =
            (tr_attention){.B = s->B,
                           .T = s->T,
                           .A = s->A,
                           .K = s->K,
                           .D = s->D,
                           .dtype = call->dtype,
                           .scale = (float)(1.0 / sqrt((double)s->D)),
                           .head_offset = call->head_offset,
                           .dropout = {s->dropout, ATTENTION_KEY, call->samples.data[side], s->T},
                           .q = call->q.data[side],
                           .k = call->k.data[side],
                           .v = call->v.data[side],
                           .dout = call->dout.data[side],
                           .out = call->result[OUT].data[side],
                           .lse = call->result[LSE].data[side],
                           .dq = call->result[DQ].data[side],
                           .dk = call->result[DK].data[side],
                           .dv = call->result[DV].data[side],
                           .kv_parts = s->kv_parts};
    op_both(attention_forward, &args[side]);
    op_both(attention_backward, &args[side]);
}

static void *downloaded(const op_tensor *tensor)
{
    void *values = malloc((size_t)tensor->n * tr_dtype_size(tensor->dtype) + 1);
    assert_non_null(values);
    op_download(tensor, values);
    return values;
}

/* A position that attends to itself alone has no gradient of its score, but for rounding. */
static void expect_vanishing(const char *what, const op_tensor *tensor)
{
    void *values = downloaded(tensor);
    for (int64_t i = 0; i < tensor->n; i++) {
        double value = op_element(tensor->dtype, values, i);
        if (!(fabs(value) <= 1e-5))
            fail_msg("%s (%s) element %lld of a single position: %g, expected 0 within rounding",
                     what, tr_dtype_name(tensor->dtype), (long long)i, value);
    }
    free(values);
}

static void parity_case(const attention_shape *s, tr_dtype dtype, int64_t begin, double center,
                        double width)
{
    attention_call call = call_new(s, dtype, begin, center, width);
    call_run(&call);
    for (int r = 0; r < RESULTS; r++) {
        char what[96];
        snprintf(what, sizeof what, "%s, B %d T %d A %d K %d D %d, dropout %g, %d parts",
                 result_names[r], (int)s->B, (int)s->T, (int)s->A, (int)s->K, (int)s->D,
                 (double)s->dropout, s->kv_parts);
        if (s->T == 1 && (r == DQ || r == DK))
            expect_vanishing(what, &call.result[r]);
        else
            op_expect_close(what, &call.result[r], 0);
    }
    op_release();
}

/* The tiles of tensor cores: heads of up to 32, 64, 96, 128 and 256 columns; blocks of 64 and 128 queries, 64, 32 and 16 keys. */
static void test_tensor_cores(void **state)
{
    static const attention_shape shapes[] = {
        {1, 1, 1, 1, 8, 0.0f, 1},     {2, 65, 4, 2, 16, 0.0f, 1},  {1, 129, 2, 1, 32, 0.3f, 1},
        {2, 31, 3, 3, 40, 0.1f, 1},   {1, 127, 3, 1, 64, 0.0f, 1}, {2, 67, 4, 2, 64, 0.2f, 1},
        {1, 70, 2, 2, 72, 0.0f, 1},   {3, 33, 6, 2, 80, 0.5f, 1},  {1, 63, 1, 1, 96, 0.0f, 1},
        {1, 130, 2, 1, 128, 0.0f, 1}, {2, 3, 5, 1, 128, 0.4f, 1},  {1, 66, 2, 1, 104, 0.0f, 1},
        {1, 65, 3, 1, 136, 0.0f, 1},  {2, 17, 2, 2, 256, 0.2f, 1}, {1, 73, 1, 1, 192, 0.0f, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        parity_case(&shapes[i], i % 3 == 1 ? TR_F16 : TR_BF16, i % 2 == 0 ? 0 : 8, 0.0, 2.0);
    parity_case(&shapes[1], TR_BF16, 0, 4.0, 2.0);
    parity_case(&shapes[5], TR_F16, 0, -4.0, 2.0);
}

/* Multiply-adds: fp32, whose rows are whole pieces of 16 bytes in some of these, and heads that tensor cores do not take, at odd addresses. */
static void test_multiply_adds(void **state)
{
    static const attention_shape shapes[] = {
        {1, 1, 2, 1, 1, 0.0f, 1},    {3, 7, 4, 2, 3, 0.3f, 1},    {1, 66, 1, 1, 12, 0.0f, 1},
        {1, 33, 3, 1, 31, 0.2f, 1},  {1, 66, 1, 1, 64, 0.0f, 1},  {1, 34, 2, 2, 65, 0.0f, 1},
        {2, 19, 2, 1, 100, 0.5f, 1}, {1, 35, 1, 1, 128, 0.1f, 1}, {1, 33, 1, 1, 129, 0.0f, 1},
        {1, 18, 2, 1, 255, 0.4f, 1}, {1, 17, 1, 1, 256, 0.0f, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const attention_shape *s = &shapes[i];
        parity_case(s, TR_F32, s->D % 4 == 0 ? 4 : 1, i == 2 ? 4.0 : 0.0, 2.0);
        if (s->D % 8 != 0)
            parity_case(s, i % 2 ? TR_BF16 : TR_F16, 1, 0.0, 2.0);
    }
}

/* Scores so far apart that a row's maximum is exceeded again and again, by more than what is let pass. */
static void test_growing_maxima(void **state)
{
    static const struct {
        attention_shape shape;
        tr_dtype dtype;
    } cases[] = {{{1, 130, 2, 1, 64, 0.0f, 1}, TR_BF16},
                 {{1, 99, 1, 1, 128, 0.2f, 1}, TR_F16},
                 {{1, 80, 1, 1, 256, 0.0f, 1}, TR_BF16},
                 {{1, 70, 1, 1, 32, 0.0f, 1}, TR_F32}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        parity_case(&cases[i].shape, cases[i].dtype, 0, 0.0, 4.0);
}

/* Key/value gradients in parts, each with its own query heads. */
static void test_key_value_parts(void **state)
{
    static const attention_shape shapes[] = {{2, 37, 4, 1, 16, 0.0f, 2},
                                             {1, 66, 4, 1, 64, 0.2f, 2},
                                             {1, 34, 6, 1, 128, 0.0f, 3},
                                             {2, 5, 4, 2, 256, 0.1f, 2}};
    static const tr_dtype dtypes[] = {TR_F16, TR_BF16, TR_F16, TR_BF16};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        parity_case(&shapes[i], dtypes[i], 0, 0.0, 2.0);
    parity_case(&shapes[0], TR_F32, 0, 0.0, 2.0);
    parity_case(&shapes[3], TR_F32, 0, 0.0, 2.0);
    const attention_shape narrow = {2, 21, 4, 1, 7, 0.2f, 4};
    parity_case(&narrow, TR_BF16, 1, 0.0, 2.0);
}

static void results_hash(const attention_call *call, uint64_t hash[RESULTS])
{
    for (int r = 0; r < RESULTS; r++)
        hash[r] = op_device_hash(&call->result[r]);
}

/* The bits are the same each time, in tensors at other places and with threads in another order: a GPU's is never twice the same, the
 * simulator draws a new one for every launch. */
static void test_same_bits(void **state)
{
    static const struct {
        attention_shape shape;
        tr_dtype dtype;
    } cases[] = {{{1, 131, 1, 1, 64, 0.2f, 1}, TR_BF16},
                 {{1, 66, 2, 1, 128, 0.0f, 2}, TR_F16},
                 {{1, 18, 1, 1, 256, 0.1f, 1}, TR_BF16},
                 {{1, 35, 2, 1, 64, 0.1f, 1}, TR_F32}};
    enum { TIMES = 3 };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t hash[TIMES][RESULTS];
        for (int time = 0; time < TIMES; time++) {
            attention_call call = call_new(&cases[i].shape, cases[i].dtype, 8 * time, 0.0, 2.0);
            call_run(&call);
            results_hash(&call, hash[time]);
            op_release();
        }
        for (int time = 1; time < TIMES; time++)
            assert_memory_equal(hash[time], hash[0], sizeof hash[0]);
    }
}

/* Heads [first, first + count) of each row of [rows,total,size]: what a tensor rank holds. */
static op_tensor heads_of(const op_tensor *whole, int64_t total, int64_t first, int64_t count,
                          int64_t size)
{
    size_t head = (size_t)size * tr_dtype_size(whole->dtype);
    int64_t rows = whole->n / (total * size);
    unsigned char *values = downloaded(whole), *part = malloc((size_t)(rows * count) * head + 1);
    assert_non_null(part);
    for (int64_t r = 0; r < rows; r++)
        memcpy(part + (size_t)(r * count) * head, values + (size_t)(r * total + first) * head,
               (size_t)count * head);
    op_tensor tensor = op_from(whole->dtype, rows * count * size, 0, part);
    free(values);
    free(part);
    return tensor;
}

static void expect_heads(const char *what, const op_tensor *whole, int64_t total, int64_t first,
                         int64_t count, int64_t size, const op_tensor *part)
{
    op_tensor expected = heads_of(whole, total, first, count, size);
    if (op_device_hash(&expected) != op_device_hash(part))
        fail_msg("%s (%s): heads %lld ... of a call of their own have other bits than in a call of "
                 "%lld heads",
                 what, tr_dtype_name(whole->dtype), (long long)first, (long long)total);
}

/* A tensor rank's heads have the bits that they have among all heads: head_offset, and kv_parts where ranks share a key/value head. */
static void split_case(const attention_shape *s, tr_dtype dtype, int64_t ranks)
{
    attention_call whole = call_new(s, dtype, 0, 0.0, 2.0);
    call_run(&whole);
    const int64_t parts = s->kv_parts > 1 ? s->kv_parts : 1, gradients = s->K * parts;
    const int64_t A = s->A / ranks, K = s->K < ranks ? 1 : s->K / ranks, G = gradients / ranks;
    for (int64_t rank = 0; rank < ranks; rank++) {
        attention_call own = whole;
        own.shape.A = A;
        own.shape.K = K;
        own.shape.kv_parts = (int)(G / K);
        own.head_offset = whole.head_offset + rank * A;
        const int64_t key = rank * s->K / ranks;
        own.q = heads_of(&whole.q, s->A, rank * A, A, s->D);
        own.dout = heads_of(&whole.dout, s->A, rank * A, A, s->D);
        own.k = heads_of(&whole.k, s->K, key, K, s->D);
        own.v = heads_of(&whole.v, s->K, key, K, s->D);
        outputs_new(&own, 0);
        call_run(&own);
        expect_heads("out", &whole.result[OUT], s->A, rank * A, A, s->D, &own.result[OUT]);
        expect_heads("dq", &whole.result[DQ], s->A, rank * A, A, s->D, &own.result[DQ]);
        expect_heads("dk", &whole.result[DK], gradients, rank * G, G, s->D, &own.result[DK]);
        expect_heads("dv", &whole.result[DV], gradients, rank * G, G, s->D, &own.result[DV]);
        /* lse is [B,A,T]. */
        expect_heads("lse", &whole.result[LSE], s->A, rank * A, A, s->T, &own.result[LSE]);
    }
    op_release();
}

static void test_split_heads(void **state)
{
    (void)state;
    for (int d = 0; d < OP_DTYPES; d++) {
        const attention_shape grouped = {1, 34, 4, 2, 64, 0.3f, 1};
        split_case(&grouped, op_dtypes[d], 2);
        const attention_shape shared = {2, 18, 4, 1, 40, 0.2f, 4};
        split_case(&shared, op_dtypes[d], d == 0 ? 2 : 4);
    }
}

static bool all_finite(const op_tensor *tensor)
{
    void *values = downloaded(tensor);
    bool finite = true;
    for (int64_t i = 0; i < tensor->n; i++)
        finite &= isfinite(op_element(tensor->dtype, values, i)) != 0;
    free(values);
    return finite;
}

/* The same tensor with NaN in its middle. */
static op_tensor with_nan(const op_tensor *tensor)
{
    const uint16_t halves[2] = {0x7fc0, 0x7fc0};
    const float single = NAN;
    size_t size = tr_dtype_size(tensor->dtype);
    unsigned char *values = downloaded(tensor);
    memcpy(values + (size_t)(tensor->n / 2) * size,
           size == sizeof single ? (const void *)&single : halves, size);
    op_tensor other = op_from(tensor->dtype, tensor->n, 0, values);
    free(values);
    return other;
}

/* What is not finite in an input reaches a gradient, where the step's decision finds it. */
static void test_not_finite(void **state)
{
    static const attention_shape shapes[] = {{1, 21, 1, 1, 64, 0.0f, 1}, {1, 9, 2, 1, 20, 0.0f, 1}};
    (void)state;
    for (int i = 0; i < 2 * OP_DTYPES; i++)
        for (int input = 0; input < 4; input++) {
            attention_call call = call_new(&shapes[i % 2], op_dtypes[i / 2], 0, 0.0, 2.0);
            op_tensor *at = (op_tensor *[]){&call.q, &call.k, &call.v, &call.dout}[input];
            *at = with_nan(at);
            call_run(&call);
            if (input < 3 && all_finite(&call.result[OUT]))
                fail_msg("NaN in input %d is not in out", input);
            if (all_finite(&call.result[DQ]) && all_finite(&call.result[DK]))
                fail_msg("NaN in input %d is neither in dq nor in dk", input);
            op_release();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_cores),   cmocka_unit_test(test_multiply_adds),
        cmocka_unit_test(test_growing_maxima), cmocka_unit_test(test_key_value_parts),
        cmocka_unit_test(test_same_bits),      cmocka_unit_test(test_split_heads),
        cmocka_unit_test(test_not_finite)};
    return op_parity_main("cuda attention", tests, sizeof tests / sizeof tests[0]);
}
