/* What tests of whole runs share: one MPI job in which many small runs follow one another, on hand-made tokens.
 *
 * A test program calls fx_begin, runs its cases on all ranks alike, and returns fx_end's result. A run takes the first ranks of the
 * job, as many as its layout needs; the others sleep until fx_gather. Checks count failures on the rank that sees them and go on; a
 * run that fails where it must not ends the job. Outcomes (losses, norms, global tensors) are held by rank 0 of the job only. */
#ifndef TESTS_PARALLEL_RUN_FIXTURE_H
#define TESTS_PARALLEL_RUN_FIXTURE_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/run_int.h"

enum { FX_MAX_RANKS = 8, FX_MAX_STEPS = 32 };

typedef struct fx_job {
    int rank, size;
    MPI_Comm first[FX_MAX_RANKS + 1]; /* [n]: ranks 0 ... n-1, MPI_COMM_NULL elsewhere */
    const char *only;                 /* name of the one case to run, or NULL */
    const char *case_name;
    int failures;
} fx_job;

/* Where tokens and labels come from. Zero-initialised: a walk with noise, every token counted. */
typedef struct fx_source {
    /* Whether the label at a position counts; NULL: all do. step is -1 in evaluation. */
    bool (*counts)(int64_t step, uint64_t sample, int64_t position);
    bool same_sample;                    /* every sample has the tokens of sample 0 */
    int64_t seq_len, micro_batch, vocab; /* filled by fx_open */
    int64_t capacity;
    int32_t *tokens, *labels;
    uint64_t *samples;
    uint64_t last_first; /* what the run asked for last */
} fx_source;

/* One run on the first ranks of the job. */
typedef struct fx_run {
    fx_job *job;
    tr_config cfg;
    tr_run *run; /* NULL on ranks that the layout does not need */
    fx_source *source;
    fx_source own_source;
} fx_run;

typedef struct fx_outcome {
    int num_steps;
    tr_metrics metrics[FX_MAX_STEPS];
    double valid; /* loss of an evaluation after the last step; NAN when none was made */
    int num_params;
    char (*names)[96];
    int64_t *counts;
    float **grads;   /* of the first step */
    float **masters; /* after the last one */
} fx_outcome;

fx_job fx_begin(int *argc, char ***argv);
/* True when the case is to be run; from here on failures name it. */
bool fx_case(fx_job *job, const char *name);
typedef struct fx_named_case {
    const char *name;
    void (*run)(fx_job *job);
} fx_named_case;
/* Runs those that are to be run. */
void fx_cases_run(fx_job *job, const fx_named_case *cases, size_t num_cases);
/* Sums failures over ranks, prints the verdict, finalises MPI: what main returns. */
int fx_end(fx_job *job);
/* All ranks meet, sleeping. */
void fx_gather(fx_job *job);
/* fx_gather, and the largest value of all ranks. */
int64_t fx_gather_max(fx_job *job, int64_t value);

/* Counts a failure of this rank and prints it. Returns `condition`. */
bool fx_check(fx_job *job, bool condition, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* For what depends on times: runs it up to three times, until it fails nowhere; on a machine that others use too it may fail twice. */
void fx_best_of_three(fx_job *job, void (*run)(fx_job *job, const void *context),
                      const void *context);

/* Configuration configs/tiny-MODEL.yaml (model "g" or "l") with overrides separated by blanks, resolved for its own product of axes. The
 * status of the resolution; on failure nothing needs clearing. */
tr_status fx_resolve(tr_config *cfg, const char *model, const char *overrides);

/* Opens a run; ends the job when that fails. source NULL: one of its own. device: as in tr_run_callbacks, its context is the fx_run; may be NULL. */
void fx_open(fx_job *job, fx_run *fx, const char *model, const char *overrides, fx_source *source,
             void (*device)(void *context, struct tr_device *device));
/* The same, but returns why it could not be opened (all ranks of the layout alike); then nothing needs closing. */
tr_status fx_try_open(fx_job *job, fx_run *fx, const char *model, const char *overrides,
                      fx_source *source, void (*device)(void *context, struct tr_device *device));
/* Closes it and gathers all ranks of the job. */
void fx_close(fx_run *fx);
/* Ends the job when the status is not TR_OK. */
void fx_need(fx_job *job, tr_status status);

/* One step; ends the job when it fails. */
void fx_step(fx_run *fx, tr_metrics *metrics);
void fx_steps(fx_run *fx, int count, tr_metrics *metrics);
/* A global tensor, on every rank of the run; tr_free. Ranks without the run get NULL. */
float *fx_tensor(fx_run *fx, int param, tr_tensor_kind kind);
/* Index of a parameter by name, or -1. */
int fx_param(fx_run *fx, const char *name);

/* Masters and moments of all parameters, one after the other, with the bits they have; values NULL on ranks without the run; tr_free them. */
typedef struct fx_state {
    int64_t count;
    float *values;
} fx_state;
fx_state fx_state_take(fx_run *fx);
bool fx_state_equal(const fx_state *a, const fx_state *b);

/* Makes a folder under /tmp that all ranks know, and removes it with all it holds. */
enum { FX_FOLDER = 64 };
void fx_folder_make(fx_job *job, char folder[FX_FOLDER]);
void fx_folder_remove(fx_job *job, const char *folder);

/* How many lines of a file hold the text. */
int fx_lines_with(const char *path, const char *text);

/* "FOLDER/NAME", and "BASE checkpoint.dir=FOLDER/NAME MORE"; each of the last four stays valid. */
const char *fx_in_folder(const char *folder, const char *name);
const char *fx_settings(const char *folder, const char *base, const char *name, const char *more);

/* Opens, makes `steps` steps (grads of the first, masters after the last, an evaluation), closes. */
void fx_measure(fx_job *job, const char *model, const char *overrides, int steps, fx_source *source,
                fx_outcome *outcome);
void fx_outcome_clear(fx_outcome *outcome);

/* Rank 0 of the job checks that two outcomes have the same bits: losses, norms, gradients, weights. */
void fx_check_equal(fx_job *job, const fx_outcome *a, const fx_outcome *b, const char *what);
/* The largest relative L2 difference of a parameter's step-1 gradient, over max(its norm, 1e-3 of the largest gradient norm). Rank 0; 0 elsewhere. */
double fx_grad_difference(fx_job *job, const fx_outcome *a, const fx_outcome *b);

#endif
