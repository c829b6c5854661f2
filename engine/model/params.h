/* The parameter table: one row per parameter of the whole model (DESIGN section 3).
 *
 * A row says all that layout, initialisation, reduction, norm, checkpoints and the byte plan need to know; nothing in it depends on the
 * layout. Rows stand in model order: embedding, positions, layers, final norm, head. Names are Hugging Face's, with GPT-2's fused
 * c_attn as its three parts and every matrix [out, in]. */
#ifndef TR_ENGINE_MODEL_PARAMS_H
#define TR_ENGINE_MODEL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/config/config.h"

/* What the model's code calls a parameter. NORM1 stands before attention, NORM2 before the MLP. GATE is the SwiGLU gate; UP the other
 * (or GELU's only) first product. */
typedef enum tr_param_role {
    TR_ROLE_EMBED,
    TR_ROLE_POSITION,
    TR_ROLE_NORM1_WEIGHT,
    TR_ROLE_NORM1_BIAS,
    TR_ROLE_Q_WEIGHT,
    TR_ROLE_Q_BIAS,
    TR_ROLE_K_WEIGHT,
    TR_ROLE_K_BIAS,
    TR_ROLE_V_WEIGHT,
    TR_ROLE_V_BIAS,
    TR_ROLE_O_WEIGHT,
    TR_ROLE_O_BIAS,
    TR_ROLE_NORM2_WEIGHT,
    TR_ROLE_NORM2_BIAS,
    TR_ROLE_GATE_WEIGHT,
    TR_ROLE_GATE_BIAS,
    TR_ROLE_UP_WEIGHT,
    TR_ROLE_UP_BIAS,
    TR_ROLE_DOWN_WEIGHT,
    TR_ROLE_DOWN_BIAS,
    TR_ROLE_FINAL_NORM_WEIGHT,
    TR_ROLE_FINAL_NORM_BIAS,
    TR_ROLE_HEAD,
    TR_ROLE_NUM
} tr_param_role;

/* How tensor ranks cut a parameter. HEADS: rows in units of head_dim, one unit per query head; KV_HEADS the same for key/value heads, which several
 * ranks share when there are fewer heads than ranks; VOCAB: rows, padded to equal shares. */
typedef enum tr_param_cut {
    TR_CUT_REPLICATED,
    TR_CUT_ROWS,
    TR_CUT_COLUMNS,
    TR_CUT_HEADS,
    TR_CUT_KV_HEADS,
    TR_CUT_VOCAB
} tr_param_cut;

typedef enum tr_param_init { TR_INIT_NORMAL, TR_INIT_ONES, TR_INIT_ZEROS } tr_param_init;

typedef struct tr_param {
    char name[96];
    tr_param_role role;
    int layer;        /* -1 outside the layers */
    int num_dims;     /* 1 or 2 */
    int64_t shape[2]; /* global, unpadded; shape[1] is 1 for vectors */
    tr_param_cut cut;
    tr_param_init init;
    double init_std; /* of TR_INIT_NORMAL */
    bool decay;      /* weight decay: matrices and embeddings, never norms and biases */
    bool
        row_partial; /* under sequence parallel each tensor rank sees only its rows, so gradients are summed over the tensor group */
    int tied_to;     /* index of the row that owns master and moments, or -1 */
} tr_param;

typedef struct tr_param_table {
    tr_param *rows;
    int num_rows;
    int64_t num_elements; /* unpadded, tied ones counted once */
} tr_param_table;

/* From a resolved configuration's model section. Initialisation: std init_std; the products that write to the residual stream (O, DOWN) init_std / sqrt(2 L) (GPT-2, Radford 2019). */
void tr_param_table_init(tr_param_table *table, const tr_config *cfg);
void tr_param_table_clear(tr_param_table *table);

/* Model FLOPs per token of forward and backward (the numerator of mfu): 6 x (parameters without embedding look-ups, with the head) + 12 x L x A x D x T. */
double tr_model_flops_per_token(const tr_config *cfg);

#endif
