/* A step of our own code takes nothing from the heap, and a long run grows nowhere.
 *
 * Linked with --wrap: allocations of the libraries of this tree are counted, those inside MPI and oneDNN are not; beside a save, those of
 * the thread that makes the steps. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "tests/parallel/run_fixture.h"

static bool counting, counting_first_thread;
static int64_t num_allocations;

static void allocation_count(void)
{
    if (counting || (counting_first_thread && syscall(SYS_gettid) == getpid()))
        num_allocations++;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *pointer, size_t bytes);
int __real_posix_memalign(void **pointer, size_t alignment, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *pointer, size_t bytes);
int __wrap_posix_memalign(void **pointer, size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocation_count();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocation_count();
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *pointer, size_t bytes)
{
    allocation_count();
    return __real_realloc(pointer, bytes);
}

int __wrap_posix_memalign(void **pointer, size_t alignment, size_t bytes)
{
    allocation_count();
    return __real_posix_memalign(pointer, alignment, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    allocation_count();
    return __real_aligned_alloc(alignment, bytes);
}

static void steps_allocate_nothing(fx_job *job)
{
    if (!fx_case(job, "steps allocate nothing"))
        return;
    static const struct {
        const char *model, *layout;
    } cases[] = {
        {"g", "model.dropout=0.1 device.threads=2"},
        {"l", "parallel.data=2 parallel.tensor=2 parallel.pipeline=2 parallel.bucket_mb=0.02"},
        {"g", "parallel.data=2 parallel.tensor=2 parallel.pipeline=2 parallel.inside=mpi "
              "parallel.zero=0 train.precision=fp16 memory.recompute=full"},
        {"l", "parallel.data=8 parallel.inside=mpi parallel.bucket_mb=0.02 train.precision=bf16"},
        {"g", "parallel.data=8 parallel.inside=mpi parallel.bucket_mb=0.02 parallel.zero=2 "
              "parallel.shard_ranks=4 train.global_batch=16"},
        {"l", "parallel.data=6 parallel.inside=mpi parallel.zero=2 parallel.shard_ranks=3 "
              "train.reduction_order=blocks train.global_batch=12"},
        {"l", "parallel.tensor=4 parallel.pipeline=2 parallel.virtual=2 "
              "parallel.schedule=interleaved memory.recompute=selective parallel.inside=mpi"},
        {"g", "parallel.data=4 parallel.pipeline=2 parallel.zero=3 parallel.inside=mpi "
              "train.precision=bf16"},
        {"l", "parallel.tensor=4 parallel.pipeline=2 parallel.schedule=zb-h1 "
              "train.tensor_slices=4 parallel.inside=mpi memory.recompute=full"},
        {"g", "parallel.tensor=2 parallel.data=2 train.tensor_slices=4 model.dropout=0.1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fx_run fx;
        tr_metrics metrics;
        double loss;
        fx_open(job, &fx, cases[i].model, cases[i].layout, NULL, NULL);
        for (int step = 1; step <= 5; step++) {
            num_allocations = 0;
            counting = step > 2;
            fx_step(&fx, &metrics);
            if (fx.run != NULL && step != 1)
                fx_need(job, tr_run_evaluate(fx.run, &loss));
            counting = false;
            fx_check(job, num_allocations == 0, "%s %s: step %d: %lld allocations", cases[i].model,
                     cases[i].layout, step, (long long)num_allocations);
        }
        /* The count itself. */
        counting = true;
        tr_free(TR_NEW(int));
        counting = false;
        fx_check(job, num_allocations == 1, "allocations are not counted");
        fx_close(&fx);
    }
}

/* From the step after a save began until some steps after its end, which a step sees to. */
static void steps_beside_a_save_allocate_nothing(fx_job *job)
{
    if (!fx_case(job, "steps beside a save allocate nothing"))
        return;
    static const char *const layouts[] = {
        "parallel.data=2 parallel.tensor=2 parallel.pipeline=2 checkpoint.every=1000",
        "parallel.data=8 parallel.zero=3 checkpoint.every=1000 checkpoint.snapshot_mb=0"};
    char folder[FX_FOLDER];
    fx_folder_make(job, folder);
    for (int i = 0; i < 2; i++) {
        fx_run fx;
        tr_metrics metrics;
        int after = 0, beside = 0;
        char *text = tr_format("%s checkpoint.dir=%s", layouts[i], folder);
        fx_open(job, &fx, "g", text, NULL, NULL);
        tr_free(text);
        for (int step = 0; step < 3; step++)
            fx_step(&fx, &metrics);
        fx_need(job, tr_run_save(fx.run));
        while (after < 2) {
            num_allocations = 0;
            counting_first_thread = true;
            fx_step(&fx, &metrics);
            counting_first_thread = false;
            fx_check(job, num_allocations == 0, "%s: step %lld: %lld allocations", layouts[i],
                     (long long)metrics.step, (long long)num_allocations);
            bool saving = fx.run->saver.save != NULL;
            beside += saving;
            after += !saving;
        }
        fx_check(job, beside > 0 && !tr_run_save_failed(fx.run), "%s: %d steps beside the save",
                 layouts[i], beside);
        fx_close(&fx);
    }
    fx_folder_remove(job, folder);
}

static int64_t resident_kib(void)
{
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmRSS: %lld kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* 400 steps with an evaluation every 20th: at most 1 MB more per 100 steps from the 100th on, and no more open files. */
static void long_run_grows_nowhere(fx_job *job)
{
    if (!fx_case(job, "a long run grows nowhere"))
        return;
    static const char small[] = "model.layers=2 model.hidden=16 model.ffn=32 train.seq_len=8 "
                                "train.global_batch=4 train.steps=400 train.eval_batches=1";
    static const char *const layouts[] = {"parallel.data=2 parallel.inside=mpi",
                                          "parallel.tensor=2 parallel.pipeline=2"};
    for (int i = 0; i < 2; i++) {
        fx_run fx;
        tr_metrics metrics;
        int64_t kib = 0;
        int files = 0;
        double loss;
        char *text = tr_format("%s %s", small, layouts[i]);
        fx_open(job, &fx, "g", text, NULL, NULL);
        tr_free(text);
        for (int step = 1; step <= 400; step++) {
            fx_step(&fx, &metrics);
            if (fx.run != NULL && step % 20 == 0)
                fx_need(job, tr_run_evaluate(fx.run, &loss));
            if (step == 100) {
                kib = resident_kib();
                files = open_files();
            }
        }
        fx_check(job, resident_kib() - kib < 3 * 1024, "%s: %lld KiB more in 300 steps", layouts[i],
                 (long long)(resident_kib() - kib));
        fx_check(job, open_files() == files, "%s: %d open files, %d before", layouts[i],
                 open_files(), files);
        fx_close(&fx);
    }
}

/* A step and evaluations of one to three batches, in turn, 200 times: from the fifth round on no arena's peak grows, nor does the process steadily: what grows
 * does so in both halves (a thread that a busy machine runs late for the first time touches its memory late, once). */
static void turns_grow_nowhere(fx_job *job)
{
    if (!fx_case(job, "training and evaluation in turn grow nowhere"))
        return;
    enum { ROUNDS = 200, SETTLED = 5, HALF = (ROUNDS + SETTLED) / 2 };
    fx_run fx;
    tr_metrics metrics;
    size_t peaks[TR_MEM_NUM] = {0}, peak = 0;
    int64_t settled_kib = 0, half_kib = 0;
    double loss;
    fx_open(job, &fx, "l",
            "model.layers=2 model.hidden=32 model.ffn=64 train.seq_len=256 train.global_batch=4 "
            "train.precision=bf16",
            NULL, NULL);
    for (int round = 1; round <= ROUNDS && fx.run != NULL; round++) {
        fx_step(&fx, &metrics);
        fx.run->cfg.train.eval_batches = 1 + round % 3;
        fx_need(job, tr_run_evaluate(fx.run, &loss));
        if (round == HALF)
            half_kib = resident_kib();
        if (round == SETTLED) {
            settled_kib = resident_kib();
            peak = metrics.memory_peak_bytes;
            for (int c = 0; c < TR_MEM_NUM; c++)
                peaks[c] = fx.run->arenas[c].peak;
        }
    }
    for (int c = 0; c < TR_MEM_NUM && fx.run != NULL; c++)
        fx_check(job, fx.run->arenas[c].peak == peaks[c], "arena %d: peak %zu bytes, was %zu", c,
                 fx.run->arenas[c].peak, peaks[c]);
    if (fx.run != NULL) {
        fx_check(job, metrics.memory_peak_bytes == peak, "peak of %zu bytes, was %zu",
                 metrics.memory_peak_bytes, peak);
        int64_t first = half_kib - settled_kib, second = resident_kib() - half_kib;
        fx_check(job, first < 256 || second < 256, "%lld and %lld KiB more in two times %d rounds",
                 (long long)first, (long long)second, ROUNDS - HALF);
    }
    fx_close(&fx);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    steps_allocate_nothing(&job);
    steps_beside_a_save_allocate_nothing(&job);
    long_run_grows_nowhere(&job);
    turns_grow_nowhere(&job);
    return fx_end(&job);
}
