#include "parallel/clock_offset.h"

#include <math.h>

#include "base/clock.h"

enum { NUM_ROUNDS = 16 };

tr_status tr_group_clock_offset(tr_group *group, double *offset, double *error)
{
    double best_offset = 0, best_error = HUGE_VAL;
    for (int i = 0; i < NUM_ROUNDS; i++) {
        double before = tr_clock_seconds();
        /* Rank 0 comes out of the barrier after this rank has gone in, and reads its clock then. */
        TR_TRY(tr_group_barrier(group));
        double there = tr_clock_seconds();
        TR_TRY(tr_group_broadcast(group, 0, &there, sizeof there));
        double after = tr_clock_seconds();
        if (0.5 * (after - before) < best_error) {
            best_error = 0.5 * (after - before);
            best_offset = 0.5 * (after + before) - there;
        }
    }
    bool is_first = tr_group_rank(group) == 0;
    *offset = is_first || fabs(best_offset) <= best_error ? 0 : best_offset;
    *error = is_first ? 0 : best_error;
    return TR_OK;
}
