/* A step's decision on the CUDA device: every bit of the state as on the CPU. */
#include "tests/ops/decision_cases.h"
#include "tests/ops/op_parity.h"

#include <math.h>
#include <string.h>

enum { WORDS = sizeof(tr_step_state) / sizeof(int64_t) };

/* Numbers that are none have bits of the processor's own. */
static void nan_forget(double *value)
{
    if (isnan(*value))
        *value = -1;
}

static void decide_case(const decision_case *c, int repeats)
{
    int64_t limbs[DECISION_MOST_PARTS * TR_STEP_SUMS];
    decision_sums(c, limbs);
    op_tensor sums = op_from(TR_I64, DECISION_MOST_PARTS * TR_STEP_SUMS, 0, limbs);
    op_tensor state = op_from(TR_I64, WORDS, 0, &c->before);
    tr_decision args[OP_SIDES];
    for (int side = 0; side < OP_SIDES; side++) {
        args[side] = decision_args(c);
        args[side].sums = sums.data[side];
        args[side].state = state.data[side];
    }
    for (int i = 0; i < repeats; i++)
        op_both(decide, &args[side]);
    tr_step_state after[OP_SIDES];
    memcpy(&after[OP_CPU], state.data[OP_CPU], sizeof after[OP_CPU]);
    op_download(&state, &after[OP_CUDA]);
    for (int side = 0; side < OP_SIDES; side++) {
        nan_forget(&after[side].loss);
        nan_forget(&after[side].grad_norm);
    }
    if (memcmp(&after[OP_CPU], &after[OP_CUDA], sizeof after[OP_CPU]) != 0)
        fail_msg("%s: norm %.17g, scale %.9g; the CPU has %.17g, %.9g", c->name,
                 after[OP_CUDA].grad_norm, (double)after[OP_CUDA].grad_scale,
                 after[OP_CPU].grad_norm, (double)after[OP_CPU].grad_scale);
    if (memcmp(&after[OP_CPU], &c->before, sizeof after[OP_CPU]) == 0)
        fail_msg("%s: nothing was decided", c->name);
    op_release();
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_decision_cases; i++)
        for (int repeats = 1; repeats < 9; repeats += 7)
            decide_case(&decision_cases[i], repeats);
}

/* Mantissas of all kinds, so that roundings meet: ties, halves, limbs full of ones. */
static void test_roundings(void **state)
{
    (void)state;
    uint32_t word = 7;
    for (int i = 0; i < 200; i++) {
        decision_case c = decision_cases[i % 5];
        for (int k = 0; k < 2; k++) {
            word = word * 1664525u + 1013904223u;
            c.gradients[k] = ldexpf((float)(word >> 8), (int)(word % 61) - 40);
            word = word * 1664525u + 1013904223u;
            c.losses[k] = ldexp((double)word, (int)(word % 30) - 32);
        }
        c.ranks = 1 + i * i;
        c.tokens = (int64_t)(word >> 12) + 1;
        c.clip = ldexp(1.0 + i, -(i % 40));
        decide_case(&c, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases),
                                       cmocka_unit_test(test_roundings)};
    return op_parity_main("cuda decide", tests, sizeof tests / sizeof tests[0]);
}
