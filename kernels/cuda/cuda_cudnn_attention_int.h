/* Attention as graphs of cuDNN's operations, for cuda_cudnn_attention.c. */
#ifndef TR_KERNELS_CUDA_CUDNN_ATTENTION_INT_H
#define TR_KERNELS_CUDA_CUDNN_ATTENTION_INT_H

#include "kernels/cuda/cuda_cudnn_graph.h"
#include "kernels/ops.h"

/* What a graph depends on. No padding: compared as bytes. */
typedef struct tr_cudnn_attention_shape {
    int64_t B, T, A, K, D, dtype;
} tr_cudnn_attention_shape;

/* The tensors and numbers that an execution gives. */
typedef enum tr_cudnn_attention_id {
    TR_CUDNN_Q = 1,
    TR_CUDNN_K,
    TR_CUDNN_V,
    TR_CUDNN_OUT,
    TR_CUDNN_LSE,
    TR_CUDNN_SCALE,
    TR_CUDNN_MASKED, /* the score of a key behind the query, minus infinity */
    /* backward only */
    TR_CUDNN_DOUT,
    TR_CUDNN_DQ,
    TR_CUDNN_DK,
    TR_CUDNN_DV,
    TR_CUDNN_DELTA, /* fp32 [B,A,T]: sum over features of dout out; scratch */
    TR_CUDNN_ONE,   /* what delta is multiplied by, where dropout would have its share */
    TR_CUDNN_ID_END
} tr_cudnn_attention_id;

/* Both write into a graph that has been initialised, whose status tells of refusals. */
void tr_cudnn_attention_forward_graph(tr_cudnn_graph *graph, const tr_cudnn_attention_shape *shape);
void tr_cudnn_attention_backward_graph(tr_cudnn_graph *graph,
                                       const tr_cudnn_attention_shape *shape);

#endif
