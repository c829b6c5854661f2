/* Faults of the launcher: ranks that were started together but do not know of each other. */
#ifndef TR_PARALLEL_LAUNCHER_H
#define TR_PARALLEL_LAUNCHER_H

#include "base/status.h"

/* Compares the ranks that MPI sees (`world_size`, of MPI_COMM_WORLD) with what the launcher's environment says it started: Slurm,
 * PMI and Open MPI. TR_ERR_TRANSPORT with what was seen and what to run instead when this process is a singleton by mistake. */
tr_status tr_launcher_check(int world_size);

#endif
