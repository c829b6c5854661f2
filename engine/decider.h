/* What a stage decides its steps with: the state of the run's updates in the device's memory (kernels/ops.h, tr_step_state), and what the host knows of it.
 *
 * The decision is an operation, enqueued behind the sums that it reads and before the update that reads it; the host goes on, and waits for its outcome once all of the
 * step is enqueued. It waits in the same step: learning rate and bias corrections of an update are powers and cosines, made by the host for the number of updates that it knows. Every
 * rank decides the same from the same sums. Laid out with the stage, on counting arenas too. One thread. */
#ifndef TR_ENGINE_DECIDER_H
#define TR_ENGINE_DECIDER_H

#include "engine/config/config.h"
#include "kernels/device.h"
#include "memory/arena.h"

typedef struct tr_decider {
    const tr_config *cfg;
    tr_device *device;
    tr_step_state *state; /* the device's */
    tr_step_state *
        known; /* what the host has read or set last; state itself where the host shares the device's memory */
    tr_device_event *arrived; /* behind the last copy to `known`; NULL where nothing is copied */
} tr_decider;

/* host: memory that the host reads and writes (pinned). */
void tr_decider_init(tr_decider *decider, const tr_config *cfg, tr_device *device, tr_arena *memory,
                     tr_arena *host);
/* After init on real arenas: a run's state before its first step. */
tr_status tr_decider_connect(tr_decider *decider);
void tr_decider_clear(tr_decider *decider);

/* Whether the loss scale moves (fp16, train.loss_scale=0). */
bool tr_decider_is_dynamic(const tr_config *cfg);
/* Before the first step; a dynamic loss scale starts at 2^16. */
tr_step_state tr_decider_first_state(const tr_config *cfg);
/* Not between a decision and its outcome. backward_scale is made from the rest. */
tr_status tr_decider_set_state(tr_decider *decider, const tr_step_state *state);

/* Enqueues the decision of step number `step` (from 1) from sums [num_parts][TR_STEP_SUMS] of all ranks, in the device's memory. Once the event `arrived` is reached, `known`
 * is its outcome; at once where there is no event. */
tr_status tr_decider_decide(tr_decider *decider, int64_t step, const int64_t *sums, int num_parts);

#endif
