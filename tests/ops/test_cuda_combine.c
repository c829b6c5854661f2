/* What ranks sent, combined on a stream of its own: the CPU's tree sum and a maximum in the order of the parts. */
#include "tests/ops/op_parity.h"

#include <math.h>
#include <string.h>

#include "kernels/ops.h"

enum { MOST_PARTS = 300 };

typedef struct combine_case {
    tr_combine_kind kind;
    int64_t n;
    int count, own_index;
    int64_t stride, begin; /* begin: of the others and the result, from a 16-byte boundary */
    bool in_place;
} combine_case;

static const tr_stream streams[] = {TR_STREAM_TENSOR, TR_STREAM_DATA};

/* As the parts stand on a side. */
static void parts_of(const combine_case *c, const op_tensor *own, const op_tensor *others, int side,
                     const float **part)
{
    for (int k = 0; k < c->count; k++)
        part[k] = k == c->own_index ? own->data[side]
                                    : (const float *)others->data[side] +
                                          (k < c->own_index ? k : k - 1) * c->stride;
}

static void maximum(int64_t n, int count, const float *const *part, float *dst)
{
    for (int64_t i = 0; i < n; i++) {
        float most = part[0][i];
        for (int k = 1; k < count; k++)
            most = most > part[k][i] || isnan(most) ? most : part[k][i];
        dst[i] = most;
    }
}

static void run_case(const combine_case *c, tr_stream stream)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3e38f};
    const float *part[MOST_PARTS];
    op_tensor own = op_random(TR_F32, c->n, 0, 1, 0.0, 100.0);
    op_tensor others = op_random(TR_F32, (c->count - 1) * c->stride, c->begin, 2, 0.0, 100.0);
    op_tensor dst = c->in_place ? own : op_new(TR_F32, c->n, c->begin);
    if (c->kind == TR_COMBINE_MAXIMUM && c->n == 6 && c->count == 2) { /* every pair of them */
        own = op_from(TR_F32, 6, 0, special);
        float turned[6];
        for (int i = 0; i < 6; i++)
            turned[i] = special[(i + (int)c->begin) % 6];
        others = op_from(TR_F32, 6, 0, turned);
    }
    parts_of(c, &own, &others, OP_CPU, part);
    if (c->kind == TR_COMBINE_MAXIMUM)
        maximum(c->n, c->count, part, dst.data[OP_CPU]);
    else
        op_check_status("tree_sum", op_device[OP_CPU]->ops->tree_sum(
                                        op_device[OP_CPU], c->n, c->count, part, dst.data[OP_CPU]));
    tr_device *device = op_device[OP_CUDA];
    const tr_combine args = {.kind = c->kind,
                             .count = c->count,
                             .own_index = c->own_index,
                             .n = c->n,
                             .own = own.data[OP_CUDA],
                             .others = others.data[OP_CUDA],
                             .stride = c->stride,
                             .dst = dst.data[OP_CUDA]};
    op_check_status("synchronize", device->synchronize(device, TR_STREAM_COMPUTE));
    op_check_status("combine", device->combine(device, stream, &args));
    op_check_status("synchronize", device->synchronize(device, stream));
    op_expect_equal(c->kind == TR_COMBINE_MAXIMUM ? "maximum" : "tree sum", &dst);
    op_release();
}

static void run_kind(tr_combine_kind kind)
{
    static const int counts[] = {2, 3, 4, 5, 7, 8, 13, 63, 64, 65, 130, 257};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        int64_t n = op_sizes[i % (OP_SIZES - 1)];
        combine_case c = {.kind = kind, .n = n, .count = counts[i], .stride = (n + 63) / 64 * 64};
        c.own_index = (int)i % counts[i];
        run_case(&c, streams[i % 2]);
        c.own_index = counts[i] - 1;
        c.in_place = true;
        run_case(&c, streams[i % 2]);
        c.own_index = 0;
        c.stride = n + 1;
        c.begin = 1;
        c.in_place = i % 2;
        run_case(&c, streams[i % 2]);
    }
    run_case(&(combine_case){kind, 5000, 3, 1, 5000, 0, false}, TR_STREAM_TENSOR);
}

static void test_tree_sum(void **state)
{
    (void)state;
    run_kind(TR_COMBINE_TREE_SUM);
}

static void test_maximum(void **state)
{
    (void)state;
    run_kind(TR_COMBINE_MAXIMUM);
    for (int turn = 0; turn < 6; turn++)
        for (int own = 0; own < 2; own++)
            run_case(&(combine_case){TR_COMBINE_MAXIMUM, 6, 2, own, 6, turn, false},
                     TR_STREAM_TENSOR);
}

/* Streams beyond the named ones: each works, and they end. */
static void test_streams(void **state)
{
    (void)state;
    tr_device *device = op_device[OP_CUDA];
    tr_stream stream = TR_STREAM_NUM, last = stream;
    int count = 0;
    while (device->stream_add(device, &stream) == TR_OK) {
        assert_int_equal(stream, TR_STREAM_NUM + count);
        last = stream;
        count++;
    }
    assert_int_equal(count, TR_STREAM_MOST - TR_STREAM_NUM);
    assert_non_null(strstr(tr_error_message(), "no more than"));
    run_case(&(combine_case){TR_COMBINE_TREE_SUM, 65, 3, 1, 65, 0, false}, last);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_sum),
        cmocka_unit_test(test_maximum),
        cmocka_unit_test(test_streams),
    };
    return op_parity_main("cuda combine", tests, sizeof tests / sizeof tests[0]);
}
