#include "parallel/launcher.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

/* The variable's value, 0 when it is not set or no positive number. */
static long number_of(const char *variable)
{
    const char *text = getenv(variable);
    long number = text != NULL ? strtol(text, NULL, 10) : 0;
    return number > 0 ? number : 0;
}

static tr_status check_open_mpi(int world_size)
{
    long started = number_of("OMPI_COMM_WORLD_SIZE");
    if (started <= 1 || started == world_size)
        return TR_OK;
    return tr_fail(
        TR_ERR_TRANSPORT,
        "Open MPI's mpirun started %ld ranks, but MPI sees %d: trine was built with another MPI\n"
        "start it with the mpiexec of the MPI it was built with (ldd trine; for MPICH: "
        "mpiexec.hydra -n %ld trine ...)",
        started, world_size, started);
}

static tr_status check_pmi(int world_size, bool *known)
{
    long started = number_of("PMI_SIZE");
    *known = started > 0;
    if (started == 0 || started == world_size)
        return TR_OK;
    return tr_fail(TR_ERR_TRANSPORT,
                   "the launcher started %ld ranks (PMI_SIZE), but MPI sees %d: launcher and MPI "
                   "library do not fit\n"
                   "start trine with the mpiexec of the MPI it was built with, or under Slurm "
                   "with: srun -K --mpi=pmi2 trine ...",
                   started, world_size);
}

tr_status tr_launcher_check(int world_size)
{
    TR_TRY(check_open_mpi(world_size));
    bool pmi_known = false;
    TR_TRY(check_pmi(world_size, &pmi_known));
    if (world_size > 1 || pmi_known)
        return TR_OK;
    /* A batch script carries SLURM_NTASKS too; only what srun started has a step. */
    long tasks = number_of("SLURM_STEP_NUM_TASKS");
    tasks = tasks > 0 ? tasks : number_of("SLURM_NTASKS");
    if (getenv("SLURM_STEP_ID") == NULL || tasks <= 1)
        return TR_OK;
    return tr_fail(TR_ERR_TRANSPORT,
                   "srun started %ld tasks, but each of them is alone: MPI sees 1 rank (srun's "
                   "--mpi does not fit the MPI library)\n"
                   "run: srun -K --mpi=pmi2 -n %ld trine ..., or mpiexec -n %ld trine ... inside "
                   "the allocation",
                   tasks, tasks, tasks);
}

void tr_launcher_follow(void)
{
    if (getenv("HYDI_CONTROL_FD") != NULL)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
}
