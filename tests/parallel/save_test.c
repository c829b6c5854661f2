/* Checkpoints written beside the steps, on 4 ranks whose writers are slow: the run has the bits it would have without, the
 * files those that a save between two steps would have written, and no failure or delay of a writer harms the run.
 *
 * Linked with --wrap=write: on other threads than the first, which are the writers, each write sleeps; and can fail, in files of one name. */
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "io/dir_commit.h"
#include "io/shard_write.h"
#include "tests/parallel/run_fixture.h"

static char folder[FX_FOLDER];

/* ---- slow writers ---- */

static _Atomic double write_delay;              /* seconds of each write of a writer */
static atomic_int writes_left = INT_MAX;        /* until they fail */
static const char *_Atomic fails_in = "shard-"; /* what the path holds of a file in which they do */

ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    if (syscall(SYS_gettid) == getpid())
        return __real_write(fd, bytes, size);
    tr_clock_sleep(write_delay);
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (writes_left != INT_MAX && strstr(path, fails_in) != NULL && writes_left-- <= 0) {
        errno = ENOSPC;
        return -1;
    }
    return __real_write(fd, bytes, size);
}

/* ---- what tests share ---- */

static bool is_saving(const fx_run *fx)
{
    return fx->run != NULL && fx->run->saver.save != NULL;
}

static void save(fx_run *fx)
{
    if (fx->run != NULL)
        fx_need(fx->job, tr_run_save(fx->run));
}

static void save_wait(fx_run *fx)
{
    if (fx->run != NULL)
        fx_need(fx->job, tr_run_save_wait(fx->run));
}

/* ---- the run's bits ---- */

static void check_steps(fx_job *job, const tr_metrics *a, const tr_metrics *b, int count,
                        const char *what)
{
    for (int i = 0; i < count && job->rank == 0; i++)
        fx_check(job, a[i].loss == b[i].loss && a[i].grad_norm == b[i].grad_norm,
                 "%s: step %d: loss %a and %a", what, i + 1, a[i].loss, b[i].loss);
}

/* Saved after the second step and every other one, against not at all; with room for all copies, for some, for none. */
static void test_bits(fx_job *job)
{
    static const char *const layouts[] = {
        "parallel.data=2 parallel.tensor=2",
        "parallel.data=4 parallel.zero=3 train.precision=bf16",
        "parallel.data=2 parallel.pipeline=2 parallel.zero=0",
        "parallel.data=4 parallel.zero=2 parallel.shard_ranks=2 model.dropout=0.1",
    };
    static const char *const pools[] = {"", "checkpoint.snapshot_mb=0"};
    enum { STEPS = 6 };
    tr_metrics plain[STEPS], saved[STEPS];
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        fx_run fx;
        fx_open(job, &fx, "g", fx_settings(folder, layouts[i], "none", ""), NULL, NULL);
        fx_steps(&fx, STEPS, plain);
        fx_state expected = fx_state_take(&fx);
        fx_close(&fx);
        for (size_t p = 0; p < sizeof pools / sizeof pools[0]; p++) {
            int beside = 0;
            char name[32], more[128];
            snprintf(name, sizeof name, "bits-%zu-%zu", i, p);
            snprintf(more, sizeof more, "checkpoint.every=1 %s", pools[p]);
            write_delay = p == 0 ? 0.005 : 0.001;
            fx_open(job, &fx, "g", fx_settings(folder, layouts[i], name, more), NULL, NULL);
            for (int s = 0; s < STEPS; s++) {
                fx_step(&fx, &saved[s]);
                beside += is_saving(&fx);
                if (s % 2 == 1)
                    save(&fx);
            }
            save_wait(&fx);
            fx_state got = fx_state_take(&fx);
            if (fx.run != NULL)
                fx_check(job, !tr_run_save_failed(fx.run) && beside > 0,
                         "%s: no step ended beside a save", layouts[i]);
            check_steps(job, plain, saved, STEPS, layouts[i]);
            if (fx.run != NULL)
                fx_check(job, fx_state_equal(&expected, &got), "%s: other weights", layouts[i]);
            fx_close(&fx);
            tr_free(got.values);
        }
        tr_free(expected.values);
    }
}

/* ---- the files ---- */

/* Rank 0 compares two folders file by file. */
static void check_same_files(fx_job *job, const char *a, const char *b, const char *what)
{
    if (job->rank != 0)
        return;
    char *command = tr_format("diff -r %s %s >&2", a, b);
    fx_check(job, system(command) == 0, "%s: %s and %s differ", what, a, b);
    tr_free(command);
}

/* Where the checkpoint of a step is, or (moved) where it is put aside. */
static void step_path(char path[256], const char *name, int64_t step, bool aside)
{
    snprintf(path, 256, "%s/%s/%sstep-%08lld", folder, name, aside ? "aside-" : "",
             (long long)step);
}

/* The same run twice in the same folder: saved after step 3 with the writers held up while the run makes 3 more steps, and saved
 * with nothing else going on. `pool`: a setting; delay: of a write. */
static void saved_beside_steps(fx_job *job, const char *layout, const char *name, const char *pool,
                               double delay)
{
    tr_metrics metrics[6];
    char path[256], aside[256], more[128];
    fx_run fx;
    snprintf(more, sizeof more, "checkpoint.every=1000 %s", pool);
    step_path(path, name, 3, false);
    step_path(aside, name, 3, true);
    for (int turn = 0; turn < 2; turn++) {
        write_delay = turn == 0 ? delay : 0;
        fx_open(job, &fx, "l", fx_settings(folder, layout, name, more), NULL, NULL);
        fx_steps(&fx, 3, metrics);
        save(&fx);
        if (turn == 0) {
            fx_steps(&fx, 1, metrics + 3);
            /* Writers are far behind: the update came before what they read. */
            if (fx.run != NULL && pool[0] == '\0')
                fx_check(job, is_saving(&fx), "%s: the save ended beside one step", name);
            fx_steps(&fx, 2, metrics + 4);
        }
        save_wait(&fx);
        if (fx.run != NULL)
            fx_check(job, !tr_run_save_failed(fx.run) && tr_run_steps_done(fx.run) == 6 - 3 * turn,
                     "%s: not saved", name);
        fx_close(&fx);
        if (turn == 0 && job->rank == 0)
            fx_check(job, rename(path, aside) == 0, "%s: %s is not there", name, path);
        fx_gather(job);
    }
    check_same_files(job, aside, path, name);
}

static void test_files(fx_job *job)
{
    saved_beside_steps(job, "parallel.data=2 parallel.tensor=2", "files-zero1", "", 0.01);
    saved_beside_steps(job, "parallel.data=4 parallel.zero=3", "files-zero3", "", 0.01);
    saved_beside_steps(job, "parallel.data=4 parallel.zero=0 train.optimizer=sgd", "files-sgd", "",
                       0.02);
    saved_beside_steps(job, "parallel.data=2 parallel.pipeline=2 device.threads=3", "files-threads",
                       "", 0.01);
    saved_beside_steps(job, "parallel.data=1", "files-no-pool", "checkpoint.snapshot_mb=0", 0.005);
    saved_beside_steps(job, "parallel.data=1", "files-small-pool", "checkpoint.snapshot_mb=1",
                       0.005);
}

/* A tensor that is set by hand beside a save is saved as it was. */
static void test_set_beside_a_save(fx_job *job)
{
    tr_metrics metrics[1];
    fx_run fx;
    bool resumed;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=2", "set", "checkpoint.every=1000"),
            NULL, NULL);
    fx_steps(&fx, 1, metrics);
    fx_state expected = fx_state_take(&fx);
    write_delay = 0.01;
    save(&fx);
    if (fx.run != NULL) {
        float *values = fx_tensor(&fx, 0, TR_TENSOR_MASTER);
        values[0] += 1;
        fx_need(job, tr_run_param_set(fx.run, 0, TR_TENSOR_MASTER, values));
        fx_need(job, tr_run_params_changed(fx.run));
        tr_free(values);
        fx_check(job, is_saving(&fx), "the save has ended");
    }
    /* Resuming waits for what is under way, which is what is found then. */
    if (fx.run != NULL) {
        fx_need(job, tr_run_resume(fx.run, &resumed));
        fx_state got = fx_state_take(&fx);
        fx_check(job, resumed && fx_state_equal(&expected, &got), "not the state at the save");
        tr_free(got.values);
    }
    tr_free(expected.values);
    fx_close(&fx);
}

/* ---- when ---- */

static int64_t latest_of(const char *name)
{
    int64_t step;
    return tr_dir_latest_read(fx_in_folder(folder, name), &step) ? step : -1;
}

/* `latest` moves when all is there, and names the step of the state. A save that is due while one runs waits for it; so does closing. */
static void test_one_after_the_other(fx_job *job)
{
    tr_metrics metrics[4];
    fx_run fx;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=4", "turns", "checkpoint.every=1000"),
            NULL, NULL);
    fx_steps(&fx, 2, metrics);
    write_delay = job->rank == 3 ? 0.02 : 0; /* one of them holds all up */
    save(&fx);
    fx_steps(&fx, 1, metrics + 2);
    if (job->rank == 0)
        fx_check(job, is_saving(&fx) && latest_of("turns") == -1, "latest is %lld",
                 (long long)latest_of("turns"));
    write_delay = 0.015;
    save(&fx);
    if (job->rank == 0)
        fx_check(job, is_saving(&fx) && latest_of("turns") == 2, "the second save: latest is %lld",
                 (long long)latest_of("turns"));
    fx_steps(&fx, 1, metrics + 3);
    fx_check(job, is_saving(&fx), "the second save has ended");
    fx_close(&fx);
    if (job->rank == 0)
        fx_check(job, latest_of("turns") == 3, "closed with latest at %lld",
                 (long long)latest_of("turns"));
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=2", "turns", ""), NULL, NULL);
    bool resumed;
    if (fx.run != NULL) {
        fx_need(job, tr_run_resume(fx.run, &resumed));
        fx_check(job,
                 fx.run->step == 3 && fx.run->samples == 3 * (uint64_t)fx.cfg.train.global_batch &&
                     fx.run->stage.decider.known->updates == 3 &&
                     fx.run->last_loss == metrics[2].loss,
                 "resumed at step %lld, sample %llu", (long long)fx.run->step,
                 (unsigned long long)fx.run->samples);
    }
    fx_close(&fx);
}

/* That all wait for a rank is said, once a second here. */
static void check_told(fx_job *job, const char *log, int rank)
{
    char text[64];
    snprintf(text, sizeof text, "s for rank %d, which is writing", rank);
    if (job->rank == 0)
        fx_check(job, fx_lines_with(log, text) > 0, "nobody says that rank %d is waited for", rank);
}

/* A writer that needs far longer than parallel.timeout_s, with no room for copies: steps wait, and nobody is taken for dead. */
static void test_slower_than_the_deadline(fx_job *job)
{
    tr_metrics metrics[3];
    fx_run fx;
    const char *log = fx_in_folder(folder, "slow.log");
    if (job->rank == 0)
        fx_check(job, tr_log_file_open(log), "cannot write %s", log);
    fx_open(job, &fx, "g",
            fx_settings(folder, "parallel.data=4 parallel.timeout_s=1", "slow",
                        "checkpoint.every=1000 checkpoint.snapshot_mb=0"),
            NULL, NULL);
    fx_steps(&fx, 1, metrics);
    write_delay = job->rank == 2 ? 0.03 : 0;
    save(&fx);
    fx_steps(&fx, 1, metrics + 1);
    check_told(job, log, 2);
    fx_check(job, metrics[1].times.checkpoint > 1.2 && metrics[1].step_seconds > 1.2,
             "the step that was held up says %.3f s of %.3f s", metrics[1].times.checkpoint,
             metrics[1].step_seconds);
    fx_check(job, metrics[1].times.compute < 1 && metrics[1].times.compute >= 0,
             "it computed %.3f s", metrics[1].times.compute);
    write_delay = 0;
    save_wait(&fx);
    fx_steps(&fx, 1, metrics + 2);
    fx_check(job, metrics[2].times.checkpoint < 1.2, "%.3f s in the step after",
             metrics[2].times.checkpoint);
    write_delay = job->rank == 1 ? 0.03 : 0;
    save(&fx);
    save_wait(&fx);
    check_told(job, log, 1);
    fx_check(job, !tr_run_save_failed(fx.run), "not saved");
    fx_close(&fx);
    if (job->rank == 0)
        tr_log_file_close();
}

/* ---- a writer that fails ---- */

static void test_failing_writer(fx_job *job)
{
    tr_metrics plain[6], failed[6];
    fx_run fx;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=2 parallel.tensor=2", "none", ""),
            NULL, NULL);
    fx_steps(&fx, 6, plain);
    fx_close(&fx);
    fx_open(
        job, &fx, "g",
        fx_settings(folder, "parallel.data=2 parallel.tensor=2", "fails", "checkpoint.every=1000"),
        NULL, NULL);
    fx_steps(&fx, 1, failed);
    write_delay = 0;
    save(&fx);
    save_wait(&fx);
    fx_steps(&fx, 1, failed + 1);
    for (int culprit = 0; culprit < 2; culprit++) { /* rank 0, who tells, and another */
        bool mine = job->rank == (culprit == 0 ? 0 : 3);
        write_delay = 0.005;
        writes_left = mine ? 20 : INT_MAX;
        save(&fx);
        fx_steps(&fx, 1, failed + 2 + culprit);
        save_wait(&fx);
        writes_left = INT_MAX;
        fx_check(job, tr_run_save_failed(fx.run), "nobody noticed");
        if (job->rank == 0) {
            char path[256];
            step_path(path, "fails", 2 + culprit, false);
            fx_check(job, latest_of("fails") == 1, "latest is %lld", (long long)latest_of("fails"));
            fx_check(job, access(path, F_OK) != 0, "%s is there", path);
            strcat(path, ".tmp");
            fx_check(job, access(path, F_OK) != 0, "%s is there", path);
        }
    }
    fails_in = "manifest.json"; /* when all shards are there */
    writes_left = 0;
    write_delay = 0;
    save(&fx);
    save_wait(&fx);
    writes_left = INT_MAX;
    fails_in = "shard-";
    fx_check(job, tr_run_save_failed(fx.run), "nobody noticed that the manifest was not written");
    fx_steps(&fx, 2, failed + 4);
    save(&fx);
    save_wait(&fx);
    fx_check(job, !tr_run_save_failed(fx.run), "the next save failed");
    check_steps(job, plain, failed, 6, "failing");
    if (job->rank == 0)
        fx_check(job, latest_of("fails") == 6, "latest is %lld", (long long)latest_of("fails"));
    fx_close(&fx);
}

/* Values that are not finite are found by the writer, beside the steps. */
static void test_not_finite(fx_job *job)
{
    tr_metrics metrics[2];
    fx_run fx;
    fx_open(job, &fx, "g",
            fx_settings(folder, "parallel.data=2", "finite", "checkpoint.every=1000"), NULL, NULL);
    fx_steps(&fx, 1, metrics);
    write_delay = 0.002;
    if (fx.run != NULL) {
        float *values = fx_tensor(&fx, 0, TR_TENSOR_M);
        values[1] = INFINITY;
        fx_need(job, tr_run_param_set(fx.run, 0, TR_TENSOR_M, values));
        save(&fx);
        values[1] = 0;
        fx_need(job, tr_run_param_set(fx.run, 0, TR_TENSOR_M, values));
        tr_free(values);
    }
    fx_steps(&fx, 1, metrics);
    save_wait(&fx);
    if (fx.run != NULL)
        fx_check(job, tr_run_save_failed(fx.run) && latest_of("finite") == -1,
                 "an infinity was saved");
    fx_close(&fx);
}

/* Numbers go wrong while a healthy state is being written: it is kept. */
static void test_numerics(fx_job *job)
{
    tr_metrics metrics[2];
    fx_run fx;
    fx_open(job, &fx, "g",
            fx_settings(folder, "parallel.data=2 parallel.tensor=2", "numerics",
                        "checkpoint.every=1000 train.max_skips=1"),
            NULL, NULL);
    fx_steps(&fx, 1, metrics);
    write_delay = 0.01;
    save(&fx);
    float *values = fx_tensor(&fx, 0, TR_TENSOR_MASTER);
    values[3] = NAN;
    fx_need(job, tr_run_param_set(fx.run, 0, TR_TENSOR_MASTER, values));
    fx_need(job, tr_run_params_changed(fx.run));
    tr_free(values);
    fx_check(job, tr_run_step(fx.run, metrics) == TR_ERR_NUMERICS, "a step with NaN in it");
    fx_check(job, is_saving(&fx), "the save has ended");
    save_wait(&fx);
    fx_check(job, !tr_run_save_failed(fx.run), "the healthy state is not saved");
    if (job->rank == 0)
        fx_check(job, latest_of("numerics") == 1, "latest is %lld",
                 (long long)latest_of("numerics"));
    fx_close(&fx);
}

/* ---- memory ---- */

/* Kilobytes of this process: VmRSS, or VmHWM, the peak of it since peak_reset. */
static int64_t resident(const char *field)
{
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            kib = atoll(line + strlen(field) + 1);
    if (file != NULL)
        fclose(file);
    return kib;
}

static void peak_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL || fputs("5", file) < 0 || fclose(file) != 0)
        abort();
}

/* Beside the pool, an encoder needs a chunk that it has taken (where the values may change meanwhile), one that is encoded, and the codec's planes
 * (neither at level 0), however large the state: 50 MB here, with tensors of just a chunk, so that all of each buffer is used. zstd's contexts, the
 * thread's stack and the tables stay below three quarters of a chunk; a chunk more would be seen. */
static void test_memory(fx_job *job)
{
    static const struct {
        const char *settings;
        int num_chunks;
    } cases[] = {{"", 3},
                 {"checkpoint.level=0", 1},
                 {"checkpoint.async=false", 2},
                 {"checkpoint.snapshot_mb=5", 3}};
    const int64_t chunk_kib = TR_SHARD_CHUNK_DEFAULT >> 10;
    mallopt(M_MMAP_THRESHOLD,
            1 << 20); /* what is freed goes back to the system: each case pays for its own */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char more[256], name[32];
        tr_metrics metrics[3];
        fx_run fx;
        snprintf(name, sizeof name, "memory-%zu", i);
        snprintf(more, sizeof more, "checkpoint.every=1000 device.threads=1 %s", cases[i].settings);
        fx_open(job, &fx, "l",
                fx_settings(folder,
                            "parallel.data=1 model.layers=1 model.hidden=512 model.ffn=2048 "
                            "train.global_batch=2 train.seq_len=16",
                            name, more),
                NULL, NULL);
        fx_steps(&fx, 2, metrics);
        int64_t before = resident("VmRSS:");
        peak_reset();
        save(&fx);
        fx_steps(&fx, 1, metrics);
        save_wait(&fx);
        int64_t more_kib = resident("VmHWM:") - before;
        int64_t most_kib = cases[i].num_chunks * chunk_kib + chunk_kib * 3 / 4;
        if (job->rank == 0) {
            fx_check(job, fx.run->bytes[TR_MEM_OPTIMIZER] > 12 * (size_t)(chunk_kib << 10),
                     "a state of %zu bytes", fx.run->bytes[TR_MEM_OPTIMIZER]);
            fx_check(job, more_kib < most_kib, "%s: %lld KiB more while saving, at most %lld", more,
                     (long long)more_kib, (long long)most_kib);
            printf("%s: %lld KiB of %lld\n", more, (long long)more_kib, (long long)most_kib);
        }
        fx_close(&fx);
    }
}

/* The pool is the rank's share of the state where that is smaller than the setting: all ranks' are the state once, but for what tensor ranks have in common. */
static void test_pool(fx_job *job)
{
    static const struct {
        const char *settings;
        double whole; /* all pools together are at most this times the state; 0: */
        int64_t most; /* of a rank */
    } cases[] = {{"checkpoint.every=5", 1, 0},
                 {"checkpoint.every=5 parallel.zero=3", 1, 0},
                 {"checkpoint.every=5 parallel.zero=0", 1, 0},
                 {"checkpoint.every=5 parallel.data=1 parallel.tensor=4", 1.1, 0},
                 {"checkpoint.every=5 parallel.data=1 checkpoint.snapshot_mb=1", 0, 1000000},
                 {"checkpoint.every=5 checkpoint.snapshot_mb=0", 0, 0},
                 {"checkpoint.every=5 checkpoint.async=false", 0, 0},
                 {"checkpoint.every=0", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        fx_run fx;
        int64_t mine = 0, elements = 0;
        snprintf(text, sizeof text, "parallel.data=4 %s", cases[i].settings);
        fx_open(job, &fx, "g", fx_settings(folder, text, "pool", ""), NULL, NULL);
        if (fx.run != NULL) {
            mine = (int64_t)fx.run->saver.pool_bytes;
            fx_check(job,
                     fx.run->arenas[TR_MEM_SNAPSHOT].used == tr_run_memory(fx.run)[TR_MEM_SNAPSHOT],
                     "%s: planned bytes are not those of the arena", text);
            for (int p = 0; p < tr_run_num_params(fx.run); p++) {
                int64_t shape[2];
                tr_run_param_name(fx.run, p, shape);
                elements += shape[0] * shape[1];
            }
            int64_t sum = mine;
            fx_need(job, tr_run_sum(fx.run, &sum, 1));
            double state = (double)elements * 12;
            if (cases[i].whole > 0)
                fx_check(job, (double)sum >= state && (double)sum <= state * cases[i].whole,
                         "%s: pools of %lld bytes for %.0f", text, (long long)sum, state);
            else
                fx_check(job, mine == cases[i].most, "%s: a pool of %lld bytes", text,
                         (long long)mine);
        }
        fx_close(&fx);
    }
}

int main(int argc, char **argv)
{
    static const fx_named_case cases[] = {
        {"bits", test_bits},
        {"files", test_files},
        {"set_beside_a_save", test_set_beside_a_save},
        {"one_after_the_other", test_one_after_the_other},
        {"slower_than_the_deadline", test_slower_than_the_deadline},
        {"failing_writer", test_failing_writer},
        {"not_finite", test_not_finite},
        {"numerics", test_numerics},
        {"memory", test_memory},
        {"pool", test_pool},
    };
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (fx_case(&job, cases[i].name)) {
            write_delay = 0;
            cases[i].run(&job);
        }
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
