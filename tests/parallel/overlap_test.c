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

/* ---- data: reductions under backward, gathers under forward ---- */

/* 8 layers of 7 products forward and 14 backward, and the head's 1 and 2. */
#define DATA_LAYOUT "model.layers=8 device.threads=1 parallel.bucket_mb=0.2 "
static const double product_s = 3e-3;
#define LAYER_BYTES (4.0 * 46208)
#define MODEL_BYTES (8 * LAYER_BYTES + 4.0 * (2 * 257 * 64 + 64)) /* all parameters, fp32 */

/* Operations of one kind that are on the wire for `wire` seconds of a step in all. */
typedef struct data_test {
    const char *name, *layout;
    tr_op_kind kind;
    double passes; /* bytes of their results: so many times all parameters */
    double wire;
    double hideable; /* of these, seconds that arithmetic can hide */
    int num_more;    /* steps' worth of operations when the run is opened */
} data_test;

/* Checks it beside the same step on a fast network. */
static void data_case(fx_job *job, const void *context)
{
    const data_test *test = context;
    const slow_rule rule = {.group = "data",
                            .kind = (int)test->kind,
                            .seconds_per_byte = test->wire / (test->passes * MODEL_BYTES)};
    double wire = test->wire, hideable = test->hideable;
    char on[512], off[512];
    snprintf(on, sizeof on, DATA_LAYOUT "%s parallel.overlap=true", test->layout);
    snprintf(off, sizeof off, DATA_LAYOUT "%s parallel.overlap=false", test->layout);
    outcome fast = measure(job, on, product_s, NULL, 0);
    outcome hidden = measure(job, on, product_s, &rule, 1);
    slow_totals late = slow_link_totals("data");
    outcome exposed = measure(job, off, product_s, &rule, 1);
    slow_totals totals = slow_link_totals("data");
    if (job->rank != 0)
        return;
    print(job, "fast network", &fast);
    print(job, "slow network, overlap", &hidden);
    print(job, "slow network, no overlap", &exposed);
    double mean_late = late.late_seconds / (double)late.num_operations;
    printf("  with overlap a rank sees the end of an operation %.1f ms late, at most %.1f ms\n",
           mean_late * 1e3, late.latest_seconds * 1e3);
    /* It looks after each product, not only between layers of 21 and 42 ms. */
    fx_check(job, mean_late < 4 * product_s, "the end of an operation is seen %.1f ms late",
             mean_late * 1e3);
    double on_wire = totals.wire_seconds / (NUM_STEPS + test->num_more);
    fx_check(job, fabs(on_wire - wire) < 0.02 * wire,
             "%lld operations were on the wire for %.1f ms a step, not for %.1f",
             (long long)totals.num_operations, on_wire * 1e3, wire * 1e3);
    /* The last reductions go when all is computed, the first gathers before anything is. */
    double hid = hidden.times.compute + wire - hidden.seconds;
    double hid_without = exposed.times.compute + wire - exposed.seconds;
    fx_check(job, hid > 0.6 * hideable,
             "with overlap: %.1f ms of computing and %.1f ms of communication take %.1f ms",
             hidden.times.compute * 1e3, wire * 1e3, hidden.seconds * 1e3);
    fx_check(job, hid_without < 0.1 * wire,
             "without overlap: %.1f ms of computing and %.1f ms of communication take %.1f ms",
             exposed.times.compute * 1e3, wire * 1e3, exposed.seconds * 1e3);
    fx_check(job, exposed.times.data > 0.95 * wire && exposed.times.data < 1.5 * wire + 0.05,
             "without overlap time.data is %.1f of %.1f ms", exposed.times.data * 1e3, wire * 1e3);
    fx_check(job, hidden.times.data < wire - 0.6 * hideable + 0.03,
             "with overlap time.data is %.1f of %.1f ms", hidden.times.data * 1e3, wire * 1e3);
}

/* forward takes 171 ms, backward 342 ms */
static const data_test data_tests[] = {
    {"reduce_short", "parallel.data=2 train.global_batch=2 parallel.zero=1", TR_OP_REDUCE_SCATTER,
     1, 0.300, 0.300, 0},
    {"reduce_long", "parallel.data=2 train.global_batch=2 parallel.zero=1", TR_OP_REDUCE_SCATTER, 1,
     0.800, 0.342, 0},
    /* several buckets in a layer */
    {"reduce_small", "parallel.data=2 train.global_batch=2 parallel.zero=1 parallel.bucket_mb=0.04",
     TR_OP_REDUCE_SCATTER, 1, 0.300, 0.300, 0},
    /* every microbatch is reduced, also under the next one's forward */
    {"reduce_rounds", "parallel.data=2 train.global_batch=4 parallel.zero=2", TR_OP_REDUCE_SCATTER,
     2, 0.700, 0.700, 0},
    /* updated weights, under the next step's forward; also when the run is opened */
    {"gather", "parallel.data=2 train.global_batch=2 parallel.zero=1", TR_OP_ALL_GATHER, 1, 0.120,
     0.120, 1},
    {"gather_long", "parallel.data=2 train.global_batch=2 parallel.zero=1", TR_OP_ALL_GATHER, 1,
     0.400, 0.171, 1},
    /* weights that a rank does not keep: all for forward, the layers again for backward */
    {"gather_sharded", "parallel.data=2 train.global_batch=2 parallel.zero=3", TR_OP_ALL_GATHER,
     1 + 8 * LAYER_BYTES / MODEL_BYTES, 0.300, 0.300, 0},
};

/* ---- pipeline: transfers under the next microbatch ---- */

/* GPipe on two stages: in m microbatches the second stage begins one forward after the first, and ends one backward before it. A
 * transfer of less than a microbatch's forward delays only the first output and the last gradient. */
static void pipeline_case(fx_job *job, const void *context)
{
    (void)context;
    static const double wire = 35e-3;
    const slow_rule rule = {.group = "pipeline", .kind = SLOW_ANY_KIND, .seconds = wire};
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

/* ---- what a wait for another rank is made of ---- */

/* Rank 1 waits for a send that rank 0 posts `late` seconds later. */
static void wait_case(fx_job *job, tr_transport inside, double wire)
{
    static const double late = 0.08;
    const slow_rule rule = {.group = "pair", .kind = SLOW_ANY_KIND, .seconds = wire};
    const int ranks[2] = {0, 1};
    const size_t bytes = 1 << 20;
    tr_world *world;
    tr_group *group;
    tr_event event = {0};
    void *memory;
    slow_link_begin(&rule, wire > 0);
    if (job->rank < 2) {
        const tr_world_options options = {.inside = inside, .timeout_s = 30};
        fx_need(job, tr_world_create(&world, job->first[2], &options));
        fx_need(job, tr_world_comm_memory(world, bytes, &memory));
        fx_need(job, tr_world_group_create(world, ranks, 2, "pair", &group));
        fx_need(job, tr_group_barrier(group));
        if (job->rank == 0) {
            tr_clock_sleep(late);
            fx_need(job, tr_group_send(group, 1, memory, bytes, 0, &event));
        } else {
            fx_need(job, tr_group_recv(group, 0, memory, bytes, 0, &event));
        }
        double before = tr_group_get_stats(group)->wait_seconds;
        fx_need(job, tr_event_wait(&event));
        const tr_group_stats *stats = tr_group_get_stats(group);
        double waited = stats->wait_seconds - before, transfer = stats->transfer_seconds;
        if (job->rank == 1)
            printf("  %s, %.0f ms on the wire: waited %.1f ms, of which %.1f for the transfer\n",
                   inside == TR_TRANSPORT_SHM ? "shm" : "mpi", wire * 1e3, waited * 1e3,
                   transfer * 1e3);
        if (job->rank == 1)
            fx_check(job, transfer >= 0.95 * wire && transfer < waited - 0.7 * late,
                     "of a wait of %.1f ms %.1f are the transfer's", waited * 1e3, transfer * 1e3);
        fx_need(job, tr_group_barrier(group));
        tr_group_destroy(group);
        tr_world_destroy(world);
    }
    fx_gather(job);
}

/* ---- tensor: half a product's rows under the other half, sums under weight gradients ---- */

/* Every exchange takes less than a product: with overlap most of the wire's time is hidden, without it none is. */
static void tensor_case(fx_job *job, const void *context)
{
    const char *layout = context;
    static const double wire = 2e-3;
    const slow_rule rule = {.group = "tensor", .kind = SLOW_ANY_KIND, .seconds = wire};
    char on[512], off[512];
    snprintf(on, sizeof on, "%s parallel.overlap=true", layout);
    snprintf(off, sizeof off, "%s parallel.overlap=false", layout);
    outcome hidden = measure(job, on, product_s, &rule, 1);
    outcome exposed = measure(job, off, product_s, &rule, 1);
    if (job->rank != 0)
        return;
    print(job, "slow network, overlap", &hidden);
    print(job, "slow network, no overlap", &exposed);
    fx_check(job, hidden.times.tensor < 0.6 * exposed.times.tensor,
             "%s: %.1f of %.1f ms between tensor ranks stay exposed", layout,
             hidden.times.tensor * 1e3, exposed.times.tensor * 1e3);
    fx_check(job, hidden.seconds < exposed.seconds - 0.3 * exposed.times.tensor,
             "%s: a step takes %.1f ms, without overlap %.1f ms", layout, hidden.seconds * 1e3,
             exposed.seconds * 1e3);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    for (size_t i = 0; i < sizeof data_tests / sizeof *data_tests; i++)
        if (fx_case(&job, data_tests[i].name))
            fx_best_of_three(&job, data_case, &data_tests[i]);
    if (fx_case(&job, "pipeline"))
        fx_best_of_three(&job, pipeline_case, NULL);
    if (fx_case(&job, "tensor")) {
        const char *layout =
            "model.layers=4 parallel.tensor=2 train.global_batch=1 device.threads=1";
        char without[256];
        fx_best_of_three(&job, tensor_case, layout);
        snprintf(without, sizeof without, "%s parallel.sequence=false", layout);
        fx_best_of_three(&job, tensor_case, without);
    }
    if (fx_case(&job, "wait")) {
        wait_case(&job, TR_TRANSPORT_SHM, 0);
        wait_case(&job, TR_TRANSPORT_MPI, 0);
        wait_case(&job, TR_TRANSPORT_SHM, 0.05);
    }
    slow_link_end();
    return fx_end(&job);
}
