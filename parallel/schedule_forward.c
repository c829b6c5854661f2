/* Forward only, for evaluation: every chunk keeps one microbatch at a time. */
#include "parallel/schedule_int.h"

void tr_schedule_forward_only(tr_schedule *schedule, int rank)
{
    int total = schedule->num_virtual * schedule->num_microbatches;
    for (int k = 0; k < total; k++) {
        int chunk, microbatch;
        tr_schedule_group_order(schedule, rank, k, false, &chunk, &microbatch);
        tr_schedule_add_forward(schedule, rank, chunk, microbatch);
    }
}
