/* The numbers that all ranks decide a step by (kernels/ops.h, TR_STEP_SUMS): the exact squares of the gradients and the losses, summed in the device's memory.
 *
 * Laid out with the stage, on counting arenas too. One thread. */
#ifndef TR_ENGINE_STEP_SUMS_H
#define TR_ENGINE_STEP_SUMS_H

#include "kernels/device.h"
#include "memory/arena.h"
#include "parallel/group.h"

struct tr_world;

typedef struct tr_step_sums {
    tr_device *device;
    struct tr_world *
        world; /* whose deadline the wait for the device keeps (tr_world_synchronize); set after init, NULL: none */
    int64_t *squares; /* [TR_SQUARE_SUM_LIMBS] of the device: this rank's (square_sum) */
    int64_t *loss;    /* [TR_LOSS_SUM_LIMBS] of the device, behind them (loss_sum) */
    int num_parts;
    int64_t *
        parts; /* [num_parts][TR_STEP_SUMS] of the device: those of all ranks, or their sum where the host adds; squares itself where this rank is alone */
    int64_t *host; /* [TR_STEP_SUMS] on their way; NULL where the host shares the device's memory */
    int64_t *counts; /* [num_parts] of a gather */
    tr_event gathered;
} tr_step_sums;

/* comm: what peers read; memory: of the device; host: memory that the host reads and writes (pinned). */
void tr_step_sums_init(tr_step_sums *sums, int num_ranks, tr_device *device, tr_arena *comm,
                       tr_arena *memory, tr_arena *host);
void tr_step_sums_clear(tr_step_sums *sums);
/* Sets this rank's to zero; before a step, and before the first pass of an evaluation. */
tr_status tr_step_sums_reset(tr_step_sums *sums);
/* Sets the squares to zero. */
tr_status tr_step_sums_reset_squares(tr_step_sums *sums);
/* Collective: makes `parts` of what was enqueued so far on all ranks. all: their group, of the device where that has its own memory; then it only enqueues. NULL: this
 * rank is alone. */
tr_status tr_step_sums_join(tr_step_sums *sums, tr_group *all);
/* What was enqueued so far has made of this rank's, in values [TR_STEP_SUMS]: waits for it. */
tr_status tr_step_sums_get(tr_step_sums *sums, int64_t *values);

#endif
