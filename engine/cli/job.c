#include "engine/cli/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "io/status_file.h"
#include "parallel/launcher.h"

enum { FINALIZE_SECONDS = 30 };

static volatile sig_atomic_t end_code;

static void end_anyway(int number)
{
    static const char text[] = "warning: MPI_Finalize does not return; this rank ends without it\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(end_code);
}

/* The end of all ranks together: the one that `speaks` says what was wrong, and MPI is finalised. That waits for all ranks and their
 * messages, with some networks for ever: nothing is lost by then, so that each rank goes by itself after a while. */
static tr_status finish(tr_job *job, tr_status status, bool speaks)
{
    double limit = job->cfg.parallel.timeout_s;
    if (speaks && status != TR_OK && status != TR_STOPPED)
        tr_log_error("%s", tr_error_message());
    tr_cli_quiet();
    fflush(stdout);
    tr_config_clear(&job->cfg);
    end_code = tr_status_exit_code(status);
    signal(SIGALRM, end_anyway);
    alarm(limit >= 1 && limit < FINALIZE_SECONDS ? (unsigned)limit : FINALIZE_SECONDS);
    MPI_Finalize();
    alarm(0);
    return status;
}

tr_status tr_job_check(tr_job *job, tr_status status)
{
    struct {
        int rank, status;
    } own = {status != TR_OK ? job->rank : job->size, (int)status}, first;
    MPI_Allreduce(&own, &first, 1, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
    if (first.rank == job->size)
        return TR_OK;
    return finish(job, (tr_status)first.status, job->rank == first.rank);
}

tr_status tr_job_start(tr_job *job)
{
    *job = (tr_job){0};
    tr_launcher_follow();
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS)
        return tr_fail(TR_ERR_TRANSPORT, "MPI_Init failed; start trine with mpiexec -n RANKS");
    MPI_Comm_rank(MPI_COMM_WORLD, &job->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job->size);
    tr_log_init(job->rank, job->rank == 0, TR_LOG_INFO);
    return tr_job_check(job, tr_launcher_check(job->size));
}

tr_status tr_job_read(tr_job *job, int argc, char **argv, bool needs_data)
{
    return tr_job_check(job, tr_cli_config_read(&job->cfg, argc, argv, needs_data));
}

tr_status tr_job_resolve(tr_job *job)
{
    TR_TRY(tr_job_check(job, tr_config_resolve(&job->cfg, job->size)));
    if (job->rank == 0)
        tr_cli_config_warn(&job->cfg);
    return TR_OK;
}

tr_status tr_job_override(tr_job *job, const char *assignment)
{
    return tr_job_check(job, tr_config_override(&job->cfg, assignment));
}

tr_status tr_job_resume_settings(tr_job *job)
{
    return tr_job_check(job, tr_checkpoint_peek(&job->cfg, job->size));
}

tr_status tr_job_load_weights(tr_job *job)
{
    bool resumed;
    TR_TRY(tr_run_resume(job->run, &resumed));
    if (!resumed)
        return tr_fail(TR_ERR_CHECKPOINT,
                       "no checkpoint found in %s; train first, or name one with "
                       "checkpoint.resume=PATH",
                       tr_run_config(job->run)->checkpoint.dir);
    return TR_OK;
}

tr_status tr_job_end(tr_job *job, tr_status status)
{
    tr_run_close(job->run);
    tr_free(job->status_path);
    return finish(job, status, job->rank == 0);
}

void tr_job_abort(tr_job *job, tr_status status)
{
    /* Waits are each rank's own story, and end on all ranks at about the same time; everything else may be a lower rank's to tell. */
    double delay = job->rank > 0 ? 1.0 + 0.1 * job->rank : 0;
    if (status == TR_ERR_TIMEOUT) {
        tr_log_warning("%s", tr_error_message());
        delay += 1.0;
    }
    if (delay > 0)
        tr_clock_sleep(delay < 4.0 ? delay : 4.0);
    tr_log_error("%s", tr_error_message());
    tr_log_debug("passed %s", tr_error_trail());
    if (job->status_path != NULL) {
        const tr_status_record record = {
            .state = TR_RUN_FAILED,
            .code = tr_status_exit_code(status),
            .rank = job->rank,
            .reason = tr_error_message(),
            .step = job->run != NULL ? (uint64_t)tr_run_steps_done(job->run) : 0};
        tr_status_file_write(job->status_path, &record);
    }
    fflush(stdout);
    if (job->size == 1) /* nobody else to end, and no need for MPI's own words */
        _exit(tr_status_exit_code(status));
    /* A launcher may drop what it has not yet read of a rank's output when it hears of the abort. */
    tr_clock_sleep(0.2);
    MPI_Abort(MPI_COMM_WORLD, tr_status_exit_code(status));
    abort();
}
