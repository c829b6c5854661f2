/* The loss scale of fp16 (Micikevicius et al. 2018): halved when a gradient was not finite, doubled after a run of finite steps. Powers of two.
 *
 * Every rank keeps the same state, moved by the one global decision of a step. bf16 and fp32 have scale 1 that never moves. */
#ifndef TR_ENGINE_SCALER_H
#define TR_ENGINE_SCALER_H

#include "engine/config/config.h"

typedef struct tr_scaler {
    double scale;
    bool dynamic;
    int64_t growth_interval;
    int64_t good_steps; /* finite steps since the last change */
} tr_scaler;

/* Dynamic starts at 2^16. */
void tr_scaler_init(tr_scaler *scaler, const tr_config *cfg);
/* After a step's decision. Floor 1, ceiling 2^24. */
void tr_scaler_update(tr_scaler *scaler, bool finite);

#endif
