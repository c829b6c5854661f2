#include "tests/parallel/run_fixture.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/hash.h"

/* ---- the job ---- */

static void sleep_until(MPI_Request *request)
{
    int done = 0;
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

void fx_gather(fx_job *job)
{
    fx_gather_max(job, 0);
}

int64_t fx_gather_max(fx_job *job, int64_t value)
{
    (void)job;
    int64_t most;
    MPI_Request request;
    MPI_Iallreduce(&value, &most, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD, &request);
    sleep_until(&request);
    return most;
}

fx_job fx_begin(int *argc, char ***argv)
{
    fx_job job = {.case_name = ""};
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.size);
    for (int n = 1; n <= job.size && n <= FX_MAX_RANKS; n++)
        MPI_Comm_split(MPI_COMM_WORLD, job.rank < n ? 0 : MPI_UNDEFINED, job.rank, &job.first[n]);
    return job;
}

bool fx_case(fx_job *job, const char *name)
{
    if (job->only != NULL && strcmp(job->only, name) != 0)
        return false;
    fx_gather(job);
    job->case_name = name;
    if (job->rank == 0) {
        printf("%s\n", name);
        fflush(stdout);
    }
    return true;
}

int fx_end(fx_job *job)
{
    int64_t failures = fx_gather_max(job, job->failures);
    if (job->rank == 0)
        printf(failures == 0 ? "all passed\n" : "%lld failures on one rank\n", (long long)failures);
    for (int n = 1; n <= job->size && n <= FX_MAX_RANKS; n++)
        if (job->first[n] != MPI_COMM_NULL)
            MPI_Comm_free(&job->first[n]);
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}

bool fx_check(fx_job *job, bool condition, const char *format, ...)
{
    if (condition)
        return true;
    va_list args;
    char text[1024];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (job->failures++ < 20)
        fprintf(stderr, "failed: rank %d: %s: %s\n", job->rank, job->case_name, text);
    return false;
}

void fx_best_of_three(fx_job *job, void (*run)(fx_job *job, const void *context),
                      const void *context)
{
    for (int turn = 0; turn < 3; turn++) {
        int before = job->failures;
        run(job, context);
        if (turn == 2 || fx_gather_max(job, job->failures - before) == 0)
            return;
        job->failures = before;
    }
}

void fx_need(fx_job *job, tr_status status)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "failed: rank %d: %s: %s (%s)\n", job->rank, job->case_name, tr_error_message(),
            tr_error_trail());
    MPI_Abort(MPI_COMM_WORLD, tr_status_exit_code(status));
}

/* ---- tokens ---- */

/* Token t of sample n: text with structure, so that losses move: a walk whose stride depends on the sample. */
static int32_t token_at(uint64_t sample, int64_t t, int64_t vocab)
{
    uint64_t noise = tr_hash_mix(sample, (uint64_t)t);
    uint64_t walk = sample * 7 + (uint64_t)t * (1 + sample % 3);
    return (int32_t)((noise % 8 == 0 ? noise >> 8 : walk) % (uint64_t)vocab);
}

static tr_status batch_make(void *context, int64_t step, uint64_t first_sample,
                            const int *microbatches, int num_microbatches, tr_run_batch *batch)
{
    fx_source *source = ((fx_run *)context)->source;
    int64_t sequences = num_microbatches * source->micro_batch, length = source->seq_len;
    source->last_first = first_sample;
    if (source->capacity < sequences) {
        size_t tokens = (size_t)(sequences * length);
        source->tokens = tr_realloc(source->tokens, tokens, sizeof(int32_t));
        source->labels = tr_realloc(source->labels, tokens, sizeof(int32_t));
        source->samples = tr_realloc(source->samples, (size_t)sequences, sizeof(uint64_t));
        source->capacity = sequences;
    }
    for (int64_t s = 0; s < sequences; s++) {
        uint64_t sample =
            first_sample + (uint64_t)(microbatches[s / source->micro_batch] * source->micro_batch +
                                      s % source->micro_batch);
        uint64_t text = source->same_sample ? 0 : sample;
        source->samples[s] = sample;
        for (int64_t t = 0; t < length; t++) {
            bool counts = source->counts == NULL || source->counts(step, sample, t);
            source->tokens[s * length + t] = token_at(text, t, source->vocab);
            source->labels[s * length + t] = counts ? token_at(text, t + 1, source->vocab) : -1;
        }
    }
    *batch = (tr_run_batch){source->tokens, source->labels, source->samples};
    return TR_OK;
}

static void source_clear(fx_source *source)
{
    tr_free(source->tokens);
    tr_free(source->labels);
    tr_free(source->samples);
    source->tokens = source->labels = NULL;
    source->samples = NULL;
    source->capacity = 0;
}

/* ---- runs ---- */

tr_status fx_resolve(tr_config *cfg, const char *model, const char *overrides)
{
    char path[512], words[1024], *list[64];
    int count = 0;
    snprintf(path, sizeof path, "%s/tiny-%s.yaml", TRINE_CONFIG_DIR, model);
    snprintf(words, sizeof words, "%s", overrides);
    TR_ASSERT(strlen(overrides) < sizeof words);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        list[count++] = word;
    /* Every axis has a size of its own here: what is left out is 1. */
    tr_config_init(cfg);
    tr_status status = tr_config_read_file(cfg, path);
    if (status == TR_OK) /* whatever the machine has */
        status = tr_config_override(cfg, "device.kind=cpu");
    for (int i = 0; i < count && status == TR_OK; i++)
        status = tr_config_override(cfg, list[i]);
    if (status == TR_OK)
        status = tr_config_resolve(cfg, 0);
    if (status != TR_OK)
        tr_config_clear(cfg);
    return status;
}

tr_status fx_try_open(fx_job *job, fx_run *fx, const char *model, const char *overrides,
                      fx_source *source, void (*device)(void *context, struct tr_device *device))
{
    *fx = (fx_run){.job = job, .source = source != NULL ? source : &fx->own_source};
    TR_TRY(fx_resolve(&fx->cfg, model, overrides));
    int size = (int)fx->cfg.derived.num_ranks;
    fx->source->seq_len = fx->cfg.train.seq_len;
    fx->source->micro_batch = fx->cfg.train.micro_batch;
    fx->source->vocab = fx->cfg.model.vocab;
    TR_ASSERT(size <= job->size && size <= FX_MAX_RANKS);
    if (job->rank >= size)
        return TR_OK;
    tr_run_callbacks callbacks = {.context = fx, .batch = batch_make, .device = device};
    tr_status status = tr_run_open(&fx->run, &fx->cfg, job->first[size], &callbacks);
    if (status != TR_OK)
        tr_config_clear(&fx->cfg);
    return status;
}

void fx_open(fx_job *job, fx_run *fx, const char *model, const char *overrides, fx_source *source,
             void (*device)(void *context, struct tr_device *device))
{
    fx_need(job, fx_try_open(job, fx, model, overrides, source, device));
}

void fx_close(fx_run *fx)
{
    tr_run_close(fx->run);
    tr_config_clear(&fx->cfg);
    source_clear(fx->source);
    fx_gather(fx->job);
}

void fx_step(fx_run *fx, tr_metrics *metrics)
{
    *metrics = (tr_metrics){0};
    if (fx->run != NULL)
        fx_need(fx->job, tr_run_step(fx->run, metrics));
}

float *fx_tensor(fx_run *fx, int param, tr_tensor_kind kind)
{
    int64_t shape[2];
    if (fx->run == NULL)
        return NULL;
    tr_run_param_name(fx->run, param, shape);
    float *values = TR_NEW_ARRAY(float, (size_t)(shape[0] * shape[1]));
    fx_need(fx->job, tr_run_param_get(fx->run, param, kind, values));
    return values;
}

fx_state fx_state_take(fx_run *fx)
{
    static const tr_tensor_kind kinds[] = {TR_TENSOR_MASTER, TR_TENSOR_M, TR_TENSOR_V};
    fx_state all = {0};
    for (int i = 0; fx->run != NULL && i < tr_run_num_params(fx->run); i++)
        for (int k = 0; k < 3; k++) {
            int64_t shape[2];
            tr_run_param_name(fx->run, i, shape);
            float *values = fx_tensor(fx, i, kinds[k]);
            int64_t count = shape[0] * shape[1];
            all.values = tr_realloc(all.values, (size_t)(all.count + count), sizeof(float));
            memcpy(all.values + all.count, values, (size_t)count * sizeof(float));
            all.count += count;
            tr_free(values);
        }
    return all;
}

bool fx_state_equal(const fx_state *a, const fx_state *b)
{
    return a->count == b->count &&
           memcmp(a->values, b->values, (size_t)a->count * sizeof(float)) == 0;
}

void fx_folder_make(fx_job *job, char folder[FX_FOLDER])
{
    strcpy(folder, "/tmp/trine-runs-XXXXXX");
    if (job->rank == 0 && mkdtemp(folder) == NULL)
        abort();
    MPI_Bcast(folder, FX_FOLDER, MPI_CHAR, 0, MPI_COMM_WORLD);
}

void fx_folder_remove(fx_job *job, const char *folder)
{
    fx_gather(job);
    if (job->rank != 0)
        return;
    char *command = tr_format("rm -rf %s", folder);
    fx_check(job, system(command) == 0, "cannot remove %s", folder);
    tr_free(command);
}

int fx_param(fx_run *fx, const char *name)
{
    int64_t shape[2];
    for (int i = 0; fx->run != NULL && i < tr_run_num_params(fx->run); i++)
        if (strcmp(tr_run_param_name(fx->run, i, shape), name) == 0)
            return i;
    return -1;
}

/* ---- outcomes ---- */

static float **tensors_take(fx_run *fx, tr_tensor_kind kind)
{
    int count = tr_run_num_params(fx->run);
    float **tensors = TR_NEW_ARRAY(float *, (size_t)count);
    for (int i = 0; i < count; i++) {
        tensors[i] = fx_tensor(fx, i, kind);
        if (fx->job->rank != 0) {
            tr_free(tensors[i]);
            tensors[i] = NULL;
        }
    }
    return tensors;
}

static void names_take(fx_run *fx, fx_outcome *outcome)
{
    outcome->num_params = tr_run_num_params(fx->run);
    outcome->names = tr_alloc((size_t)outcome->num_params, sizeof *outcome->names);
    outcome->counts = TR_NEW_ARRAY(int64_t, (size_t)outcome->num_params);
    for (int i = 0; i < outcome->num_params; i++) {
        int64_t shape[2];
        snprintf(outcome->names[i], sizeof outcome->names[i], "%s",
                 tr_run_param_name(fx->run, i, shape));
        outcome->counts[i] = shape[0] * shape[1];
    }
}

void fx_measure(fx_job *job, const char *model, const char *overrides, int steps, fx_source *source,
                fx_outcome *outcome)
{
    fx_run fx;
    *outcome = (fx_outcome){.num_steps = steps, .valid = NAN};
    TR_ASSERT(steps >= 1 && steps <= FX_MAX_STEPS);
    fx_open(job, &fx, model, overrides, source, NULL);
    if (fx.run != NULL) {
        names_take(&fx, outcome);
        for (int s = 0; s < steps; s++) {
            fx_step(&fx, &outcome->metrics[s]);
            if (s == 0)
                outcome->grads = tensors_take(&fx, TR_TENSOR_GRAD);
        }
        fx_need(job, tr_run_evaluate(fx.run, &outcome->valid));
        outcome->masters = tensors_take(&fx, TR_TENSOR_MASTER);
    }
    fx_close(&fx);
}

void fx_outcome_clear(fx_outcome *outcome)
{
    for (int i = 0; i < outcome->num_params; i++) {
        tr_free(outcome->grads[i]);
        tr_free(outcome->masters[i]);
    }
    tr_free(outcome->grads);
    tr_free(outcome->masters);
    tr_free(outcome->names);
    tr_free(outcome->counts);
    *outcome = (fx_outcome){0};
}

static void tensors_check(fx_job *job, const fx_outcome *a, float *const *x, float *const *y,
                          const char *kind, const char *what)
{
    for (int i = 0; i < a->num_params; i++)
        if (!fx_check(job, memcmp(x[i], y[i], (size_t)a->counts[i] * sizeof(float)) == 0,
                      "%s: %s of %s differs", what, kind, a->names[i]))
            return;
}

void fx_check_equal(fx_job *job, const fx_outcome *a, const fx_outcome *b, const char *what)
{
    if (job->rank != 0)
        return;
    for (int s = 0; s < a->num_steps; s++) {
        const tr_metrics *x = &a->metrics[s], *y = &b->metrics[s];
        if (!fx_check(job, x->loss == y->loss, "%s: step %d: loss %a, expected %a", what, s + 1,
                      y->loss, x->loss) ||
            !fx_check(job, x->grad_norm == y->grad_norm, "%s: step %d: norm %a, expected %a", what,
                      s + 1, y->grad_norm, x->grad_norm))
            break;
    }
    fx_check(job, a->valid == b->valid, "%s: evaluation %a, expected %a", what, b->valid, a->valid);
    if (!fx_check(job, a->num_params == b->num_params, "%s: other parameters", what))
        return;
    tensors_check(job, a, a->grads, b->grads, "gradient", what);
    tensors_check(job, a, a->masters, b->masters, "final weight", what);
}

double fx_grad_difference(fx_job *job, const fx_outcome *a, const fx_outcome *b)
{
    double most_norm = 0, worst = 0;
    if (job->rank != 0)
        return 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < a->num_params; i++) {
            double norm = 0, difference = 0;
            for (int64_t e = 0; e < a->counts[i]; e++) {
                double x = a->grads[i][e], y = b->grads[i][e];
                norm += x * x;
                difference += (x - y) * (x - y);
            }
            if (pass == 0)
                most_norm = fmax(most_norm, sqrt(norm));
            else if (!(sqrt(difference) / fmax(sqrt(norm), 1e-3 * most_norm) <= worst))
                worst = sqrt(difference) / fmax(sqrt(norm), 1e-3 * most_norm);
        }
    return worst;
}

void fx_cases_run(fx_job *job, const fx_named_case *cases, size_t num_cases)
{
    for (size_t i = 0; i < num_cases; i++)
        if (fx_case(job, cases[i].name))
            cases[i].run(job);
}

void fx_steps(fx_run *fx, int count, tr_metrics *metrics)
{
    for (int i = 0; i < count; i++)
        fx_step(fx, &metrics[i]);
}

int fx_lines_with(const char *path, const char *text)
{
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        abort();
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

const char *fx_in_folder(const char *folder, const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *fx_settings(const char *folder, const char *base, const char *name, const char *more)
{
    static char texts[4][1000];
    static int next;
    char *text = texts[next++ % 4];
    snprintf(text, sizeof texts[0], "%s checkpoint.dir=%s/%s %s", base, folder, name, more);
    return text;
}
