/* The optimizer of one rank: fp32 master weights and moments of its share; engine/weights.h takes what changed to all who read it.
 *
 * A tied head has no state: its gradient, reduced on the stage that used it, is added to the embedding's on the first stage.
 * One thread; all ranks make the same calls. */
#ifndef TR_ENGINE_OPTIMIZER_H
#define TR_ENGINE_OPTIMIZER_H

#include "engine/stage.h"

typedef struct tr_optimizer {
    tr_stage *stage;
} tr_optimizer;

void tr_optimizer_init(tr_optimizer *optimizer, tr_stage *stage);

/* After tr_stage_train: adds a tied head's gradient to the embedding's. Posted between first and last stage. */
tr_status tr_optimizer_tie_gradients(tr_optimizer *optimizer);
/* Adds the exact squares of this rank's share of the gradients, each parameter once over all ranks, to the stage's sums. */
tr_status tr_optimizer_square_sum(tr_optimizer *optimizer);
/* Enqueues the update that the stage's decision wants, if it wants one; the next pass has the new weights. */
tr_status tr_optimizer_update(tr_optimizer *optimizer);
/* Weights of the next pass from masters (after initialisation or a load). */
tr_status tr_optimizer_spread(tr_optimizer *optimizer);
/* *row: of the first parameter in this rank's share with a non-finite gradient, or -1. The stage's squares are lost. */
tr_status tr_optimizer_find_non_finite(tr_optimizer *optimizer, int *row);

#endif
