/* ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.2): 1F1B whose weight
 * gradients wait. Rank r runs its W r microbatches behind its B, which lets gradients travel
 * without stopping for W, fills the end of the step with W, and keeps min(M, num_stages)
 * microbatches live on every rank: as many as 1F1B keeps on the first. Where W is no longer than F a
 * device idles (num_stages - 1)(F + B - W) of a step. */
#include "parallel/schedule_int.h"

void tr_schedule_zb_h1(tr_schedule *schedule, int rank)
{
    int num_microbatches = schedule->num_microbatches;
    int warmup = schedule->num_stages - rank, behind = rank;

    /* Warm-up */
    for (int m = 0; m < warmup; m++)
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, rank, m);
    /* Steady */
    for (int m = 0; m < num_microbatches; m++) {
        tr_schedule_add(schedule, rank, TR_ACTION_BACKWARD, rank, m);
        if (m >= behind)
            tr_schedule_add(schedule, rank, TR_ACTION_WEIGHT, rank, m - behind);
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, rank, m + warmup);
    }
    /* Cool-down */
    int first = num_microbatches > behind ? num_microbatches - behind : 0;
    for (int m = first; m < num_microbatches; m++)
        tr_schedule_add(schedule, rank, TR_ACTION_WEIGHT, rank, m);
}
