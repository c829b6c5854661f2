/* One training step and one evaluation: batch, pipeline, one global decision, update, metrics. */
#include "engine/run_int.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/lr.h"

/* What one integer sum over all ranks decides about a step. */
enum {
    SUM_SQUARES = 0,
    SUM_LOSS = SUM_SQUARES + TR_SQUARE_SUM_LIMBS,
    SUM_TOKENS = SUM_LOSS + TR_FIXED_SUM_LIMBS,
    SUM_STOP,
    SUM_SAVE,
    SUM_SAVE_READS, /* ranks whose state is still being read for a checkpoint */
    SUM_COUNT
};

static tr_status batch_get(tr_run *run, bool training, uint64_t first_sample, tr_metrics *metrics,
                           double *wait)
{
    *wait = 0;
    if (run->callbacks.batch != NULL) {
        tr_run_batch batch = {0};
        TR_TRY(run->callbacks.batch(run->callbacks.context, training ? run->step : -1, first_sample,
                                    run->microbatch_numbers, run->num_microbatches, &batch));
        return tr_upload_make(&run->stage.upload, batch.tokens, batch.labels, batch.samples,
                              run->num_microbatches, run->microbatches);
    }
    tr_batch batch;
    TR_TRY(tr_feed_next(training ? run->train_feed : run->valid_feed, &batch));
    *wait = batch.wait_s;
    if (metrics != NULL) {
        metrics->first_epoch = batch.first_epoch;
        metrics->last_epoch = batch.last_epoch;
    }
    return tr_upload_make(&run->stage.upload, batch.tokens, batch.labels, batch.samples,
                          run->num_microbatches, run->microbatches);
}

/* The losses of a microbatch are the same on all tensor ranks: one of them counts. */
static void loss_take(const tr_run *run, const int64_t *sums, int64_t *values)
{
    bool counts = run->mesh.tensor == 0 && run->mesh.pipeline == run->cfg.derived.head_stage;
    const int64_t *loss = sums + TR_SQUARE_SUM_LIMBS;
    if (!counts)
        return;
    memcpy(values + SUM_LOSS, loss, TR_FIXED_SUM_LIMBS * sizeof *values);
    values[SUM_TOKENS] = loss[TR_LOSS_SUM_TOKENS];
}

/* fp16: the power of two that keeps the sum of a batch's gradients in range, at least the tokens of the global batch. */
static double token_scale(const tr_run *run)
{
    if (run->cfg.train.precision != TR_F16)
        return 1.0;
    double tokens = (double)(run->cfg.train.global_batch * run->cfg.train.seq_len);
    return exp2(ceil(log2(tokens)));
}

/* Seconds of the group waits so far; differences make a step's. Waits are on no two groups at once. */
typedef struct wait_marks {
    double tensor, data, pipeline, transfer, all;
    double saving; /* since the last step's end */
} wait_marks;

static double group_wait(const tr_group *group)
{
    return group != NULL ? tr_group_get_stats(group)->wait_seconds : 0;
}

/* Of the data group and those that are not the same. */
static double data_wait(const tr_run *run)
{
    double seconds = group_wait(run->data);
    if (run->shard != run->data)
        seconds += group_wait(run->shard);
    if (run->replica != run->data)
        seconds += group_wait(run->replica);
    return seconds;
}

static wait_marks waits_now(const tr_run *run)
{
    return (wait_marks){
        .tensor = group_wait(run->tensor) + group_wait(run->kv),
        .data = data_wait(run),
        .pipeline = group_wait(run->pipeline),
        .transfer = run->pipeline != NULL ? tr_group_get_stats(run->pipeline)->transfer_seconds : 0,
        .all = group_wait(run->all) - run->saver.group_seconds,
        .saving = run->saver.blocked};
}

/* What all ranks tell one another at a step's end. */
enum { END_PEAK = TR_NUM_TIMES, END_SAVE, END_COUNT = END_SAVE + TR_SAVE_NOTES };

static tr_status step_end(tr_run *run, tr_metrics *metrics)
{
    int64_t microseconds[END_COUNT];
    double seconds[TR_NUM_TIMES];
    memcpy(seconds, &metrics->times, sizeof seconds);
    for (int i = 0; i < TR_NUM_TIMES; i++)
        microseconds[i] = (int64_t)(seconds[i] * 1e6);
    microseconds[END_PEAK] = (int64_t)metrics->memory_peak_bytes;
    tr_save_note(run, microseconds + END_SAVE);
    TR_TRY(tr_run_max(run, microseconds, END_COUNT));
    for (int i = 0; i < TR_NUM_TIMES; i++)
        seconds[i] = (double)microseconds[i] * 1e-6;
    memcpy(&metrics->times, seconds, sizeof seconds);
    metrics->memory_peak_bytes = (size_t)microseconds[END_PEAK];
    return tr_save_advance(run, microseconds + END_SAVE);
}

/* After a step that must be skipped: who saw it first, and the end when it has been too often. */
static tr_status skip_note(tr_run *run, bool own_loss_finite, tr_metrics *metrics)
{
    int64_t lowest[2] = {own_loss_finite ? INT64_MAX : run->mesh.rank, INT64_MAX};
    int row;
    TR_TRY(tr_optimizer_find_non_finite(&run->optimizer, &row));
    if (row >= 0)
        lowest[1] = row;
    TR_TRY(tr_run_min(run, lowest, 2));
    metrics->bad_rank = lowest[0] == INT64_MAX ? -1 : (int)lowest[0];
    run->skips_in_row++;
    if (run->skips_in_row < run->cfg.train.max_skips)
        return TR_OK;
    return tr_fail(
        TR_ERR_NUMERICS,
        "step %lld: the gradient was not finite in %lld steps in a row (train.max_skips "
        "%lld); first in parameter %s, samples %llu to %llu, loss scale %g; the weights "
        "are those of the last finite step; lower train.lr, check the data, or resume "
        "from the last checkpoint",
        (long long)run->step + 1, (long long)run->skips_in_row, (long long)run->cfg.train.max_skips,
        lowest[1] == INT64_MAX ? "(none: the loss only)" : run->stage.table.rows[lowest[1]].name,
        (unsigned long long)run->samples,
        (unsigned long long)run->samples + (unsigned long long)run->cfg.train.global_batch - 1,
        run->scaler.scale);
}

/* The one decision of all ranks, and what follows from it. */
static tr_status decide_and_update(tr_run *run, double scale, tr_metrics *metrics)
{
    int64_t values[SUM_COUNT] = {0}, sums[TR_STEP_SUMS];
    TR_TRY(tr_optimizer_square_sum(&run->optimizer));
    TR_TRY(tr_step_sums_get(&run->stage.sums, sums));
    memcpy(values + SUM_SQUARES, sums, TR_SQUARE_SUM_LIMBS * sizeof *values);
    loss_take(run, sums, values);
    values[SUM_STOP] = run->stop_requested;
    values[SUM_SAVE] = run->save_requested;
    values[SUM_SAVE_READS] = !tr_save_preserve(run);
    if (values[SUM_SAVE] != 0) /* else a signal that comes in between would be lost */
        run->save_requested = 0;
    TR_TRY(tr_run_sum(run, values, SUM_COUNT));

    bool finite_grads, finite_loss;
    double squares = tr_square_sum_from_limbs(values + SUM_SQUARES, &finite_grads);
    double loss = tr_fixed_sum_from_limbs(values + SUM_LOSS, &finite_loss);
    double tokens = values[SUM_TOKENS] > 0 ? (double)values[SUM_TOKENS] : 1.0;
    run->grad_divisor = tokens * scale;
    metrics->step_tokens = values[SUM_TOKENS];
    metrics->loss = finite_loss ? loss / tokens : NAN;
    metrics->grad_norm = sqrt(squares) / run->grad_divisor;
    metrics->stop_requested = values[SUM_STOP] > 0;
    metrics->save_requested = values[SUM_SAVE] > 0;
    metrics->skipped = !finite_grads || !finite_loss;
    metrics->bad_rank = -1;
    metrics->lr = tr_lr_at(&run->cfg, run->step + 1);
    metrics->loss_scale = run->scaler.scale;
    tr_status status = TR_OK;
    if (metrics->skipped) {
        bool own_loss_finite = sums[TR_SQUARE_SUM_LIMBS + TR_FIXED_SUM_LIMBS - 1] == 0;
        status = skip_note(run, own_loss_finite, metrics);
    } else {
        double factor = 1.0, clip = run->cfg.train.clip;
        if (clip > 0 && clip / (metrics->grad_norm + 1e-6) < 1.0)
            factor = clip / (metrics->grad_norm + 1e-6);
        if (values[SUM_SAVE_READS] > 0)
            TR_TRY(tr_save_preserve_all(run));
        TR_TRY(tr_optimizer_update(&run->optimizer, metrics->lr, factor / run->grad_divisor));
        run->skips_in_row = 0;
    }
    metrics->skips_in_row = run->skips_in_row;
    tr_scaler_update(&run->scaler, !metrics->skipped);
    return status;
}

static void step_account(tr_run *run, double begin, wait_marks before, double feed_wait,
                         tr_metrics *metrics)
{
    wait_marks after = waits_now(run);
    tr_times *times = &metrics->times;
    metrics->step_seconds = tr_clock_seconds() - begin;
    times->tensor = after.tensor - before.tensor;
    times->data = after.data - before.data;
    /* A wait for a stage is a transfer as far as one was under way, and idle for the rest; what ranks wait for when all decide is that others have idled less. */
    times->pipeline = after.transfer - before.transfer;
    times->idle = after.pipeline - before.pipeline - times->pipeline + after.all - before.all;
    times->feed = feed_wait;
    times->checkpoint = after.saving;
    times->compute = metrics->step_seconds - times->tensor - times->data - times->pipeline -
                     times->idle - times->feed - (after.saving - before.saving);
    tr_save_note_step(run, metrics->step_seconds - (after.saving - before.saving));
    run->saver.blocked = 0;
    metrics->memory_peak_bytes = 0;
    for (int c = 0; c < TR_MEM_NUM; c++)
        metrics->memory_peak_bytes += run->arenas[c].peak;
    int64_t batch_tokens = run->cfg.train.global_batch * run->cfg.train.seq_len;
    metrics->tokens_per_second = (double)batch_tokens / metrics->step_seconds;
    metrics->mfu = run->peak_flops > 0
                       ? run->flops_per_token * metrics->tokens_per_second / run->peak_flops
                       : 0;
}

/* The step itself: all that its time is made of. */
static tr_status step_make(tr_run *run, tr_metrics *metrics, double *feed_wait)
{
    tr_trace_ring *trace = &run->stage.trace;
    double begin = tr_trace_now(trace);
    TR_TRY(batch_get(run, true, run->samples, metrics, feed_wait));
    tr_trace_part(trace, "feed", begin);
    double scale = run->scaler.scale / token_scale(run);
    TR_TRY(tr_step_sums_reset(&run->stage.sums));
    TR_TRY(tr_stage_train(&run->stage, run->microbatches, run->step, (float)scale));
    begin = tr_trace_now(trace);
    TR_TRY(tr_optimizer_tie_gradients(&run->optimizer));
    TR_TRY(decide_and_update(run, scale, metrics));
    tr_trace_part(trace, "decide, update", begin);
    return TR_OK;
}

tr_status tr_run_step(tr_run *run, tr_metrics *metrics)
{
    TR_TRY(tr_trace_step_begin(run));
    double begin = tr_clock_seconds(), feed_wait;
    wait_marks before = waits_now(run);
    *metrics = (tr_metrics){.first_sample = run->samples};
    TR_TRY(step_make(run, metrics, &feed_wait));
    run->step++;
    run->samples += (uint64_t)run->cfg.train.global_batch;
    run->loss_known = true;
    run->last_loss = metrics->loss;
    metrics->step = run->step;
    metrics->samples = (int64_t)run->samples;
    metrics->tokens = metrics->samples * run->cfg.train.seq_len;
    step_account(run, begin, before, feed_wait, metrics);
    if (tr_trace_is_on(&run->stage.trace))
        tr_trace_add(&run->stage.trace, TR_TRACE_STEP, 0, "step", begin)->number = (int)run->step;
    TR_TRY(tr_trace_step_end(run, &metrics->traced));
    return step_end(run, metrics);
}

/* Global batches of one evaluation. */
static int64_t eval_batches(const tr_run *run)
{
    int64_t asked = run->cfg.train.eval_batches;
    if (run->valid_feed == NULL)
        return asked > 0 ? asked : 1;
    return (int64_t)tr_feed_get_info(run->valid_feed)->pass_steps;
}

tr_status tr_run_evaluate(tr_run *run, double *loss)
{
    int64_t values[SUM_COUNT] = {0}, sums[TR_STEP_SUMS], batches = eval_batches(run);
    double wait;
    TR_TRY(tr_step_sums_reset(&run->stage.sums));
    for (int64_t b = 0; b < batches; b++) {
        TR_TRY(batch_get(run, false, (uint64_t)(b * run->cfg.train.global_batch), NULL, &wait));
        TR_TRY(tr_stage_evaluate(&run->stage, run->microbatches));
    }
    TR_TRY(tr_step_sums_get(&run->stage.sums, sums));
    loss_take(run, sums, values);
    TR_TRY(tr_run_sum(run, values, SUM_COUNT));
    bool finite;
    double sum = tr_fixed_sum_from_limbs(values + SUM_LOSS, &finite);
    if (values[SUM_TOKENS] == 0)
        return tr_fail(TR_ERR_DATA, "evaluation: no token of data.valid is counted");
    *loss = finite ? sum / (double)values[SUM_TOKENS] : NAN;
    return TR_OK;
}
