/* Faults of the launcher: ranks that were started together but do not know of each other, or that it leaves behind. */
#ifndef TR_PARALLEL_LAUNCHER_H
#define TR_PARALLEL_LAUNCHER_H

#include "base/status.h"

/* Compares the ranks that MPI sees (`world_size`, of MPI_COMM_WORLD) with what the launcher's environment says it started: Slurm,
 * PMI and Open MPI. TR_ERR_TRANSPORT with what was seen and what to run instead when this process is a singleton by mistake. */
tr_status tr_launcher_check(int world_size);

/* Under Hydra's mpiexec: this process is killed when the process that started it ends. Hydra's proxy can end at an abort before it
 * has killed all its ranks; one that waits inside MPI would stay for ever, and mpiexec with it. Elsewhere nothing changes: other launchers start ranks from
 * threads, whose end would count as theirs. To be called first, before MPI is. */
void tr_launcher_follow(void);

#endif
