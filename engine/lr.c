#include "engine/lr.h"

#include <math.h>

double tr_lr_at(const tr_config *cfg, int64_t step)
{
    double peak = cfg->train.lr, low = cfg->train.min_lr;
    int64_t warmup = cfg->train.warmup_steps, steps = cfg->train.steps;
    if (step > steps)
        step = steps;
    if (step <= warmup)
        return peak * (double)step / (double)warmup;
    double progress = steps > warmup ? (double)(step - warmup) / (double)(steps - warmup) : 1.0;
    switch (cfg->train.schedule) {
    case TR_LR_COSINE:
        return low + (peak - low) * 0.5 * (1.0 + cos(M_PI * progress));
    case TR_LR_LINEAR:
        return peak + (low - peak) * progress;
    case TR_LR_WSD: {
        double decay = ceil(TR_LR_WSD_DECAY * (double)steps), left = (double)(steps - step);
        return left >= decay ? peak : low + (peak - low) * left / decay;
    }
    case TR_LR_CONSTANT:
        break;
    }
    return peak;
}
