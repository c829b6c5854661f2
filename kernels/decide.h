/* The arithmetic of a step's decision (kernels/ops.h, tr_decision), the same for every device. Valid C17, C++17 and CUDA.
 *
 * Doubles, with additions, products, quotients and square roots only, which IEEE 754 rounds the same everywhere. */
#ifndef TR_KERNELS_DECIDE_H
#define TR_KERNELS_DECIDE_H

#include "base/exact_sum_value.h"
#include "kernels/ops.h"

#define TR_LOSS_SCALE_LARGEST 16777216.0

/* What the sum of losses is multiplied by before backward. */
TR_HOST_DEVICE_INLINE float tr_decide_backward_scale(double loss_scale, double token_scale)
{
    return (float)(loss_scale / token_scale);
}

TR_HOST_DEVICE_INLINE void tr_decide_loss_scale(const tr_decision *args)
{
    tr_step_state *state = args->state;
    double scale = state->loss_scale;
    if (args->growth_interval == 0)
        return;
    if (state->skipped != 0) {
        state->loss_scale = scale / 2 < 1 ? 1 : scale / 2;
        state->good_steps = 0;
    } else if (++state->good_steps >= args->growth_interval) {
        state->loss_scale = scale * 2 > TR_LOSS_SCALE_LARGEST ? TR_LOSS_SCALE_LARGEST : scale * 2;
        state->good_steps = 0;
    }
}

TR_HOST_DEVICE_INLINE void tr_decide_update(const tr_decision *args)
{
    tr_step_state *state = args->state;
    double factor = 1.0, clip = args->clip;
    if (clip > 0 && clip / (state->grad_norm + 1e-6) < 1.0)
        factor = clip / (state->grad_norm + 1e-6);
    state->grad_scale = (float)(factor / state->grad_divisor);
    state->lr = args->lr;
    state->bias1 = args->bias1;
    state->bias2 = args->bias2;
    state->updates++;
}

/* Limb i of all parts: at most TR_EXACT_SUM_MAX_RANKS of them. */
TR_HOST_DEVICE_INLINE int64_t tr_decide_limb(const tr_decision *args, int i)
{
    int64_t sum = 0;
    for (int64_t part = 0; part < args->num_parts; part++)
        sum += args->sums[part * TR_STEP_SUMS + i];
    return sum;
}

/* sums [TR_STEP_SUMS]: the limbs of all parts. */
TR_HOST_DEVICE_INLINE void tr_decide(const tr_decision *args, const int64_t *sums)
{
    tr_step_state *state = args->state;
    const int64_t *losses = sums + TR_SQUARE_SUM_LIMBS;
    bool finite_squares, finite_losses;
    double squares = tr_square_sum_value(sums, &finite_squares);
    double loss = tr_fixed_sum_value(losses, &finite_losses);
    double tokens = losses[TR_LOSS_SUM_TOKENS] > 0 ? (double)losses[TR_LOSS_SUM_TOKENS] : 1.0;
    state->tokens = losses[TR_LOSS_SUM_TOKENS];
    state->loss = finite_losses ? loss / tokens : NAN;
    state->grad_divisor = tokens * (state->loss_scale / args->token_scale);
    state->grad_norm = sqrt(squares) / state->grad_divisor;
    state->skipped = !finite_squares || !finite_losses;
    state->skips_in_row = state->skipped != 0 ? state->skips_in_row + 1 : 0;
    if (state->skipped == 0)
        tr_decide_update(args);
    tr_decide_loss_scale(args);
    state->backward_scale = tr_decide_backward_scale(state->loss_scale, args->token_scale);
}

#endif
