/* The numbers of a step that all ranks decide by: the exact squares of the gradients and the losses, summed in the device's memory and read by the host once.
 *
 * Laid out with the stage, on counting arenas too. One thread. */
#ifndef TR_ENGINE_STEP_SUMS_H
#define TR_ENGINE_STEP_SUMS_H

#include "kernels/device.h"
#include "memory/arena.h"

enum { TR_STEP_SUMS = TR_SQUARE_SUM_LIMBS + TR_LOSS_SUM_LIMBS };

struct tr_world;

typedef struct tr_step_sums {
    tr_device *device;
    struct tr_world *
        world; /* whose deadline the wait for the device keeps (tr_world_synchronize); set after init, NULL: none */
    int64_t *squares; /* [TR_SQUARE_SUM_LIMBS] of the device (square_sum) */
    int64_t *loss;    /* [TR_LOSS_SUM_LIMBS] of the device, behind them (loss_sum) */
    int64_t *
        read; /* [TR_STEP_SUMS] as the host has read them; squares itself where the host shares the device's memory */
} tr_step_sums;

/* host: memory that the host reads and writes (pinned). */
void tr_step_sums_init(tr_step_sums *sums, tr_device *device, tr_arena *memory, tr_arena *host);
/* Sets them to zero; before a step, and before the first pass of an evaluation. */
tr_status tr_step_sums_reset(tr_step_sums *sums);
/* Sets the squares to zero. */
tr_status tr_step_sums_reset_squares(tr_step_sums *sums);
/* What was enqueued so far has made of them, in values [TR_STEP_SUMS]: waits for it. */
tr_status tr_step_sums_get(tr_step_sums *sums, int64_t *values);

#endif
