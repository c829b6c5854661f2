/* Layouts at their edges: fewer microbatches than stages, layers that do not divide, schedules that refuse, tied and untied heads over
 * stages, tensors smaller than their sharding group, positions that no sequence reaches, and memory that does not grow with the number of microbatches. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

/* One step of two layouts of the same mathematics. */
static void compare(fx_job *job, const char *model, const char *math, const char *layout)
{
    fx_outcome plain, outcome;
    char *both = tr_format("%s %s", math, layout);
    fx_measure(job, model, math, 1, NULL, &plain);
    fx_measure(job, model, both, 1, NULL, &outcome);
    fx_check_equal(job, &plain, &outcome, both);
    fx_outcome_clear(&plain);
    fx_outcome_clear(&outcome);
    tr_free(both);
}

static void fewer_microbatches_than_stages(fx_job *job)
{
    if (!fx_case(job, "fewer microbatches than stages"))
        return;
    for (int m = 1; m <= 5; m++) {
        char *math = tr_format("train.eval_batches=1 train.global_batch=%d", m);
        compare(job, "g", math, "parallel.pipeline=4");
        compare(job, "l", math, "parallel.pipeline=4 parallel.schedule=gpipe");
        tr_free(math);
    }
    tr_config cfg;
    fx_need(job, fx_resolve(&cfg, "g", "train.global_batch=2 parallel.pipeline=4"));
    fx_check(job, cfg.derived.warnings != NULL && strstr(cfg.derived.warnings, "idles") != NULL,
             "no warning about idle stages");
    tr_config_clear(&cfg);
}

static void uneven_layers(fx_job *job)
{
    if (!fx_case(job, "uneven layers"))
        return;
    static const struct {
        int layers, stages;
        const char *split;
    } cases[] = {
        {10, 3, "auto"}, {10, 4, "auto"}, {5, 4, "auto"}, {4, 4, "auto"}, {10, 3, "1,8,1"}};
    for (int i = 0; i < 5; i++) {
        tr_config cfg;
        int64_t sum = 0;
        char *math =
            tr_format("model.layers=%d train.global_batch=6 train.eval_batches=1", cases[i].layers);
        char *layout =
            tr_format("parallel.pipeline=%d parallel.stages=%s", cases[i].stages, cases[i].split);
        char *both = tr_format("%s %s", math, layout);
        fx_need(job, fx_resolve(&cfg, "l", both));
        for (int c = 0; c < cfg.derived.num_chunks; c++)
            sum += cfg.derived.chunk_layers[c];
        fx_check(job, sum == cases[i].layers, "%s: %lld layers", both, (long long)sum);
        tr_config_clear(&cfg);
        compare(job, i % 2 == 0 ? "g" : "l", math, layout);
        tr_free(math);
        tr_free(layout);
        tr_free(both);
    }
}

/* Any number of microbatches, fewer than stages and such as no group size divides. */
static void any_number_of_microbatches(fx_job *job)
{
    static const char *const schedules[] = {"interleaved parallel.virtual=2", "zb-h1", "zb-v"};
    if (!fx_case(job, "virtual chunks and zero bubble with any number of microbatches"))
        return;
    for (int stages = 2; stages <= 4; stages += 2)
        for (int m = 1; m <= 9; m += m < 3 ? 1 : 2)
            for (int i = 0; i < 3; i++) {
                char *math =
                    tr_format("model.layers=8 train.eval_batches=1 train.global_batch=%d", m);
                char *layout =
                    tr_format("parallel.pipeline=%d parallel.schedule=%s", stages, schedules[i]);
                compare(job, "l", math, layout);
                tr_free(math);
                tr_free(layout);
            }
}

/* In a V the first and the last stage are one: embedding and head on the same rank, as without a pipeline. */
static void tied_and_untied_over_stages(fx_job *job)
{
    if (!fx_case(job, "tied and untied heads over stages"))
        return;
    static const char *const models[] = {"g", "l"}, *const tied[] = {"true", "false"},
                             *const recomputes[] = {"none", "full"},
                             *const schedules[] = {"1f1b", "zb-h1", "zb-v"};
    for (int i = 0; i < 24; i++) {
        char *math = tr_format("model.tied=%s train.global_batch=8 train.reduction_leaves=2 "
                               "train.eval_batches=1",
                               tied[i / 2 % 2]);
        char *layout = tr_format("parallel.pipeline=2 parallel.data=2 parallel.zero=%d "
                                 "memory.recompute=%s parallel.schedule=%s",
                                 i / 4 % 2, recomputes[i / 4 % 2], schedules[i / 8]);
        compare(job, models[i % 2], math, layout);
        tr_free(math);
        tr_free(layout);
    }
}

/* A schedule whose activations have a bound: what 4 stages keep from F to W once there are enough microbatches, in chunks. */
typedef struct bounded {
    const char *setting;
    int live[4];
} bounded;

static void memory_is_flat_in_microbatches(fx_job *job)
{
    static const bounded schedules[] = {{"1f1b", {4, 3, 2, 1}},
                                        {"interleaved parallel.virtual=2", {11, 9, 7, 5}},
                                        {"zb-h1", {4, 4, 4, 4}},
                                        {"zb-v", {8, 8, 8, 8}}};
    if (!fx_case(job, "memory is flat in the number of microbatches"))
        return;
    for (int i = 0; i < 4; i++) {
        size_t first = 0;
        for (int m = 8; m <= 64; m *= 8) {
            fx_run fx;
            tr_metrics metrics;
            char *text = tr_format("model.layers=8 parallel.pipeline=4 train.global_batch=%d "
                                   "parallel.schedule=%s",
                                   m, schedules[i].setting);
            fx_open(job, &fx, "l", text, NULL, NULL);
            fx_step(&fx, &metrics);
            if (fx.run != NULL) {
                size_t bytes = tr_run_memory(fx.run)[TR_MEM_ACTIVATIONS];
                int live = tr_pipeline_exec_peak_live(fx.run->stage.train_exec);
                fx_check(job, live == schedules[i].live[job->rank], "%s: %d live", text, live);
                fx_check(job, first == 0 || bytes == first, "%s: %zu bytes, not %zu", text, bytes,
                         first);
                first = bytes;
            }
            fx_close(&fx);
            tr_free(text);
        }
    }
}

static void tensors_smaller_than_the_group(fx_job *job)
{
    if (!fx_case(job, "tensors smaller than the sharding group"))
        return;
    static const char math[] = "model.hidden=8 model.heads=2 model.kv_heads=1 model.ffn=16 "
                               "train.reduction_leaves=8 train.eval_batches=1";
    compare(job, "l", math, "parallel.data=8 parallel.zero=1");
    compare(job, "l", math, "parallel.data=8 parallel.zero=0");
    compare(job, "l", math, "parallel.data=4 parallel.pipeline=2 parallel.zero=1");
}

/* Their rows of the table have no gradient, whatever lay in the memory that units use in turn. */
static void positions_behind_the_sequence(fx_job *job)
{
    if (!fx_case(job, "positions behind the sequence's end"))
        return;
    static const char math[] = "model.max_positions=45 train.seq_len=32 train.global_batch=4 "
                               "train.reduction_leaves=4 train.eval_batches=1";
    compare(job, "g", math, "parallel.data=2 parallel.zero=2 train.reduction_order=rounds");
    compare(job, "g", math, "parallel.data=4 parallel.zero=3 parallel.pipeline=2");
    compare(job, "g", math, "parallel.data=2 parallel.zero=1");
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fewer_microbatches_than_stages(&job);
    uneven_layers(&job);
    any_number_of_microbatches(&job);
    tied_and_untied_over_stages(&job);
    memory_is_flat_in_microbatches(&job);
    tensors_smaller_than_the_group(&job);
    positions_behind_the_sequence(&job);
    return fx_end(&job);
}
