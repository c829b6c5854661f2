/* A step's decision on the CPU device: from hand-made sums, against the formula in long double. */
#include "tests/ops/decision_cases.h"
#include "tests/ops/op_test_util.h"

#include <math.h>

/* The last bit, at most, from a longer number. */
static void expect(const decision_case *c, const char *what, double got, long double expected)
{
    long double allowed = fabsl(expected) * 0x1p-52L;
    if (!(fabsl((long double)got - expected) <= allowed))
        fail_msg("%s: %s is %.17g, expected %.17Lg", c->name, what, got, expected);
}

static void count_expect(const decision_case *c, const char *what, int64_t got, int64_t expected)
{
    if (got != expected)
        fail_msg("%s: %s is %lld, expected %lld", c->name, what, (long long)got,
                 (long long)expected);
}

static void skip_check(const decision_case *c, const tr_step_state *after)
{
    bool moves = c->growth_interval > 0;
    double scale = c->before.loss_scale;
    count_expect(c, "skips in a row", after->skips_in_row, c->before.skips_in_row + 1);
    count_expect(c, "updates", after->updates, c->before.updates);
    count_expect(c, "good steps", after->good_steps, moves ? 0 : c->before.good_steps);
    expect(c, "loss scale", after->loss_scale, moves ? fmax(scale / 2, 1) : scale);
}

static void update_check(const decision_case *c, const tr_step_state *after)
{
    long double squares = 0, losses = 0;
    long double tokens = c->tokens > 0 ? (long double)c->tokens : 1;
    long double divisor = tokens * (c->before.loss_scale / c->token_scale);
    for (int i = 0; i < 2; i++) {
        squares += (long double)c->ranks * c->gradients[i] * c->gradients[i];
        losses += (long double)c->ranks * c->losses[i];
    }
    long double norm = sqrtl(squares) / divisor, factor = 1;
    if (c->clip > 0 && c->clip / (norm + 1e-6L) < 1)
        factor = c->clip / (norm + 1e-6L);
    expect(c, "divisor", after->grad_divisor, divisor);
    /* Two roundings, and that of a loss to multiples of 2^-64. */
    if (fabsl((long double)after->grad_norm - norm) > norm * 0x1p-51L)
        fail_msg("%s: norm %.17g, expected %.17Lg", c->name, after->grad_norm, norm);
    if (fabsl((long double)after->loss - losses / tokens) > fabsl(losses) * 0x1p-51L + 0x1p-60L)
        fail_msg("%s: loss %.17g, expected %.17Lg", c->name, after->loss, losses / tokens);
    if (fabsl((long double)after->grad_scale - factor / divisor) >
        factor / divisor * 0x1p-23L + 0x1p-149L)
        fail_msg("%s: scale %.9g, expected %.9Lg", c->name, (double)after->grad_scale,
                 factor / divisor);
    assert_true(after->lr == 0.003f && after->bias1 == 0.4f && after->bias2 == 0.06f);
    count_expect(c, "skips in a row", after->skips_in_row, 0);
    count_expect(c, "updates", after->updates, c->before.updates + 1);
    bool doubles = c->growth_interval > 0 && c->before.good_steps + 1 == c->growth_interval;
    count_expect(c, "good steps", after->good_steps,
                 doubles ? 0 : c->before.good_steps + (c->growth_interval > 0));
    double scale = c->before.loss_scale;
    expect(c, "loss scale", after->loss_scale, doubles ? fmin(scale * 2, 16777216) : scale);
}

static void decide_case(op_env *env, void *context)
{
    const decision_case *c = context;
    int64_t sums[DECISION_MOST_PARTS * TR_STEP_SUMS];
    tr_step_state after = c->before;
    tr_decision args = decision_args(c);
    decision_sums(c, sums);
    args.sums = sums;
    args.state = &after;
    assert_int_equal(env->ops.decide(env->device, &args), TR_OK);
    bool finite_loss = isfinite(c->losses[0]) && isfinite(c->losses[1]);
    bool finite = finite_loss && isfinite(c->gradients[0]) && isfinite(c->gradients[1]);
    count_expect(c, "skipped", after.skipped, !finite);
    count_expect(c, "tokens", after.tokens, c->tokens);
    assert_int_equal(isnan(after.loss) != 0, !finite_loss);
    expect(c, "backward scale", (double)after.backward_scale,
           (long double)(after.loss_scale / c->token_scale));
    if (finite)
        update_check(c, &after);
    else
        skip_check(c, &after);
}

static void test_decide(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_decision_cases; i++) {
        decision_case c = decision_cases[i];
        op_run_case(decide_case, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
