/* Gradients that are sums over rows: of norms, and of the biases of row-parallel products.
 *
 * They go straight to the gradients, but in two cases stay sums over one microbatch in between: when the parts of backward come apart, and with
 * train.tensor_slices, where a microbatch's rows are as many equal parts as there are slices; each part's sum is formed by itself, this rank's by a tree here, and under sequence
 * parallel the tree goes on over the tensor group before the gradient sees it. */
#ifndef TR_ENGINE_MODEL_ROW_SUMS_H
#define TR_ENGINE_MODEL_ROW_SUMS_H

#include "engine/model/model.h"

enum { TR_ROW_SUMS_MOST = 6 };

/* The vectors of a block, in their order. A bias of -1 is not there. */
typedef struct tr_row_sums {
    int norm1, norm2; /* weight; the bias, where there is one, is the next */
    int o_bias, down_bias;
    int count;
} tr_row_sums;
tr_row_sums tr_row_sums_of(const tr_model *model);
/* Vectors of one norm: weight, and where the model has one, bias. */
int tr_row_sums_norm(const tr_model *model);
/* True when sums are left to tr_row_sums_take. */
bool tr_row_sums_wait(const tr_model *model);

/* Input part of a norm. partial: whose sum over tensor ranks, the gradient of the norm's output, tr_linear_input_partial has posted; adds dresidual. Leaves the norm's gradients in site->sums, or
 * adds them. */
tr_status tr_row_sums_norm_backward(tr_model *model, const tr_norm_site *site, float *partial,
                                    const void *dresidual, void *dx);
/* Column sums of dy [S,H]: left in `sums` with slices, else added to `grad`. */
tr_status tr_row_sums_columns(tr_model *model, const void *dy, float *sums, float *grad);
/* The end of the weight part: sums [count,H] to grads[count]; a gradient of NULL takes none. */
tr_status tr_row_sums_take(tr_model *model, float *sums, int count, float *const *grads);

/* Scratch of the above; part of tr_model_init. */
void tr_row_sums_init(tr_model *model, tr_arena *workspace);

#endif
