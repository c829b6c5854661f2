/* ZB-V (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 6): each rank holds two chunks
 * that lie in a V, so that the last chunk, where backward begins, is on the first rank, which starts
 * first. With F = B = W the ranks idle only where they wait for the first microbatch or for the last
 * rank to end: num_stages - 1 chunk times of a step. At most 2 num_stages chunks are live on every
 * rank: num_stages whole stages, as 1F1B keeps on its first.
 *
 * The lists are those of at least 2 num_stages - 1 microbatches, without the ones that are not
 * there. */
#include "parallel/schedule_int.h"

/* Next microbatch of each action of the two chunks. */
typedef struct progress {
    tr_schedule *schedule;
    int rank;
    int next[2][TR_ACTION_WEIGHT + 1];
} progress;

static void run(progress *at, tr_action_kind kind, int local)
{
    const tr_schedule *schedule = at->schedule;
    int chunk = tr_chunk_number(schedule->placement, schedule->num_stages, at->rank, local);
    tr_schedule_add(at->schedule, at->rank, kind, chunk, at->next[local][kind]++);
}

static void run_backward(progress *at, int local)
{
    run(at, TR_ACTION_BACKWARD, local);
    run(at, TR_ACTION_WEIGHT, local);
}

void tr_schedule_zb_v(tr_schedule *schedule, int rank)
{
    int num_stages = schedule->num_stages, total = schedule->num_microbatches;
    if (total < 2 * num_stages - 1)
        total = 2 * num_stages - 1;
    progress at = {.schedule = schedule, .rank = rank};
    const int *down = at.next[0], *up = at.next[1];

    /* Warm-up: down the V until its other arm brings the first microbatch back, then both arms,
     * then backward on the upper arm. */
    for (int i = 0; i < 2 * (num_stages - rank) - 1; i++)
        run(&at, TR_ACTION_FORWARD, 0);
    for (int i = 0; i < rank; i++) {
        run(&at, TR_ACTION_FORWARD, 1);
        run(&at, TR_ACTION_FORWARD, 0);
    }
    for (int i = 0; i < num_stages - rank; i++) {
        run(&at, TR_ACTION_FORWARD, 1);
        run_backward(&at, 1);
    }
    /* Steady */
    while (up[TR_ACTION_FORWARD] < total) {
        if (down[TR_ACTION_FORWARD] < total)
            run(&at, TR_ACTION_FORWARD, 0);
        run_backward(&at, 0);
        run(&at, TR_ACTION_FORWARD, 1);
        run_backward(&at, 1);
    }
    /* Cool-down: input gradients first, weight gradients where they leave room. */
    for (int i = 0; i < rank; i++) {
        run(&at, TR_ACTION_BACKWARD, 0);
        run(&at, TR_ACTION_BACKWARD, 1);
    }
    for (int i = 0; i < num_stages - rank; i++)
        run_backward(&at, 0);
    while (up[TR_ACTION_WEIGHT] < up[TR_ACTION_BACKWARD])
        run(&at, TR_ACTION_WEIGHT, 1);
    while (down[TR_ACTION_WEIGHT] < down[TR_ACTION_BACKWARD])
        run(&at, TR_ACTION_WEIGHT, 0);
}
