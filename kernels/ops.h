/* The operations of one device: a table of function pointers, one entry per operation.
 *
 * Vocabulary of shapes: B sequences of a microbatch, T positions, R = B*T rows (row = b*T + t; under sequence
 * parallel an operation may see a contiguous range of rows), H hidden, F ffn columns of this rank, A query heads and K key/value heads
 * of this rank, D head size, V vocabulary rows of this rank. All tensors are row-major and dense unless a stride is
 * named. `dtype` is the compute dtype (fp32, bf16, fp16); arithmetic inside an operation is fp32 and each output is
 * rounded once, to nearest even. Parameters (weights, biases) are in the compute dtype, their gradients fp32.
 *
 * Exactness (DESIGN section 1). The bits of an output depend on the inputs and on the shapes that the entry sees, never on the
 * number of threads: threads take whole pieces of a grid that is a function of the shapes only, and sums over rows use fixed blocks.
 * Gradient outputs take `accumulate`: false writes, true adds to what is there.
 *
 * No entry allocates; scratch comes from the device's workspace (tr_device_workspace_bytes, tr_device_workspace_set). Tensors are
 * 256-byte aligned at their base; an operand that is a range of rows or columns of one begins where it begins. Outputs never alias inputs unless an entry says so. On the CPU an entry has finished when it returns;
 * on other devices it is enqueued on the device's compute stream. */
#ifndef TR_KERNELS_OPS_H
#define TR_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/exact_sum.h"
#include "base/status.h"
#include "memory/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_device tr_device;

typedef enum tr_matmul_form {
    TR_MATMUL_NT, /* C[M,N] = A[M,K] B[N,K]^T : forward, B a weight [out,in] */
    TR_MATMUL_NN, /* C[M,N] = A[M,K] B[K,N]   : input gradient */
    TR_MATMUL_TN  /* C[M,N] = A[K,M]^T B[K,N] : weight gradient, K = rows */
} tr_matmul_form;

/* C = A op B (+ bias per column n) (+ C when accumulate, fp32 C only). A and B are `dtype`, C is `c_dtype` (fp32 or `dtype`), sums in
 * fp32. The piece grid cuts M and N only, never K. lda, ldb, ldc: elements between rows. bias: `dtype` [N] or NULL.
 * gelu_input: `dtype` [M,N] with ldc elements between rows, or NULL: then C = gelu'(gelu_input) (A op B), the backward of gelu_forward behind the
 * product; c_dtype is `dtype`, there is neither bias nor accumulate, and C is no part of it. The CPU rounds the product, then C, as gelu_backward after it would; a device
 * that fuses the two rounds once, for a shape always or never. */
typedef struct tr_matmul {
    tr_matmul_form form;
    int64_t M, N, K;
    tr_dtype dtype, c_dtype;
    const void *A;
    int64_t lda;
    const void *B;
    int64_t ldb;
    const void *bias;
    const void *gelu_input;
    void *C;
    int64_t ldc;
    bool accumulate;
    bool
        parts; /* operands are column or row ranges of tensors whose widths depend on the layout: the bits do not depend on lda, ldb, ldc. Each begins at a multiple of its own width, and so do its rows */
} tr_matmul;

typedef enum tr_norm_kind { TR_NORM_KIND_RMS, TR_NORM_KIND_LAYER } tr_norm_kind;

/* Dropout by counter (DESIGN section 1): Philox key = `key` (with the sample's high 32 bits mixed in by tr_dropout_key of
 * kernels/dropout.h), counter =
 * (low 32 bits of the global sample, head, query or position, feature / 4), lane = feature mod 4. A value is kept when its 32-bit
 * lane >= threshold (probability * 2^32), and kept values are scaled by 1 / (1 - probability). probability 0 = off. */
typedef struct tr_dropout {
    float probability;
    uint64_t key;            /* hash of (seed, purpose, step, site) */
    const uint64_t *samples; /* [B] global sample number of each sequence of the microbatch */
    int64_t seq_len;         /* T */
} tr_dropout;

/* Attention, causal, grouped-query: query head a uses key/value head a / (A/K). q [B,T,A,D], k and v [B,T,K,D], out [B,T,A,D].
 * S = scale q k^T; P = softmax(S) over keys <= query; out = dropout(P) v. lse[B,A,T] = log sum exp of a row of S (fp32), saved for backward.
 * Scores are never stored. head_offset: global number of this rank's first query head (dropout counter). */
typedef struct tr_attention {
    int64_t B, T, A, K, D;
    tr_dtype dtype;
    float scale;
    int64_t head_offset;
    tr_dropout dropout;
    const void *q, *k, *v;
    void *
        out; /* forward: written; backward: what was written, which only cuDNN's kernels read: its rounding leaves rows of dS that do not sum to zero */
    float *lse; /* forward: written; backward: read */
    /* backward only */
    const void *dout;
    void *dq, *dk, *dv;
    int kv_parts; /* 0 or 1: dk and dv are [B,T,K,D]; else [B,T,K*kv_parts,D], a head's query heads in so many neighbouring parts, each summed and rounded by itself */
} tr_attention;

/* The residual addition and the norm that takes its sum:
 *   out[R,H] = round(x + dropout(y + bias)), as residual_add; normed[R,H], mean[R], rstd[R] = norm_forward(out; weight, norm_bias). */
typedef struct tr_residual_norm {
    tr_norm_kind kind;
    tr_dtype dtype; /* of x, bias, out, weight, norm_bias, normed */
    int64_t R, H;
    int64_t row_begin; /* of the rows in the microbatch */
    const void *x;
    const float *y;
    const void *bias; /* [H], or NULL */
    tr_dropout dropout;
    void *out; /* may be x */
    float eps;
    const void *weight, *norm_bias; /* [H]; norm_bias NULL when there is none */
    void *normed;
    float *mean, *rstd; /* mean unused for RMS, may be NULL */
} tr_residual_norm;

/* What loss_sum adds to: an exact sum of doubles (base/exact_sum.h), then the number of its terms. Zeros are an empty one; limbs of several ranks are added up
 * element by element. */
enum { TR_LOSS_SUM_TOKENS = TR_FIXED_SUM_LIMBS, TR_LOSS_SUM_LIMBS };

/* What a step is decided by: the limbs of the squares of its gradients, then those of its losses. */
enum { TR_STEP_SUMS = TR_SQUARE_SUM_LIMBS + TR_LOSS_SUM_LIMBS };

/* Where a run's updates stand. It lies in the device's memory: `decide` moves it on, and what follows reads there what it needs, so that no number of a step has to
 * go by way of the host, which reads it late. */
typedef struct tr_step_state {
    /* From step to step. */
    double loss_scale;    /* a power of two; 1 where there is none */
    int64_t updates;      /* made so far: Adam's t */
    int64_t good_steps;   /* that were not skipped, since loss_scale last moved */
    int64_t skips_in_row; /* up to now */
    /* Of the last decision. */
    int64_t skipped;     /* not 0: a gradient or a loss was not finite, and nothing changes */
    int64_t tokens;      /* counted ones of the global batch */
    double loss;         /* their mean; NaN when one was not finite */
    double grad_divisor; /* summed gradients divided by it are those of the mean loss */
    double grad_norm;    /* of those, before clipping */
    float grad_scale, lr, bias1, bias2; /* of its update (tr_adamw) */
    float backward_scale; /* what the next backward pass multiplies the sum of losses by */
} tr_step_state;

/* The decision of a step, from the sums of all ranks, which it adds up; `state` has the loss scale that its backward pass had.
 *   divisor = tokens loss_scale / token_scale; norm = sqrt(squares) / divisor; factor = min(1, clip / (norm + 1e-6)); grad_scale = factor / divisor
 * in double, in this order (kernels/decide.h). Dynamic loss scale (Micikevicius et al. 2018): halved after a skip, doubled after growth_interval steps without one,
 * from 1 to 2^24. */
typedef struct tr_decision {
    int num_parts;
    const int64_t *sums; /* [num_parts][TR_STEP_SUMS]: parts of all ranks, or their sum */
    double token_scale;  /* fp16: a power of two that keeps sums over a batch in range; else 1 */
    double clip;         /* largest norm; 0: any */
    int64_t growth_interval; /* 0: the loss scale stays as it is */
    float lr, bias1, bias2;  /* of the update, should it be made: the one after state->updates */
    tr_step_state *state;
} tr_decision;

/* One AdamW step (Loshchilov & Hutter 2019, decoupled decay) over n elements, unless step->skipped:
 *   g = grad * grad_scale; m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g^2;
 *   master = master (1 - lr weight_decay) - lr (m / bias1) / (sqrt(v / bias2) + eps);   bias_i = 1 - beta_i^t
 * with grad_scale, lr and bias_i of *step. compute (may be NULL) receives master rounded to `dtype`. */
typedef struct tr_adamw {
    int64_t n;
    float *master, *m, *v;
    const float *grad;
    const tr_step_state *step;
    float beta1, beta2, eps, weight_decay;
    void *compute;
    tr_dtype dtype;
} tr_adamw;

/* One copy inside the device's memory. */
typedef struct tr_copy {
    void *dst;
    const void *src;
    size_t bytes;
} tr_copy;

typedef struct tr_ops {
    const char *name; /* "cpu", "cuda" */

    tr_status (*matmul)(tr_device *device, const tr_matmul *args);

    /* out[R,H] fp32 = table row of ids[r] when vocab_begin <= ids[r] < vocab_begin + V, else zero (a partial sum of the vocabulary-parallel
     * embedding). table: dtype [V,H]. */
    tr_status (*embed_forward)(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                               int64_t vocab_begin, const int32_t *ids, const void *table,
                               float *out);
    /* out[R,H] = dropout(in[R,H] + positions[(row_begin + r) mod T]) ; positions: dtype [>=T,H] or NULL. dropout->seq_len is T, also when its
     * probability is 0. Rows are row_begin ... of the microbatch. */
    tr_status (*embed_finish)(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const float *in, const void *positions,
                              const tr_dropout *dropout, void *out);
    /* dtable[V,H] (+)= sum over rows r with ids[r] in this rank's range of dx[r], rows in order. */
    tr_status (*embed_backward)(tr_device *device, tr_dtype dtype, int64_t R, int64_t H, int64_t V,
                                int64_t vocab_begin, const int32_t *ids, const void *dx,
                                float *dtable, bool accumulate);
    /* dpositions[T,H] (+)= sum over b of dx[b,t]. */
    tr_status (*position_backward)(tr_device *device, tr_dtype dtype, int64_t B, int64_t T,
                                   int64_t H, const void *dx, float *dpositions, bool accumulate);

    /* RMS (Zhang & Sennrich 2019): y = x rstd w, rstd = 1/sqrt(mean(x^2)+eps). Layer (Ba 2016): y = (x-mean) rstd w + b.
     * x, out: dtype [R,H]; mean, rstd: fp32 [R] (mean unused for RMS, may be NULL); bias NULL when there is none. */
    tr_status (*norm_forward)(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                              int64_t H, float eps, const void *x, const void *weight,
                              const void *bias, void *out, float *mean, float *rstd);
    /* dx[R,H] (dtype) = round(dresidual + d norm / dx (dy)); dy fp32 [R,H]; dresidual dtype [R,H] or NULL (zero), may be dx itself.
     * dweight[H], dbias[H] fp32 (dbias NULL when there is none). */
    tr_status (*norm_backward)(tr_device *device, tr_norm_kind kind, tr_dtype dtype, int64_t R,
                               int64_t H, const float *dy, const void *x, const void *weight,
                               const float *mean, const float *rstd, const void *dresidual,
                               void *dx, float *dweight, float *dbias, bool accumulate);

    /* out[R,H] (dtype) = round(x + dropout(y + bias)); x dtype, y fp32, bias dtype [H] or NULL. row_begin as in embed_finish. out may be x. */
    tr_status (*residual_add)(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                              int64_t row_begin, const void *x, const float *y, const void *bias,
                              const tr_dropout *dropout, void *out);
    /* residual_add, then norm_forward of its sum, with the bits of the two (a GPU reads the sum once less). */
    tr_status (*residual_norm)(tr_device *device, const tr_residual_norm *args);
    /* out[R,H] = dropout mask and scale applied to dy[R,H] (both dtype; out may be dy): the backward of dropout inside residual_add and embed_finish. */
    tr_status (*dropout_backward)(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                  int64_t row_begin, const void *dy, const tr_dropout *dropout,
                                  void *out);
    /* out[N] fp32 (+)= column sums of dy[R,N] (bias gradients), fixed blocks of rows. */
    tr_status (*column_sum)(tr_device *device, tr_dtype dtype, int64_t R, int64_t N, const void *dy,
                            float *out, bool accumulate);

    /* Rotary positions in place on x[B,T,heads,D] (half rotation as in Hugging Face: pairs (j, j + D/2), angle t theta^(-2j/D), cos and sin computed in double,
     * rounded to fp32). backward = true rotates by the negative angle. cos_sin: fp32 [T, D/2, 2] from rope_table. */
    tr_status (*rope)(tr_device *device, tr_dtype dtype, int64_t B, int64_t T, int64_t heads,
                      int64_t D, const float *cos_sin, bool backward, void *x);

    tr_status (*attention_forward)(tr_device *device, const tr_attention *args);
    tr_status (*attention_backward)(tr_device *device, const tr_attention *args);

    /* out = silu(gate) * up; all dtype [n]. Backward: from dout: dgate, dup (may alias gate, up). */
    tr_status (*swiglu_forward)(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                const void *up, void *out);
    tr_status (*swiglu_backward)(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                 const void *up, const void *dout, void *dgate, void *dup);
    /* GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). dx may alias x or dout. */
    tr_status (*gelu_forward)(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                              void *out);
    tr_status (*gelu_backward)(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                               const void *dout, void *dx);

    /* Vocabulary-parallel cross-entropy (Megatron-LM, section 3). logits: dtype [R, V] with row stride `stride` elements, V = real (unpadded) rows of this rank.
     * max: out[r] = max over this rank's V logits (-inf when V = 0). */
    tr_status (*xent_max)(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          const void *logits, float *max);
    /* sum_target[2r] = sum over v of exp(logit - max[r]); sum_target[2r+1] = logit of labels[r] when it lies in this rank's range, else 0. */
    tr_status (*xent_sum)(tr_device *device, tr_dtype dtype, int64_t R, int64_t V, int64_t stride,
                          int64_t vocab_begin, const void *logits, const int32_t *labels,
                          const float *max, float *sum_target);
    /* logits become their gradient in place: *scale (exp(logit - max) / sum - [v == label]) for rows with label >= 0, zero for the others and in the
     * columns V ... stride-1 (padding). max, sum_target: the values of the whole vocabulary. */
    tr_status (*xent_backward)(tr_device *device, tr_dtype dtype, int64_t R, int64_t V,
                               int64_t stride, int64_t vocab_begin, void *logits,
                               const int32_t *labels, const float *max, const float *sum_target,
                               const float *scale);
    /* Adds the cross-entropy log(sum) + max - target of every row with labels[r] >= 0, in double, and the number of these rows to limbs
     * [TR_LOSS_SUM_LIMBS]. max, sum_target: as in xent_backward. */
    tr_status (*loss_sum)(tr_device *device, int64_t R, const int32_t *labels, const float *max,
                          const float *sum_target, int64_t *limbs);

    /* Moves args->state on. Its sums were made by what was enqueued before. */
    tr_status (*decide)(tr_device *device, const tr_decision *args);
    tr_status (*adamw)(tr_device *device, const tr_adamw *args);
    /* master -= lr (grad grad_scale + weight_decay master), unless step->skipped; m, v and Adam's constants are not used. */
    tr_status (*sgd)(tr_device *device, const tr_adamw *args);
    /* Exact sum of squares of x[n], added into the limbs of base/exact_sum.h (TR_SQUARE_SUM_LIMBS int64). */
    tr_status (*square_sum)(tr_device *device, int64_t n, const float *x, int64_t *limbs);

    /* dst[i] = src[i] converted; dtypes fp32, bf16, fp16; same dtype copies. */
    tr_status (*convert)(tr_device *device, int64_t n, tr_dtype src_dtype, const void *src,
                         tr_dtype dst_dtype, void *dst);
    tr_status (*fill_zero)(tr_device *device, void *dst, int64_t bytes);
    /* Makes all copies; none reads or writes what another one writes. Addresses and sizes of any alignment. `copies` is the host's, read before it returns. */
    tr_status (*copy_many)(tr_device *device, int count, const tr_copy *copies);
    /* dst[i] = tree sum over k of src[k][i], fp32, the tree splitting count things at the largest power of two below count (parallel/reduce_tree.h);
     * dst may be one of the sources. count <= TR_REDUCE_MAX. */
    tr_status (*tree_sum)(tr_device *device, int64_t n, int count, const float *const *src,
                          float *dst);
} tr_ops;

enum { TR_REDUCE_MAX = 4096 };

/* Largest sizes that a device's operations will be called with, for the scratch that they need. */
typedef struct tr_workspace_need {
    tr_dtype dtype;
    int64_t B, T, H, A, K, D; /* A, K heads of this rank */
    int64_t max_matmul;       /* largest of all N and K of the products, not counting rows */
} tr_workspace_need;

#ifdef __cplusplus
}
#endif

#endif
