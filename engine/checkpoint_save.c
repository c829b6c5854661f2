/* tr_run_save and what follows it, step by step (saver.h, checkpoint.h). */
#include "engine/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "base/alloc.h"
#include "base/background.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint_int.h"
#include "engine/peak.h"
#include "io/chunk_queue.h"
#include "io/dir_commit.h"

enum {
    WRITER_NICE = 10,              /* computing comes first */
    MOST_ENCODERS = TR_TRACE_LANES /* each has three chunks of memory */
};

/* WRITING: every rank its file. COMMITTING: rank 0 the manifest. */
typedef enum save_phase { WRITING, COMMITTING } save_phase;

struct tr_save {
    save_phase phase;
    bool giving_up; /* some rank has failed */
    bool preserved; /* on all ranks: what is read of the state is no longer the state itself */
    tr_commit commit;
    tr_shard_part *parts;
    tr_chunk_queue *queue; /* NULL: this rank has nothing to write */
    char *path;
    int level, num_encoders;
    tr_background *background; /* does this rank's work of the phase, if it has any */
    tr_status begun;           /* what starting it came to */
    char *begun_message;
    tr_shard_summary summary; /* the work's, until it has ended */
    double writing;           /* seconds; the same */
    /* what it costs */
    double begin, blocked;                                  /* seconds */
    int64_t slowest_blocked, slowest_writing, slowest_disk; /* microseconds, of all ranks */
    double beside_seconds;
    int64_t num_beside; /* steps */
};

/* ---- on the writer's thread ---- */

static tr_status shard_work(void *context)
{
    tr_save *save = context;
    double begin = tr_clock_seconds();
    tr_status status = tr_shard_write_queue(save->path, save->queue, save->level,
                                            save->num_encoders, save->commit.trace, &save->summary);
    save->writing = tr_clock_seconds() - begin;
    return status;
}

/* ---- life ---- */

/* A failure of this rank's own that the save may fail of. */
static tr_status own_failure(tr_status status)
{
    if (status == TR_OK || status == TR_ERR_IO)
        return status;
    char *message = tr_strdup(tr_error_message());
    status = tr_fail(TR_ERR_IO, "%s", message);
    tr_free(message);
    return status;
}

static void work_begin(tr_save *save, tr_status (*work)(void *context), void *context)
{
    save->begun = own_failure(tr_background_start(save->background, work, context, WRITER_NICE));
    if (save->begun != TR_OK)
        save->begun_message = tr_strdup(tr_error_message());
}

/* After its end: what the work came to, with its message. One that was stopped has not failed itself. */
static tr_status work_end(tr_save *save)
{
    if (save->begun != TR_OK)
        return tr_fail(save->begun, "%s", save->begun_message);
    tr_status status = tr_background_finish(save->background);
    return status == TR_STOPPED ? TR_OK : own_failure(status);
}

static tr_save *save_create(tr_run *run)
{
    tr_save *save = TR_NEW(tr_save);
    int num_parts;
    *save = (tr_save){
        .level = (int)run->cfg.checkpoint.level,
        .num_encoders = tr_peak_threads(run->cfg.device.threads, tr_world_local_size(run->world))};
    if (save->num_encoders > MOST_ENCODERS)
        save->num_encoders = MOST_ENCODERS;
    save->background = tr_background_create();
    tr_commit_init(&save->commit, run);
    save->parts = tr_checkpoint_parts(run, &num_parts);
    if (num_parts == 0)
        return save;
    char name[TR_MANIFEST_FILE];
    tr_manifest_file_name(run->mesh.rank, name);
    char *folder = tr_step_temp_path(run->cfg.checkpoint.dir, run->step);
    save->path = tr_format("%s/%s", folder, name);
    tr_free(folder);
    save->queue = tr_chunk_queue_create(save->parts, num_parts, TR_SHARD_CHUNK_DEFAULT);
    if (tr_state_fetch_is_needed(&run->saver.fetch))
        tr_chunk_queue_set_fetch(save->queue, tr_state_fetch_values, &run->saver.fetch);
    if (run->cfg.checkpoint.async_)
        tr_chunk_queue_set_pool(save->queue, run->saver.pool, run->saver.pool_bytes);
    return save;
}

static void save_destroy(tr_save *save)
{
    tr_background_destroy(save->background);
    tr_commit_clear(&save->commit);
    tr_chunk_queue_destroy(save->queue);
    tr_free(save->begun_message);
    tr_free(save->path);
    tr_free(save->parts);
    tr_free(save);
}

void tr_saver_clear(tr_saver *saver)
{
    tr_save *save = saver->save;
    saver->save = NULL;
    tr_free(saver->failure);
    saver->failure = NULL;
    if (save == NULL)
        return;
    if (save->queue != NULL)
        tr_chunk_queue_stop(save->queue);
    save_destroy(save);
}

/* ---- its end ---- */

/* Bytes of all values that the checkpoint holds. */
static double logical_bytes(const tr_manifest *manifest)
{
    double elements = 0;
    int kinds = 0;
    for (int i = 0; i < manifest->num_params; i++)
        if (manifest->params[i].tied_to < 0)
            elements += (double)manifest->params[i].shape[0] * (double)manifest->params[i].shape[1];
    for (int k = 0; k < TR_SHARD_NUM_KINDS; k++)
        kinds += manifest->kinds[k];
    return elements * kinds * sizeof(float);
}

static double steps_mean(const tr_saver *saver)
{
    double sum = 0;
    int64_t count = saver->num_steps < TR_SAVER_STEPS ? saver->num_steps : TR_SAVER_STEPS;
    for (int64_t i = 0; i < count; i++)
        sum += saver->steps[i];
    return count > 0 ? sum / (double)count : 0;
}

/* Rank 0's line. */
static void saved_print(const tr_run *run, const tr_save *save)
{
    char share[64] = "", beside[128] = "", room[160] = "";
    double seconds = save->commit.end - save->begin, before = steps_mean(&run->saver);
    double logical = logical_bytes(&save->commit.manifest),
           stored = (double)tr_manifest_bytes(&save->commit.manifest);
    if (before > 0)
        snprintf(share, sizeof share, " (%.1f %% of a step)",
                 (double)save->slowest_blocked * 1e-4 / before);
    if (save->num_beside > 0 && before > 0)
        snprintf(beside, sizeof beside, ", %" PRId64 " step%s beside it took %.2f x those before",
                 save->num_beside, save->num_beside == 1 ? "" : "s",
                 save->beside_seconds / (double)save->num_beside / before);
    int64_t copied = 0, no_room = 0;
    if (save->queue != NULL)
        tr_chunk_queue_get_preserved(save->queue, &copied, &no_room);
    if (no_room > 0)
        snprintf(room, sizeof room,
                 "; an update waited for %.2f MB of rank 0 that checkpoint.snapshot_mb had no room "
                 "for",
                 (double)no_room * 1e-6);
    tr_log_info("saved step %lld: %.2f MB, ratio %.2f, in %.2f s = %.3f GB/s (files %.2f s, %.2f s "
                "of it on the disk, commit %.2f s), blocked %.1f ms%s%s%s",
                (long long)save->commit.manifest.step, stored * 1e-6, logical / stored, seconds,
                logical * 1e-9 / seconds, (double)save->slowest_writing * 1e-6,
                (double)save->slowest_disk * 1e-6, save->commit.end - save->commit.begin,
                (double)save->slowest_blocked * 1e-3, share, beside, room);
}

/* Where the disk has less room than a save may take: how much of both. tr_free. */
static char *room_format(const char *dir, double most_bytes)
{
    struct statvfs about;
    if (statvfs(dir, &about) != 0)
        return tr_strdup("");
    double free_bytes = (double)about.f_bavail * (double)about.f_frsize;
    if (free_bytes >= most_bytes)
        return tr_strdup("");
    return tr_format(" (%.2f MB are free there now; a save takes up to %.2f MB before older ones "
                     "are removed)",
                     free_bytes * 1e-6, most_bytes * 1e-6);
}

/* Rank 0: nothing stays of it, and why is told. most_bytes: of the whole checkpoint. */
static void give_up(tr_run *run, int64_t step, double most_bytes)
{
    const char *dir = run->cfg.checkpoint.dir;
    char *message = tr_strdup(tr_error_message());
    tr_dir_commit_abort(dir, step);
    char *room = room_format(dir, most_bytes);
    run->saver.failure = tr_format("%s%s", message, room);
    tr_log_warning("the checkpoint of step %lld was not saved: %s; earlier checkpoints stay as "
                   "they are, and training goes on",
                   (long long)step, run->saver.failure);
    tr_free(room);
    tr_free(message);
}

static void outcome_set(tr_run *run, bool failed)
{
    run->saver.failed = failed;
    tr_free(run->saver.failure);
    run->saver.failure = NULL;
}

/* `status`: the same on all ranks; TR_OK: saved. Rank 0 knows why not. */
static void save_end(tr_run *run, tr_status status)
{
    tr_save *save = run->saver.save;
    run->saver.save = NULL;
    outcome_set(run, status != TR_OK);
    if (run->mesh.rank == 0 && status == TR_OK)
        saved_print(run, save);
    if (run->mesh.rank == 0 && status != TR_OK)
        give_up(run, save->commit.manifest.step, logical_bytes(&save->commit.manifest));
    save_destroy(save);
}

/* ---- going on ---- */

/* Seconds that a rank waits for its own writer before it lets the others know: far less than what makes them take it for hung. */
static double moment_of(const tr_run *run)
{
    double quarter = run->cfg.parallel.timeout_s / 4;
    return quarter < 1.0 ? quarter : 1.0;
}

static double seconds_since(double begin)
{
    return tr_clock_seconds() - begin;
}

/* Adds the time since `begin` to what saving has cost the step thread. */
static void blocked_add(tr_run *run, double begin)
{
    double seconds = seconds_since(begin);
    run->saver.blocked += seconds;
    if (run->saver.save != NULL)
        run->saver.save->blocked += seconds;
}

void tr_save_note(tr_run *run, int64_t notes[TR_SAVE_NOTES])
{
    tr_save *save = run->saver.save;
    for (int i = 0; i < TR_SAVE_NOTES; i++)
        notes[i] = 0;
    if (save == NULL)
        return;
    bool ended = tr_background_wait(save->background, 0);
    tr_status status = save->begun;
    if (ended && status == TR_OK)
        status = tr_background_get_status(save->background);
    notes[TR_SAVE_RUNNING] = ended ? 0 : run->mesh.rank + 1;
    notes[TR_SAVE_FAILED] = ended && status != TR_OK && status != TR_STOPPED;
    notes[TR_SAVE_BLOCKED] = (int64_t)(save->blocked * 1e6);
    notes[TR_SAVE_WRITING] = ended ? (int64_t)(save->writing * 1e6) : 0;
    notes[TR_SAVE_DISK] = ended ? (int64_t)(save->summary.disk_seconds * 1e6) : 0;
}

void tr_save_note_step(tr_run *run, double seconds)
{
    tr_saver *saver = &run->saver;
    if (!saver->warm) {
        saver->warm = true;
    } else if (saver->save != NULL) {
        saver->save->num_beside++;
        saver->save->beside_seconds += seconds;
    } else {
        saver->steps[saver->num_steps++ % TR_SAVER_STEPS] = seconds;
    }
}

/* Every rank's work of the phase has ended. */
static tr_status phase_end(tr_run *run, bool failed)
{
    tr_save *save = run->saver.save;
    tr_status status = work_end(save);
    if (failed || save->phase == COMMITTING) {
        /* Rank 0 needs to know why; its own failures it knows. */
        if (save->phase == WRITING)
            status = tr_checkpoint_agree(run, status);
        if (status != TR_OK && status != TR_ERR_IO)
            return status;
        save_end(run, failed ? TR_ERR_IO : TR_OK);
        return TR_OK;
    }
    TR_TRY(tr_commit_gather(&save->commit, run, &save->summary));
    save->phase = COMMITTING;
    if (run->mesh.rank == 0)
        work_begin(save, tr_commit_work, &save->commit);
    return TR_OK;
}

tr_status tr_save_advance(tr_run *run, const int64_t notes[TR_SAVE_NOTES])
{
    tr_save *save = run->saver.save;
    double begin = tr_clock_seconds();
    if (save == NULL)
        return TR_OK;
    save->slowest_blocked = notes[TR_SAVE_BLOCKED];
    save->slowest_writing = notes[TR_SAVE_WRITING];
    save->slowest_disk = notes[TR_SAVE_DISK];
    if (notes[TR_SAVE_FAILED] != 0 && save->queue != NULL)
        tr_chunk_queue_stop(save->queue);
    save->giving_up = save->giving_up || notes[TR_SAVE_FAILED] != 0;
    if (notes[TR_SAVE_RUNNING] != 0)
        return TR_OK;
    tr_status status = phase_end(run, save->giving_up);
    blocked_add(run, begin);
    return status;
}

/* A wait for a disk has no deadline. So that it does not look like a hung job, rank 0 says whom all wait for, as often as another wait would have ended the run. */
typedef struct waiting {
    double begin, told; /* seconds */
} waiting;

static waiting waiting_begin(void)
{
    double now = tr_clock_seconds();
    return (waiting){now, now};
}

static void waiting_tell(waiting *w, const tr_run *run, int64_t rank)
{
    double now = tr_clock_seconds();
    if (run->mesh.rank > 0 || now - w->told < run->cfg.parallel.timeout_s)
        return;
    w->told = now;
    tr_log_warning("all ranks have waited for %.0f s for rank %" PRId64
                   ", which is writing its part of the checkpoint of step %" PRId64
                   " to %s; if that disk answers no more, end the job: the checkpoints before it "
                   "are whole",
                   now - w->begin, rank, run->saver.save->commit.manifest.step,
                   run->cfg.checkpoint.dir);
}

/* Looks again after a while, or when this rank's work has ended. */
static tr_status wait_a_moment(tr_run *run, waiting *w)
{
    int64_t notes[TR_SAVE_NOTES];
    double begin = tr_clock_seconds();
    tr_background_wait(run->saver.save->background, moment_of(run));
    blocked_add(run, begin);
    tr_save_note(run, notes);
    begin = tr_clock_seconds();
    TR_TRY(tr_run_max(run, notes, TR_SAVE_NOTES));
    blocked_add(run, begin);
    if (notes[TR_SAVE_RUNNING] > 0)
        waiting_tell(w, run, notes[TR_SAVE_RUNNING] - 1);
    return tr_save_advance(run, notes);
}

tr_status tr_run_save_wait(tr_run *run)
{
    const tr_save *save = run->saver.save;
    if (save != NULL && run->mesh.rank == 0 && save->commit.manifest.step < run->step)
        tr_log_info("waiting for the checkpoint of step %lld, which is being written",
                    (long long)save->commit.manifest.step);
    waiting w = waiting_begin();
    while (run->saver.save != NULL)
        TR_TRY(wait_a_moment(run, &w));
    return TR_OK;
}

/* ---- the values are about to change ---- */

/* True when masters and moments of this rank may change. Copies; waits for a moment at most. */
static bool preserve(tr_run *run)
{
    tr_save *save = run->saver.save;
    if (save == NULL || save->queue == NULL)
        return true;
    double begin = tr_clock_seconds();
    bool clear = tr_chunk_queue_preserve(save->queue, moment_of(run));
    blocked_add(run, begin);
    return clear;
}

tr_status tr_save_preserve_all(tr_run *run)
{
    if (run->saver.save == NULL || run->saver.save->preserved)
        return TR_OK;
    waiting w = waiting_begin();
    for (;;) {
        int64_t reading = preserve(run) ? -1 : run->mesh.rank;
        double begin = tr_clock_seconds();
        TR_TRY(tr_run_max(run, &reading, 1));
        run->saver.group_seconds += seconds_since(begin);
        blocked_add(run, begin);
        if (reading < 0) {
            run->saver.save->preserved = true;
            return TR_OK;
        }
        waiting_tell(&w, run, reading);
    }
}

void tr_save_preserve_here(tr_run *run)
{
    while (!preserve(run)) {
    }
}

/* ---- its beginning ---- */

static tr_status save_begin(tr_run *run)
{
    bool first = run->mesh.rank == 0;
    const char *dir = run->cfg.checkpoint.dir;
    double begin = tr_clock_seconds();
    tr_status status =
        tr_checkpoint_agree(run, first ? tr_dir_commit_begin(dir, run->step) : TR_OK);
    outcome_set(run, status != TR_OK);
    if (status == TR_ERR_IO) {
        if (first)
            give_up(run, run->step, 0);
        blocked_add(run, begin);
        return TR_OK;
    }
    TR_TRY(status);
    tr_save *save = save_create(run);
    save->begin = begin;
    run->saver.save = save;
    if (save->queue != NULL && tr_state_fetch_is_needed(&run->saver.fetch))
        TR_TRY(tr_world_synchronize(run->world, TR_STREAM_COMPUTE));
    if (save->queue != NULL)
        work_begin(save, shard_work, save);
    blocked_add(run, begin);
    return TR_OK;
}

tr_status tr_run_save(tr_run *run)
{
    TR_TRY(tr_run_save_wait(run));
    TR_TRY(save_begin(run));
    return run->cfg.checkpoint.async_ ? TR_OK : tr_run_save_wait(run);
}

bool tr_run_save_failed(const tr_run *run)
{
    return run->saver.failed;
}

const char *tr_run_save_failure(const tr_run *run)
{
    return run->saver.failure != NULL ? run->saver.failure : "";
}
