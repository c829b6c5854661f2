/* Bytes that one rank sends in a training step, by formula: what the groups' counters come to (parallel/group.h). */
#ifndef TR_ENGINE_TRAFFIC_H
#define TR_ENGINE_TRAFFIC_H

#include "engine/stage.h"

typedef struct tr_traffic {
    int64_t gradients; /* over the data ranks */
    int64_t weights;   /* over the data ranks, with one update a step */
    int64_t tensor;    /* over the tensor ranks; rank 0 of them, which sends the most, in a plan */
    int64_t
        stages; /* to other pipeline stages: activations, their gradients, a tied head's tensor */
} tr_traffic;

/* Of a stage as it is laid out, counting or not. */
tr_traffic tr_stage_traffic(const tr_stage *stage);

#endif
