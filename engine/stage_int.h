/* Between the files of a stage: stage.c lays it out, stage_pass.c runs it. */
#ifndef TR_ENGINE_STAGE_INT_H
#define TR_ENGINE_STAGE_INT_H

#include "engine/stage.h"

/* What the executors of this stage call; from here on the model tells the stage how far it is. */
tr_stage_functions tr_stage_pass_functions(tr_stage *stage);

#endif
