/* Whatever the network does, and however communication is cut and overlapped, the bits of a run are those of one rank, since nothing is read before it has come
 * or after it was given up (sharding stages x bucket sizes x overlap).
 *
 * Every operation takes a random time on each rank (slow_link.h). What is not there yet, or not there any more, is NaN: destinations from the post on, sources
 * that were sent, and by the linker's --wrap also what the engine itself gives up: a unit's weights when the next one is acquired, all weights when they
 * have changed, gradients when their bucket is posted. Job of 4 ranks. */
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"
#include "tests/parallel/slow_link.h"

static bool poisoning;

/* ---- what the engine gives up ---- */

tr_status __real_tr_weights_acquire(tr_weights *weights, int unit);
tr_status __real_tr_weights_changed(tr_weights *weights);
tr_status __real_tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, int exchange,
                                       float *const *grads);
tr_status __wrap_tr_weights_acquire(tr_weights *weights, int unit);
tr_status __wrap_tr_weights_changed(tr_weights *weights);
tr_status __wrap_tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, int exchange,
                                       float *const *grads);

static void weights_poison(const tr_weights *weights)
{
    for (int i = 0; i < weights->local->num_items; i++)
        memset(weights->places[i], 0xFF,
               (size_t)weights->local->items[i].count * weights->item_bytes);
}

tr_status __wrap_tr_weights_acquire(tr_weights *weights, int unit)
{
    bool next = weights->held != tr_local_unit(weights->local, unit);
    if (poisoning && weights->kind == TR_WEIGHTS_SHARDED && next)
        weights_poison(weights);
    return __real_tr_weights_acquire(weights, unit);
}

tr_status __wrap_tr_weights_changed(tr_weights *weights)
{
    if (poisoning && weights->kind == TR_WEIGHTS_SPREAD)
        weights_poison(weights);
    return __real_tr_weights_changed(weights);
}

/* Until this rank's interval of the sums comes back, none of it is anything. */
tr_status __wrap_tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, int exchange,
                                       float *const *grads)
{
    TR_TRY(__real_tr_bucket_reduce_post(reducer, bucket, exchange, grads));
    for (int i = reducer->bucket_first[bucket]; i < reducer->bucket_first[bucket + 1]; i++)
        if (poisoning && reducer->mesh.data_size > 1)
            memset(grads[i], 0xFF, (size_t)reducer->item_counts[i] * sizeof(float));
    return TR_OK;
}

/* ---- runs ---- */

enum { STEPS = 3 };
static const double most_seconds = 5e-4;

static void on_plain_network(fx_job *job, const char *settings, fx_outcome *outcome)
{
    slow_link_begin(NULL, 0);
    fx_measure(job, "l", settings, STEPS, NULL, outcome);
}

/* What ZeRO 3 gathers is the weights that a rank keeps: no buffer. */
static void on_random_network(fx_job *job, const char *settings, bool weights_are_sources,
                              fx_outcome *outcome)
{
    const slow_rule rules[] = {{.group = NULL,
                                .kind = TR_OP_REDUCE_SCATTER,
                                .random_seconds = most_seconds,
                                .poison = true,
                                .spend = true},
                               {.group = NULL,
                                .kind = SLOW_ANY_KIND,
                                .random_seconds = most_seconds,
                                .poison = true,
                                .spend = !weights_are_sources}};
    slow_link_begin(rules, 2);
    poisoning = true;
    fx_measure(job, "l", settings, STEPS, NULL, outcome);
    poisoning = false;
    int64_t slowed =
        slow_link_totals("data").num_operations + slow_link_totals("shard").num_operations;
    fx_check(job, slowed > 0, "%s: nothing was slowed", settings);
}

static void layout_check(fx_job *job, const fx_outcome *expected, const char *math, int zero,
                         const char *layout)
{
    char *settings = tr_format("%s parallel.zero=%d %s", math, zero, layout);
    fx_outcome outcome;
    on_random_network(job, settings, zero == 3, &outcome);
    fx_check_equal(job, expected, &outcome, settings);
    fx_outcome_clear(&outcome);
    tr_free(settings);
}

static char *math_of(const char *order, const char *more)
{
    return tr_format("train.global_batch=8 train.reduction_leaves=4 train.reduction_order=%s "
                     "train.eval_batches=1 train.clip=0.5 %s",
                     order, more);
}

/* A tensor for each operation (a bucket holds one at least), odd parts of a layer, all at once. */
static void buckets(fx_job *job, const char *order, const char *precision)
{
    static const char *const sizes[] = {"0.000004", "0.004004", "64"};
    char *math = math_of(order, precision);
    fx_outcome expected;
    on_plain_network(job, math, &expected);
    for (int i = 0; i < 18; i++) {
        char *layout = tr_format("parallel.data=4 parallel.bucket_mb=%s parallel.overlap=%s",
                                 sizes[i / 2 % 3], i % 2 ? "true" : "false");
        layout_check(job, &expected, math, 1 + i / 6, layout);
        tr_free(layout);
    }
    fx_outcome_clear(&expected);
    tr_free(math);
}

/* Two groups on a bucket's way, stages, tensor ranks, and the other transport. */
static void beside(fx_job *job, const char *plain, const char *const *layouts, int count)
{
    char *math = math_of("blocks", plain);
    fx_outcome expected;
    on_plain_network(job, math, &expected);
    for (int zero = 0; zero < 4; zero++)
        for (int i = 0; i < count; i++)
            layout_check(job, &expected, math, zero, layouts[i]);
    fx_outcome_clear(&expected);
    tr_free(math);
}

int main(int argc, char **argv)
{
    static const char *const others[] = {
        "parallel.data=4 parallel.shard_ranks=2 parallel.bucket_mb=0.03",
        "parallel.data=4 parallel.inside=mpi parallel.bucket_mb=0.03",
        "parallel.data=2 parallel.pipeline=2 parallel.bucket_mb=0.03",
        "parallel.data=2 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v "
        "parallel.inside=mpi"};
    static const char *const tensors[] = {"parallel.data=2 parallel.bucket_mb=0.03",
                                          "parallel.data=2 parallel.inside=mpi"};
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    if (fx_case(&job, "blocks"))
        buckets(&job, "blocks", "train.precision=fp32 model.dropout=0.1");
    if (fx_case(&job, "rounds"))
        buckets(&job, "rounds", "train.precision=bf16");
    if (fx_case(&job, "other axes"))
        beside(&job, "", others, 4);
    if (fx_case(&job, "tensor ranks")) {
        beside(&job, "parallel.tensor=2", tensors, 2);
        beside(&job, "parallel.tensor=2 parallel.sequence=false", tensors, 2);
    }
    slow_link_end();
    return fx_end(&job);
}
