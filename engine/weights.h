/* The weights of one rank in the compute dtype: where they lie, and how updated ones get to all who read them.
 *
 * A pass works with one unit at a time (engine/model/local_params.h): it acquires the unit, and may read its weights until it acquires the next one. Who
 * holds what is one of
 *   WHOLE    ZeRO 0, or no one to share with: a rank updates and holds all.
 *   SPREAD   ZeRO 1 and 2: a rank updates its intervals and holds all. After an update the intervals are gathered in the order in which a forward pass reads them,
 *            under the next pass's arithmetic (parallel.overlap), or at once. Their sources are made from the masters when they are sent.
 *   SHARDED  ZeRO 3: a rank holds its intervals only. The units of a pass are gathered in the order in which its actions use them, a little ahead, into one
 *            place for all units, and given up with the next. A unit that is used twice in a row is gathered once.
 * The order of a pass is known from the schedule's action lists. The tied head of another stage gets its weights here too (engine/tied.h). Between passes nothing is under
 * way. One thread; all ranks make the same calls. */
#ifndef TR_ENGINE_WEIGHTS_H
#define TR_ENGINE_WEIGHTS_H

#include "engine/tied.h"
#include "kernels/device.h"
#include "parallel/param_gather.h"
#include "parallel/schedule.h"

typedef enum tr_weights_kind {
    TR_WEIGHTS_WHOLE,
    TR_WEIGHTS_SPREAD,
    TR_WEIGHTS_SHARDED
} tr_weights_kind;

/* The units of a pass in the order of their use. */
typedef struct tr_weight_uses {
    int *units;
    int num;
} tr_weight_uses;

typedef struct tr_weights {
    tr_weights_kind kind;
    const tr_config *cfg;
    const tr_local_params *local;
    tr_device *device;
    tr_tied *tied;
    const float *master;
    size_t item_bytes; /* of an element */
    void *memory;      /* all items, or SHARDED: this rank's intervals, in communication memory */
    int64_t *offsets;  /* SHARDED: [items] elements into memory */
    void **places;     /* [items] where the model reads an item while its unit is acquired */
    tr_param_gather gather;
    int *tensor_items;      /* [tensors of gather] item numbers */
    int *unit_piece;        /* SPREAD: [num_units + 1] first piece of a unit */
    int *spread_order;      /* SPREAD: all pieces */
    tr_weight_uses uses[2]; /* SHARDED: of a training pass, of an evaluation */
    bool changed;           /* an update is not yet on its way */
    int num_missing;        /* SPREAD: the first units, which are still to be gathered */
    int held;               /* SHARDED: unit at its places, or -1 */
} tr_weights;

tr_weights_kind tr_weights_kind_of(const tr_config *cfg, const tr_mesh *mesh);

/* Lays everything out: `arenas` [TR_MEM_NUM]. schedule, evaluation: the lists of the two kinds of pass. master: [local->num_state]. All are kept. */
void tr_weights_init(tr_weights *weights, const tr_config *cfg, const tr_mesh *mesh,
                     const tr_local_params *local, tr_device *device, const float *master,
                     tr_tied *tied, const tr_schedule *schedule, const tr_schedule *evaluation,
                     tr_arena *arenas);
void tr_weights_clear(tr_weights *weights);

/* Where an item's weights are read while its unit is acquired: `count` elements. */
void *tr_weights_place(const tr_weights *weights, const tr_local_param *item);
/* Where whoever changes this rank's interval [state_begin, state_end) of an item puts it in the compute dtype; NULL: nowhere, it is made from the master later. */
void *tr_weights_target(const tr_weights *weights, const tr_local_param *item);
/* After masters and targets changed. Without overlap it all happens here, else from the next pass on. */
tr_status tr_weights_changed(tr_weights *weights);

/* Around a pass; between them each unit is acquired in the order of the pass's actions: forward from the embedding to the head, backward the other way without
 * the embedding. `unit`: as tr_param_unit. */
tr_status tr_weights_pass_begin(tr_weights *weights, bool training);
tr_status tr_weights_acquire(tr_weights *weights, int unit);
tr_status tr_weights_pass_end(tr_weights *weights);

/* Bytes that this rank sends to gather weights for one training step, with one update before it. */
int64_t tr_weights_step_bytes(const tr_weights *weights);

#endif
