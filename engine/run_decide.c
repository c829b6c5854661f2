/* The one decision of all ranks about a step, the update that follows from it, and what the host learns of them.
 *
 * Sums, decision and update are enqueued one behind the other. Only then does the host wait, and no longer than for the decision: while the device updates, the host
 * is on its way to the next step. What it enforces itself comes last: who saw a number that was not finite, and the end when that has been too often. */
#include "engine/run_int.h"

#include "engine/lr.h"

/* After a step that was skipped: who saw it first, and the end when it has been too often. The gradients are still there. */
static tr_status skip_note(tr_run *run, tr_metrics *metrics)
{
    int64_t sums[TR_STEP_SUMS];
    int row;
    TR_TRY(tr_step_sums_get(&run->stage.sums, sums));
    bool own_loss_finite = sums[TR_SQUARE_SUM_LIMBS + TR_FIXED_SUM_LIMBS - 1] == 0;
    int64_t lowest[2] = {own_loss_finite ? INT64_MAX : run->mesh.rank, INT64_MAX};
    TR_TRY(tr_optimizer_find_non_finite(&run->optimizer, &row));
    if (row >= 0)
        lowest[1] = row;
    TR_TRY(tr_run_min(run, lowest, 2));
    metrics->bad_rank = lowest[0] == INT64_MAX ? -1 : (int)lowest[0];
    if (metrics->skips_in_row < run->cfg.train.max_skips)
        return TR_OK;
    return tr_fail(
        TR_ERR_NUMERICS,
        "step %lld: the gradient was not finite in %lld steps in a row (train.max_skips "
        "%lld); first in parameter %s, samples %llu to %llu, loss scale %g; the weights "
        "are those of the last finite step; lower train.lr, check the data, or resume "
        "from the last checkpoint",
        (long long)run->step + 1, (long long)metrics->skips_in_row,
        (long long)run->cfg.train.max_skips,
        lowest[1] == INT64_MAX ? "(none: the loss only)" : run->stage.table.rows[lowest[1]].name,
        (unsigned long long)run->samples,
        (unsigned long long)run->samples + (unsigned long long)run->cfg.train.global_batch - 1,
        metrics->loss_scale);
}

/* Waits for the decision. */
static tr_status outcome_take(tr_run *run, tr_metrics *metrics)
{
    tr_decider *decider = &run->stage.decider;
    double begin = tr_trace_now(&run->stage.trace);
    if (decider->arrived != NULL) {
        TR_TRY(tr_world_wait_device(run->world, decider->arrived));
        tr_trace_part(&run->stage.trace, "wait for device", begin);
    }
    const tr_step_state *state = decider->known;
    run->grad_divisor = state->grad_divisor;
    metrics->step_tokens = state->tokens;
    metrics->loss = state->loss;
    metrics->grad_norm = state->grad_norm;
    metrics->skipped = state->skipped != 0;
    metrics->skips_in_row = state->skips_in_row;
    metrics->bad_rank = -1;
    return TR_OK;
}

tr_status tr_run_decide(tr_run *run, tr_metrics *metrics)
{
    tr_decider *decider = &run->stage.decider;
    tr_step_sums *sums = &run->stage.sums;
    metrics->lr = tr_lr_at(&run->cfg, run->step + 1);
    metrics->loss_scale = decider->known->loss_scale;
    TR_TRY(tr_optimizer_square_sum(&run->optimizer));
    TR_TRY(tr_step_sums_join(sums, run->device->unified ? run->all : run->decision));
    TR_TRY(tr_decider_decide(decider, run->step + 1, sums->parts, sums->num_parts));
    TR_TRY(tr_save_preserve_all(run)); /* nobody knows yet whether the state will change */
    TR_TRY(tr_optimizer_update(&run->optimizer));
    TR_TRY(outcome_take(run, metrics));
    return metrics->skipped ? skip_note(run, metrics) : TR_OK;
}
