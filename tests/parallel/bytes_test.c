/* Bytes held and sent are what the formulas say.
 *
 * Held, by the plan, which memory_use.sh shows to be what is allocated: P parameters of a rank's tensor and stage, d data ranks in sharding groups
 * of s; compute dtype of 2 bytes:
 *
 *     ZeRO   parameters   gradients                     master and moments
 *     0      2 P          4 P                           12 P
 *     1      2 P          4 P                           12 P/s
 *     2      2 P          4 P/s + 4 of the largest unit 12 P/s
 *     3      2 P/s        4 P/s + 4 of the largest unit 12 P/s
 *
 * up to what rounding to 64 elements of an interval and 256 bytes of an address adds. An order of sums that the layout does not follow naturally costs whole buffers or
 * shards more. Sent: what the groups count in a step is what the plan prints. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/plan.h"
#include "tests/parallel/run_fixture.h"

/* ---- held ---- */

static const char shape[] = "model.layers=4 model.hidden=256 model.heads=4 model.kv_heads=4 "
                            "model.ffn=512 model.vocab=1000 train.global_batch=24 "
                            "train.precision=bf16";

typedef struct held {
    double parameters, gradients, optimizer;
} held;

/* Rank 0's, the largest shards. */
static held held_take(fx_job *job, tr_device *device, const char *model, const char *layout)
{
    tr_config cfg;
    size_t bytes[TR_MEM_NUM];
    char *text = tr_format("%s %s", shape, layout);
    fx_need(job, fx_resolve(&cfg, model, text));
    tr_mesh mesh = tr_config_mesh(&cfg, 0);
    fx_need(job, tr_run_count(&cfg, &mesh, device, bytes, NULL));
    tr_config_clear(&cfg);
    tr_free(text);
    return (held){(double)bytes[TR_MEM_PARAMETERS], (double)bytes[TR_MEM_GRADIENTS],
                  (double)bytes[TR_MEM_OPTIMIZER]};
}

/* Elements of the model, of its largest unit and of a tied head's gradient; number of tensors. */
typedef struct model_size {
    double elements, unit, tied;
    int tensors;
} model_size;

static model_size size_take(fx_job *job, const char *model)
{
    tr_config cfg;
    tr_param_table table;
    model_size size = {0};
    double units[8] = {0}; /* layers, embedding, head */
    fx_need(job, fx_resolve(&cfg, model, shape));
    tr_param_table_init(&table, &cfg);
    for (int i = 0; i < table.num_rows; i++) {
        const tr_param *row = &table.rows[i];
        double count = (double)(row->shape[0] * row->shape[1]);
        bool embeds = row->role == TR_ROLE_EMBED || row->role == TR_ROLE_POSITION;
        size.elements += row->tied_to < 0 ? count : 0;
        size.tied += row->tied_to >= 0 ? count : 0;
        units[row->layer >= 0 ? row->layer : embeds ? 4 : 5] += count;
    }
    for (int u = 0; u < 8; u++)
        size.unit = units[u] > size.unit ? units[u] : size.unit;
    size.tensors = table.num_rows;
    tr_param_table_clear(&table);
    tr_config_clear(&cfg);
    return size;
}

/* `value` is `bytes` a piece of `elements`, and at most what rounding adds. */
static void near(fx_job *job, const model_size *size, double value, double elements, double bytes,
                 const char *what)
{
    double least = elements * bytes, most = least + size->tensors * 128.0 * bytes;
    fx_check(job, value >= least && value <= most, "%s: %.0f bytes, expected %.0f to %.0f", what,
             value, least, most);
}

static void held_check(fx_job *job, tr_device *device, const char *model)
{
    static const struct {
        int data, shard;
    } groups[] = {{1, 1}, {2, 2}, {4, 4}, {8, 8}, {8, 2}, {6, 3}, {3, 3}};
    model_size size = size_take(job, model);
    double sums = size.elements + size.tied; /* a tied head keeps its own */
    for (int g = 0; g < 7; g++)
        for (int zero = 0; zero <= 3; zero++) {
            char *layout = tr_format("parallel.data=%d parallel.shard_ranks=%d parallel.zero=%d",
                                     groups[g].data, groups[g].shard, zero);
            char *what = tr_format("%s %s", model, layout);
            held h = held_take(job, device, model, layout);
            double s = zero > 0 ? groups[g].shard : 1;
            near(job, &size, h.parameters, zero < 3 ? size.elements : size.elements / s, 2, what);
            near(job, &size, h.optimizer, size.elements / s, 12, what);
            if (zero < 2)
                near(job, &size, h.gradients, sums, 4, what);
            else
                near(job, &size, h.gradients, sums / s + size.unit, 4, what);
            tr_free(what);
            tr_free(layout);
        }
}

/* Extra accumulators of orders that a layout does not follow naturally. */
static void orders_check(fx_job *job, tr_device *device)
{
    static const struct {
        const char *layout;
        double whole, shards, unit; /* buffers of each kind */
    } cases[] = {
        {"parallel.data=2 parallel.zero=1 train.reduction_order=blocks train.reduction_leaves=8", 3,
         0, 0},
        {"parallel.data=2 parallel.zero=1 train.reduction_order=rounds train.reduction_leaves=2", 1,
         1, 0},
        {"parallel.data=2 parallel.zero=1 train.reduction_order=rounds train.reduction_leaves=8", 1,
         3, 0},
        {"parallel.data=2 parallel.zero=2 train.reduction_order=rounds train.reduction_leaves=8", 0,
         3, 1},
        {"parallel.data=3 parallel.zero=2 train.reduction_order=rounds train.reduction_leaves=12",
         3, 1, 0},
        {"parallel.data=4 parallel.zero=2 train.reduction_order=blocks train.reduction_leaves=4", 1,
         0, 0}};
    model_size size = size_take(job, "l");
    for (int i = 0; i < 6; i++) {
        held h = held_take(job, device, "l", cases[i].layout);
        double s = cases[i].layout[14] - '0';
        double elements = cases[i].whole * size.elements + cases[i].shards * size.elements / s +
                          cases[i].unit * size.unit;
        double buffers = cases[i].whole + cases[i].shards + cases[i].unit;
        double least = 4 * elements, most = least + buffers * size.tensors * 128.0 * 4;
        fx_check(job, h.gradients >= least && h.gradients <= most,
                 "%s: %.0f bytes, expected %.0f to %.0f", cases[i].layout, h.gradients, least,
                 most);
    }
}

/* ---- sent ---- */

static int64_t sent(const tr_group *group)
{
    return group != NULL ? (int64_t)tr_group_get_stats(group)->bytes_sent : 0;
}

static int64_t sent_over_data(const tr_run *run)
{
    return sent(run->data) + (run->shard != run->data ? sent(run->shard) : 0) +
           (run->replica != run->data ? sent(run->replica) : 0);
}

/* The second step: the first one has no update before it. */
static void sent_check(fx_job *job, const char *model, const char *layout)
{
    fx_run fx;
    tr_metrics metrics;
    char *text = tr_format("train.global_batch=24 %s", layout);
    fx_open(job, &fx, model, text, NULL, NULL);
    fx_step(&fx, &metrics);
    if (fx.run != NULL) {
        int64_t data = sent_over_data(fx.run), stages = sent(fx.run->pipeline);
        int64_t tensor = sent(fx.run->tensor) + sent(fx.run->kv);
        size_t bytes[TR_MEM_NUM];
        tr_traffic traffic;
        fx_need(job, tr_run_count(&fx.cfg, &fx.run->mesh, fx.run->device, bytes, &traffic));
        fx_step(&fx, &metrics);
        data = sent_over_data(fx.run) - data;
        stages = sent(fx.run->pipeline) - stages;
        tensor = sent(fx.run->tensor) + sent(fx.run->kv) - tensor;
        fx_check(job, tensor == traffic.tensor,
                 "%s %s: %lld bytes sent over tensor ranks, planned %lld", model, layout,
                 (long long)tensor, (long long)traffic.tensor);
        fx_check(job, data == traffic.gradients + traffic.weights,
                 "%s %s: %lld bytes sent over data ranks, planned %lld + %lld", model, layout,
                 (long long)data, (long long)traffic.gradients, (long long)traffic.weights);
        fx_check(job, stages == traffic.stages, "%s %s: %lld bytes sent to stages, planned %lld",
                 model, layout, (long long)stages, (long long)traffic.stages);
    }
    tr_free(text);
    fx_close(&fx);
}

/* ---- the price that the plan prints ---- */

static void order_count(fx_job *job, const tr_config *cfg, tr_device *device, tr_plan_order *order)
{
    tr_plan_rank ranks[FX_MAX_RANKS];
    fx_need(job, tr_plan_count(cfg, device, ranks));
    fx_need(job, tr_plan_order_count(cfg, device, ranks, order));
}

static void price_check(fx_job *job, tr_device *device)
{
    tr_config cfg;
    tr_plan_order order;
    fx_need(job, fx_resolve(&cfg, "l", "parallel.data=4 parallel.zero=2"));
    order_count(job, &cfg, device, &order);
    fx_check(job, order.natural && order.memory == 0 && order.sent == 0, "natural order: a price");
    tr_config_clear(&cfg);
    char *layout = tr_format("%s parallel.data=2 train.reduction_leaves=8", shape);
    held eight = held_take(job, device, "l", "parallel.data=2 train.reduction_leaves=8"),
         two = held_take(job, device, "l", "parallel.data=2 train.reduction_leaves=2");
    fx_need(job, fx_resolve(&cfg, "l", layout));
    order_count(job, &cfg, device, &order);
    fx_check(job, !order.natural && (double)order.memory == eight.gradients - two.gradients,
             "eight leaves: %lld bytes more, expected %g", (long long)order.memory,
             eight.gradients - two.gradients);
    fx_check(job, order.sent == 0, "eight leaves: sends %lld more", (long long)order.sent);
    tr_config_clear(&cfg);
    tr_free(layout);
    fx_need(job, fx_resolve(&cfg, "l",
                            "train.global_batch=24 parallel.data=2 train.reduction_order=rounds "
                            "train.reduction_leaves=2"));
    order_count(job, &cfg, device, &order);
    tr_mesh mesh = tr_config_mesh(&cfg, 0);
    size_t bytes[TR_MEM_NUM];
    tr_traffic traffic;
    fx_need(job, tr_run_count(&cfg, &mesh, device, bytes, &traffic));
    fx_check(job, order.sent * 12 == traffic.gradients * 11, "12 rounds: sends %lld more of %lld",
             (long long)order.sent, (long long)traffic.gradients);
    tr_config_clear(&cfg);
}

int main(int argc, char **argv)
{
    static const char *const layouts[] = {
        "parallel.data=8 parallel.zero=0",
        "parallel.data=8",
        "parallel.data=8 parallel.shard_ranks=2 parallel.bucket_mb=0.02",
        "parallel.data=6 parallel.shard_ranks=3",
        "parallel.data=4 parallel.zero=2 parallel.pipeline=2",
        "parallel.data=4 parallel.zero=2 parallel.shard_ranks=2 parallel.overlap=false",
        "parallel.data=2 parallel.zero=0 train.reduction_order=rounds parallel.tensor=2",
        "parallel.data=2 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved",
        "parallel.data=2 parallel.pipeline=4 parallel.schedule=zb-h1 parallel.zero=2",
        "parallel.data=4 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v "
        "parallel.zero=2 parallel.shard_ranks=2",
        "parallel.data=4 parallel.zero=3 parallel.pipeline=2",
        "parallel.data=4 parallel.zero=3 parallel.shard_ranks=2 memory.recompute=full",
        "parallel.pipeline=4",
        "parallel.data=6 parallel.zero=3 parallel.shard_ranks=3",
        "parallel.data=4 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v "
        "parallel.zero=3 parallel.shard_ranks=2",
        "parallel.data=2 parallel.pipeline=4 parallel.zero=3 memory.recompute=full",
        "parallel.tensor=4 parallel.sequence=false",
        "parallel.tensor=4",
        "parallel.data=2 parallel.tensor=4 memory.recompute=full parallel.overlap=false",
        "parallel.data=2 parallel.tensor=4 parallel.zero=3 memory.recompute=selective",
        "parallel.data=2 parallel.tensor=2 parallel.pipeline=2 parallel.schedule=zb-h1 "
        "memory.recompute=full",
        "parallel.tensor=2 parallel.pipeline=4 parallel.schedule=zb-h1 parallel.zero=2",
        "parallel.tensor=4 train.tensor_slices=4 parallel.bucket_mb=0.02",
        "parallel.tensor=4 train.tensor_slices=4 parallel.data=2 parallel.zero=2",
        "parallel.tensor=4 train.tensor_slices=4 parallel.sequence=false",
        "parallel.tensor=2 parallel.pipeline=2 train.tensor_slices=4 parallel.schedule=zb-h1"};
    fx_job job = fx_begin(&argc, &argv);
    tr_device *device;
    fx_need(&job, tr_cpu_device_create(&device, 1));
    if (fx_case(&job, "bytes held"))
        for (int m = 0; m < 2 && job.rank == 0; m++)
            held_check(&job, device, m == 0 ? "g" : "l");
    if (fx_case(&job, "bytes held for other orders of sums") && job.rank == 0)
        orders_check(&job, device);
    if (fx_case(&job, "the price of an order") && job.rank == 0)
        price_check(&job, device);
    tr_device_destroy(device);
    fx_gather(&job);
    if (fx_case(&job, "bytes sent"))
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
            sent_check(&job, i % 2 == 0 ? "g" : "l", layouts[i]);
    return fx_end(&job);
}
