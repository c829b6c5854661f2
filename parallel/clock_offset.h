/* How far the clocks of the ranks are apart. */
#ifndef TR_PARALLEL_CLOCK_OFFSET_H
#define TR_PARALLEL_CLOCK_OFFSET_H

#include "parallel/group.h"

/* *offset: what this rank's tr_clock_seconds is ahead of the group's rank 0's; *error: at most so far off, in seconds. Takes the shortest of a few
 * round trips: rank 0 reads its clock between two moments of this rank, and the reading is taken for the middle of the two. Where zero lies
 * within the error the offset is zero: clocks of one machine are one. Clocks of two machines drift apart by some microseconds a second, so measure
 * near what is compared. Collective over the group. */
tr_status tr_group_clock_offset(tr_group *group, double *offset, double *error);

#endif
