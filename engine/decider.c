#include "engine/decider.h"

#include <math.h>

#include "engine/lr.h"
#include "kernels/decide.h"
#include "kernels/device_host.h"

static const double first_loss_scale = 65536.0;

void tr_decider_init(tr_decider *decider, const tr_config *cfg, tr_device *device, tr_arena *memory,
                     tr_arena *host)
{
    *decider = (tr_decider){.cfg = cfg, .device = device};
    decider->state = tr_arena_alloc(memory, sizeof *decider->state);
    decider->known =
        device->unified ? decider->state : tr_arena_alloc(host, sizeof *decider->known);
}

tr_status tr_decider_connect(tr_decider *decider)
{
    tr_step_state first = tr_decider_first_state(decider->cfg);
    if (!decider->device->unified)
        TR_TRY(decider->device->event_create(decider->device, &decider->arrived));
    return tr_decider_set_state(decider, &first);
}

void tr_decider_clear(tr_decider *decider)
{
    if (decider->arrived != NULL)
        decider->device->event_destroy(decider->device, decider->arrived);
    *decider = (tr_decider){0};
}

/* fp16: the power of two that keeps the sum of a batch's gradients in range, at least the tokens of the global batch. */
static double token_scale(const tr_config *cfg)
{
    if (cfg->train.precision != TR_F16)
        return 1.0;
    double tokens = (double)(cfg->train.global_batch * cfg->train.seq_len);
    return exp2(ceil(log2(tokens)));
}

bool tr_decider_is_dynamic(const tr_config *cfg)
{
    return cfg->train.precision == TR_F16 && cfg->train.loss_scale == 0;
}

tr_step_state tr_decider_first_state(const tr_config *cfg)
{
    tr_step_state state = {.loss_scale = 1.0};
    if (cfg->train.precision == TR_F16)
        state.loss_scale = tr_decider_is_dynamic(cfg) ? first_loss_scale : cfg->train.loss_scale;
    return state;
}

tr_status tr_decider_set_state(tr_decider *decider, const tr_step_state *state)
{
    tr_step_state whole = *state;
    whole.backward_scale = tr_decide_backward_scale(state->loss_scale, token_scale(decider->cfg));
    TR_TRY(tr_device_write(decider->device, decider->state, &whole, sizeof whole));
    *decider->known = whole;
    return TR_OK;
}

static float bias_correction(double beta, int64_t updates)
{
    return (float)(1.0 - pow(beta, (double)updates));
}

tr_status tr_decider_decide(tr_decider *decider, int64_t step, const int64_t *sums, int num_parts)
{
    const tr_config *cfg = decider->cfg;
    tr_device *device = decider->device;
    int64_t update = decider->known->updates + 1;
    const tr_decision decision = {.num_parts = num_parts,
                                  .sums = sums,
                                  .token_scale = token_scale(cfg),
                                  .clip = cfg->train.clip,
                                  .growth_interval =
                                      tr_decider_is_dynamic(cfg) ? cfg->train.loss_scale_growth : 0,
                                  .lr = (float)tr_lr_at(cfg, step),
                                  .bias1 = bias_correction(cfg->train.beta1, update),
                                  .bias2 = bias_correction(cfg->train.beta2, update),
                                  .state = decider->state};
    TR_TRY(device->ops->decide(device, &decision));
    if (device->unified)
        return TR_OK;
    TR_TRY(device->copy(device, TR_STREAM_COMPUTE, decider->known, decider->state,
                        sizeof *decider->known));
    return device->event_record(device, decider->arrived, TR_STREAM_COMPUTE);
}
