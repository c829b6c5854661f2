/* A job: what the verbs that run under mpiexec share. MPI, the configuration on every rank, and one way to fail.
 *
 * Settings are read by every rank for itself, and most errors in them are seen by all. Some are not: a file that one node lacks, standard input, which rank 0 alone has. So the ranks agree
 * after each such step: the lowest one that failed reports, and all end with its code. Later failures may be one rank's own: it
 * speaks and ends the job with MPI_Abort. One thread. */
#ifndef TR_ENGINE_CLI_JOB_H
#define TR_ENGINE_CLI_JOB_H

#include <mpi.h>

#include "engine/cli/cli.h"
#include "engine/trine.h"

typedef struct tr_job {
    int rank, size;
    tr_config cfg;     /* read; resolved by tr_job_resolve */
    char *status_path; /* status.json to write on failure; NULL: none */
    tr_run *run;       /* for the step in status.json; NULL before it is open */
} tr_job;

/* MPI_Init; the launcher is checked. On failure MPI is finalised. */
tr_status tr_job_start(tr_job *job);
/* Collective: TR_OK where every rank brings TR_OK. Else the lowest rank that failed is the one that main lets speak, MPI is finalised, and every rank returns that rank's status. */
tr_status tr_job_check(tr_job *job, tr_status status);
/* The configuration of argv (VERB CONFIG [key=value ...]), not yet resolved; failure as in tr_job_start. */
tr_status tr_job_read(tr_job *job, int argc, char **argv, bool needs_data);
/* Resolves for the job's size and prints what it warns of; failure as in tr_job_start. */
tr_status tr_job_resolve(tr_job *job);
/* One more override; failure as in tr_job_start. */
tr_status tr_job_override(tr_job *job, const char *assignment);
/* Before resolving: what the checkpoint that will be resumed has recorded of the reduction tree, where the user did not set it. */
tr_status tr_job_resume_settings(tr_job *job);
/* Loads the weights for a verb that is nothing without them: TR_ERR_CHECKPOINT when there are none. */
tr_status tr_job_load_weights(tr_job *job);
/* Frees, finalises MPI and returns `status`. For ends that all ranks reach together. */
tr_status tr_job_end(tr_job *job, tr_status status);

/* Ends the job from any rank: one error line, status.json, MPI_Abort. The lowest rank that fails is given time to speak first, for what several see alike; when a wait timed out, each says
 * in a warning what it waited for before one of them ends the job. */
_Noreturn void tr_job_abort(tr_job *job, tr_status status);

/* Calls tr_job_abort when `call` fails. */
#define TR_JOB_TRY(job, call)                                                                      \
    do {                                                                                           \
        tr_status tr_job_status_ = (call);                                                         \
        if (tr_job_status_ != TR_OK)                                                               \
            tr_job_abort((job), tr_job_status_);                                                   \
    } while (0)

#endif
