/* Does the layout fit the ranks, the batch and the model? Each function checks one kind of fit,
 * fills in what was left open there, and refuses with the arithmetic and the nearest values that
 * fit. */
#include "engine/config/settings_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "parallel/schedule.h"
#include "parallel/stage_split.h"

/* "3", "2 or 4": the values nearest to n below and above it, up to `most`, that `fits` accepts;
 * NULL when there is none. tr_free. */
static char *nearest_fit(const tr_config *cfg, int64_t n, int64_t most,
                         bool (*fits)(const tr_config *cfg, int64_t value))
{
    int64_t below = n - 1, above = n + 1;
    while (below > 0 && !fits(cfg, below))
        below--;
    while (above <= most && !fits(cfg, above))
        above++;
    if (above > most)
        return below > 0 ? tr_format("%" PRId64, below) : NULL;
    return below > 0 ? tr_format("%" PRId64 " or %" PRId64, below, above)
                     : tr_format("%" PRId64, above);
}

static bool heads_cut(const tr_config *cfg, int64_t tensor)
{
    int64_t kv = cfg->model.kv_heads;
    return cfg->model.heads % tensor == 0 && (kv % tensor == 0 || tensor % kv == 0);
}

static bool rows_cut(const tr_config *cfg, int64_t tensor)
{
    return !cfg->parallel.sequence || cfg->train.micro_batch * cfg->train.seq_len % tensor == 0;
}

/* Every cut of the model that tensor parallelism makes. */
static bool tensor_fits(const tr_config *cfg, int64_t tensor)
{
    return heads_cut(cfg, tensor) && cfg->model.ffn % tensor == 0 && rows_cut(cfg, tensor);
}

static bool tensor_fits_ranks(const tr_config *cfg, int64_t tensor)
{
    return cfg->derived.num_ranks % (tensor * cfg->parallel.pipeline) == 0 &&
           tensor_fits(cfg, tensor);
}

static bool pipeline_fits(const tr_config *cfg, int64_t pipeline)
{
    return pipeline * cfg->parallel.virtual_ <= cfg->model.layers;
}

static bool pipeline_fits_ranks(const tr_config *cfg, int64_t pipeline)
{
    return cfg->derived.num_ranks % (cfg->parallel.tensor * pipeline) == 0 &&
           pipeline_fits(cfg, pipeline);
}

/* ", or with 6 ranks parallel.tensor = 1 or 3, or parallel.pipeline = 1 or 3"; tr_free. */
static char *axes_that_fit(const tr_config *cfg)
{
    int64_t ranks = cfg->derived.num_ranks;
    char *tensor = nearest_fit(cfg, cfg->parallel.tensor, ranks, tensor_fits_ranks);
    char *pipeline = nearest_fit(cfg, cfg->parallel.pipeline, ranks, pipeline_fits_ranks);
    char *text =
        tr_format("%s%s%s%s", tensor ? ", or parallel.tensor = " : "", tensor ? tensor : "",
                  pipeline ? ", or parallel.pipeline = " : "", pipeline ? pipeline : "");
    tr_free(tensor);
    tr_free(pipeline);
    return text;
}

/* "mpiexec -n 4 or -n 8": launches whose size is a multiple of `step`. tr_free. */
static char *launches(int64_t ranks, int64_t step)
{
    int64_t below = ranks / step * step;
    return below > 0 ? tr_format("mpiexec -n %" PRId64 " or -n %" PRId64, below, below + step)
                     : tr_format("mpiexec -n %" PRId64, step);
}

static tr_status refuse_ranks(const tr_config *cfg, int64_t product)
{
    int64_t ranks = cfg->derived.num_ranks;
    char *use = launches(ranks, product), *axes = axes_that_fit(cfg);
    tr_status status = tr_fail(TR_ERR_SETTINGS,
                               "%" PRId64 " rank%s: %s %" PRId64 " x %s %" PRId64
                               " needs a multiple of %" PRId64 ": use %s%s%s",
                               ranks, ranks == 1 ? " (started without mpiexec?)" : "s",
                               tr_setting_cite(cfg, "parallel.tensor"), cfg->parallel.tensor,
                               tr_setting_cite(cfg, "parallel.pipeline"), cfg->parallel.pipeline,
                               product, use, axes, "");
    tr_free(use);
    tr_free(axes);
    return status;
}

static tr_status refuse_product(const tr_config *cfg, int64_t product)
{
    int64_t ranks = cfg->derived.num_ranks;
    char *data =
        ranks % product == 0
            ? tr_format("parallel.data = %" PRId64 " (or 0 = what is left)", ranks / product)
            : axes_that_fit(cfg);
    tr_status status =
        tr_fail(TR_ERR_SETTINGS,
                "%" PRId64 " rank%s: %s %" PRId64 " x %s %" PRId64 " x %s %" PRId64 " = %" PRId64
                " ranks: use mpiexec -n %" PRId64 "%s%s",
                ranks, ranks == 1 ? " (started without mpiexec?)" : "s",
                tr_setting_cite(cfg, "parallel.data"), cfg->parallel.data,
                tr_setting_cite(cfg, "parallel.tensor"), cfg->parallel.tensor,
                tr_setting_cite(cfg, "parallel.pipeline"), cfg->parallel.pipeline,
                cfg->parallel.data * product, cfg->parallel.data * product,
                ranks % product == 0 ? ", or " : "", ranks % product == 0 ? data : "");
    tr_free(data);
    return status;
}

tr_status tr_config_fit_ranks(tr_config *cfg, int64_t num_ranks)
{
    enum { MOST_RANKS = 1 << 20 };
    int64_t product = cfg->parallel.tensor * cfg->parallel.pipeline;
    cfg->derived.num_ranks =
        num_ranks ? num_ranks : product * (cfg->parallel.data ? cfg->parallel.data : 1);
    if (cfg->derived.num_ranks > MOST_RANKS)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.data %" PRId64 " x parallel.tensor %" PRId64
                       " x parallel.pipeline %" PRId64 " = %" PRId64 " ranks: use at most %d",
                       cfg->parallel.data, cfg->parallel.tensor, cfg->parallel.pipeline,
                       cfg->derived.num_ranks, MOST_RANKS);
    if (cfg->parallel.data == 0) {
        if (cfg->derived.num_ranks % product != 0)
            return refuse_ranks(cfg, product);
        cfg->parallel.data = cfg->derived.num_ranks / product;
        tr_setting_resolved(cfg, "parallel.data");
    }
    if (cfg->parallel.data * product != cfg->derived.num_ranks)
        return refuse_product(cfg, product);
    return TR_OK;
}

static bool kv_heads_fit(const tr_config *cfg, int64_t kv)
{
    int64_t tensor = cfg->parallel.tensor;
    return cfg->model.heads % kv == 0 && (kv % tensor == 0 || tensor % kv == 0);
}

/* One size that does not divide by the tensor ranks: the numbers, sizes that do, tensor ranks that
 * would. */
static tr_status refuse_cut(const tr_config *cfg, const char *name, int64_t size, const char *rule,
                            char *sizes)
{
    char *tensors = nearest_fit(cfg, cfg->parallel.tensor, 2 * cfg->parallel.tensor, tensor_fits);
    tr_status status =
        tr_fail(TR_ERR_SETTINGS, "%s = %" PRId64 " %s %s = %" PRId64 ": use %s = %s%s%s",
                tr_setting_cite(cfg, name), size, rule, tr_setting_cite(cfg, "parallel.tensor"),
                cfg->parallel.tensor, name, sizes ? sizes : "another",
                tensors ? ", or parallel.tensor = " : "", tensors ? tensors : "");
    tr_free(tensors);
    tr_free(sizes);
    return status;
}

static tr_status refuse_rows(const tr_config *cfg)
{
    int64_t tensor = cfg->parallel.tensor, micro = cfg->train.micro_batch;
    int64_t length = cfg->train.seq_len;
    char *lengths = tr_nearest_multiples(length, tensor);
    int64_t more = micro + 1;
    while (more * length % tensor != 0)
        more++;
    tr_status status = tr_fail(
        TR_ERR_SETTINGS,
        "%s %" PRId64 " x %s %" PRId64 " = %" PRId64 " tokens do not divide by %s = %" PRId64
        " under parallel.sequence: use train.seq_len = %s, or train.micro_batch = %" PRId64
        ", or parallel.sequence = false",
        tr_setting_cite(cfg, "train.micro_batch"), micro, tr_setting_cite(cfg, "train.seq_len"),
        length, micro * length, tr_setting_cite(cfg, "parallel.tensor"), tensor, lengths, more);
    tr_free(lengths);
    return status;
}

tr_status tr_config_fit_cuts(tr_config *cfg)
{
    int64_t tensor = cfg->parallel.tensor;
    const char *divide = "does not divide by";
    if (cfg->model.heads % tensor != 0)
        return refuse_cut(cfg, "model.heads", cfg->model.heads, divide,
                          tr_nearest_multiples(cfg->model.heads, tensor));
    if (!kv_heads_fit(cfg, cfg->model.kv_heads))
        return refuse_cut(cfg, "model.kv_heads", cfg->model.kv_heads,
                          "neither divides nor is divided by",
                          nearest_fit(cfg, cfg->model.kv_heads, cfg->model.heads, kv_heads_fit));
    if (cfg->model.ffn % tensor != 0)
        return refuse_cut(cfg, "model.ffn", cfg->model.ffn, divide,
                          tr_nearest_multiples(cfg->model.ffn, tensor));
    if (!rows_cut(cfg, tensor))
        return refuse_rows(cfg);
    return TR_OK;
}

static tr_status fit_schedule(const tr_config *cfg)
{
    return tr_schedule_supported(cfg->parallel.schedule, (int)cfg->parallel.pipeline,
                                 (int)cfg->parallel.virtual_,
                                 (int)(cfg->derived.microbatches / cfg->parallel.data));
}

static tr_status refuse_layers(const tr_config *cfg)
{
    char *near = nearest_fit(cfg, cfg->parallel.pipeline, cfg->parallel.pipeline, pipeline_fits);
    tr_status status =
        tr_fail(TR_ERR_SETTINGS,
                "%s = %" PRId64 " cannot fill %s %" PRId64 " x parallel.virtual %" PRId64
                " = %" PRId64 " chunks: use at least %" PRId64 " layers%s%s",
                tr_setting_cite(cfg, "model.layers"), cfg->model.layers,
                tr_setting_cite(cfg, "parallel.pipeline"), cfg->parallel.pipeline,
                cfg->parallel.virtual_, cfg->derived.num_chunks, cfg->derived.num_chunks,
                near ? ", or parallel.pipeline = " : "", near ? near : "");
    tr_free(near);
    return status;
}

/* Multiply-adds per token of the head, in units of one block's. */
static double head_cost(const tr_config *cfg)
{
    double hidden = (double)cfg->model.hidden, head_dim = (double)cfg->model.head_dim;
    double queries = (double)cfg->model.heads * head_dim;
    double keys = (double)cfg->model.kv_heads * head_dim;
    double mlp = (double)cfg->model.ffn * (cfg->model.mlp == TR_MLP_SWIGLU ? 3 : 2);
    double scores = (double)cfg->train.seq_len * queries; /* causal: half of two products */
    double block = hidden * (2 * queries + 2 * keys + mlp) + scores;
    return hidden * (double)cfg->model.vocab / block;
}

/* The user's list as numbers; more than num_chunks of them are counted, not kept. */
static int read_stages(const tr_config *cfg, int *layers)
{
    int count = 0;
    for (const char *at = cfg->parallel.stages;; count++) {
        char *end;
        long value = strtol(at, &end, 10);
        if (count < cfg->derived.num_chunks)
            layers[count] = (int)value;
        if (*end == '\0')
            return count + 1;
        at = end + 1;
    }
}

static tr_status share_layers(tr_config *cfg)
{
    int stages = (int)cfg->parallel.pipeline, virtual_chunks = (int)cfg->parallel.virtual_;
    int num_layers = (int)cfg->model.layers;
    size_t num_chunks = (size_t)cfg->derived.num_chunks;
    int *layers = TR_NEW_ARRAY(int, num_chunks);
    tr_status status;
    if (strcmp(cfg->parallel.stages, "auto") == 0)
        status = tr_stage_split_auto(num_layers, stages, virtual_chunks, 0, head_cost(cfg), layers);
    else
        status = tr_stage_split_check(layers, read_stages(cfg, layers), num_layers, stages,
                                      virtual_chunks);
    if (status == TR_OK) {
        tr_free(cfg->derived.chunk_layers);
        cfg->derived.chunk_layers = TR_NEW_ARRAY(int64_t, num_chunks);
        for (size_t i = 0; i < num_chunks; i++)
            cfg->derived.chunk_layers[i] = layers[i];
    }
    tr_free(layers);
    return status;
}

/* Stages wait for the first microbatch to pass and for the last to come back. */
static void warn_idle(tr_config *cfg)
{
    int64_t per_rank = cfg->derived.microbatches / cfg->parallel.data;
    int64_t waits = cfg->parallel.pipeline - 1;
    if (per_rank >= cfg->parallel.pipeline)
        return;
    double idle = (double)waits / (double)(per_rank * cfg->parallel.virtual_ + waits);
    tr_config_warn(cfg, tr_format("%" PRId64 " microbatch%s per data rank on %" PRId64
                                  " pipeline stages: a rank idles about %.0f%% of a step; a larger "
                                  "train.global_batch or a smaller train.micro_batch helps",
                                  per_rank, per_rank == 1 ? "" : "es", cfg->parallel.pipeline,
                                  100 * idle));
}

tr_status tr_config_fit_stages(tr_config *cfg)
{
    TR_TRY(fit_schedule(cfg));
    int stages = (int)cfg->parallel.pipeline;
    cfg->derived.num_chunks = stages * cfg->parallel.virtual_;
    cfg->derived.placement = tr_schedule_placement(cfg->parallel.schedule);
    cfg->derived.head_stage =
        tr_chunk_stage(cfg->derived.placement, stages, (int)cfg->derived.num_chunks - 1);
    if (cfg->derived.num_chunks > cfg->model.layers)
        return refuse_layers(cfg);
    TR_TRY(share_layers(cfg));
    warn_idle(cfg);
    return TR_OK;
}
