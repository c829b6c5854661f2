/* 1F1B with a flush (PipeDream-flush, Narayanan et al. 2021): a rank runs as many forwards ahead as
 * there are stages after it, then one forward and one backward in turn. At most min(M, num_stages -
 * rank) microbatches are live. */
#include "parallel/schedule_int.h"

void tr_schedule_1f1b(tr_schedule *schedule, int rank)
{
    int num_microbatches = schedule->num_microbatches;
    int warmup = schedule->num_stages - rank - 1;
    if (warmup > num_microbatches)
        warmup = num_microbatches;

    /* Warm-up */
    for (int m = 0; m < warmup; m++)
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, rank, m);
    /* Steady */
    for (int m = warmup; m < num_microbatches; m++) {
        tr_schedule_add(schedule, rank, TR_ACTION_FORWARD, rank, m);
        tr_schedule_add_backward(schedule, rank, rank, m - warmup);
    }
    /* Cool-down */
    for (int m = num_microbatches - warmup; m < num_microbatches; m++)
        tr_schedule_add_backward(schedule, rank, rank, m);
}
