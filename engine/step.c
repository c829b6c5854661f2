/* One training step and one evaluation: batch, pipeline, decision and update (run_decide.c), metrics. */
#include "engine/run_int.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/device_range.h"

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

/* What all ranks tell one another at a step's end: the largest of each is common. */
enum {
    END_PEAK = TR_NUM_TIMES,
    END_STOP_ASKED,
    END_SAVE_ASKED,
    END_SAVE,
    END_COUNT = END_SAVE + TR_SAVE_NOTES
};

static tr_status step_end(tr_run *run, tr_metrics *metrics)
{
    int64_t microseconds[END_COUNT]; /* some of them */
    double seconds[TR_NUM_TIMES];
    memcpy(seconds, &metrics->times, sizeof seconds);
    for (int i = 0; i < TR_NUM_TIMES; i++)
        microseconds[i] = (int64_t)(seconds[i] * 1e6);
    microseconds[END_PEAK] = (int64_t)metrics->memory_peak_bytes;
    microseconds[END_STOP_ASKED] = run->stop_requested;
    microseconds[END_SAVE_ASKED] = run->save_requested;
    if (microseconds[END_SAVE_ASKED] != 0) /* else a signal that comes in between would be lost */
        run->save_requested = 0;
    tr_save_note(run, microseconds + END_SAVE);
    TR_TRY(tr_run_max(run, microseconds, END_COUNT));
    for (int i = 0; i < TR_NUM_TIMES; i++)
        seconds[i] = (double)microseconds[i] * 1e-6;
    memcpy(&metrics->times, seconds, sizeof seconds);
    metrics->memory_peak_bytes = (size_t)microseconds[END_PEAK];
    metrics->stop_requested = microseconds[END_STOP_ASKED] != 0;
    metrics->save_requested = microseconds[END_SAVE_ASKED] != 0;
    return tr_save_advance(run, microseconds + END_SAVE);
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
    /* What waiting for a save takes is timed from outside, and comes out microseconds longer than those waits. */
    times->idle = fmax(times->idle, 0);
    times->feed = feed_wait;
    times->checkpoint = after.saving;
    times->compute = metrics->step_seconds - times->tensor - times->data - times->pipeline -
                     times->idle - times->feed - (after.saving - before.saving);
    tr_save_note_step(run, metrics->step_seconds - (after.saving - before.saving));
    run->saver.blocked = 0;
    size_t peaks[TR_MEM_NUM];
    for (int c = 0; c < TR_MEM_NUM; c++)
        peaks[c] = run->arenas[c].peak;
    metrics->memory_peak_bytes = tr_run_device_bytes(run->device, peaks);
    int64_t batch_tokens = run->cfg.train.global_batch * run->cfg.train.seq_len;
    metrics->tokens_per_second = (double)batch_tokens / metrics->step_seconds;
    metrics->mfu = run->peak_flops > 0
                       ? run->flops_per_token * metrics->tokens_per_second / run->peak_flops
                       : 0;
}

static tr_status update_make(tr_run *run, tr_metrics *metrics)
{
    TR_TRY(tr_optimizer_tie_gradients(&run->optimizer));
    return tr_run_decide(run, metrics);
}

/* The step itself: all that its time is made of. */
static tr_status step_make(tr_run *run, tr_metrics *metrics, double *feed_wait)
{
    tr_trace_ring *trace = &run->stage.trace;
    double begin = tr_trace_now(trace);
    TR_TRY(batch_get(run, true, run->samples, metrics, feed_wait));
    tr_trace_part(trace, "feed", begin);
    TR_TRY(tr_step_sums_reset(&run->stage.sums));
    TR_TRY(tr_stage_train(&run->stage, run->microbatches, run->step));
    begin = tr_trace_now(trace);
    tr_device_range_begin(run->device, "decide, update");
    tr_status status = update_make(run, metrics);
    tr_device_range_end(run->device);
    tr_trace_part(trace, "decide, update", begin);
    return status;
}

tr_status tr_run_step(tr_run *run, tr_metrics *metrics)
{
    TR_TRY(tr_trace_step_begin(run));
    double begin = tr_clock_seconds(), feed_wait;
    wait_marks before = waits_now(run);
    *metrics = (tr_metrics){.first_sample = run->samples};
    tr_device_range_begin_format(run->device, "step %lld", (long long)run->step + 1);
    tr_status status = step_make(run, metrics, &feed_wait);
    tr_device_range_end(run->device);
    TR_TRY(status);
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
    int64_t sums[TR_STEP_SUMS], *losses = sums + TR_SQUARE_SUM_LIMBS;
    int64_t batches = eval_batches(run);
    double wait;
    TR_TRY(tr_step_sums_reset(&run->stage.sums));
    for (int64_t b = 0; b < batches; b++) {
        TR_TRY(batch_get(run, false, (uint64_t)(b * run->cfg.train.global_batch), NULL, &wait));
        TR_TRY(tr_stage_evaluate(&run->stage, run->microbatches));
    }
    TR_TRY(tr_step_sums_get(&run->stage.sums, sums));
    TR_TRY(tr_run_sum(run, losses, TR_LOSS_SUM_LIMBS));
    bool finite;
    double sum = tr_fixed_sum_from_limbs(losses, &finite);
    if (losses[TR_LOSS_SUM_TOKENS] == 0)
        return tr_fail(TR_ERR_DATA, "evaluation: no token of data.valid is counted");
    *loss = finite ? sum / (double)losses[TR_LOSS_SUM_TOKENS] : NAN;
    return TR_OK;
}
