/* The numbers that all ranks decide a step by (kernels/ops.h, TR_STEP_SUMS): the exact squares of the gradients and the losses, summed in the device's memory.
 *
 * Laid out with the stage, on counting arenas too. One thread. */
#ifndef TR_ENGINE_STEP_SUMS_H
#define TR_ENGINE_STEP_SUMS_H

#include "kernels/device.h"
#include "memory/arena.h"

struct tr_world;

typedef struct tr_step_sums {
    tr_device *device;
    struct tr_world *
        world; /* whose deadline the wait for the device keeps (tr_world_synchronize); set after init, NULL: none */
    int64_t *squares; /* [TR_SQUARE_SUM_LIMBS] of the device: this rank's (square_sum) */
    int64_t *loss;    /* [TR_LOSS_SUM_LIMBS] of the device, behind them (loss_sum) */
    int64_t *
        total; /* [TR_STEP_SUMS] of the device: of all ranks; squares itself where this rank is alone */
    int64_t *host; /* [TR_STEP_SUMS] on their way; NULL where the host shares the device's memory */
} tr_step_sums;

/* host: memory that the host reads and writes (pinned). */
void tr_step_sums_init(tr_step_sums *sums, bool alone, tr_device *device, tr_arena *memory,
                       tr_arena *host);
/* Sets this rank's to zero; before a step, and before the first pass of an evaluation. */
tr_status tr_step_sums_reset(tr_step_sums *sums);
/* Sets the squares to zero. */
tr_status tr_step_sums_reset_squares(tr_step_sums *sums);
/* What was enqueued so far has made of this rank's, in values [TR_STEP_SUMS]: waits for it. */
tr_status tr_step_sums_get(tr_step_sums *sums, int64_t *values);
/* Where this rank is not alone: enqueues total = values [TR_STEP_SUMS], which have been read when it returns. After a tr_step_sums_get. */
tr_status tr_step_sums_set_total(tr_step_sums *sums, const int64_t *values);

#endif
