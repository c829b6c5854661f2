/* The parameters of one rank: its cut of each row of the table that its chunks hold, and their places in the flat buffers.
 *
 * Order is the order in which backward finishes gradients: the rank's chunks from the last to the first, inside a chunk from the head to the embedding. Forward
 * passes read them in the opposite order. What a pass works with at a time is a unit: a layer, the embedding with its positions, or the head with its norm. Every
 * parameter starts at a 256-byte boundary of the compute copy and of the fp32 gradients. */
#ifndef TR_ENGINE_MODEL_LOCAL_PARAMS_H
#define TR_ENGINE_MODEL_LOCAL_PARAMS_H

#include "engine/model/params.h"
#include "parallel/mesh.h"

typedef struct tr_local_param {
    const tr_param *param;
    int table_row;
    int chunk;                    /* local number of the chunk on this rank */
    int64_t rows, cols;           /* local, with padding */
    int64_t valid_rows;           /* rows that exist in the global tensor */
    int64_t row_begin, col_begin; /* place in the global tensor */
    int64_t count;                /* rows * cols */
    int64_t offset;               /* elements into the gradients */
    int64_t
        weight_offset; /* elements into the compute copy; a tied head on the embedding's rank shares its copy */
    int64_t state_begin,
        state_end; /* interval whose master and moments this rank holds and updates, elements of the local tensor (zero 0: all of it) */
    int64_t shard_begin,
        shard_end; /* part of it that this rank alone of all data ranks counts in the norm and saves */
    int64_t state_offset; /* elements into master and moments; -1 when tied (state is elsewhere) */
    int num_replicas;     /* tensor ranks that hold the same cut */
    bool counted;         /* this tensor rank counts it in the norm and saves it */
    int unit;             /* number of its unit among this rank's */
} tr_local_param;

/* Elements of the interval that this rank holds. */
static inline int64_t tr_local_param_held(const tr_local_param *item)
{
    return item->state_end - item->state_begin;
}

/* A unit is named by its layer, or as one of these. */
enum { TR_UNIT_HEAD = -1, TR_UNIT_EMBEDDING = -2 };

typedef struct tr_local_params {
    tr_local_param *items;
    int num_items;
    int64_t num_elements; /* of the gradients, with alignment gaps */
    int64_t num_weights;  /* of the compute copy, with alignment gaps */
    int64_t num_state;    /* elements of master (and of each moment) */
    int num_chunks;       /* on this rank */
    int *chunk_first,
        *chunk_items; /* [num_chunks] first item and number of items of a local chunk */
    int num_units;
    int *unit_first; /* [num_units + 1] first item of a unit */
} tr_local_params;

/* cfg: resolved; mesh: of one rank (tr_config_mesh). Pure but for set-up memory. */
void tr_local_params_init(tr_local_params *local, const tr_param_table *table, const tr_config *cfg,
                          const tr_mesh *mesh);
void tr_local_params_clear(tr_local_params *local);

/* The item of a role in a layer (-1: outside layers) or NULL. */
const tr_local_param *tr_local_param_find(const tr_local_params *local, tr_param_role role,
                                          int layer);

/* The unit that a parameter belongs to. */
int tr_param_unit(const tr_param *param);
/* Index of a unit among those of this rank, or -1. */
int tr_local_unit(const tr_local_params *local, int unit);

/* Rows of the vocabulary on a tensor rank: equal shares, of whole slices where train.tensor_slices is on; the last ones may be padding. */
int64_t tr_vocab_rows(const tr_config *cfg, int64_t tensor_size);

/* Tensor ranks that hold the same key/value heads. */
int tr_kv_sharers(const tr_config *cfg, int tensor_size);

/* First layer of a global chunk. */
int tr_chunk_first_layer(const tr_config *cfg, int chunk);

#endif
