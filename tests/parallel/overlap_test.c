/* Communication goes on under arithmetic: runs over a slow network (slow_link.h), with products that sleep, take the time of the longer of
 * the two and not their sum; without overlap they take the sum. What nothing hid stands in the metrics under its dimension, what was
 * hidden does not. All times are made of sleeping, so that a busy machine changes them little.
 *
 *     mpiexec -n 4 overlap_test [CASE] */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "tests/parallel/run_fixture.h"
#include "tests/parallel/slow_link.h"

/* ---- a device whose products take a known time ---- */

static struct {
    const tr_ops *real;
    tr_ops ops;
    double seconds; /* of a product */
    double slept;   /* so far */
} slow_device;

static tr_status slow_matmul(tr_device *device, const tr_matmul *args)
{
    double begin = tr_clock_seconds();
    tr_clock_sleep(slow_device.seconds);
    slow_device.slept += tr_clock_seconds() - begin;
    return slow_device.real->matmul(device, args);
}

static void slow_install(void *context, tr_device *device)
{
    (void)context;
    slow_device.real = device->ops;
    slow_device.ops = *device->ops;
    slow_device.ops.matmul = slow_matmul;
    device->ops = &slow_device.ops;
}

/* ---- one layout on one network ---- */

enum { NUM_STEPS = 3 };

/* The fastest of a few steps, by rank 0 (whose metrics are those of the slowest rank). */
typedef struct outcome {
    double seconds;
    tr_times times;
    double slept; /* of rank 0 in that step */
} outcome;

static outcome measure(fx_job *job, const char *layout, double product_seconds,
                       const slow_rule *rules, int num_rules)
{
    fx_run fx;
    outcome best = {.seconds = HUGE_VAL};
    slow_device.seconds = product_seconds;
    slow_link_begin(rules, num_rules);
    fx_open(job, &fx, "l", layout, NULL, slow_install);
    for (int s = 0; s < NUM_STEPS; s++) {
        tr_metrics metrics;
        double before = slow_device.slept;
        fx_step(&fx, &metrics);
        if (fx.run != NULL && metrics.step_seconds < best.seconds)
            best = (outcome){metrics.step_seconds, metrics.times, slow_device.slept - before};
    }
    fx_close(&fx);
    return best;
}

static void print(const fx_job *job, const char *what, const outcome *of)
{
    if (job->rank == 0)
        printf("  %-28s step %6.1f ms: compute %6.1f, tensor %5.1f, data %5.1f, pipeline %5.1f, "
               "idle %5.1f\n",
               what, of->seconds * 1e3, of->times.compute * 1e3, of->times.tensor * 1e3,
               of->times.data * 1e3, of->times.pipeline * 1e3, of->times.idle * 1e3);
    fflush(stdout);
}

/* ---- data: buckets under backward ---- */

/* 8 layers of 7 products forward and 14 backward, and the head's 1 and 2. */
#define DATA_LAYOUT                                                                                \
    "model.layers=8 parallel.data=2 train.global_batch=2 device.threads=1 parallel.bucket_mb=0.2 "
static const double product_s = 3e-3, backward_products = 114;
static const double gradient_bytes = 4.0 * (8 * 46208 + 2 * 257 * 64 + 64);

/* Checks a reduction that takes `wire` seconds in all beside the same step on a fast network. */
static void data_case(fx_job *job, const char *layout, double wire)
{
    const slow_rule rule = {"data", TR_OP_REDUCE_SCATTER, 0, wire / gradient_bytes};
    char on[512], off[512];
    snprintf(on, sizeof on, "%s parallel.overlap=true", layout);
    snprintf(off, sizeof off, "%s parallel.overlap=false", layout);
    outcome fast = measure(job, on, product_s, NULL, 0);
    outcome hidden = measure(job, on, product_s, &rule, 1);
    outcome exposed = measure(job, off, product_s, &rule, 1);
    if (job->rank != 0)
        return;
    print(job, "fast network", &fast);
    print(job, "slow network, overlap", &hidden);
    print(job, "slow network, no overlap", &exposed);
    /* Backward can hide what it can; the last buckets go when all is computed. */
    double backward = product_s * backward_products;
    double hideable = wire < backward ? wire : backward;
    double hid = hidden.times.compute + wire - hidden.seconds;
    double hid_without = exposed.times.compute + wire - exposed.seconds;
    fx_check(job, hid > 0.6 * hideable,
             "with overlap: %.1f ms of computing and %.1f ms of communication take %.1f ms",
             hidden.times.compute * 1e3, wire * 1e3, hidden.seconds * 1e3);
    fx_check(job, hid_without < 0.1 * wire,
             "without overlap: %.1f ms of computing and %.1f ms of communication take %.1f ms",
             exposed.times.compute * 1e3, wire * 1e3, exposed.seconds * 1e3);
    fx_check(job, exposed.times.data > 0.95 * wire && exposed.times.data < 1.25 * wire + 0.03,
             "without overlap time.data is %.1f of %.1f ms", exposed.times.data * 1e3, wire * 1e3);
    fx_check(job, hidden.times.data < wire - 0.6 * hideable + 0.03,
             "with overlap time.data is %.1f of %.1f ms", hidden.times.data * 1e3, wire * 1e3);
}

/* ---- pipeline: transfers under the next microbatch ---- */

/* GPipe on two stages: in m microbatches the second stage begins one forward after the first, and ends one backward before it. A
 * transfer of less than a microbatch's forward delays only the first output and the last gradient. */
static void pipeline_case(fx_job *job)
{
    static const double wire = 35e-3;
    const slow_rule rule = {"pipeline", SLOW_ANY_KIND, wire, 0};
    const char *layout =
        "parallel.pipeline=2 parallel.schedule=gpipe train.global_batch=6 device.threads=1";
    outcome fast = measure(job, layout, product_s, NULL, 0);
    outcome slow = measure(job, layout, product_s, &rule, 1);
    if (job->rank != 0)
        return;
    print(job, "fast network", &fast);
    print(job, "slow network", &slow);
    fx_check(job, slow.times.pipeline > 1.8 * wire && slow.times.pipeline < 4.0 * wire,
             "of 12 transfers of %.0f ms two are exposed; time.pipeline is %.1f ms", wire * 1e3,
             slow.times.pipeline * 1e3);
    fx_check(job, fast.times.pipeline < wire, "on a fast network time.pipeline is %.1f ms",
             fast.times.pipeline * 1e3);
    fx_check(job, slow.seconds < fast.seconds + 5.0 * wire,
             "transfers of %.0f ms that the next microbatch hides make %.1f ms of %.1f", wire * 1e3,
             slow.seconds * 1e3, fast.seconds * 1e3);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    if (fx_case(&job, "data_short"))
        data_case(&job, DATA_LAYOUT "parallel.zero=1", 0.300);
    if (fx_case(&job, "data_long"))
        data_case(&job, DATA_LAYOUT "parallel.zero=1", 0.800);
    if (fx_case(&job, "pipeline"))
        pipeline_case(&job);
    slow_link_end();
    return fx_end(&job);
}
