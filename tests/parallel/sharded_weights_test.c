/* Weights that ranks share out (parallel.zero 3): the bits of a run where each rank has all of them, and what it costs and saves.
 *
 * That ranks hold no more than their share, that gathers go ahead of their use and that each use is gathered once cannot be told from results; bytes held,
 * operations posted and bytes sent tell it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---- equal bits ---- */

typedef struct sharded_case {
    const char *model, *math, *layouts[4];
} sharded_case;

static const sharded_case cases[] = {
    {"g",
     "train.global_batch=16 train.reduction_leaves=8 model.dropout=0.1",
     {"parallel.data=2", "parallel.data=8 parallel.inside=mpi",
      "parallel.data=4 parallel.pipeline=2 memory.recompute=selective",
      "parallel.data=2 parallel.pipeline=4 parallel.schedule=gpipe parallel.overlap=false"}},
    {"l",
     "train.global_batch=16 train.reduction_leaves=8 train.precision=bf16",
     {"parallel.data=4 parallel.overlap=false memory.recompute=full",
      "parallel.data=2 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved",
      "parallel.data=4 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=gpipe "
      "parallel.inside=mpi"}},
    {"g",
     "train.global_batch=8 train.reduction_leaves=2 parallel.tensor=2",
     {"parallel.data=2 parallel.pipeline=2 memory.recompute=full",
      "parallel.data=2 parallel.bucket_mb=0.001"}},
    {"l",
     "train.global_batch=8 train.reduction_leaves=4 parallel.tensor=2 parallel.sequence=false "
     "train.precision=fp16 model.tied=true",
     {"parallel.data=4", "parallel.data=2 parallel.pipeline=2"}},
    /* Gradients shared out as well, and groups of ranks that share. */
    {"l",
     "train.global_batch=16 train.reduction_leaves=8 train.reduction_order=rounds",
     {"parallel.data=4 parallel.shard_ranks=2", "parallel.data=2 parallel.pipeline=2",
      "parallel.data=8 parallel.shard_ranks=4 parallel.inside=mpi memory.recompute=full",
      "parallel.data=4 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved "
      "parallel.shard_ranks=2"}},
    {"g",
     "train.global_batch=12 train.reduction_leaves=12 train.reduction_order=rounds "
     "parallel.tensor=2",
     {"parallel.data=3", "parallel.data=2 parallel.pipeline=2 parallel.overlap=false"}},
    /* Input and weight gradients apart; head and embedding on one of several stages. */
    {"g",
     "train.global_batch=8 train.reduction_leaves=4 train.reduction_order=rounds "
     "model.dropout=0.1",
     {"parallel.data=2 parallel.pipeline=2 parallel.schedule=zb-h1 memory.recompute=selective",
      "parallel.data=4 parallel.pipeline=2 parallel.schedule=zb-v parallel.virtual=2"}},
    {"l",
     "train.global_batch=8 train.reduction_leaves=2 model.tied=true parallel.tensor=2",
     {"parallel.data=2 parallel.pipeline=2 parallel.schedule=zb-v parallel.virtual=2 "
      "memory.recompute=full"}},
    {"g",
     "train.global_batch=24 train.reduction_leaves=24 train.reduction_order=rounds",
     {"parallel.data=6 parallel.shard_ranks=3", "parallel.data=6 parallel.shard_ranks=2"}},
    {"g", "train.global_batch=14 train.reduction_leaves=14", {"parallel.data=7"}},
    {"l", "train.global_batch=10 train.reduction_leaves=10", {"parallel.data=5"}},
    {"g",
     "train.global_batch=24 train.reduction_leaves=24 model.tied=false",
     {"parallel.data=3 parallel.pipeline=2", "parallel.data=6"}},
    /* Tensors smaller than the group's multiples. */
    {"l",
     "model.hidden=8 model.heads=2 model.kv_heads=1 model.ffn=16 train.global_batch=8 "
     "train.reduction_leaves=8 model.tied=true",
     {"parallel.data=8", "parallel.data=4 parallel.pipeline=2"}},
};

static void equal_bits(fx_job *job)
{
    if (!fx_case(job, "the bits of whole weights"))
        return;
    for (int c = 0; c < COUNT(cases); c++) {
        const sharded_case *one = &cases[c];
        fx_outcome whole, sharded;
        char *math = tr_format("train.reduction_order=blocks train.clip=0.5 "
                               "train.eval_batches=1 %s",
                               one->math);
        char *plain = tr_format("%s parallel.zero=0", math);
        fx_measure(job, one->model, plain, 3, NULL, &whole);
        for (int i = 0; i < COUNT(one->layouts) && one->layouts[i] != NULL; i++) {
            char *text = tr_format("%s parallel.zero=3 %s", math, one->layouts[i]);
            fx_measure(job, one->model, text, 3, NULL, &sharded);
            fx_check_equal(job, &whole, &sharded, text);
            fx_outcome_clear(&sharded);
            tr_free(text);
        }
        fx_outcome_clear(&whole);
        tr_free(plain);
        tr_free(math);
    }
}

/* ---- what is held and sent ---- */

static struct {
    const tr_ops *real;
    tr_ops ops;
    fx_run *fx;
    int num_attentions;
    uint64_t at_first; /* operations of the data group before the first attention */
} watched;

static tr_status watched_attention(tr_device *device, const tr_attention *args)
{
    if (watched.num_attentions++ == 0 && watched.fx->run->data != NULL)
        watched.at_first = tr_group_get_stats(watched.fx->run->data)->num_operations;
    return watched.real->attention_forward(device, args);
}

static void watch(void *context, tr_device *device)
{
    watched.fx = context;
    watched.real = device->ops;
    watched.ops = *device->ops;
    watched.ops.attention_forward = watched_attention;
    device->ops = &watched.ops;
}

/* Elements of a tensor of `count` that this rank holds: near-equal numbers of 64s. */
static int64_t share_of(int64_t count, int size, int rank)
{
    int64_t each = ((count + 63) / 64 + size - 1) / size * 64, left = count - each * rank;
    return left < 0 ? 0 : left < each ? left : each;
}

/* Elements of this rank's shares of a unit's weights. */
static int64_t unit_share(const tr_run *run, int layer, bool embedding)
{
    int64_t elements = 0;
    for (int i = 0; i < run->stage.local.num_items; i++) {
        const tr_local_param *item = &run->stage.local.items[i];
        bool at_input = item->param->role == TR_ROLE_EMBED || item->param->role == TR_ROLE_POSITION;
        if (item->param->layer == layer && (layer >= 0 || at_input == embedding))
            elements += share_of(item->count, run->mesh.data_size, run->mesh.data);
    }
    return elements;
}

typedef struct cost {
    double parameters;           /* planned bytes */
    double step_bytes;           /* sent on the data group in a step */
    double at_first, most_ahead; /* gathers posted before the first attention; in flight */
    double shares,
        expected_uses; /* by hand, on one stage: bytes of all shares; of a step's gathers */
} cost;

static cost cost_take(fx_job *job, const char *model, const char *layout)
{
    cost c = {0};
    fx_run fx;
    tr_metrics metrics;
    char *text = tr_format("train.global_batch=8 train.reduction_leaves=4 "
                           "train.reduction_order=blocks %s",
                           layout);
    fx_open(job, &fx, model, text, NULL, watch);
    tr_free(text);
    fx_step(&fx, &metrics);
    if (fx.run != NULL) {
        const tr_run *run = fx.run;
        const tr_group_stats before = *tr_group_get_stats(run->data), *stats;
        watched.num_attentions = 0;
        fx_step(&fx, &metrics);
        stats = tr_group_get_stats(run->data);
        c.parameters = (double)tr_run_memory(run)[TR_MEM_PARAMETERS];
        c.step_bytes = (double)(stats->bytes_sent - before.bytes_sent);
        c.at_first = (double)(watched.at_first - before.num_operations);
        c.most_ahead = run->stage.weights.gather.most_in_flight;
        double bytes = (double)run->stage.model.item, peers = run->mesh.data_size - 1;
        double layers = 0, embedding = (double)unit_share(run, -1, true),
               head = (double)unit_share(run, -1, false);
        for (int l = 0; l < run->cfg.model.layers; l++)
            layers += (double)unit_share(run, l, false);
        /* A tied head gathers the embedding's, and holds none. */
        double borrowed = 0;
        if (run->cfg.model.tied)
            borrowed = (double)share_of(run->stage.model.V * run->stage.model.H,
                                        run->mesh.data_size, run->mesh.data);
        c.shares = (embedding + layers + head - borrowed) * bytes;
        c.expected_uses =
            (double)run->num_microbatches * (embedding + 2 * layers + head) * bytes * peers;
        fx_check(job, (double)tr_weights_step_bytes(&run->stage.weights) <= c.step_bytes,
                 "%s: %lld bytes of %g", layout,
                 (long long)tr_weights_step_bytes(&run->stage.weights), c.step_bytes);
    }
    fx_close(&fx);
    return c;
}

static void costs(fx_job *job)
{
    if (!fx_case(job, "bytes held, bytes sent, gathers ahead"))
        return;
    static const char *const models[] = {"g", "l"};
    for (int m = 0; m < 2; m++)
        for (int d = 2; d <= 4; d += 2) {
            char *spread_text = tr_format("parallel.data=%d parallel.zero=1", d);
            char *sharded_text = tr_format("parallel.data=%d parallel.zero=3", d);
            char *late_text = tr_format("%s parallel.overlap=false", sharded_text);
            cost spread = cost_take(job, models[m], spread_text),
                 sharded = cost_take(job, models[m], sharded_text),
                 late = cost_take(job, models[m], late_text);
            if (job->rank < d) {
                double rounded = ceil(sharded.shares / 256) * 256;
                fx_check(job, sharded.parameters == rounded, "%s: %g bytes of parameters, not %g",
                         sharded_text, sharded.parameters, rounded);
                fx_check(job, job->rank > 0 || sharded.parameters < 1.1 * spread.parameters / d,
                         "%s: %g bytes of parameters, whole %g", sharded_text, sharded.parameters,
                         spread.parameters);
                /* ZeRO 1 sends the same sums, and each share once. */
                double sums = spread.step_bytes - spread.shares * (d - 1);
                fx_check(job, sharded.step_bytes == sums + sharded.expected_uses,
                         "%s: %g bytes in a step, expected %g and %g", sharded_text,
                         sharded.step_bytes, sums, sharded.expected_uses);
                fx_check(job, late.step_bytes == sharded.step_bytes, "%s: %g bytes", late_text,
                         late.step_bytes);
                /* The embedding and the first layer, and what goes ahead. */
                fx_check(job, sharded.at_first == 2 + TR_GATHER_AHEAD && late.at_first == 2,
                         "before the first attention: %g gathers, without overlap %g",
                         sharded.at_first, late.at_first);
                fx_check(job, sharded.most_ahead == TR_GATHER_AHEAD && late.most_ahead == 1,
                         "in flight: %g, without overlap %g", sharded.most_ahead, late.most_ahead);
            }
            tr_free(spread_text);
            tr_free(sharded_text);
            tr_free(late_text);
        }
}

/* ---- between steps ---- */

typedef struct readings {
    double losses[3];
    float *logits; /* [vocab] */
} readings;

/* Evaluations and a row of logits between steps, and after weights were set by hand. */
static readings readings_take(fx_job *job, const char *layout)
{
    readings r = {.losses = {NAN, NAN, NAN}};
    fx_run fx;
    tr_metrics metrics;
    char *text = tr_format("train.global_batch=8 train.reduction_leaves=4 train.eval_batches=1 "
                           "train.reduction_order=blocks %s",
                           layout);
    fx_open(job, &fx, "g", text, NULL, NULL);
    tr_free(text);
    if (fx.run != NULL) {
        fx_need(job, tr_run_evaluate(fx.run, &r.losses[0]));
        fx_step(&fx, &metrics);
        fx_need(job, tr_run_evaluate(fx.run, &r.losses[1]));
        fx_step(&fx, &metrics);
        int index = fx_param(&fx, "h.1.mlp.c_fc.weight");
        fx_check(job, index >= 0, "no such parameter");
        float *values = fx_tensor(&fx, index, TR_TENSOR_MASTER);
        values[0] += 4.0f;
        fx_need(job, tr_run_param_set(fx.run, index, TR_TENSOR_MASTER, values));
        fx_need(job, tr_run_params_changed(fx.run));
        tr_free(values);
        int64_t rows = fx.run->stage.model.R;
        int32_t *tokens = TR_NEW_ARRAY(int32_t, (size_t)rows);
        for (int64_t i = 0; i < rows; i++)
            tokens[i] = (int32_t)(i * 7 % 257);
        r.logits = TR_NEW_ARRAY(float, (size_t)fx.run->cfg.model.vocab);
        fx_need(job, tr_run_row_logits(fx.run, tokens, rows - 1, r.logits));
        fx_need(job, tr_run_evaluate(fx.run, &r.losses[2]));
        tr_free(tokens);
    }
    fx_close(&fx);
    return r;
}

static void between_steps(fx_job *job)
{
    if (!fx_case(job, "evaluations, logits and weights set by hand, between steps"))
        return;
    static const char *const layouts[] = {"parallel.zero=0",
                                          "parallel.data=4 parallel.zero=1",
                                          "parallel.data=4 parallel.zero=1 parallel.overlap=false",
                                          "parallel.data=4 parallel.zero=3",
                                          "parallel.data=2 parallel.pipeline=2 parallel.zero=3",
                                          "parallel.data=2 parallel.pipeline=2 parallel.zero=1"};
    readings whole = {0};
    for (int i = 0; i < COUNT(layouts); i++) {
        readings r = readings_take(job, layouts[i]);
        if (job->rank == 0 && i > 0) {
            for (int k = 0; k < 3; k++)
                fx_check(job, r.losses[k] == whole.losses[k], "%s: evaluation %d: %a, expected %a",
                         layouts[i], k, r.losses[k], whole.losses[k]);
            fx_check(job, memcmp(r.logits, whole.logits, 257 * sizeof(float)) == 0,
                     "%s: logits differ", layouts[i]);
        }
        if (job->rank == 0 && i == 0)
            fx_check(job, r.losses[0] != r.losses[1] && r.losses[1] != r.losses[2],
                     "nothing changes");
        if (i == 0)
            whole = r;
        else
            tr_free(r.logits);
    }
    tr_free(whole.logits);
}

/* ---- checkpoints ---- */

static void moved(fx_job *job)
{
    if (!fx_case(job, "a run that moves between stages of ZeRO"))
        return;
    static const char *const layouts[] = {
        "parallel.data=4 parallel.zero=3", "parallel.data=2 parallel.zero=1",
        "parallel.data=2 parallel.pipeline=2 parallel.zero=3", "parallel.data=8 parallel.zero=0"};
    char folder[FX_FOLDER];
    fx_folder_make(job, folder);
    fx_state states[2] = {0};
    for (int moves = 0; moves < 2; moves++) {
        for (int leg = 0; leg < COUNT(layouts); leg++) {
            fx_run fx;
            tr_metrics metrics;
            bool resumed = false;
            char *text = tr_format("train.global_batch=8 train.reduction_leaves=8 "
                                   "train.reduction_order=blocks checkpoint.dir=%s/%d %s",
                                   folder, moves, moves ? layouts[leg] : "parallel.zero=0");
            fx_open(job, &fx, "g", text, NULL, NULL);
            tr_free(text);
            if (fx.run != NULL) {
                fx_need(job, tr_run_resume(fx.run, &resumed));
                fx_check(job, resumed == (leg > 0), "leg %d: resumed %d", leg, resumed);
                fx_step(&fx, &metrics);
                fx_step(&fx, &metrics);
                fx_need(job, tr_run_save(fx.run));
            }
            if (leg == COUNT(layouts) - 1)
                states[moves] = fx_state_take(&fx);
            fx_close(&fx);
        }
    }
    if (job->rank == 0)
        fx_check(job, fx_state_equal(&states[0], &states[1]), "the state differs");
    for (int moves = 0; moves < 2; moves++)
        tr_free(states[moves].values);
    fx_folder_remove(job, folder);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    equal_bits(&job);
    costs(&job);
    between_steps(&job);
    moved(&job);
    return fx_end(&job);
}
