/* Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each rank holds several chunks and goes
 * through them in groups of num_stages microbatches, which divides the idle time by num_virtual.
 * Where the microbatches are no multiple of the stages, groups hold a few more: a smaller group
 * would leave the first rank waiting for the last one at each turn of chunks. Warm-up is as long as
 * the largest group needs. */
#include "parallel/schedule_int.h"

void tr_schedule_interleaved(tr_schedule *schedule, int rank)
{
    int num_stages = schedule->num_stages, num_virtual = schedule->num_virtual;
    int total = num_virtual * schedule->num_microbatches;
    int group = tr_schedule_group_most(num_stages, schedule->num_microbatches);
    int warmup = 2 * (num_stages - rank - 1) + (num_virtual - 1) * group;
    if (warmup > total)
        warmup = total;
    int chunk, microbatch;

    /* Warm-up */
    for (int k = 0; k < warmup; k++) {
        tr_schedule_group_order(schedule, rank, k, false, &chunk, &microbatch);
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, chunk, microbatch);
    }
    /* Steady */
    for (int k = warmup; k < total; k++) {
        tr_schedule_group_order(schedule, rank, k, false, &chunk, &microbatch);
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, chunk, microbatch);
        tr_schedule_group_order(schedule, rank, k - warmup, true, &chunk, &microbatch);
        tr_schedule_add_backward(schedule, rank, chunk, microbatch);
    }
    /* Cool-down */
    for (int k = total - warmup; k < total; k++) {
        tr_schedule_group_order(schedule, rank, k, true, &chunk, &microbatch);
        tr_schedule_add_backward(schedule, rank, chunk, microbatch);
    }
}
