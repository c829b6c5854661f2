/* The products of the model's weights: forward, gradients of inputs, gradients of weights.
 *
 * Tensor parallelism cuts a weight by rows (column-parallel: queries, keys, values, gate, up, head) or by columns (row-parallel: attention output, down). With
 * train.tensor_slices a rank computes what it holds slice by slice, each as a rank with one slice would (DESIGN section 1, E4): a product's piece grid sees the
 * slice's sizes, and partial sums of slices stay fp32 until the tree over all slices, of which this rank makes its own subtree and
 * parallel/tensor_comm.h the rest. Without it a rank is one slice.
 *
 * Products whose input is gathered from tensor ranks or whose output is summed over them go by halves of the rows (tr_tensor_comm_half_rows), whether communication is overlapped
 * or not. Shapes as in model.h; a layer of model->cfg->model.layers stands for what is outside
 * the layers. */
#ifndef TR_ENGINE_MODEL_LINEAR_H
#define TR_ENGINE_MODEL_LINEAR_H

#include "engine/model/model.h"

/* Column-parallel: y [R,out] = x [R,H] W^T + bias. */
tr_status tr_linear_forward(tr_model *model, int layer, tr_param_role role, const void *x, void *y);
/* Row-parallel: partial [R,H] = this rank's part of x [R,in] W^T; posts its sum over tensor ranks. partial: from tr_tensor_comm_partial. */
tr_status tr_linear_forward_partial(tr_model *model, int layer, tr_param_role role, const void *x,
                                    float *partial);

/* Row-parallel: dx [R,in] = dy [R,H] W, times gelu'(gelu_input [R,in]) unless that is NULL. */
tr_status tr_linear_input(tr_model *model, int layer, tr_param_role role, const void *dy,
                          const void *gelu_input, void *dx);
/* Column-parallel products of one input: partial [R,H] = this rank's part of the sum of dy W over `terms`, added in order; posts its sum over tensor ranks. */
typedef struct tr_linear_term {
    tr_param_role role;
    const void *dy; /* [R,out]; keys and values: as tr_attention.kv_parts makes them */
} tr_linear_term;
tr_status tr_linear_input_partial(tr_model *model, int layer, const tr_linear_term *terms,
                                  int num_terms, float *partial);

/* Weight gradient (+)= dy^T x, and for column-parallel products the bias gradient (+)= column sums of dy. Row-parallel: dy [R,H], x [R,in];
 * column-parallel: dy [R,out], x [R,H]. */
tr_status tr_linear_weight(tr_model *model, int layer, tr_param_role role, const void *dy,
                           const void *x);
/* The same for keys and values: with slices that share heads, the tree over the sharers of sums over this microbatch, on this rank and others. dk, dv as
 * tr_attention.kv_parts makes them. */
tr_status tr_linear_weight_kv(tr_model *model, int layer, const void *dk, const void *dv,
                              const void *x);

/* Scratch of the above; part of tr_model_init. */
void tr_linear_init(tr_model *model, tr_arena *workspace);

#endif
