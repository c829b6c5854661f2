/* The decoder on one rank: embedding, blocks and head, forward and backward, over one microbatch.
 *
 * Single-device mathematics with tensor-parallel collectives (parallel/tensor_comm.h); nothing here knows ranks beyond its own cut, pipelines, or
 * data parallelism. Shapes: B, T, R = B*T, H, F, A, K, D, V of kernels/ops.h, the last five local to the tensor rank; S = rows of this rank in row-wise
 * operations (R, or R/t under sequence parallel). The residual stream and its gradient are rounded to the compute dtype at every block edge; what is summed over
 * tensor ranks stays fp32 until after the sum.
 *
 * Weight gradients are written at the first microbatch of a leaf (`accumulate` false) and added after.
 *
 * Backward has two parts, which one call makes together or two calls one after the other: gradients of inputs, and gradients of weights (Qi et al. 2023). When
 * they come apart, what the weight gradients need of the first call (each product's input and the gradient of its output) lies in a "pending" set of the caller; norms, whose
 * gradients fall out of the first part, leave them there as sums over the microbatch. Bits and their order are the same either way.
 *
 * With train.tensor_slices everything that tensor parallelism cuts is computed slice by slice (DESIGN section 1, E4): products in engine/model/linear.h, softmax statistics
 * here, and sums over rows (norms, biases of row-parallel products) as trees over equal parts of a microbatch's rows, which are complete within the microbatch. One thread. */
#ifndef TR_ENGINE_MODEL_MODEL_H
#define TR_ENGINE_MODEL_MODEL_H

#include "base/exact_sum.h"
#include "engine/model/local_params.h"
#include "kernels/device.h"
#include "memory/arena.h"
#include "parallel/tensor_comm.h"

/* A parameter as the model's code sees it; weight NULL when the model has none of this role. */
typedef struct tr_weight {
    const void *weight; /* compute dtype, local cut */
    float *grad;        /* fp32, local cut; moves between leaves */
} tr_weight;

/* What a block's forward leaves for its backward. Rows S where marked, else R. With recompute, what is not stored points into shared scratch. */
typedef struct tr_block_saved {
    void *norm1, *norm2;                  /* [S,H] norm outputs */
    float *mean1, *rstd1, *mean2, *rstd2; /* [S] */
    void *q, *k, *v;                      /* [R, A*D], [R, K*D]: after rotary positions */
    void *attention;                      /* [R, A*D] */
    float *lse;                           /* [B,A,T] */
    void *middle;                         /* [S,H] the stream between attention and MLP */
    void *gate,
        *up; /* [R,F]; GELU uses up only; their gradients in place after the input part of backward when the parts come apart */
    void *act; /* [R,F] */
} tr_block_saved;

/* What of a block's backward lies between input and weight gradients. The last six: pieces of tr_block_saved that recompute modes do not store and that weight
 * gradients need; NULL where they stay where tr_block_saved has them. */
typedef struct tr_block_pending {
    void *dmiddle;      /* [S,H] gradient of the stream between attention and MLP */
    void *dq, *dk, *dv; /* [R, A*D], [R, K*D] */
    float *
        row_sums; /* [vectors,H] gradients of this microbatch, see tr_row_sums; NULL where the parts never come apart and nothing is sliced */
    void *norm1, *norm2, *attention, *gate, *up, *act;
} tr_block_pending;

/* The same of the head. */
typedef struct tr_head_pending {
    float *row_sums; /* [1 or 2,H] weight and bias of the norm */
    void *norm, *logits;
} tr_head_pending;

typedef struct tr_head_saved {
    void *norm;         /* [S,H] */
    float *mean, *rstd; /* [S] */
    void *logits;       /* [R,V], gradient in place after the input part of backward */
    float *max;         /* [R] of the whole vocabulary */
    float *sum_target;  /* [2R] of the whole vocabulary */
} tr_head_saved;

/* One microbatch's inputs. */
typedef struct tr_microbatch {
    const int32_t *tokens;   /* [R] */
    const int32_t *labels;   /* [R], -1 = not counted */
    const uint64_t *samples; /* [B] global sample numbers */
} tr_microbatch;

/* Most slices, and slots that a tree over so many needs beside the first. */
enum { TR_MODEL_SLICES = 64, TR_MODEL_SLOTS = 6 };

/* Scratch of one rank, shared by all blocks. */
typedef struct tr_model_scratch {
    void *full;               /* [R,H] gathered rows (sequence parallel only) */
    void *dropped;            /* [S,H] gradient after dropout (dropout only) */
    void *dact;               /* [R,F] gradient of act, with GELU of up */
    void *dattention;         /* [R,A*D] */
    tr_block_pending pending; /* of a backward whose parts are one call */
    tr_block_saved recompute; /* the pieces that recompute modes do not store */
    tr_head_saved head;       /* logits, when recompute is full; lives in turn with `recompute` */
    tr_head_pending head_pending;
    /* With several slices: */
    float *slice_sums[TR_MODEL_SLOTS];   /* [R/halves, H] partial sums, as many as the tree needs */
    float *shared_slots[TR_MODEL_SLOTS]; /* [D,H] the same of a shared head's weight gradient */
    float *shared_columns;               /* [K*kv_parts*D] */
    float *statistics;                   /* [slices,2R] */
    float *row_parts;                    /* [row_slices,2,H] */
} tr_model_scratch;

/* Parts of backward. */
enum {
    TR_BACKWARD_INPUT = 1,
    TR_BACKWARD_WEIGHT = 2,
    TR_BACKWARD_BOTH = TR_BACKWARD_INPUT | TR_BACKWARD_WEIGHT
};

/* Whom a pass tells how far it is; functions may be NULL. */
typedef struct tr_model_hooks {
    void *context;
    /* After each product: a moment to move messages on. */
    tr_status (*product)(void *context);
    /* The microbatch's gradient of a weight of the unit at work is complete, and may go on its way under the rest of the unit. What is not told is complete at
     * the unit's end. */
    tr_status (*written)(void *context, tr_param_role role);
} tr_model_hooks;

typedef struct tr_model {
    const tr_config *cfg;
    tr_device *device;
    tr_tensor_comm tensor;
    int64_t B, T, R, S, H, F, A, K, D, V; /* local */
    int64_t head_begin;                   /* global number of the first query head */
    int64_t vocab_begin, vocab_valid;
    bool sliced;    /* train.tensor_slices; when off the next three are 1 */
    int slices;     /* of this rank */
    int row_slices; /* of its S rows */
    int kv_parts;   /* slices of this rank that share one key/value head */
    int64_t
        num_shared; /* floats of a layer's gradients of keys and values, where slices share them; else 0 */
    tr_dtype dtype;
    size_t item;                       /* bytes of dtype */
    const float *rope;                 /* [T, D/2, 2] or NULL */
    tr_weight (*weights)[TR_ROLE_NUM]; /* [layers + 1]; the last row is outside the layers */
    tr_model_scratch scratch;
    /* of the current pass */
    int64_t step;    /* for dropout */
    bool training;   /* dropout on */
    bool accumulate; /* weight gradients are added */
    unsigned
        parts; /* what backward functions do; the input part reads weights, the weight part only their gradients */
    tr_model_hooks hooks;
} tr_model;

/* Fills dimensions and lays out scratch: activations' scratch in `activations`, rope in `workspace`. weights is allocated here; its entries are the caller's to set. */
tr_status tr_model_init(tr_model *model, const tr_config *cfg, const tr_mesh *mesh,
                        tr_device *device, bool has_head, tr_arena *comm, tr_arena *activations,
                        tr_arena *workspace);
void tr_model_clear(tr_model *model);
/* Bytes of a block's saved set laid out in `arena` under the configuration's recompute setting. */
void tr_block_saved_init(const tr_model *model, tr_block_saved *saved, tr_arena *arena);
void tr_head_saved_init(const tr_model *model, tr_head_saved *saved, tr_arena *arena);
/* A set for a backward whose parts come apart. */
void tr_block_pending_init(const tr_model *model, tr_block_pending *pending, tr_arena *arena);
void tr_head_pending_init(const tr_model *model, tr_head_pending *pending, tr_arena *arena);

/* tokens -> stream out [S,H]. */
tr_status tr_embed_run_forward(tr_model *model, const tr_microbatch *microbatch, void *out);
/* Weight gradients only. dx: gradient of the embedding's output [S,H]. */
tr_status tr_embed_run_backward(tr_model *model, const tr_microbatch *microbatch, const void *dx);

/* x [S,H] -> out [S,H] (out may not be x). */
tr_status tr_block_forward(tr_model *model, int layer, const tr_microbatch *microbatch,
                           tr_block_saved *saved, const void *x, void *out);
/* Input part: dy [S,H] -> dx [S,H] (dx may not be dy); weight part: the layer's weight gradients (dx is not used). x is the block's input. pending: the same
 * set, untouched, in both parts when they come apart; NULL when model->parts is both. */
tr_status tr_block_backward(tr_model *model, int layer, const tr_microbatch *microbatch,
                            const tr_block_saved *saved, const tr_block_pending *pending,
                            const void *x, const void *dy, void *dx);

/* Final norm, logits and their statistics; the losses of labelled rows are added to loss [TR_LOSS_SUM_LIMBS] of the device, where it is not NULL: they are the same on
 * all tensor ranks. */
tr_status tr_head_forward(tr_model *model, const tr_microbatch *microbatch, tr_head_saved *saved,
                          const void *x, int64_t *loss);
/* Gradient of *scale (the device's) * (sum of losses); dx [S,H] from the input part. Consumes the logits. pending as in tr_block_backward. */
tr_status tr_head_backward(tr_model *model, const tr_microbatch *microbatch,
                           const tr_head_saved *saved, const tr_head_pending *pending,
                           const void *x, const float *scale, void *dx);

/* Shared by the files of this folder: the Philox key of a dropout site in this step. */
tr_dropout tr_model_dropout(const tr_model *model, const tr_microbatch *microbatch,
                            const char *site, int layer);

/* Shared by blocks and head: one norm. kept: [S,H] its output. sums: [1 or 2,H] where the gradients of weight and bias are left when the parts come apart or rows are sliced. */
typedef struct tr_norm_site {
    tr_weight weight, bias;
    const void *x;
    void *kept;
    float *mean, *rstd;
    float *sums;
} tr_norm_site;
tr_status tr_model_norm(tr_model *model, const tr_norm_site *site);
tr_norm_kind tr_model_norm_kind(const tr_model *model);
/* Rows [S,H] -> R rows, which products (engine/model/linear.h) wait for as they use them; others wait by tr_tensor_comm_gather_wait. */
tr_status tr_model_gather(tr_model *model, const void *rows, const void **full);
/* grad (+)= values, n of them. */
tr_status tr_model_add(tr_model *model, int64_t n, const float *values, float *grad);

static inline tr_status tr_model_written(const tr_model *model, tr_param_role role)
{
    const tr_model_hooks *hooks = &model->hooks;
    return hooks->written != NULL ? hooks->written(hooks->context, role) : TR_OK;
}

#endif
