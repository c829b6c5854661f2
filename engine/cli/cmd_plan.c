/* trine plan: bytes, batch arithmetic and pipeline of a run, without running it. No MPI, no allocation of what it counts. */
#include "engine/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "engine/memory_fit.h"
#include "engine/model/params.h"
#include "engine/plan.h"
#include "io/file_commit.h"

static const char usage[] =
    "usage: trine plan [--ranks N] [--schedule] [--draw FILE.svg] CONFIG [section.key=value ...]\n"
    "       trine plan --check-schedule FILE [--draw FILE.svg]\n"
    "\n"
    "Prints the batch arithmetic, the exact bytes of every rank by category (ranks with equal\n"
    "bytes share a line), what they send in a step, what the order of sums costs here, and the\n"
    "idle share (bubble) of the pipeline schedule with costs counted in FLOPs. With\n"
    "memory.limit_gb=N it says whether the largest rank fits; exit 6 and what would fit where it\n"
    "does not. Where run.dir holds a checkpoint from which a run would go on, its order of sums\n"
    "is planned. device.kind=cuda plans for GPUs, and needs none: only a build with the CUDA "
    "device.\n"
    "\n"
    "  --ranks N    plan for N ranks; otherwise for the product of the parallel sizes\n"
    "  --schedule   also print the schedule\n"
    "  --draw FILE  also draw the schedule's simulated time lines, as SVG\n"
    "  --check-schedule FILE\n"
    "               prove a schedule, and show its idle share and live activations with equal\n"
    "               chunks and equal F, B and W\n"
    "\n"
    "A schedule is a line per stage with its actions in order, separated by commas: 0F3 is chunk\n"
    "0, forward, microbatch 3; B is the input gradient (torch's I), W the weight gradient "
    "(0B3,0W3\n"
    "is torch's 0B3). Transfers are put in by themselves. Chunk c of p stages is on stage c mod p, "
    "or\n"
    "in a V on c and 2p-1-c. Empty lines and lines that begin with # are skipped. It is checked "
    "and\n"
    "drawn; a run takes the kinds of parallel.schedule.\n";

/* Files of text that are written whole or not kept. */
static tr_status text_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot be written", path);
    bool written = fputs(text, file) >= 0, removable = tr_file_is_regular(fileno(file));
    if (fclose(file) == 0 && written)
        return TR_OK;
    int error = errno;
    if (removable)
        remove(path);
    return tr_fail_errno(TR_ERR_IO, error, "%s: cannot be written", path);
}

static tr_status text_read(const char *path, char **text)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return tr_fail_errno(TR_ERR_SETTINGS, errno, "%s: cannot be read", path);
    size_t size = 0, capacity = 4096, count;
    char *bytes = tr_alloc(capacity + 1, 1);
    while ((count = fread(bytes + size, 1, capacity - size, file)) > 0) {
        const char *zero = memchr(bytes + size, '\0', count);
        if (zero != NULL) { /* a text would end there, and what follows be passed over */
            tr_status status = tr_fail(TR_ERR_SETTINGS, "%s: byte %zu is zero; expected text", path,
                                       (size_t)(zero - bytes));
            tr_free(bytes);
            fclose(file);
            return status;
        }
        size += count;
        if (size == capacity)
            bytes = tr_realloc(bytes, (capacity *= 2) + 1, 1);
    }
    bytes[size] = '\0';
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (error != 0) {
        tr_free(bytes);
        return tr_fail_errno(TR_ERR_SETTINGS, error, "%s: cannot be read", path);
    }
    *text = bytes;
    return TR_OK;
}

enum { COUNTED = 48 };

/* "1 layer", "2 layers", "2 microbatches". */
static const char *counted(int64_t number, const char *noun, char text[COUNTED])
{
    size_t length = strlen(noun);
    const char *ending = number == 1 ? "" : length > 0 && noun[length - 1] == 'h' ? "es" : "s";
    snprintf(text, COUNTED, "%lld %s%s", (long long)number, noun, ending);
    return text;
}

/* What a written schedule comes to when all its actions take equally long. */
static tr_status listed_print(const tr_schedule *schedule, const char *path, const char *draw)
{
    int num_stages = schedule->num_stages, num_chunks = num_stages * schedule->num_virtual;
    double *ones = TR_NEW_ARRAY(double, (size_t)num_chunks);
    double *busy = TR_NEW_ARRAY(double, (size_t)num_stages);
    for (int c = 0; c < num_chunks; c++)
        ones[c] = 1;
    tr_schedule_costs costs = {.forward = ones, .backward = ones, .weight = ones};
    tr_schedule_times times = {.busy = busy};
    tr_status status = tr_schedule_simulate(schedule, &costs, &times);
    if (status == TR_OK) {
        char text[COUNTED], stages[COUNTED], microbatches[COUNTED];
        printf("%s: %s x %d chunk%s in a %s, %s, %s: every use after its definition, no "
               "deadlock\n",
               path, counted(num_stages, "stage", stages), schedule->num_virtual,
               schedule->num_virtual == 1 ? "" : "s",
               schedule->placement == TR_PLACEMENT_V ? "V" : "loop",
               counted(schedule->num_microbatches, "microbatch", microbatches),
               schedule->trains ? "training" : "forward only");
        for (int s = 0; s < num_stages; s++)
            printf("stage %d: at most %s of a chunk live\n", s,
                   counted(tr_schedule_live_peak(schedule, s, -1), "activation", text));
        printf("idle share %.2f %% with equal chunks and equal F, B and W\n",
               100 * times.idle_share);
    }
    char *svg = NULL;
    if (status == TR_OK && draw != NULL)
        status = tr_schedule_draw(schedule, &costs, path, &svg);
    if (svg != NULL)
        status = text_write(draw, svg);
    tr_free(svg);
    tr_free(busy);
    tr_free(ones);
    return status;
}

static tr_status listed_check(const char *path, const char *draw)
{
    char *text = NULL;
    tr_schedule *schedule;
    TR_TRY(text_read(path, &text));
    tr_status status = tr_schedule_read(&schedule, text);
    tr_free(text);
    if (status != TR_OK) {
        char *message = tr_format("%s: %s", path, tr_error_message());
        status = tr_fail(status, "%s", message);
        tr_free(message);
        return status;
    }
    status = listed_print(schedule, path, draw);
    tr_schedule_destroy(schedule);
    return status;
}

static bool same_bytes(const tr_plan_rank *a, const tr_plan_rank *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* "3", or "3-5" for ranks first ... end - 1. */
static void ranks_label(int first, int end, char label[32])
{
    if (end == first + 1)
        snprintf(label, 32, "%d", first);
    else
        snprintf(label, 32, "%d-%d", first, end - 1);
}

static void bytes_print(const tr_device *device, const tr_plan_rank *ranks, int num_ranks)
{
    int largest = tr_plan_largest(ranks, num_ranks);
    printf("bytes per rank\n%-11s", "ranks");
    for (int c = 0; c < TR_MEM_NUM; c++)
        printf(" %15s", tr_mem_category_name((tr_mem_category)c));
    printf(" %15s\n", "total");
    for (int r = 0; r < num_ranks;) {
        int end = r + 1;
        char label[32];
        while (end < num_ranks && same_bytes(&ranks[r], &ranks[end]))
            end++;
        ranks_label(r, end, label);
        printf("%-11s", label);
        for (int c = 0; c < TR_MEM_NUM; c++)
            printf(" %15zu", ranks[r].bytes[c]);
        printf(" %15zu\n", ranks[r].total);
        r = end;
    }
    printf("largest rank %d (data %d, tensor %d, pipeline %d): %zu bytes\n", largest,
           ranks[largest].data, ranks[largest].tensor, ranks[largest].pipeline,
           ranks[largest].total);
    if (!device->unified && ranks[largest].bytes[TR_MEM_SNAPSHOT] > 0)
        printf(
            "snapshot is memory of the host, pinned, and not in the total, which is the GPU's\n");
}

static bool same_traffic(const tr_traffic *a, const tr_traffic *b)
{
    return a->gradients == b->gradients && a->weights == b->weights && a->tensor == b->tensor &&
           a->stages == b->stages;
}

static void traffic_print(const tr_plan_rank *ranks, int num_ranks)
{
    printf("bytes sent per rank and step\n%-11s %15s %15s %15s %15s\n", "ranks", "gradients",
           "weights", "tensor", "stages");
    for (int r = 0; r < num_ranks;) {
        int end = r + 1;
        while (end < num_ranks && same_traffic(&ranks[r].traffic, &ranks[end].traffic))
            end++;
        char label[32];
        ranks_label(r, end, label);
        printf("%-11s %15lld %15lld %15lld %15lld\n", label, (long long)ranks[r].traffic.gradients,
               (long long)ranks[r].traffic.weights, (long long)ranks[r].traffic.tensor,
               (long long)ranks[r].traffic.stages);
        r = end;
    }
}

/* How the sum of gradients goes, and what it costs more than the order that this layout would choose. */
static tr_status order_print(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks)
{
    tr_plan_order order;
    TR_TRY(tr_plan_order_count(cfg, device, ranks, &order));
    const tr_reduce_plan *plan = &order.plan;
    char *name = tr_config_get(cfg, "train.reduction_order");
    printf(
        "sum of gradients: %s of %lld lea%s; a rank sums %d microbatch%s into a leaf, combines %d "
        "lea%s, exchanges %d time%s a round, %d round%s\n",
        name, (long long)cfg->derived.leaves, cfg->derived.leaves == 1 ? "f" : "ves",
        plan->per_leaf, plan->per_leaf == 1 ? "" : "es", plan->local_leaves,
        plan->local_leaves == 1 ? "f" : "ves", plan->parts, plan->parts == 1 ? "" : "s",
        plan->rounds, plan->rounds == 1 ? "" : "s");
    if (cfg->train.reduction_order == TR_REDUCTION_NATIVE)
        printf("price of that order: none, and its bits are those of this layout only\n");
    else if (order.natural)
        printf("price of that order: none, this layout follows it naturally\n");
    else
        printf("price of that order: %+lld bytes of memory, %+lld bytes sent per step, over %s of "
               "%lld lea%s\n",
               (long long)order.memory, (long long)order.sent,
               tr_config_natural_order(cfg) == TR_REDUCTION_BLOCKS ? "blocks" : "rounds",
               (long long)cfg->parallel.data, cfg->parallel.data == 1 ? "f" : "ves");
    tr_free(name);
    return TR_OK;
}

static tr_status slices_print(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks)
{
    tr_plan_slices cost;
    if (cfg->derived.tensor_slices == 0)
        return TR_OK;
    TR_TRY(tr_plan_slices_count(cfg, device, ranks, &cost));
    printf("train.tensor_slices %lld costs %lld bytes of the largest rank's, and sends %lld bytes "
           "more per rank and step between tensor ranks\n",
           (long long)cfg->derived.tensor_slices, (long long)cost.memory, (long long)cost.sent);
    return TR_OK;
}

static tr_status pipeline_print(const tr_config *cfg, bool with_schedule)
{
    tr_plan_pipeline plan;
    TR_TRY(tr_plan_pipeline_count(cfg, &plan));
    char layers[COUNTED], live[COUNTED];
    for (int c = 0; c < cfg->derived.num_chunks; c++)
        printf("chunk %d: stage %d, %s, forward %.4g GFLOP per microbatch, at most %s live\n", c,
               tr_chunk_stage(cfg->derived.placement, (int)cfg->parallel.pipeline, c),
               counted(cfg->derived.chunk_layers[c], "layer", layers), plan.chunk_flops[c] * 1e-9,
               counted(plan.peak_live[c], "microbatch", live));
    printf("pipeline idle share %.2f %% (slowest stage %.3f of the mean)\n", plan.idle_share * 100,
           plan.slowest_share);
    if (with_schedule)
        printf("%s", plan.text);
    tr_free(plan.chunk_flops);
    tr_free(plan.peak_live);
    tr_free(plan.text);
    return TR_OK;
}

static tr_status pipeline_draw(const tr_config *cfg, const char *path)
{
    char *svg;
    TR_TRY(tr_plan_pipeline_draw(cfg, &svg));
    tr_status status = text_write(path, svg);
    tr_free(svg);
    return status;
}

/* Whether the largest rank fits memory.limit_gb, where that is set; what would fit where it does not. */
static tr_status limit_print(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks)
{
    int largest = tr_plan_largest(ranks, (int)cfg->derived.num_ranks);
    char fitting[512];
    size_t limit = (size_t)(cfg->memory.limit_gb * 1e9);
    if (cfg->memory.limit_gb <= 0)
        return TR_OK;
    if (ranks[largest].total <= limit) {
        printf("fits memory.limit_gb: %zu bytes to spare\n", limit - ranks[largest].total);
        return TR_OK;
    }
    tr_memory_fit_remedies(cfg, device, limit, fitting, sizeof fitting);
    return tr_fail(TR_ERR_MEMORY,
                   "not enough memory: rank %d needs %zu bytes, memory.limit_gb is %zu "
                   "bytes, %zu short; "
                   "would fit: %s",
                   largest, ranks[largest].total, limit, ranks[largest].total - limit, fitting);
}

/* Everything about a run; what does not fit is said last. */
static tr_status print_all(const tr_config *cfg, tr_device *device, bool with_schedule,
                           const char *draw)
{
    int num_ranks = (int)cfg->derived.num_ranks;
    tr_param_table table;
    tr_param_table_init(&table, cfg);
    char *layout = tr_config_layout_text(cfg);
    printf("%lld parameters, %.4g GFLOP per token; %s, on %s\n", (long long)table.num_elements,
           tr_model_flops_per_token(cfg) * 1e-9, layout,
           device->kind == TR_DEVICE_CUDA ? "cuda" : "cpu");
    tr_free(layout);
    tr_param_table_clear(&table);
    char *batch = tr_config_batch_text(cfg);
    puts(batch);
    tr_free(batch);
    tr_plan_rank *ranks = TR_NEW_ARRAY(tr_plan_rank, (size_t)num_ranks);
    tr_status status = tr_plan_count(cfg, device, ranks);
    if (status == TR_OK) {
        bytes_print(device, ranks, num_ranks);
        traffic_print(ranks, num_ranks);
        status = order_print(cfg, device, ranks);
    }
    if (status == TR_OK)
        status = slices_print(cfg, device, ranks);
    if (status == TR_OK)
        status = pipeline_print(cfg, with_schedule);
    if (status == TR_OK && draw != NULL)
        status = pipeline_draw(cfg, draw);
    if (status == TR_OK)
        status = limit_print(cfg, device, ranks);
    tr_free(ranks);
    return status;
}

/* The configuration as train would have it: with what the checkpoint records from which it would go on. */
static tr_status config_take(tr_config *cfg, int argc, char **argv, int64_t num_ranks)
{
    static const char leaves[] = "train.reduction_leaves";
    TR_TRY(tr_cli_config_read(cfg, argc, argv, false));
    bool is_set = tr_config_is_set(cfg, leaves);
    tr_status status = tr_checkpoint_peek(cfg, num_ranks);
    bool recorded = !is_set && tr_config_is_set(cfg, leaves);
    if (status == TR_OK)
        status = tr_config_resolve(cfg, num_ranks);
    if (status == TR_OK && recorded)
        printf("order of sums as recorded in %s, from which a run would go on\n",
               cfg->checkpoint.dir);
    if (status != TR_OK)
        tr_config_clear(cfg);
    return status;
}

static tr_status run(int argc, char **argv)
{
    int64_t num_ranks = 0;
    tr_config cfg;
    tr_device *device;
    const char *listed = NULL, *draw = NULL;
    bool with_schedule = tr_cli_flag(&argc, argv, "--schedule");
    TR_TRY(tr_cli_value(&argc, argv, "--draw", &draw));
    TR_TRY(tr_cli_value(&argc, argv, "--check-schedule", &listed));
    if (listed != NULL) {
        TR_TRY(tr_cli_words(argc, argv, 0, 0));
        return listed_check(listed, draw);
    }
    TR_TRY(tr_cli_int(&argc, argv, "--ranks", 1, 1 << 20, &num_ranks));
    if (argc < 2)
        return tr_fail(TR_ERR_SETTINGS, "trine plan needs a configuration file, e.g. trine plan "
                                        "configs/quickstart.yaml; see trine plan --help");
    TR_TRY(tr_cli_words(argc, argv, 1, -1));
    TR_TRY(config_take(&cfg, argc, argv, num_ranks));
    tr_cli_config_warn(&cfg);
    tr_status status = tr_plan_device_create(&device, &cfg);
    if (status == TR_OK) {
        status = print_all(&cfg, device, with_schedule, draw);
        tr_device_destroy(device);
    }
    tr_config_clear(&cfg);
    return status;
}

const tr_verb tr_verb_plan = {
    .name = "plan",
    .summary = "bytes per rank, batch arithmetic and pipeline of a run, without running it",
    .usage = usage,
    .run = run,
};
