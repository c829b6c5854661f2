/* Forward only, for evaluation: every chunk keeps one microbatch at a time. */
#include "parallel/schedule_int.h"

void tr_schedule_forward_only(tr_schedule *schedule, int rank)
{
    int total = schedule->num_virtual * schedule->num_microbatches;
    for (int k = 0; k < total; k++) {
        int chunk, microbatch;
        tr_schedule_group_order(schedule, rank, k, false, &chunk, &microbatch);
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, chunk, microbatch);
    }
}

/* A rank goes on down the V until the upper arm brings the first microbatch back, then takes the
 * two in turn. */
void tr_schedule_forward_v(tr_schedule *schedule, int rank)
{
    int num_stages = schedule->num_stages, num_microbatches = schedule->num_microbatches;
    int ahead = 2 * (num_stages - rank) - 1;
    int up = tr_chunk_number(schedule->placement, num_stages, rank, 1);
    for (int m = 0; m < ahead; m++)
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, rank, m);
    for (int m = 0; m < num_microbatches; m++) {
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, up, m);
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, rank, m + ahead);
    }
}
