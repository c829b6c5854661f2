#include "engine/scaler.h"

static const double initial_scale = 65536.0, largest_scale = 16777216.0;

void tr_scaler_init(tr_scaler *scaler, const tr_config *cfg)
{
    *scaler = (tr_scaler){.scale = 1.0, .growth_interval = cfg->train.loss_scale_growth};
    if (cfg->train.precision != TR_F16)
        return;
    scaler->dynamic = cfg->train.loss_scale == 0;
    scaler->scale = scaler->dynamic ? initial_scale : cfg->train.loss_scale;
}

void tr_scaler_update(tr_scaler *scaler, bool finite)
{
    if (!scaler->dynamic)
        return;
    if (!finite) {
        scaler->scale = scaler->scale / 2 < 1 ? 1 : scaler->scale / 2;
        scaler->good_steps = 0;
    } else if (++scaler->good_steps >= scaler->growth_interval) {
        scaler->scale = scaler->scale * 2 > largest_scale ? largest_scale : scaler->scale * 2;
        scaler->good_steps = 0;
    }
}
