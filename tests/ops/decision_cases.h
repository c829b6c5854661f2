/* Decisions of a step from hand-made sums, for the tests of every device. */
#ifndef TR_TESTS_DECISION_CASES_H
#define TR_TESTS_DECISION_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ops.h"

/* A step: two gradients and two losses of each of `ranks` ranks alike, and what is known before. */
typedef struct decision_case {
    const char *name;
    float gradients[2];
    double losses[2];
    int ranks;
    int64_t tokens; /* of all ranks */
    double token_scale, clip;
    int64_t growth_interval;
    tr_step_state before;
} decision_case;

extern const decision_case decision_cases[];
extern const size_t num_decision_cases;

enum { DECISION_MOST_PARTS = 70 };
/* Parts of all ranks' limbs, added up without carries, in sums [DECISION_MOST_PARTS][TR_STEP_SUMS], the last ones 0. */
int decision_parts(const decision_case *c);
void decision_sums(const decision_case *c, int64_t *sums);
/* With parts, learning rate and bias corrections; sums and state are the caller's. */
tr_decision decision_args(const decision_case *c);

#endif
