/* The learning rate as a function of the step number; pure, so that a resumed run has the straight run's rates. */
#ifndef TR_ENGINE_LR_H
#define TR_ENGINE_LR_H

#include "engine/config/config.h"

/* The share of the steps, at the end, in which wsd decays. */
#define TR_LR_WSD_DECAY 0.2

/* Rate of the step that becomes number `step` when completed (1 ... train.steps; later steps keep the last rate). Warm-up is linear: step s of w has s/w of the
 * peak. After it, with p going from 0 to 1 at the last step: cosine min + (lr - min)(1 + cos(pi p))/2; linear lr + (min - lr) p; wsd
 * the peak until the last TR_LR_WSD_DECAY of all steps, then linear to min (Hu et al. 2024); constant the peak. */
double tr_lr_at(const tr_config *cfg, int64_t step);

#endif
