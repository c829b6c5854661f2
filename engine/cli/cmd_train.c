/* trine train: the main job. Steps, evaluations and saves until train.steps, or until asked to stop. */
#include "engine/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "engine/cli/job.h"
#include "engine/cli/train_report.h"

static const char usage[] =
    "usage: mpiexec -n RANKS trine train CONFIG [section.key=value ...]\n"
    "\n"
    "Trains the model of CONFIG on RANKS ranks = parallel.data x tensor x pipeline, and goes on "
    "from\n"
    "the newest checkpoint of checkpoint.dir when there is one (checkpoint.resume).\n"
    "\n"
    "SIGTERM, SIGINT or a file RUN/ctl/stop: finish the step, save, exit 75; a second signal ends "
    "at\n"
    "once. SIGUSR2 or RUN/ctl/save: save and go on. RUN is run.dir, with log.txt, metrics.jsonl,\n"
    "status.json, config.yaml and checkpoints/.\n";

static tr_run *signalled_run; /* for the handlers; the library has none */

static void on_stop_signal(int number)
{
    if (signalled_run != NULL)
        tr_run_request(signalled_run, TR_REQUEST_STOP);
    signal(number, SIG_DFL); /* the second one ends at once */
}

static void on_save_signal(int number)
{
    (void)number;
    if (signalled_run != NULL)
        tr_run_request(signalled_run, TR_REQUEST_SAVE);
}

static void signals_install(tr_run *run)
{
    signalled_run = run;
    struct sigaction stop = {.sa_handler = on_stop_signal, .sa_flags = SA_RESTART};
    struct sigaction save = {.sa_handler = on_save_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGUSR2, &save, NULL);
    /* A file size limit is an error of the write then, which a save survives. */
    signal(SIGXFSZ, SIG_IGN);
}

/* Control files are seen by rank 0, once each. */
static void control_files_look(const tr_config *cfg, tr_run *run)
{
    static const struct {
        const char *name;
        tr_request request;
    } files[] = {{"stop", TR_REQUEST_STOP}, {"save", TR_REQUEST_SAVE}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/ctl/%s", cfg->run.dir, files[i].name);
        if (unlink(path) == 0)
            tr_run_request(run, files[i].request);
    }
}

static bool is_due(int64_t every, int64_t step, int64_t last)
{
    return every > 0 && (step % every == 0 || step == last);
}

/* `last`: nothing comes after it, so that one which is not written is the job's failure, not a warning. */
static void save(tr_job *job, bool last)
{
    TR_JOB_TRY(job, tr_run_save(job->run));
    if (!last)
        return;
    TR_JOB_TRY(job, tr_run_save_wait(job->run));
    if (tr_run_save_failed(job->run))
        TR_JOB_TRY(job,
                   tr_fail(TR_ERR_IO,
                           "the state after step %lld, the job's last, is not saved: %s; "
                           "what %s holds is older, and the next start goes on from there",
                           (long long)tr_run_steps_done(job->run), tr_run_save_failure(job->run),
                           tr_run_config(job->run)->checkpoint.dir));
}

/* Numbers that went wrong end the run; a checkpoint that is being written then is of a healthy state, and the last one of it. */
static tr_status step(tr_job *job, tr_metrics *metrics)
{
    tr_status status = tr_run_step(job->run, metrics);
    if (status != TR_ERR_NUMERICS)
        return status;
    char *message = tr_strdup(tr_error_message());
    status = tr_run_save_wait(job->run);
    if (status == TR_OK)
        status = tr_fail(TR_ERR_NUMERICS, "%s", message);
    tr_free(message);
    return status;
}

/* The loop. *stopped: ended on request. */
static void train(tr_job *job, tr_train_report *report, bool *stopped)
{
    const tr_config *cfg = tr_run_config(job->run);
    *stopped = false;
    while (tr_run_steps_done(job->run) < cfg->train.steps && !*stopped) {
        tr_metrics metrics;
        double valid_loss;
        if (job->rank == 0)
            control_files_look(cfg, job->run);
        TR_JOB_TRY(job, step(job, &metrics));
        *stopped = metrics.stop_requested;
        bool evaluate = cfg->data.valid != NULL &&
                        is_due(cfg->train.eval_every, metrics.step, cfg->train.steps);
        if (evaluate)
            TR_JOB_TRY(job, tr_run_evaluate(job->run, &valid_loss));
        if (job->rank == 0)
            tr_train_report_step(report, &metrics, evaluate ? &valid_loss : NULL);
        if (*stopped && job->rank == 0)
            tr_log_info("asked to stop: step %" PRId64 " is done, saving it", metrics.step);
        if (*stopped || metrics.save_requested ||
            is_due(cfg->checkpoint.every, metrics.step, cfg->train.steps))
            save(job, *stopped || metrics.step == cfg->train.steps);
    }
    TR_JOB_TRY(job, tr_run_save_wait(job->run));
}

/* ---- the folder of checkpoints ---- */

static tr_status probe_make(const char *probe)
{
    int file = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "checkpoint.dir: cannot write %s", probe);
    close(file);
    return TR_OK;
}

static tr_status probe_see(const tr_job *job, const char *probe)
{
    const char *dir = job->cfg.checkpoint.dir;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    if (access(probe, F_OK) != 0)
        return tr_fail_errno(TR_ERR_SETTINGS, errno,
                             "checkpoint.dir %s: rank %d on %s does not see what rank 0 writes "
                             "there (%s); every rank writes its part of a checkpoint there, so it "
                             "must be one folder that all nodes share",
                             dir, job->rank, host, probe);
    if (access(dir, W_OK | X_OK) != 0)
        return tr_fail_errno(TR_ERR_IO, errno, "checkpoint.dir: rank %d on %s cannot write in %s",
                             job->rank, host, dir);
    return TR_OK;
}

/* Collective; failure as in tr_job_start. That all ranks mean the same folder, seen before hours are trained that could not be saved:
 * a file that rank 0 makes there must be there for all. */
static tr_status folder_share(tr_job *job)
{
    int64_t token[] = {time(NULL), getpid()};
    MPI_Bcast(token, 2, MPI_INT64_T, 0, MPI_COMM_WORLD);
    char *probe =
        tr_format("%s/probe-%" PRId64 "-%" PRId64, job->cfg.checkpoint.dir, token[0], token[1]);
    bool first = job->rank == 0;
    tr_status status = tr_job_check(job, first ? probe_make(probe) : TR_OK);
    if (status == TR_OK) {
        status = tr_job_check(job, probe_see(job, probe));
        if (first)
            unlink(probe);
    }
    tr_free(probe);
    return status;
}

static tr_status run(int argc, char **argv)
{
    tr_job job;
    tr_train_report report = {0};
    bool resumed, stopped;
    TR_TRY(tr_job_start(&job));
    signal(SIGUSR2, SIG_IGN); /* there is nothing yet to save, and no reason to end */
    TR_TRY(tr_job_check(&job, tr_cli_words(argc, argv, 1, -1)));
    TR_TRY(tr_job_read(&job, argc, argv, true));
    TR_TRY(tr_job_resume_settings(&job));
    TR_TRY(tr_job_resolve(&job));
    TR_TRY(tr_job_check(&job, job.rank == 0 ? tr_train_folder_create(&job.cfg) : TR_OK));
    TR_TRY(folder_share(&job));
    job.status_path = tr_format("%s/status.json", job.cfg.run.dir);
    TR_JOB_TRY(&job, tr_run_open(&job.run, &job.cfg, MPI_COMM_WORLD, NULL));
    TR_JOB_TRY(&job, tr_run_resume(job.run, &resumed));
    if (job.rank == 0)
        TR_JOB_TRY(&job, tr_train_report_open(&report, job.run, job.status_path));
    signals_install(job.run);
    train(&job, &report, &stopped);
    if (job.rank == 0) {
        TR_JOB_TRY(&job, tr_train_report_end(&report, stopped));
        tr_train_report_close(&report);
    }
    signalled_run = NULL;
    return tr_job_end(&job, stopped ? TR_STOPPED : TR_OK);
}

const tr_verb tr_verb_train = {
    .name = "train",
    .summary = "train a model; under mpiexec",
    .usage = usage,
    .run = run,
};
