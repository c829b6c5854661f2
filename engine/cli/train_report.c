#include "engine/cli/train_report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "engine/model/params.h"
#include "io/file_commit.h"
#include "io/status_file.h"
#include "kernels/device.h"

static tr_status in_use(const char *setting, const char *folder, const char *holder)
{
    return tr_fail(TR_ERR_SETTINGS,
                   "%s %s is in use by another job%s; give this one a run.name, run.dir or "
                   "checkpoint.dir of its own, or wait for the other to end",
                   setting, folder, holder);
}

/* Locks the run folder for the life of this process; the system lets go of the lock however the process ends. Its file says who holds it. */
static tr_status run_folder_take(const char *folder)
{
    TR_TRY(tr_folders_make(folder));
    char *path = tr_format("%s/lock", folder);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    tr_status status = TR_OK;
    if (file < 0) {
        status = tr_fail_errno(TR_ERR_IO, errno, "run.dir: cannot write %s", path);
    } else if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        char text[160] = "", holder[176];
        ssize_t length = pread(file, text, sizeof text - 1, 0);
        text[length > 0 ? length : 0] = '\0';
        snprintf(holder, sizeof holder, " (%s)", text);
        status = in_use("run.dir", folder, holder);
        close(file);
    } else {
        char host[64] = "";
        gethostname(host, sizeof host - 1);
        if (ftruncate(file, 0) == 0)
            dprintf(file, "process %ld on %s", (long)getpid(), host);
    }
    tr_free(path);
    return status;
}

/* The same for the folder of checkpoints, which holds nothing but these: the lock is the folder's own. */
static tr_status checkpoint_folder_take(const char *folder)
{
    TR_TRY(tr_folders_make(folder));
    if (access(folder, W_OK | X_OK) != 0)
        return tr_fail_errno(TR_ERR_IO, errno, "checkpoint.dir: cannot write in %s", folder);
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "checkpoint.dir: cannot open %s", folder);
    if (flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return TR_OK; /* also where a file system has no locks */
    close(file);
    return in_use("checkpoint.dir", folder, "");
}

tr_status tr_train_folder_create(const tr_config *cfg)
{
    char *log_path = tr_format("%s/log.txt", cfg->run.dir);
    char *ctl_path = tr_format("%s/ctl", cfg->run.dir);
    tr_status status = run_folder_take(cfg->run.dir);
    if (status == TR_OK)
        status = checkpoint_folder_take(cfg->checkpoint.dir);
    if (status == TR_OK)
        status = tr_folders_make(ctl_path);
    if (status == TR_OK && !tr_log_file_open(log_path))
        status = tr_fail_errno(TR_ERR_IO, errno, "run.dir: cannot write %s", log_path);
    tr_free(log_path);
    tr_free(ctl_path);
    return status;
}

static void lines_print(const char *text)
{
    while (text != NULL && *text != '\0') {
        int length = (int)strcspn(text, "\n");
        tr_log_info("%.*s", length, text);
        text += length + (text[length] == '\n');
    }
}

static void banner_print(const tr_config *cfg, const tr_run *run)
{
    tr_param_table table;
    tr_param_table_init(&table, cfg);
    tr_log_info("trine: %s, %lld parameters, %s, %lld layers, hidden %lld, on %s%s", cfg->run.name,
                (long long)table.num_elements, tr_dtype_name(cfg->train.precision),
                (long long)cfg->model.layers, (long long)cfg->model.hidden,
                tr_run_device_numerics(run),
                cfg->device.kind == TR_DEVICE_CHOICE_AUTO ? " (device.kind=auto)" : "");
    tr_param_table_clear(&table);
    char *order = tr_config_get(cfg, "train.reduction_order"), slices[48] = "";
    if (cfg->derived.tensor_slices > 0)
        snprintf(slices, sizeof slices, ", %lld tensor slices",
                 (long long)cfg->derived.tensor_slices);
    char *layout = tr_config_layout_text(cfg);
    tr_log_info("layout: %s, %lld microbatch%s in %lld lea%s by %s%s", layout,
                (long long)cfg->derived.microbatches, cfg->derived.microbatches == 1 ? "" : "es",
                (long long)cfg->derived.leaves, cfg->derived.leaves == 1 ? "f" : "ves", order,
                slices);
    tr_free(layout);
    tr_free(order);
    char *batch = tr_config_batch_text(cfg);
    lines_print(batch);
    tr_free(batch);
    const size_t *bytes = tr_run_memory(run);
    tr_log_info("memory of rank 0: %zu bytes (parameters %zu, gradients %zu, optimizer %zu, "
                "activations %zu, communication %zu, workspace %zu, snapshot %zu)",
                tr_run_memory_total(run), bytes[TR_MEM_PARAMETERS], bytes[TR_MEM_GRADIENTS],
                bytes[TR_MEM_OPTIMIZER], bytes[TR_MEM_ACTIVATIONS], bytes[TR_MEM_COMMUNICATION],
                bytes[TR_MEM_WORKSPACE], bytes[TR_MEM_SNAPSHOT]);
}

/* What must be added to the command so that it goes on with the run when it is given again, or NULL: nothing. */
static const char *words_to_go_on(const tr_config *cfg)
{
    bool elsewhere = strcmp(cfg->checkpoint.resume, "auto") != 0;
    if (cfg->checkpoint.weights_only)
        return elsewhere ? "checkpoint.resume=auto checkpoint.weights_only=false"
                         : "checkpoint.weights_only=false";
    return elsewhere ? "checkpoint.resume=auto" : NULL;
}

/* What is kept of the run, said before it costs hours; and what its saves take away. */
static void saving_print(const tr_config *cfg, int64_t step)
{
    int64_t last, later = tr_checkpoint_count_later(cfg, step, &last);
    const char *words = words_to_go_on(cfg);
    if (cfg->checkpoint.keep > 0 && later > 0)
        tr_log_warning(
            "%s holds %lld checkpoint%s of later steps, up to %lld; this run begins after "
            "step %lld, and its saves push them out (checkpoint.keep = %lld); a run.name "
            "of its own, or checkpoint.keep=0, spares them",
            cfg->checkpoint.dir, (long long)later, later == 1 ? "" : "s", (long long)last,
            (long long)step, (long long)cfg->checkpoint.keep);
    if (words != NULL)
        tr_log_info("this command begins anew whenever it is given; with %s it goes on from what "
                    "this run saves",
                    words);
    if (cfg->checkpoint.every > 0)
        tr_log_info("checkpoints: every %lld step%s and after the last, in %s",
                    (long long)cfg->checkpoint.every, cfg->checkpoint.every == 1 ? "" : "s",
                    cfg->checkpoint.dir);
    else
        tr_log_info("checkpoints: only on request (checkpoint.every is 0); without one nothing of "
                    "this run can be resumed or sampled");
}

/* Whole or not at all: where the disk is full, the one of before stays. */
static tr_status config_write(const tr_config *cfg)
{
    char *path = tr_format("%s/config.yaml", cfg->run.dir), *temp = tr_format("%s.tmp", path);
    char *text = tr_config_dump(cfg);
    tr_status status = TR_OK;
    int file = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        status = tr_fail_errno(TR_ERR_IO, errno, "run.dir: cannot write %s", temp);
    } else {
        status = tr_file_write_all(file, text, strlen(text), temp);
        status = tr_file_end(file, temp, status);
        if (status == TR_OK)
            status = tr_file_move(temp, path);
    }
    tr_free(path);
    tr_free(temp);
    tr_free(text);
    return status;
}

static tr_status status_write(tr_train_report *report, tr_run_state state, int code,
                              const char *reason)
{
    const tr_status_record record = {.state = state,
                                     .code = code,
                                     .rank = -1,
                                     .reason = reason,
                                     .step = (uint64_t)tr_run_steps_done(report->run)};
    report->last_status = tr_clock_seconds();
    return tr_status_file_write(report->status_path, &record);
}

tr_status tr_train_report_open(tr_train_report *report, tr_run *run, const char *status_path)
{
    const tr_config *cfg = tr_run_config(run);
    *report =
        (tr_train_report){.cfg = cfg, .run = run, .first_step = tr_run_steps_done(run), .epoch = 0};
    report->status_path = tr_strdup(status_path);
    banner_print(cfg, run);
    saving_print(cfg, report->first_step);
    TR_TRY(config_write(cfg));
    char *path = tr_format("%s/metrics.jsonl", cfg->run.dir);
    tr_status status =
        tr_metrics_file_open(&report->metrics, path, (uint64_t)tr_run_steps_done(run));
    tr_free(path);
    TR_TRY(status);
    return status_write(report, TR_RUN_RUNNING, 0, NULL);
}

void tr_train_report_close(tr_train_report *report)
{
    tr_metrics_file_close(report->metrics);
    tr_free(report->status_path);
    *report = (tr_train_report){0};
}

/* "3h52m", "12m05s", "8s" */
static void duration_format(double seconds, char *text, size_t bytes)
{
    long s = lround(seconds);
    if (s >= 3600)
        snprintf(text, bytes, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(text, bytes, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(text, bytes, "%lds", s);
}

static void rate_format(double rate, char *text, size_t bytes)
{
    if (rate >= 1e6)
        snprintf(text, bytes, "%.2fM", rate / 1e6);
    else if (rate >= 1e4)
        snprintf(text, bytes, "%.1fk", rate / 1e3);
    else
        snprintf(text, bytes, "%.0f", rate);
}

static void line_print(tr_train_report *report, const tr_metrics *m, const double *valid_loss)
{
    char rate[32], left[32], valid[48] = "", extra[64] = "";
    double weight = m->step == 1 || report->mean_seconds == 0 ? 1.0 : 0.1;
    report->mean_seconds += weight * (m->step_seconds - report->mean_seconds);
    rate_format(m->tokens_per_second, rate, sizeof rate);
    duration_format((double)(report->cfg->train.steps - m->step) * report->mean_seconds, left,
                    sizeof left);
    if (valid_loss != NULL)
        snprintf(valid, sizeof valid, " | valid loss %.4f", *valid_loss);
    if (report->cfg->train.precision == TR_F16)
        snprintf(extra, sizeof extra, " | scale %g", m->loss_scale);
    bool whole = valid_loss != NULL || m->step % report->cfg->log.every == 0 || m->step == 1 ||
                 m->step == report->cfg->train.steps;
    if (!whole)
        return;
    tr_log_info("step %lld/%lld | loss %.4f%s | gnorm %.3f | lr %.2e%s | %s tok/s | step %.3f s "
                "(wait: tensor %.0f, data %.0f, idle %.0f, feed %.0f ms) | left %s",
                (long long)m->step, (long long)report->cfg->train.steps, m->loss, valid,
                m->grad_norm, m->lr, extra, rate, m->step_seconds, m->times.tensor * 1e3,
                m->times.data * 1e3, (m->times.idle + m->times.pipeline) * 1e3, m->times.feed * 1e3,
                left);
}

static void events_print(tr_train_report *report, const tr_metrics *m)
{
    if (m->skipped)
        tr_log_warning("step %lld: %s is not finite: update skipped on all ranks (%lld in a row, "
                       "loss scale %g), samples %llu to %llu",
                       (long long)m->step, isfinite(m->loss) ? "a gradient" : "the loss",
                       (long long)m->skips_in_row, m->loss_scale,
                       (unsigned long long)m->first_sample, (unsigned long long)m->samples - 1);
    if (m->skipped && m->bad_rank >= 0)
        tr_log_warning("step %lld: rank %d has the first loss that is not finite",
                       (long long)m->step, m->bad_rank);
    if (report->mean_seconds == 0) /* the first step here: a resumed run may be inside an epoch */
        report->epoch = m->first_epoch;
    if (m->last_epoch > report->epoch) {
        tr_log_info("epoch %llu of the data begins in step %lld", (unsigned long long)m->last_epoch,
                    (long long)m->step);
        report->epoch = m->last_epoch;
    }
    if (m->traced)
        tr_log_info("step %lld is traced in %s/trace.json; open it at https://ui.perfetto.dev",
                    (long long)m->step, report->cfg->run.dir);
}

static void incomplete_note(tr_train_report *report, tr_status status)
{
    if (status == TR_OK || report->incomplete)
        return;
    report->incomplete = true;
    tr_log_warning("%s; training goes on, and the run's files lack what could not be written",
                   tr_error_message());
}

void tr_train_report_step(tr_train_report *report, const tr_metrics *m, const double *valid_loss)
{
    const tr_metrics_record record = {.step = (uint64_t)m->step,
                                      .samples = (uint64_t)m->samples,
                                      .tokens = (uint64_t)m->tokens,
                                      .loss = m->loss,
                                      .grad_norm = m->grad_norm,
                                      .lr = m->lr,
                                      .loss_scale = m->loss_scale,
                                      .skipped = m->skipped,
                                      .step_ms = m->step_seconds * 1e3,
                                      .tokens_per_s = m->tokens_per_second,
                                      .mfu = m->mfu,
                                      .memory_peak_bytes = m->memory_peak_bytes,
                                      .time = {.compute = m->times.compute * 1e3,
                                               .tensor = m->times.tensor * 1e3,
                                               .data = m->times.data * 1e3,
                                               .pipeline = m->times.pipeline * 1e3,
                                               .idle = m->times.idle * 1e3,
                                               .feed = m->times.feed * 1e3,
                                               .checkpoint = m->times.checkpoint * 1e3},
                                      .has_valid_loss = valid_loss != NULL,
                                      .valid_loss = valid_loss != NULL ? *valid_loss : 0};
    incomplete_note(report, tr_metrics_file_append(report->metrics, &record));
    events_print(report, m);
    line_print(report, m, valid_loss);
    if (tr_clock_seconds() - report->last_status > 1.0)
        incomplete_note(report, status_write(report, TR_RUN_RUNNING, 0, NULL));
}

tr_status tr_train_report_end(tr_train_report *report, bool stopped)
{
    const tr_config *cfg = report->cfg;
    long long step = (long long)tr_run_steps_done(report->run);
    if (stopped) {
        const char *words = words_to_go_on(cfg);
        tr_log_info("stopped on request after step %lld, saved in %s; the same command %s%s", step,
                    cfg->checkpoint.dir, words ? "would begin anew, and goes on with " : "goes on",
                    words ? words : "");
        return status_write(report, TR_RUN_STOPPED, tr_status_exit_code(TR_STOPPED),
                            "asked to stop; everything is saved");
    }
    const char *plural = step == 1 ? "" : "s";
    if (step == report->first_step)
        tr_log_info(
            "done: %lld step%s, all before this start: nothing is left to do (train.steps = "
            "%lld); run in %s, checkpoints in %s",
            step, plural, (long long)cfg->train.steps, cfg->run.dir, cfg->checkpoint.dir);
    else if (cfg->checkpoint.every > 0)
        tr_log_info("done: %lld step%s; run in %s, checkpoints in %s", step, plural, cfg->run.dir,
                    cfg->checkpoint.dir);
    else
        tr_log_info("done: %lld step%s; run in %s, nothing saved (checkpoint.every is 0)", step,
                    plural, cfg->run.dir);
    return status_write(report, TR_RUN_DONE, 0, NULL);
}
