/* Attention as graphs of cuDNN's operations: FlashAttention-2 (Dao 2023) written down as if whole matrices of scores existed, in the order of operations
 * that the library recognises and runs as one kernel (cuDNN's guide to its graph interface, "fused attention").
 *
 * The library names dimensions [batch, head, row, column]; our tensors [B,T,A,D] are that with strides. */
#include "kernels/cuda/cuda_cudnn_attention_int.h"

static cudnnDataType_t type_of(const tr_cudnn_attention_shape *shape)
{
    return shape->dtype == TR_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* [B,heads,T,D] in memory of [B,T,heads,D]. */
static tr_cudnn_shape rows(const tr_cudnn_attention_shape *s, int64_t heads)
{
    return (tr_cudnn_shape){{s->B, heads, s->T, s->D},
                            {s->T * heads * s->D, s->D, heads * s->D, 1}};
}

static tr_cudnn_shape transposed(tr_cudnn_shape shape)
{
    return (tr_cudnn_shape){
        {shape.dims[0], shape.dims[1], shape.dims[3], shape.dims[2]},
        {shape.strides[0], shape.strides[1], shape.strides[3], shape.strides[2]}};
}

/* Dense. */
static tr_cudnn_shape dense(const tr_cudnn_attention_shape *s, int64_t cols)
{
    return (tr_cudnn_shape){{s->B, s->A, s->T, cols}, {s->A * s->T * cols, s->T * cols, cols, 1}};
}

typedef struct builder {
    tr_cudnn_graph *graph;
    const tr_cudnn_attention_shape *shape;
    tr_cudnn_shape scores, per_query;
} builder;

static builder builder_make(tr_cudnn_graph *graph, const tr_cudnn_attention_shape *shape)
{
    return (builder){.graph = graph,
                     .shape = shape,
                     .scores = dense(shape, shape->T),
                     .per_query = dense(shape, 1)};
}

static tr_cudnn_tensor memory(const builder *b, tr_cudnn_attention_id id, tr_cudnn_shape shape)
{
    return tr_cudnn_memory(b->graph, id, type_of(b->shape), &shape);
}

/* fp32 [B,A,T] */
static tr_cudnn_tensor query_memory(const builder *b, tr_cudnn_attention_id id)
{
    return tr_cudnn_memory(b->graph, id, CUDNN_DATA_FLOAT, &b->per_query);
}

/* y of the same shape as scores, fp32 */
static tr_cudnn_tensor scores_make(const builder *b, cudnnPointwiseMode_t mode, tr_cudnn_tensor x,
                                   tr_cudnn_tensor operand)
{
    tr_cudnn_tensor y = tr_cudnn_between(b->graph, CUDNN_DATA_FLOAT, &b->scores);
    tr_cudnn_elementwise(b->graph, mode, x, operand, NULL, y);
    return y;
}

static tr_cudnn_tensor query_make(const builder *b, cudnnPointwiseMode_t mode, tr_cudnn_tensor x,
                                  tr_cudnn_tensor operand)
{
    tr_cudnn_tensor y = tr_cudnn_between(b->graph, CUDNN_DATA_FLOAT, &b->per_query);
    tr_cudnn_elementwise(b->graph, mode, x, operand, NULL, y);
    return y;
}

static tr_cudnn_tensor query_reduce(const builder *b, cudnnReduceTensorOp_t operator,
                                    tr_cudnn_tensor x)
{
    tr_cudnn_tensor y = tr_cudnn_between(b->graph, CUDNN_DATA_FLOAT, &b->per_query);
    tr_cudnn_reduce(b->graph, operator, x, y);
    return y;
}

/* a b as scores, fp32 */
static tr_cudnn_tensor scores_product(const builder *b, tr_cudnn_tensor x, tr_cudnn_tensor y)
{
    tr_cudnn_tensor scores = tr_cudnn_between(b->graph, CUDNN_DATA_FLOAT, &b->scores);
    tr_cudnn_product(b->graph, x, y, scores);
    return scores;
}

/* Scores of keys behind the query become `masked`. */
static tr_cudnn_tensor causal(const builder *b, tr_cudnn_tensor scores, tr_cudnn_tensor masked)
{
    tr_cudnn_tensor query = tr_cudnn_between(b->graph, CUDNN_DATA_INT32, &b->scores);
    tr_cudnn_tensor key = tr_cudnn_between(b->graph, CUDNN_DATA_INT32, &b->scores);
    tr_cudnn_tensor seen = tr_cudnn_between(b->graph, CUDNN_DATA_BOOLEAN, &b->scores);
    tr_cudnn_tensor y = tr_cudnn_between(b->graph, CUDNN_DATA_FLOAT, &b->scores);
    tr_cudnn_index(b->graph, scores, 2, query);
    tr_cudnn_index(b->graph, scores, 3, key);
    tr_cudnn_elementwise(b->graph, CUDNN_POINTWISE_CMP_GE, query, key, NULL, seen);
    tr_cudnn_elementwise(b->graph, CUDNN_POINTWISE_BINARY_SELECT, scores, masked, seen, y);
    return y;
}

void tr_cudnn_attention_forward_graph(tr_cudnn_graph *graph, const tr_cudnn_attention_shape *shape)
{
    builder b = builder_make(graph, shape);
    tr_cudnn_tensor q = memory(&b, TR_CUDNN_Q, rows(shape, shape->A));
    tr_cudnn_tensor kt = memory(&b, TR_CUDNN_K, transposed(rows(shape, shape->K)));
    tr_cudnn_tensor v = memory(&b, TR_CUDNN_V, rows(shape, shape->K));
    tr_cudnn_tensor out = memory(&b, TR_CUDNN_OUT, rows(shape, shape->A));
    tr_cudnn_tensor lse = query_memory(&b, TR_CUDNN_LSE);
    tr_cudnn_tensor scale = tr_cudnn_number(graph, TR_CUDNN_SCALE);
    tr_cudnn_tensor masked = tr_cudnn_number(graph, TR_CUDNN_MASKED);

    tr_cudnn_tensor s = scores_product(&b, q, kt);
    s = scores_make(&b, CUDNN_POINTWISE_MUL, s, scale);
    s = causal(&b, s, masked);
    tr_cudnn_tensor max = query_reduce(&b, CUDNN_REDUCE_TENSOR_MAX, s);
    tr_cudnn_tensor e = scores_make(&b, CUDNN_POINTWISE_SUB, s, max);
    e = scores_make(&b, CUDNN_POINTWISE_EXP, e, NULL);
    tr_cudnn_tensor sum = query_reduce(&b, CUDNN_REDUCE_TENSOR_ADD, e);
    tr_cudnn_tensor log = query_make(&b, CUDNN_POINTWISE_LOG, sum, NULL);
    tr_cudnn_elementwise(graph, CUDNN_POINTWISE_ADD, max, log, NULL, lse);
    tr_cudnn_tensor p = tr_cudnn_between(graph, type_of(shape), &b.scores);
    tr_cudnn_elementwise(graph, CUDNN_POINTWISE_DIV, e, sum, NULL, p);
    tr_cudnn_product(graph, p, v, out);
}

/* d [B,heads of keys and values,T,D] = matrix^T rows, summed over the query heads of a key/value head. */
static void key_gradient(const builder *b, tr_cudnn_tensor matrix, tr_cudnn_tensor query_rows,
                         tr_cudnn_tensor gradient)
{
    const tr_cudnn_attention_shape *s = b->shape;
    tr_cudnn_shape turned = transposed(b->scores), heads = dense(s, s->D);
    tr_cudnn_tensor view = tr_cudnn_between(b->graph, type_of(s), &turned);
    tr_cudnn_view(b->graph, matrix, view);
    if (s->A == s->K) {
        tr_cudnn_product(b->graph, view, query_rows, gradient);
        return;
    }
    tr_cudnn_tensor all = tr_cudnn_between(b->graph, type_of(s), &heads);
    tr_cudnn_product(b->graph, view, query_rows, all);
    tr_cudnn_reduce(b->graph, CUDNN_REDUCE_TENSOR_ADD, all, gradient);
}

/* delta = sum over features of dout out, in memory between two kernels of the plan. */
static tr_cudnn_tensor delta_make(const builder *b, tr_cudnn_tensor out, tr_cudnn_tensor dout)
{
    tr_cudnn_shape shape = rows(b->shape, b->shape->A);
    tr_cudnn_tensor one = tr_cudnn_number(b->graph, TR_CUDNN_ONE);
    tr_cudnn_tensor delta = query_memory(b, TR_CUDNN_DELTA);
    tr_cudnn_tensor terms = tr_cudnn_between(b->graph, CUDNN_DATA_FLOAT, &shape);
    tr_cudnn_elementwise(b->graph, CUDNN_POINTWISE_MUL, dout, out, NULL, terms);
    tr_cudnn_tensor sum = query_reduce(b, CUDNN_REDUCE_TENSOR_ADD, terms);
    tr_cudnn_elementwise(b->graph, CUDNN_POINTWISE_MUL, sum, one, NULL, delta);
    return delta;
}

void tr_cudnn_attention_backward_graph(tr_cudnn_graph *graph, const tr_cudnn_attention_shape *shape)
{
    builder b = builder_make(graph, shape);
    tr_cudnn_shape query_rows = rows(shape, shape->A), key_rows = rows(shape, shape->K);
    tr_cudnn_tensor q = memory(&b, TR_CUDNN_Q, query_rows);
    tr_cudnn_tensor kt = memory(&b, TR_CUDNN_K, transposed(key_rows));
    tr_cudnn_tensor vt = memory(&b, TR_CUDNN_V, transposed(key_rows));
    tr_cudnn_tensor out = memory(&b, TR_CUDNN_OUT, query_rows);
    tr_cudnn_tensor dout = memory(&b, TR_CUDNN_DOUT, query_rows);
    tr_cudnn_tensor lse = query_memory(&b, TR_CUDNN_LSE);
    tr_cudnn_tensor dq = memory(&b, TR_CUDNN_DQ, query_rows);
    tr_cudnn_tensor dk = memory(&b, TR_CUDNN_DK, key_rows);
    tr_cudnn_tensor dv = memory(&b, TR_CUDNN_DV, key_rows);
    tr_cudnn_tensor scale = tr_cudnn_number(graph, TR_CUDNN_SCALE);
    tr_cudnn_tensor masked = tr_cudnn_number(graph, TR_CUDNN_MASKED);
    tr_cudnn_tensor delta = delta_make(&b, out, dout);

    tr_cudnn_tensor s = scores_product(&b, q, kt);
    s = scores_make(&b, CUDNN_POINTWISE_MUL, s, scale);
    s = scores_make(&b, CUDNN_POINTWISE_SUB, s, lse);
    s = causal(&b, s, masked);
    tr_cudnn_tensor p = scores_make(&b, CUDNN_POINTWISE_EXP, s, NULL);
    key_gradient(&b, p, dout, dv);

    tr_cudnn_tensor ds = scores_product(&b, dout, vt);
    ds = scores_make(&b, CUDNN_POINTWISE_SUB, ds, delta);
    ds = scores_make(&b, CUDNN_POINTWISE_MUL, ds, p);
    ds = scores_make(&b, CUDNN_POINTWISE_MUL, ds, scale);
    key_gradient(&b, ds, q, dk);

    /* dq as one product: into fp32 memory first it would be added up in parts, in any order */
    tr_cudnn_tensor k = tr_cudnn_between(graph, type_of(shape), &key_rows);
    tr_cudnn_view(graph, kt, k);
    tr_cudnn_product(graph, ds, k, dq);
}
