/* libtrine: a training run on an MPI communicator.
 *
 *     tr_run_open -> (tr_run_step | tr_run_evaluate | tr_run_save)* -> tr_run_close
 *
 * No globals, no signal handlers, no exit, nothing printed; the thread that opens a run makes all calls on it, and every function here is collective over
 * the communicator unless it says otherwise. MPI is initialised by the caller. A function that fails on one rank only leaves the others waiting: the caller ends the job (MPI_Abort) with
 * tr_status_exit_code. */
#ifndef TR_ENGINE_TRINE_H
#define TR_ENGINE_TRINE_H

#include <mpi.h>

#include "engine/config/config.h"
#include "memory/arena.h"

typedef struct tr_run tr_run;
struct tr_device;

/* One rank's part of a step's batch: M microbatches of B sequences of T tokens, by data coordinate (tensor and pipeline peers get the same). */
typedef struct tr_run_batch {
    const int32_t *tokens;   /* [M][B][T] */
    const int32_t *labels;   /* [M][B][T]; -1: not counted */
    const uint64_t *samples; /* [M][B] global sample numbers */
} tr_run_batch;

typedef struct tr_run_callbacks {
    void *context;
    /* Hand-made data in place of data.train and data.valid: this rank's microbatches of the global batch that begins with `first_sample` (of an evaluation: step -1). Microbatch m
     * holds samples first_sample + microbatches[m] x B and on. Valid until the next call. NULL: token files. */
    tr_status (*batch)(void *context, int64_t step, uint64_t first_sample, const int *microbatches,
                       int num_microbatches, tr_run_batch *batch);
    /* Wraps the device's operations before the first use (tests that count, delay or damage); NULL: as they are. */
    void (*device)(void *context, struct tr_device *device);
} tr_run_callbacks;

/* Seconds of one rank in one step. */
typedef struct tr_times {
    double compute, tensor, data, pipeline, idle, feed, checkpoint;
} tr_times;
enum { TR_NUM_TIMES = sizeof(tr_times) / sizeof(double) };

typedef struct tr_metrics {
    int64_t step;        /* completed steps, from 1 */
    int64_t samples;     /* data position: samples consumed so far */
    int64_t tokens;      /* consumed so far */
    int64_t step_tokens; /* counted tokens of this step */
    double loss;         /* mean over the counted tokens of the global batch, nats */
    double grad_norm;    /* before clipping */
    double lr, loss_scale;
    bool skipped; /* a gradient was not finite: no update */
    int64_t skips_in_row;
    int bad_rank;                        /* skipped: lowest rank whose loss was not finite, or -1 */
    uint64_t first_sample;               /* of this step */
    uint64_t first_epoch, last_epoch;    /* of its first and last sample; 0 with hand-made data */
    bool stop_requested, save_requested; /* some rank asked (tr_run_request) */
    bool traced;                         /* rank 0: the step is in run.dir/trace.json (log.trace) */
    double step_seconds, tokens_per_second, mfu;
    size_t memory_peak_bytes; /* of the arenas in the device's memory, largest rank */
    tr_times times;           /* of the slowest rank, each */
} tr_metrics;

/* cfg: resolved for the communicator's size, copied. Ranks beyond data x tensor x pipeline are an error. Fails with TR_ERR_MEMORY before anything is allocated when the plan does
 * not fit. Weights are initialised from train.seed; a checkpoint is loaded by tr_run_resume. */
tr_status tr_run_open(tr_run **run, const tr_config *cfg, MPI_Comm comm,
                      const tr_run_callbacks *callbacks);
/* Waits for a save that is under way: collective then. After a call that failed on some rank that wait ends after parallel.timeout_s at most. */
void tr_run_close(tr_run *run);

/* One optimizer step. TR_ERR_NUMERICS after train.max_skips skipped steps in a row. */
tr_status tr_run_step(tr_run *run, tr_metrics *metrics);
/* Mean loss over data.valid (train.eval_batches global batches of it, 0 = all), the same ones each time. */
tr_status tr_run_evaluate(tr_run *run, double *loss);

/* Not collective: asks all ranks to stop, or to save, after the next step; seen in its metrics. Callable from a signal handler. */
typedef enum tr_request { TR_REQUEST_STOP, TR_REQUEST_SAVE } tr_request;
void tr_run_request(tr_run *run, tr_request request);

int64_t tr_run_steps_done(const tr_run *run);
const tr_config *tr_run_config(const tr_run *run); /* with reduction order and leaves as resolved */
/* This rank's planned bytes by category ([TR_MEM_NUM]); equal to what is allocated. Not collective. */
const size_t *tr_run_memory(const tr_run *run);
/* Their sum, as far as they lie in the memory of the device that computes: a GPU's has no snapshot, which is pinned memory of the host. */
size_t tr_run_memory_total(const tr_run *run);
/* What fixes the bits of its arithmetic: kind of device, instruction set or architecture, libraries. Lives as long as the run. */
const char *tr_run_device_numerics(const tr_run *run);

/* Global tensors, for comparison, checkpoints' tests and import. */
typedef enum tr_tensor_kind {
    TR_TENSOR_MASTER,
    TR_TENSOR_M,
    TR_TENSOR_V,
    TR_TENSOR_GRAD
} tr_tensor_kind;
int tr_run_num_params(const tr_run *run);
/* Name and shape of a parameter in model order; a tied head is not one. */
const char *tr_run_param_name(const tr_run *run, int index, int64_t shape[2]);
/* Writes all elements of the global tensor to values (every rank's). GRAD: mean gradient of the last step (divided by the tokens, unscaled, before clipping). */
tr_status tr_run_param_get(tr_run *run, int index, tr_tensor_kind kind, float *values);
/* Sets master or moments; compute copies follow with tr_run_params_changed. */
tr_status tr_run_param_set(tr_run *run, int index, tr_tensor_kind kind, const float *values);
tr_status tr_run_params_changed(tr_run *run);

/* Logits of one microbatch of B sequences of T tokens (compute dtype widened): values [B*T, vocab] on every rank. Not during a step. */
tr_status tr_run_logits(tr_run *run, const int32_t *tokens, float *values);
/* Logits of the given row (b*T + t) of such a microbatch: values [vocab]. */
tr_status tr_run_row_logits(tr_run *run, const int32_t *tokens, int64_t row, float *values);

/* Saves the state after the last step under checkpoint.dir: with checkpoint.async beside the next steps, whose tr_run_step sees to its end, else before returning. Waits for an
 * earlier save that is under way. engine/checkpoint.h says what becomes of one that fails. */
tr_status tr_run_save(tr_run *run);
/* Waits until no save is under way. */
tr_status tr_run_save_wait(tr_run *run);
/* Resumes as checkpoint.resume says (*resumed: whether a checkpoint was loaded). */
tr_status tr_run_resume(tr_run *run, bool *resumed);

#endif
