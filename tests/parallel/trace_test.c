/* log.trace over whole runs: trace.json can be read, has every rank and what each does and waits for, fills the step, and puts all ranks
 * on one clock, also where their clocks are seconds apart (the linker gives each rank a clock of its own, --wrap).
 *
 *     mpiexec -n 4 trace_test [CASE] */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/checkpoint.h"
#include "io/manifest.h"
#include "tests/parallel/run_fixture.h"

/* ---- a clock that is ahead ---- */

static double clock_ahead;
double __real_tr_clock_seconds(void);
double __wrap_tr_clock_seconds(void);

double __wrap_tr_clock_seconds(void)
{
    return __real_tr_clock_seconds() + clock_ahead;
}

/* ---- what a file says ---- */

enum { MAX_EVENTS = 20000, MAX_CHUNKS = 1000 };

typedef struct slice {
    int rank, thread;
    double begin, end; /* microseconds */
    const char *name;
    const json_t *args;
} slice;

typedef struct trace {
    json_t *whole;
    int num_slices;
    slice *slices;
    char threads[FX_MAX_RANKS][2000][32]; /* names by number */
} trace;

static int whole_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? (int)json_integer_value(value) : -1;
}

static bool thread_is(const trace *all, const slice *of, const char *name)
{
    return strcmp(all->threads[of->rank][of->thread], name) == 0;
}

/* Rank 0 reads the file; false when it is no trace. */
static bool load(fx_job *job, const char *path, int num_ranks, trace *all)
{
    json_error_t error;
    size_t i;
    const json_t *event;
    memset(all, 0, sizeof *all);
    all->whole = json_load_file(path, 0, &error);
    if (!fx_check(job, all->whole != NULL, "%s:%d: %s", path, error.line, error.text))
        return false;
    all->slices = TR_NEW_ARRAY(slice, MAX_EVENTS);
    json_array_foreach(json_object_get(all->whole, "traceEvents"), i, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        int rank = whole_number(event, "pid"), thread = whole_number(event, "tid");
        const char *name = json_string_value(json_object_get(event, "name"));
        const json_t *args = json_object_get(event, "args");
        if (!fx_check(job, rank >= 0 && rank < num_ranks && thread >= 0 && thread < 2000,
                      "event %zu is of process %d, thread %d", i, rank, thread))
            return false;
        if (strcmp(name, "thread_name") == 0)
            snprintf(all->threads[rank][thread], sizeof all->threads[0][0], "%s",
                     json_string_value(json_object_get(args, "name")));
        if (strcmp(name, "process_name") == 0)
            fx_check(job, strstr(json_string_value(json_object_get(args, "name")), "fit") == NULL,
                     "%s", json_string_value(json_object_get(args, "name")));
        if (strcmp(phase, "X") != 0)
            continue;
        TR_ASSERT(all->num_slices < MAX_EVENTS);
        double begin = json_number_value(json_object_get(event, "ts"));
        double end = begin + json_number_value(json_object_get(event, "dur"));
        all->slices[all->num_slices++] = (slice){rank, thread, begin, end, name, args};
    }
    return true;
}

static void unload(trace *all)
{
    json_decref(all->whole);
    tr_free(all->slices);
}

/* ---- checks on rank 0 ---- */

static int by_begin(const void *a, const void *b)
{
    const slice *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Slices of one thread lie apart or inside one another: else no viewer can show them. */
static void nesting_check(fx_job *job, const trace *all, double slack)
{
    qsort(all->slices, (size_t)all->num_slices, sizeof *all->slices, by_begin);
    for (int i = 0; i < all->num_slices; i++)
        for (int k = i + 1; k < all->num_slices; k++) {
            const slice *a = &all->slices[i], *b = &all->slices[k];
            if (a->rank == b->rank && a->thread == b->thread && b->begin < a->end - slack &&
                b->end > a->end + slack)
                fx_check(job, false,
                         "rank %d, %s: %s (%.1f to %.1f us) and %s (%.1f to %.1f us) overlap",
                         a->rank, all->threads[a->rank][a->thread], a->name, a->begin, a->end,
                         b->name, b->begin, b->end);
            if (b->begin > a->end)
                break;
        }
}

static const slice *step_of(fx_job *job, const trace *all, int rank, int step)
{
    char name[32];
    snprintf(name, sizeof name, "step %d", step);
    for (int i = 0; i < all->num_slices; i++)
        if (all->slices[i].rank == rank && strcmp(all->slices[i].name, name) == 0)
            return &all->slices[i];
    fx_check(job, false, "rank %d has no %s", rank, name);
    return NULL;
}

/* The part of the step in which something is computed or waited for. The rest is calls between slices, and where another process had
 * the processor. */
static double covered_part(fx_job *job, const trace *all, const slice *step)
{
    double covered = 0, until = step->begin;
    for (int i = 0; i < all->num_slices; i++) { /* in the order of their begins */
        const slice *of = &all->slices[i];
        const char *thread = all->threads[of->rank][of->thread];
        bool counts = strcmp(thread, "compute") == 0 || strstr(thread, ": waits") != NULL ||
                      strcmp(of->name, "decide, update") == 0 || strcmp(of->name, "feed") == 0 ||
                      strcmp(of->name, "reduce") == 0 || strcmp(of->name, "begin weights") == 0;
        if (of->rank != step->rank || !counts || of->begin < step->begin ||
            of->end > step->end + 1 || of->end <= until)
            continue;
        covered += of->end - (of->begin > until ? of->begin : until);
        until = of->end;
    }
    double part = covered / (step->end - step->begin);
    fx_check(job, part > 0.5 && part < 1.001,
             "rank %d: %.1f of the %.1f us of %s are accounted for", step->rank, covered,
             step->end - step->begin, step->name);
    return part;
}

/* Each receive ends after its send began, on the common clock. */
static int transfers_check(fx_job *job, const trace *all, double slack)
{
    int num_pairs = 0;
    for (int i = 0; i < all->num_slices; i++) {
        const slice *recv = &all->slices[i];
        if (strcmp(recv->name, "recv") != 0 ||
            strstr(all->threads[recv->rank][recv->thread], ": moves") == NULL)
            continue;
        const slice *found = NULL;
        for (int k = 0; k < all->num_slices && found == NULL; k++) {
            const slice *send = &all->slices[k];
            if (strcmp(send->name, "send") == 0 &&
                strstr(all->threads[send->rank][send->thread], ": moves") != NULL &&
                send->rank == whole_number(recv->args, "peer") &&
                whole_number(send->args, "peer") == recv->rank &&
                whole_number(send->args, "sequence") == whole_number(recv->args, "sequence"))
                found = send;
        }
        if (!fx_check(job, found != NULL, "rank %d: a receive without its send", recv->rank))
            continue;
        num_pairs++;
        fx_check(job,
                 found->begin < recv->end + slack && found->end > recv->begin - slack &&
                     fabs(found->end - recv->end) < 1e6,
                 "ranks %d and %d: the send lasts from %.1f to %.1f us, its receive from %.1f to "
                 "%.1f us",
                 found->rank, recv->rank, found->begin, found->end, recv->begin, recv->end);
        fx_check(job,
                 whole_number(found->args, "microbatch") == whole_number(recv->args, "microbatch"),
                 "send and receive name different microbatches");
    }
    return num_pairs;
}

static int count(const trace *all, int rank, const char *thread, const char *name)
{
    int found = 0;
    for (int i = 0; i < all->num_slices; i++)
        found += all->slices[i].rank == rank && thread_is(all, &all->slices[i], thread) &&
                 (name == NULL || strcmp(all->slices[i].name, name) == 0);
    return found;
}

/* ---- cases ---- */

/* Makes the steps in a folder of its own; *path: of the trace. */
static void run(fx_job *job, const char *layout, int num_steps, char *folder, char *path,
                tr_metrics *metrics)
{
    fx_run fx;
    fx_folder_make(job, folder);
    sprintf(path, "%s/trace.json", folder);
    char *text = tr_format("%s run.dir=%s device.threads=1", layout, folder);
    fx_open(job, &fx, "l", text, NULL, NULL);
    tr_free(text);
    for (int s = 0; s < num_steps; s++)
        fx_step(&fx, &metrics[s]);
    fx_close(&fx);
}

static void whole_case(fx_job *job, const void *context)
{
    double ahead = *(const double *)context;
    char folder[FX_FOLDER], path[FX_FOLDER + 16];
    tr_metrics metrics[4];
    trace all;
    clock_ahead = ahead * job->rank;
    run(job, "parallel.pipeline=2 parallel.data=2 train.global_batch=8 log.trace=2,4", 4, folder,
        path, metrics);
    clock_ahead = 0;
    for (int s = 0; s < 4 && job->rank == 0; s++)
        fx_check(job, metrics[s].traced == (s % 2 == 1), "step %d is %s", s + 1,
                 metrics[s].traced ? "traced" : "not traced");
    if (job->rank == 0 && load(job, path, 4, &all)) {
        /* Clocks of one machine are taken for one; clocks apart are known to half a round trip. */
        double slack = ahead == 0 ? 1.0 : 50e3, best = 0;
        nesting_check(job, &all, 0.01);
        for (int rank = 0; rank < 4; rank++) {
            for (int step = 1; step <= 4; step++) {
                char name[16];
                snprintf(name, sizeof name, "step %d", step);
                fx_check(job, count(&all, rank, "step", name) == (step % 2 == 0),
                         "rank %d: %s is %s the trace", rank, name,
                         step % 2 == 0 ? "not in" : "in");
                const slice *of = step % 2 == 0 ? step_of(job, &all, rank, step) : NULL;
                if (of != NULL)
                    best = fmax(best, covered_part(job, &all, of));
            }
            /* 4 microbatches of a rank in each of two steps, two layers each way. */
            char action[16];
            for (int m = 0; m < 4; m++) {
                snprintf(action, sizeof action, "%dF%d", rank / 2, m);
                fx_check(job, count(&all, rank, "compute", action) == 2,
                         "rank %d: %s is there %d times", rank, action,
                         count(&all, rank, "compute", action));
                snprintf(action, sizeof action, "%dB%d", rank / 2, m);
                fx_check(job, count(&all, rank, "compute", action) == 2,
                         "rank %d: %s is there %d times", rank, action,
                         count(&all, rank, "compute", action));
            }
            snprintf(action, sizeof action, "layer %d", rank / 2 * 2 + 1);
            fx_check(job, count(&all, rank, "compute", action) == 2 * 4 * 2,
                     "rank %d: %s is there %d times", rank, action,
                     count(&all, rank, "compute", action));
            fx_check(job, count(&all, rank, "data: sums 1", "reduce_scatter bucket 0") == 2,
                     "rank %d: the first bucket's reduction is missing", rank);
            fx_check(job, count(&all, rank, "all: waits", NULL) >= 2,
                     "rank %d: the common decisions are missing", rank);
        }
        fx_check(job, best > 0.95, "at most %.3f of a step is accounted for", best);
        int pairs = transfers_check(job, &all, slack);
        fx_check(job, pairs == 2 * 2 * 4 * 2, "%d transfers, expected 32", pairs);
        const slice *one = step_of(job, &all, 0, 2), *other = step_of(job, &all, 3, 2);
        if (one != NULL && other != NULL)
            fx_check(job, fabs(one->end - other->end) < slack + 1e5,
                     "rank 0 ends the step at %.0f us, rank 3 at %.0f us", one->end, other->end);
        unload(&all);
    }
    fx_folder_remove(job, folder);
}

/* Layouts with more in a step than any other, for the room that is planned and the lanes that are drawn. */
static const char *const layouts[][2] = {
    {"parallel.pipeline=2 parallel.tensor=2 parallel.schedule=zb-h1 train.global_batch=6 "
     "log.trace=2",
     "1W3"},
    {"parallel.data=4 parallel.zero=3 parallel.shard_ranks=2 parallel.bucket_mb=0.01 "
     "train.global_batch=8 log.trace=2",
     "0B1"},
    {"parallel.data=2 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v "
     "parallel.zero=2 train.global_batch=8 log.trace=2",
     "2W0"},
};

static void layout_case(fx_job *job, const void *context)
{
    const char *layout = ((const char *const *)context)[0];
    const char *weight_action = ((const char *const *)context)[1];
    char folder[FX_FOLDER], path[FX_FOLDER + 16];
    tr_metrics metrics[2];
    trace all;
    run(job, layout, 2, folder, path, metrics);
    if (job->rank == 0 && load(job, path, 4, &all)) {
        double best = 0;
        nesting_check(job, &all, 0.01);
        for (int rank = 0; rank < 4; rank++) {
            const slice *of = step_of(job, &all, rank, 2);
            if (of != NULL)
                best = fmax(best, covered_part(job, &all, of));
        }
        fx_check(job, best > 0.95, "%s: at most %.3f of a step is accounted for", layout, best);
        fx_check(job, count(&all, 3, "compute", weight_action) == 1, "%s: rank 3 has no %s", layout,
                 weight_action);
        unload(&all);
    }
    fx_folder_remove(job, folder);
}

/* One rank, no groups. */
static void single_case(fx_job *job, const void *context)
{
    (void)context;
    char folder[FX_FOLDER], path[FX_FOLDER + 16];
    tr_metrics metrics[2];
    trace all;
    run(job, "train.global_batch=2 log.trace=1-2", 2, folder, path, metrics);
    if (job->rank == 0 && load(job, path, 1, &all)) {
        double best = 0;
        nesting_check(job, &all, 0.01);
        for (int step = 1; step <= 2; step++) {
            const slice *of = step_of(job, &all, 0, step);
            if (of != NULL) {
                best = fmax(best, covered_part(job, &all, of));
                fx_check(job,
                         fabs((of->end - of->begin) * 1e-6 - metrics[step - 1].step_seconds) < 2e-3,
                         "step %d lasts %.0f us in the trace, %.0f us in the metrics", step,
                         of->end - of->begin, metrics[step - 1].step_seconds * 1e6);
            }
        }
        fx_check(job, best > 0.95, "at most %.3f of a step is accounted for", best);
        unload(&all);
    }
    fx_folder_remove(job, folder);
}

/* A whole number among the arguments; -1: it is not there. */
static int64_t arg_of(const slice *of, const char *name)
{
    const json_t *value = json_object_get(of->args, name);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static bool is_of_writer(const trace *all, const slice *of, const char *verb)
{
    return strncmp(all->threads[of->rank][of->thread], "writer", 6) == 0 &&
           strncmp(of->name, verb, strlen(verb)) == 0;
}

/* What writers did in a save, of one rank. A slice that was cut is there in parts, which have the name and the bytes of the whole. */
typedef struct writers_sum {
    bool encode[MAX_CHUNKS], write[MAX_CHUNKS]; /* what was seen of a chunk */
    int num_encoded, num_written;
    int64_t encoded, written, flushed; /* bytes */
    int64_t last;                      /* chunk written */
    double end;                        /* of writing it */
} writers_sum;

static void writers_add(fx_job *job, const trace *all, const slice *of, writers_sum *sum)
{
    int64_t bytes = arg_of(of, "bytes");
    bool encode = is_of_writer(all, of, "encode "), write = is_of_writer(all, of, "write ");
    long long chunk = encode || write ? atoll(strchr(of->name, ' ')) : 0;
    TR_ASSERT(chunk >= 0 && chunk < MAX_CHUNKS);
    if (encode && !sum->encode[chunk]) {
        sum->encode[chunk] = true;
        sum->num_encoded++;
        sum->encoded += bytes;
    } else if (write) {
        fx_check(job, chunk >= sum->last, "rank %d: %s is after write %lld", of->rank, of->name,
                 (long long)sum->last);
        fx_check(job, sum->encode[chunk], "rank %d: %s before it was encoded", of->rank, of->name);
        sum->num_written += !sum->write[chunk];
        sum->written += sum->write[chunk] ? 0 : bytes;
        sum->write[chunk] = true;
        sum->last = chunk;
        sum->end = of->end;
    } else if (is_of_writer(all, of, "flush")) {
        sum->flushed = bytes;
        fx_check(job, of->begin >= sum->end, "rank %d flushes before it has written", of->rank);
    }
}

/* Against what the manifest says that there is. logical: bytes of the state. */
static void writers_check(fx_job *job, const trace *all, const tr_manifest *manifest,
                          int64_t logical)
{
    int64_t encoded = 0;
    for (int rank = 0; rank < 4; rank++) {
        writers_sum sum = {.last = 0};
        int64_t file = manifest->files[rank].bytes;
        for (int i = 0; i < all->num_slices; i++) /* in the order of their begins */
            if (all->slices[i].rank == rank)
                writers_add(job, all, &all->slices[i], &sum);
        encoded += sum.encoded;
        fx_check(job,
                 sum.num_encoded > 4 && sum.num_written == sum.num_encoded &&
                     sum.last == sum.num_written - 1,
                 "rank %d: %d encoded and %d written, the last is chunk %lld", rank,
                 sum.num_encoded, sum.num_written, (long long)sum.last);
        fx_check(job, sum.flushed == file, "rank %d: flushed %lld bytes, the file has %lld", rank,
                 (long long)sum.flushed, (long long)file);
        /* Header and trailer, at most a row of each table for a chunk. */
        int64_t tables = 2 * 64 + (64 + 40) * (int64_t)sum.num_written;
        fx_check(job, sum.written < file && sum.written + tables >= file,
                 "rank %d: wrote %lld of the file's %lld bytes", rank, (long long)sum.written,
                 (long long)file);
        int commits = count(all, rank, "writer", "commit");
        int rooms = count(all, rank, "writer", "make room");
        fx_check(job, (commits > 0) == (rank == 0) && (rooms > 0) == (rank == 0),
                 "rank %d: %d commits, made room %d times", rank, commits, rooms);
    }
    fx_check(job, encoded == logical, "%lld bytes were encoded, the state has %lld",
             (long long)encoded, (long long)logical);
}

/* A checkpoint that is written beside traced steps, by two encoders of each rank. */
static void saved_case(fx_job *job, const void *context)
{
    (void)context;
    char folder[FX_FOLDER];
    tr_metrics metrics[2];
    fx_run fx;
    int steps = 2;
    int64_t logical = 0;
    fx_folder_make(job, folder);
    char *text = tr_format("parallel.pipeline=2 parallel.data=2 train.global_batch=8 "
                           "log.trace=2-30 run.dir=%s checkpoint.dir=%s checkpoint.every=1000 "
                           "train.steps=1000 device.threads=2",
                           folder, folder);
    fx_open(job, &fx, "l", text, NULL, NULL);
    fx_steps(&fx, 2, metrics);
    fx_need(job, tr_run_save(fx.run));
    for (; steps < 30 && fx.run->saver.save != NULL; steps++)
        fx_step(&fx, metrics);
    fx_check(job, fx.run->saver.save == NULL && !tr_run_save_failed(fx.run), "not saved");
    fx_step(&fx, metrics); /* what was done when the steps ended is in it */
    for (int p = 0; p < tr_run_num_params(fx.run); p++) {
        int64_t shape[2];
        tr_run_param_name(fx.run, p, shape);
        logical += 12 * shape[0] * shape[1];
    }
    fx_close(&fx);
    tr_free(text);
    char *path = tr_format("%s/trace.json", folder);
    char *manifest_path = tr_format("%s/step-00000002/manifest.json", folder);
    trace all;
    tr_manifest manifest;
    if (job->rank == 0 && load(job, path, 4, &all)) {
        nesting_check(job, &all, 0.01);
        fx_need(job, tr_manifest_read(manifest_path, &manifest));
        writers_check(job, &all, &manifest, logical);
        tr_manifest_clear(&manifest);
        unload(&all);
    }
    tr_free(manifest_path);
    tr_free(path);
    fx_folder_remove(job, folder);
}

/* Bytes of workspace of a run that is opened and closed; 0 on ranks without it. */
static size_t workspace_of(fx_job *job, const char *layout)
{
    fx_run fx;
    size_t bytes = 0;
    fx_open(job, &fx, "l", layout, NULL, NULL);
    if (fx.run != NULL) {
        bytes = tr_run_memory(fx.run)[TR_MEM_WORKSPACE];
        fx_check(job, fx.run->arenas[TR_MEM_WORKSPACE].used == bytes,
                 "%s: %zu bytes of workspace are planned, %zu used", layout, bytes,
                 fx.run->arenas[TR_MEM_WORKSPACE].used);
    }
    fx_close(&fx);
    return bytes;
}

/* Nothing is written or laid out where nothing is to be traced; a trace that cannot be written is given up, and the run goes on. */
static void off_case(fx_job *job)
{
    char folder[FX_FOLDER], path[FX_FOLDER + 16];
    tr_metrics metrics[2];
    fx_run fx;
    run(job, "train.global_batch=2 log.trace=none", 2, folder, path, metrics);
    if (job->rank == 0)
        fx_check(job, access(path, F_OK) != 0, "a trace was written that nobody asked for");
    fx_folder_remove(job, folder);
    size_t off = workspace_of(job, "parallel.data=2 log.trace=none");
    size_t on = workspace_of(job, "parallel.data=2 log.trace=7");
    fx_check(job, (on > off) == (job->rank < 2), "a trace takes %zu bytes of memory", on - off);
    fx_open(job, &fx, "l", "parallel.data=2 log.trace=1 run.dir=/proc/none", NULL, NULL);
    fx_step(&fx, &metrics[0]);
    fx_step(&fx, &metrics[1]);
    fx_check(job, fx.run == NULL || metrics[1].step == 2,
             "the run did not go on without its trace");
    fx_close(&fx);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    static const double together = 0, apart = 3.5;
    if (fx_case(&job, "whole"))
        fx_best_of_three(&job, whole_case, &together);
    if (fx_case(&job, "clocks_apart"))
        fx_best_of_three(&job, whole_case, &apart);
    if (fx_case(&job, "layouts"))
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
            fx_best_of_three(&job, layout_case, layouts[i]);
    if (fx_case(&job, "single"))
        fx_best_of_three(&job, single_case, NULL);
    if (fx_case(&job, "saved"))
        fx_best_of_three(&job, saved_case, NULL);
    if (fx_case(&job, "off"))
        off_case(&job);
    return fx_end(&job);
}
