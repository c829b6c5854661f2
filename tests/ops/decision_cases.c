#include "tests/ops/decision_cases.h"

#include <math.h>

#define AFTER(scale, good, skips)                                                                  \
    {                                                                                              \
        .loss_scale = (scale), .good_steps = (good), .skips_in_row = (skips), .updates = 41        \
    }

const decision_case decision_cases[] = {
    {"no clipping", {3.0f, -4.0f}, {1.5, 2.25}, 1, 7, 1.0, 0.0, 0, AFTER(1.0, 0, 0)},
    {"a norm below the clip", {3.0f, -4.0f}, {1.5, 2.25}, 1, 50, 1.0, 1.0, 0, AFTER(1.0, 0, 2)},
    {"a norm above it", {3.0f, -4.0f}, {1.5, 2.25}, 1, 3, 1.0, 0.7, 0, AFTER(1.0, 0, 0)},
    {"ranks", {0.1f, 0.3f}, {1.1, 7.7}, 1024, 1000003, 1.0, 1e-7, 0, AFTER(1.0, 0, 0)},
    {"fp16", {0.1f, 0.3f}, {1.1, 0.3}, 3, 4097, 8192.0, 1e-9, 1000, AFTER(65536.0, 5, 0)},
    {"the scale doubles", {0.1f, 0.3f}, {1.1, 0.3}, 1, 9, 16.0, 1.0, 6, AFTER(65536.0, 5, 0)},
    {"the scale is at its ceiling",
     {0.1f, 0.3f},
     {1.1, 0.3},
     1,
     9,
     16.0,
     1.0,
     6,
     AFTER(16777216.0, 5, 0)},
    {"the scale is fixed", {0.1f, INFINITY}, {1.1, 0.3}, 1, 9, 16.0, 1.0, 0, AFTER(1024.0, 5, 0)},
    {"an infinite gradient",
     {0.1f, INFINITY},
     {1.1, 0.3},
     2,
     9,
     16.0,
     1.0,
     6,
     AFTER(65536.0, 5, 3)},
    {"a gradient that is no number", {NAN, 1.0f}, {1.1, 0.3}, 1, 9, 16.0, 1.0, 6, AFTER(2.0, 5, 0)},
    {"the scale is at its floor", {NAN, 1.0f}, {1.1, 0.3}, 1, 9, 16.0, 1.0, 6, AFTER(1.0, 0, 9)},
    {"a loss that is no number", {0.1f, 0.3f}, {NAN, 0.3}, 1, 9, 1.0, 1.0, 0, AFTER(1.0, 0, 0)},
    {"an infinite loss", {0.1f, 0.3f}, {1.0, INFINITY}, 5, 9, 1.0, 1.0, 0, AFTER(1.0, 0, 0)},
    {"no token", {0.0f, 0.0f}, {0.0, 0.0}, 1, 0, 1.0, 1.0, 0, AFTER(1.0, 0, 0)},
    {"a negative loss", {1.0f, 0.0f}, {-3.5, 0.7}, 7, 30, 1.0, 1.0, 0, AFTER(1.0, 0, 0)},
    {"huge gradients",
     {3.4028235e38f, -3.4028235e38f},
     {4.2e9, 1.0},
     4096,
     5,
     1.0,
     1.0,
     0,
     AFTER(1.0, 0, 0)},
    {"tiny gradients", {1e-45f, -3e-45f}, {1e-12, 0.0}, 1, 5, 1.0, 1.0, 0, AFTER(1.0, 0, 0)},
    {"huge and tiny ones",
     {3.4028235e38f, 1e-45f},
     {4.2e9, 1e-12},
     3,
     5,
     1.0,
     1e-3,
     0,
     AFTER(1.0, 0, 0)},
};
const size_t num_decision_cases = sizeof decision_cases / sizeof decision_cases[0];

int decision_parts(const decision_case *c)
{
    return c->ranks < DECISION_MOST_PARTS ? c->ranks : DECISION_MOST_PARTS;
}

void decision_sums(const decision_case *c, int64_t *sums)
{
    tr_square_sum squares;
    tr_fixed_sum losses;
    tr_square_sum_init(&squares);
    tr_fixed_sum_init(&losses);
    tr_square_sum_add(&squares, c->gradients, 2);
    for (int i = 0; i < 2; i++)
        tr_fixed_sum_add(&losses, c->losses[i]);
    tr_square_sum_to_limbs(&squares, sums);
    tr_fixed_sum_to_limbs(&losses, sums + TR_SQUARE_SUM_LIMBS);
    for (int p = DECISION_MOST_PARTS - 1; p >= 0; p--) {
        int parts = decision_parts(c), ranks = c->ranks / parts + (p < c->ranks % parts);
        int64_t *part = sums + p * TR_STEP_SUMS, tokens = c->tokens / parts;
        for (int i = 0; i < TR_STEP_SUMS; i++)
            part[i] = p < parts ? sums[i] * ranks : 0;
        if (p < parts)
            part[TR_SQUARE_SUM_LIMBS + TR_LOSS_SUM_TOKENS] =
                tokens + (p < c->tokens % parts ? 1 : 0);
    }
}

tr_decision decision_args(const decision_case *c)
{
    return (tr_decision){.num_parts = decision_parts(c),
                         .token_scale = c->token_scale,
                         .clip = c->clip,
                         .growth_interval = c->growth_interval,
                         .lr = 0.003f,
                         .bias1 = 0.4f,
                         .bias2 = 0.06f};
}
