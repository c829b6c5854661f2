/* GPipe (Huang et al. 2019): all forwards, then all backwards. Every microbatch's activations are
 * live in between. Backwards run in microbatch order, so that weight gradients do. */
#include "parallel/schedule_int.h"

void tr_schedule_gpipe(tr_schedule *schedule, int rank)
{
    int total = schedule->num_virtual * schedule->num_microbatches;
    int chunk, microbatch;

    /* Warm-up */
    for (int k = 0; k < total; k++) {
        tr_schedule_group_order(schedule, rank, k, false, &chunk, &microbatch);
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, chunk, microbatch);
    }
    /* Cool-down */
    for (int k = 0; k < total; k++) {
        tr_schedule_group_order(schedule, rank, k, true, &chunk, &microbatch);
        tr_schedule_add_backward(schedule, rank, chunk, microbatch);
    }
}
