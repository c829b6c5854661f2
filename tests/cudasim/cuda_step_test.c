/* Steps on the CUDA device, of one rank or of two: the decision is made on the device with the bits that the host would make of the same sums, the update follows it without
 * the host, and the host waits for the decision alone. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/decide.h"
#include "kernels/device_host.h"
#include "tests/cudasim/runtime/sim_range.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/parallel/run_fixture.h"

/* A small run on all ranks of the job with these settings; valid until the next call. */
static const char *settings_of(const fx_job *job, const char *settings)
{
    static char text[400];
    snprintf(text, sizeof text,
             "model.layers=1 train.seq_len=16 train.global_batch=4 train.micro_batch=1 "
             "device.kind=cuda parallel.data=%d %s",
             job->size, settings);
    return text;
}

static int64_t words_differ(const tr_step_state *a, const tr_step_state *b)
{
    return memcmp(a, b, sizeof *a);
}

/* What the host makes of the sums that the device has, after a step from `before`. */
static tr_step_state decide_here(fx_run *fx, const tr_step_state *before)
{
    const tr_config *cfg = &fx->run->cfg;
    const tr_step_sums *parts = &fx->run->stage.sums;
    int64_t sums[2 * TR_STEP_SUMS], total[TR_STEP_SUMS], step = fx->run->step;
    tr_step_state state = *before;
    double t = (double)(before->updates + 1);
    bool fp16 = cfg->train.precision == TR_F16;
    fx_check(fx->job, parts->num_parts == fx->job->size, "%d parts", parts->num_parts);
    fx_need(fx->job, tr_device_read(fx->run->device, sums, parts->parts,
                                    (size_t)parts->num_parts * sizeof total));
    const tr_decision decision = {.num_parts = parts->num_parts,
                                  .sums = sums,
                                  .token_scale = fp16 ? 64 : 1,
                                  .clip = cfg->train.clip,
                                  .growth_interval = fp16 ? cfg->train.loss_scale_growth : 0,
                                  .lr = (float)(cfg->train.lr * (double)step / 2),
                                  .bias1 = (float)(1.0 - pow(cfg->train.beta1, t)),
                                  .bias2 = (float)(1.0 - pow(cfg->train.beta2, t)),
                                  .state = &state};
    for (int i = 0; i < TR_STEP_SUMS; i++)
        total[i] = tr_decide_limb(&decision, i);
    tr_decide(&decision, total);
    return state;
}

#define WARM_UP "train.warmup_steps=2 train.steps=100 "

/* Two steps of a warm-up of two: clipped, not clipped, and where clipping is off. */
static void test_same_decision(fx_job *job)
{
    static const struct {
        const char *settings;
        bool clips;
    } cases[] = {
        {WARM_UP "train.clip=0.001", true},
        {WARM_UP "train.clip=1000", false},
        {WARM_UP "train.clip=0", false},
        {WARM_UP "train.clip=0.001 train.precision=fp16 train.loss_scale_growth=1", true},
        {WARM_UP "train.clip=1000 train.precision=bf16 train.optimizer=sgd", false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fx_run fx;
        tr_metrics metrics;
        const char *settings = cases[c].settings;
        fx_open(job, &fx, "l", settings_of(job, settings), NULL, NULL);
        for (int s = 1; s <= 2; s++) {
            tr_step_state before = *fx.run->stage.decider.known, device;
            cudasim_seed_set(100 * (uint64_t)job->rank + 2 * c + (size_t)s);
            fx_step(&fx, &metrics);
            tr_step_state here = decide_here(&fx, &before), known = *fx.run->stage.decider.known;
            fx_need(job, tr_device_read(fx.run->device, &device, fx.run->stage.decider.state,
                                        sizeof device));
            fx_check(job, words_differ(&here, &known) == 0,
                     "%s, step %d: norm %.17g and scale %.9g, the host makes %.17g and %.9g of it",
                     settings, s, known.grad_norm, (double)known.grad_scale, here.grad_norm,
                     (double)here.grad_scale);
            fx_check(job, words_differ(&device, &known) == 0,
                     "%s, step %d: the host knows another state than the device has", settings, s);
            fx_check(job,
                     metrics.loss == here.loss && metrics.grad_norm == here.grad_norm &&
                         metrics.step_tokens == here.tokens && metrics.step_tokens == 4 * 16,
                     "%s, step %d: the host went on with loss %g, norm %g, %lld tokens", settings,
                     s, metrics.loss, metrics.grad_norm, (long long)metrics.step_tokens);
            double whole = (double)known.grad_scale * known.grad_divisor;
            fx_check(job, cases[c].clips ? whole < 0.5 : fabs(whole - 1) < 1e-6,
                     "%s: gradients are multiplied by %g", settings, whole);
            fx_check(job, known.updates == s && known.skipped == 0, "%s: %lld updates", settings,
                     (long long)known.updates);
        }
        fx_close(&fx);
    }
}

/* A loss scale that overflows is halved until it does not: nothing changes before that, and all goes on after it. */
static void test_skip(fx_job *job)
{
    tr_metrics metrics;
    fx_run fx;
    int skips = 0;
    fx_open(job, &fx, "l", settings_of(job, "train.precision=fp16 train.max_skips=100"), NULL,
            NULL);
    tr_step_state state = *fx.run->stage.decider.known;
    state.loss_scale = 16777216;
    fx_need(job, tr_decider_set_state(&fx.run->stage.decider, &state));
    double scale = state.loss_scale, loss, same_loss;
    fx_state before = fx_state_take(&fx);
    fx_need(job, tr_run_evaluate(fx.run, &loss));
    for (;; skips++) {
        fx_step(&fx, &metrics);
        fx_check(job, metrics.loss_scale == scale, "step %d has the loss scale %g, expected %g",
                 skips + 1, metrics.loss_scale, scale);
        if (!metrics.skipped || skips == 30)
            break;
        scale /= 2;
        fx_check(job, metrics.skips_in_row == skips + 1 && !isfinite(metrics.grad_norm),
                 "skip %d: %lld in a row, norm %g", skips + 1, (long long)metrics.skips_in_row,
                 metrics.grad_norm);
        if (skips > 0)
            continue;
        fx_state after = fx_state_take(&fx);
        fx_check(job, fx_state_equal(&before, &after), "a skipped step changed the state");
        tr_free(after.values);
        fx_need(job, tr_run_evaluate(fx.run, &same_loss));
        fx_check(job, loss == same_loss, "a skipped step changed the weights");
    }
    fx_check(job, skips > 0, "a loss scale of 2^24 overflowed nothing");
    fx_check(job, skips < 30 && metrics.skips_in_row == 0, "no step after %d skips", skips);
    fx_state after = fx_state_take(&fx);
    fx_check(job, !fx_state_equal(&before, &after), "nothing was updated after the skips");
    fx_check(job, fx.run->stage.decider.known->updates == 1, "%lld updates after one",
             (long long)fx.run->stage.decider.known->updates);
    fx_need(job, tr_run_evaluate(fx.run, &same_loss));
    fx_check(job, loss != same_loss, "the weights are those before the update");
    fx_close(&fx);
    tr_free(before.values);
    tr_free(after.values);
}

/* The last skip that is allowed names the parameter, from gradients that are still there. */
static void test_skips_end(fx_job *job)
{
    tr_metrics metrics;
    fx_run fx;
    fx_open(job, &fx, "l",
            settings_of(job, "train.precision=fp16 train.loss_scale=16777216 train.max_skips=2"),
            NULL, NULL);
    fx_step(&fx, &metrics);
    tr_status status = tr_run_step(fx.run, &metrics);
    const char *const parts[] = {"step 2", "2 steps in a row", ".weight", "samples 4 to 7",
                                 "loss scale 1.67772e+07"};
    fx_check(job, status == TR_ERR_NUMERICS, "status %s", tr_status_text(status));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        fx_check(job, strstr(tr_error_message(), parts[i]) != NULL, "'%s' is not in: %s", parts[i],
                 tr_error_message());
    fx_close(&fx);
}

/* ---- the host's waits ---- */

/* What the host did in a step, in order: what it waited for, and what it enqueued. */
static struct {
    const fx_run *fx;
    tr_device real;
    tr_ops ops;
    int in_pass, in_update,
        after; /* waits since the first gradient, between updates, and after the last one so far */
    bool passing, updating;
    int decided;  /* waits for the decision that ended well, behind the update so far */
    int64_t done; /* works that had run when the last wait ended */
    uint64_t
        between; /* operations between hosts until the first gradient, and until the last update */
    uint64_t between_at_update;
} watch;

static uint64_t operations_between_hosts(void)
{
    const tr_group *all = watch.fx->run->all;
    return all != NULL ? tr_group_get_stats(all)->num_operations : 0;
}

static bool is_decision(const tr_device_event *event)
{
    return watch.updating && event == watch.fx->run->stage.decider.arrived;
}

static void waited(void)
{
    watch.in_pass += watch.passing && !watch.updating;
    watch.after += watch.updating;
    watch.done = cudasim_count().launches;
}

static tr_status watched_event_synchronize(tr_device *device, tr_device_event *event)
{
    tr_status status = watch.real.event_synchronize(device, event);
    watch.decided += is_decision(event);
    waited();
    return status;
}

static tr_status watched_synchronize(tr_device *device, tr_stream stream)
{
    tr_status status = watch.real.synchronize(device, stream);
    waited();
    return status;
}

static tr_status watched_event_query(tr_device *device, tr_device_event *event, bool *done)
{
    tr_status status = watch.real.event_query(device, event, done);
    watch.decided += *done && is_decision(event);
    if (watch.updating && *done)
        watch.done = cudasim_count().launches;
    return status;
}

static tr_status watched_embed_forward(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                       int64_t V, int64_t vocab_begin, const int32_t *ids,
                                       const void *table, float *out)
{
    if (!watch.passing)
        watch.between = operations_between_hosts();
    watch.passing = true;
    return watch.real.ops->embed_forward(device, dtype, R, H, V, vocab_begin, ids, table, out);
}

static tr_status watched_adamw(tr_device *device, const tr_adamw *args)
{
    watch.updating = true;
    watch.between_at_update = operations_between_hosts();
    watch.in_update += watch.after; /* so it was not the last one */
    watch.after = watch.decided = 0;
    return watch.real.ops->adamw(device, args);
}

static void watch_install(void *context, tr_device *device)
{
    memset(&watch, 0, sizeof watch);
    watch.fx = context;
    watch.real = *device;
    watch.ops = *device->ops;
    watch.ops.embed_forward = watched_embed_forward;
    watch.ops.adamw = watched_adamw;
    device->ops = &watch.ops;
    device->event_synchronize = watched_event_synchronize;
    device->event_query = watched_event_query;
    device->synchronize = watched_synchronize;
}

/* No wait from a step's first operation to its last update, and one after it, which the update need not have happened for. */
static void test_waits(fx_job *job)
{
    int steps = 0, ahead = 0;
    fx_run fx;
    fx_open(job, &fx, "l", settings_of(job, ""), NULL, watch_install);
    for (uint64_t seed = 1; seed <= 4; seed++, steps++) {
        tr_metrics metrics;
        cudasim_seed_set(seed);
        watch.in_pass = watch.in_update = watch.after = watch.decided = 0;
        watch.passing = watch.updating = false;
        fx_step(&fx, &metrics);
        int after = watch.after;
        int64_t done = watch.done;
        fx_check(job, watch.passing && watch.updating, "the step was not seen");
        fx_check(job, watch.decided == 1, "the host waited %d times for the decision",
                 watch.decided);
        fx_check(job, watch.in_pass == 0 && watch.in_update == 0,
                 "the host waited %d times before the update and %d times in it", watch.in_pass,
                 watch.in_update);
        fx_check(job, watch.between_at_update == watch.between,
                 "hosts met %d times before the update",
                 (int)(watch.between_at_update - watch.between));
        /* Several ranks have a deadline, and look again and again. */
        fx_check(job, after == (job->size == 1), "the host waited %d times at the step's end",
                 after);
        fx_need(job, fx.run->device->synchronize(fx.run->device, TR_STREAM_COMPUTE));
        ahead += watch.done > done;
    }
    fx_check(job, ahead > 0,
             "in none of %d steps was the update still to come when the host went on", steps);
    fx_close(&fx);
}

/* What a profiler would be told of a step. */
static void test_ranges(fx_job *job)
{
    char told[4096];
    tr_metrics metrics;
    fx_run fx;
    fx_open(job, &fx, "l", settings_of(job, ""), NULL, NULL);
    fx_step(&fx, &metrics);
    cudasim_ranges_record(told, sizeof told);
    fx_step(&fx, &metrics);
    cudasim_ranges_record(NULL, 0);
    const char *inside = strstr(told, "step 2(0F0()0B0(");
    fx_check(job,
             inside == told && strstr(told, "0F1()0B1(") != NULL &&
                 strstr(told, "bucket 0()") != NULL &&
                 strstr(told, ")decide, update())") == told + strlen(told) - 18,
             "told: %s", told);
    fx_check(job, cudasim_ranges_depth() == 0, "%d ranges are open", cudasim_ranges_depth());
    fx_close(&fx);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    static const fx_named_case cases[] = {{"same_decision", test_same_decision},
                                          {"skip", test_skip},
                                          {"skips_end", test_skips_end},
                                          {"waits", test_waits},
                                          {"ranges", test_ranges}};
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    return fx_end(&job);
}
