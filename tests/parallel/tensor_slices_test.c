/* train.tensor_slices: tensor sizes that divide it, with sequence parallel on and off, have the bits of one rank (E4), alone and with the other axes; without it
 * they have not. Job of 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/plan.h"
#include "tests/parallel/run_fixture.h"

/* Wide enough for sums that rounding tells apart, and for several pieces of a product. */
#define WIDE                                                                                       \
    "model.layers=2 model.hidden=256 model.ffn=704 train.global_batch=4 train.eval_batches=1 "

static const char *const cuts[] = {
    "parallel.tensor=2 parallel.sequence=true", "parallel.tensor=2 parallel.sequence=false",
    "parallel.tensor=4 parallel.sequence=true", "parallel.tensor=4 parallel.sequence=false"};
enum { NUM_CUTS = 4 };

/* Each layout has the bits of the first. */
static void equal_all(fx_job *job, const char *model, const char *math, const char *first,
                      const char *const *layouts, int count, int steps)
{
    fx_outcome one, other;
    char *settings = tr_format("%s %s", math, first);
    fx_measure(job, model, settings, steps, NULL, &one);
    tr_free(settings);
    for (int i = 0; i < count; i++) {
        settings = tr_format("%s %s", math, layouts[i]);
        fx_measure(job, model, settings, steps, NULL, &other);
        fx_check_equal(job, &one, &other, settings);
        fx_outcome_clear(&other);
        tr_free(settings);
    }
    fx_outcome_clear(&one);
}

static void tensor_sizes(fx_job *job)
{
    static const struct {
        const char *model, *math;
    } cases[] = {
        {"g", "train.precision=fp32 model.dropout=0.1"},
        {"g", "train.precision=bf16"},
        {"l", "train.precision=fp32"},
        {"l", "train.precision=bf16 model.dropout=0.1 model.tied=true"},
        {"l", "train.precision=fp32 model.kv_heads=1 model.qkv_bias=true"},
        {"l", "train.precision=fp32 model.kv_heads=4 memory.recompute=full train.micro_batch=2"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char *math = tr_format(WIDE "train.tensor_slices=4 %s", cases[c].math);
        equal_all(job, cases[c].model, math, "", cuts, NUM_CUTS, 3);
        tr_free(math);
    }
}

/* The slices are the mathematics; all the rest may vary with them. */
static void other_axes(fx_job *job)
{
    static const char *const layouts[] = {
        "parallel.tensor=2 parallel.data=2 parallel.zero=1 parallel.bucket_mb=0.01",
        "parallel.tensor=2 parallel.pipeline=2 memory.recompute=selective",
        "parallel.tensor=2 parallel.sequence=false parallel.data=2 parallel.zero=0 "
        "device.threads=2",
        "parallel.tensor=2 parallel.data=2 parallel.zero=3 parallel.sequence=false",
        "parallel.tensor=4 parallel.inside=mpi memory.recompute=full",
        "parallel.data=4 parallel.zero=2"};
    equal_all(job, "g", WIDE "train.tensor_slices=8 model.heads=8 train.reduction_leaves=4", "",
              layouts, 6, 2);
    equal_all(job, "l", WIDE "train.tensor_slices=4 train.reduction_leaves=4 train.precision=bf16",
              "parallel.data=2", layouts, 6, 2);
}

static int64_t sent_bytes(const tr_run *run)
{
    const tr_group *groups[] = {run->tensor, run->kv};
    int64_t sent = 0;
    for (int g = 0; g < 2; g++)
        sent += groups[g] != NULL ? (int64_t)tr_group_get_stats(groups[g])->bytes_sent : 0;
    return sent;
}

/* The most memory of a rank, and what this one sends to its tensor peers in a step, in bytes. */
static void measured_cost(fx_job *job, const char *model, const char *settings, int64_t cost[2])
{
    fx_run fx;
    tr_metrics metrics;
    int64_t mine[2] = {0, 0};
    fx_open(job, &fx, model, settings, NULL, NULL);
    if (fx.run != NULL) {
        int64_t before = sent_bytes(fx.run);
        fx_step(&fx, &metrics);
        mine[1] = sent_bytes(fx.run) - before;
        for (int c = 0; c < TR_MEM_NUM; c++)
            mine[0] += (int64_t)tr_run_memory(fx.run)[c];
    }
    cost[0] = fx_gather_max(job, mine[0]);
    cost[1] = mine[1];
    fx_close(&fx);
}

/* What trine plan says of the slices' cost is what they cost. */
static void planned_cost(fx_job *job)
{
    static const char *const layouts[] = {"parallel.tensor=4 parallel.zero=0",
                                          "parallel.tensor=2 parallel.pipeline=2",
                                          "parallel.tensor=4 parallel.sequence=false", ""};
    for (int m = 0; m < 2; m++)
        for (int l = 0; l < 4; l++) {
            const char *model = m == 0 ? "g" : "l";
            char *plain = tr_format(WIDE "%s", layouts[l]);
            char *sliced = tr_format("%s train.tensor_slices=4", plain);
            int64_t without[2], with[2];
            measured_cost(job, model, plain, without);
            measured_cost(job, model, sliced, with);
            tr_config cfg;
            tr_device *device;
            tr_plan_slices cost;
            fx_need(job, fx_resolve(&cfg, model, sliced));
            fx_need(job, tr_cpu_device_create(&device, 1));
            tr_plan_rank ranks[FX_MAX_RANKS];
            fx_need(job, tr_plan_count(&cfg, device, ranks));
            fx_need(job, tr_plan_slices_count(&cfg, device, ranks, &cost));
            int64_t sent = fx_gather_max(job, with[1] - without[1]);
            fx_check(job, with[0] - without[0] == cost.memory, "%s %s: %lld bytes, planned %lld",
                     model, sliced, (long long)(with[0] - without[0]), (long long)cost.memory);
            fx_check(job, sent == cost.sent, "%s %s: %lld bytes more sent, planned %lld", model,
                     sliced, (long long)sent, (long long)cost.sent);
            tr_device_destroy(device);
            tr_config_clear(&cfg);
            tr_free(plain);
            tr_free(sliced);
        }
}

/* What the promise is worth: without slices the same sizes differ. */
static void off(fx_job *job)
{
    for (int m = 0; m < 2; m++) {
        const char *model = m == 0 ? "g" : "l";
        fx_outcome one, two;
        fx_measure(job, model, WIDE, 1, NULL, &one);
        fx_measure(job, model, WIDE "parallel.tensor=2", 1, NULL, &two);
        double difference = fx_grad_difference(job, &one, &two);
        fx_check(job, job->rank > 0 || difference > 0, "%s: no difference without slices", model);
        fx_check(job, difference < 1e-5, "%s: gradients differ by %g", model, difference);
        fx_outcome_clear(&two);
        /* Another way to sum, not another sum. */
        fx_measure(job, model, WIDE "train.tensor_slices=4", 1, NULL, &two);
        difference = fx_grad_difference(job, &one, &two);
        fx_check(job, job->rank > 0 || difference > 0, "%s: the slices change nothing", model);
        fx_check(job, difference < 1e-5, "%s: slices change gradients by %g", model, difference);
        fx_outcome_clear(&one);
        fx_outcome_clear(&two);
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    if (argc > 1)
        job.only = argv[1];
    if (fx_case(&job, "tensor_sizes"))
        tensor_sizes(&job);
    if (fx_case(&job, "other_axes"))
        other_axes(&job);
    if (fx_case(&job, "off"))
        off(&job);
    if (fx_case(&job, "planned_cost"))
        planned_cost(&job);
    return fx_end(&job);
}
