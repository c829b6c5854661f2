/* Do the pipeline's stages fit: is the schedule possible, how many layers does each chunk hold, and
 * do the microbatches fill it. */
#include "engine/config/settings_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "parallel/schedule.h"
#include "parallel/stage_split.h"

static tr_status fit_schedule(const tr_config *cfg)
{
    return tr_schedule_supported(cfg->parallel.schedule, (int)cfg->parallel.pipeline,
                                 (int)cfg->parallel.virtual_,
                                 (int)(cfg->derived.microbatches / cfg->parallel.data));
}

static tr_status refuse_layers(const tr_config *cfg)
{
    char *near = tr_config_nearest_fit(cfg, cfg->parallel.pipeline, cfg->parallel.pipeline,
                                       tr_config_pipeline_fits);
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

tr_part_costs tr_config_part_costs(const tr_config *cfg)
{
    double hidden = (double)cfg->model.hidden, head_dim = (double)cfg->model.head_dim;
    double queries = (double)cfg->model.heads * head_dim;
    double keys = (double)cfg->model.kv_heads * head_dim;
    double mlp = (double)cfg->model.ffn * (cfg->model.mlp == TR_MLP_SWIGLU ? 3 : 2);
    double scores = (double)cfg->train.seq_len * queries; /* causal: half of two products */
    return (tr_part_costs){.embedding = hidden,
                           .layer = hidden * (2 * queries + 2 * keys + mlp) + scores,
                           .head = hidden * (double)cfg->model.vocab};
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
    tr_part_costs costs = tr_config_part_costs(cfg);
    int *layers = TR_NEW_ARRAY(int, num_chunks);
    tr_status status;
    if (strcmp(cfg->parallel.stages, "auto") == 0)
        status =
            tr_stage_split_auto(num_layers, cfg->derived.placement, stages, virtual_chunks,
                                costs.embedding / costs.layer, costs.head / costs.layer, layers);
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

/* The idle share of the schedule when all chunks are equal; 0 when it cannot be told. */
static double idle_share(const tr_config *cfg, int64_t per_rank)
{
    int stages = (int)cfg->parallel.pipeline;
    size_t num_chunks = (size_t)cfg->derived.num_chunks;
    tr_schedule *schedule;
    if (tr_schedule_create(&schedule, cfg->parallel.schedule, stages, (int)cfg->parallel.virtual_,
                           (int)per_rank) != TR_OK)
        return 0;
    double *busy = TR_NEW_ARRAY(double, (size_t)stages), *ones = TR_NEW_ARRAY(double, num_chunks);
    for (size_t c = 0; c < num_chunks; c++)
        ones[c] = 1;
    tr_schedule_costs costs = {.forward = ones, .backward = ones, .weight = ones};
    tr_schedule_times times = {.busy = busy};
    tr_status status = tr_schedule_simulate(schedule, &costs, &times);
    tr_free(ones);
    tr_free(busy);
    tr_schedule_destroy(schedule);
    return status == TR_OK ? times.idle_share : 0;
}

/* Stages wait for the first microbatch to pass and for the last to come back. */
static void warn_idle(tr_config *cfg)
{
    int64_t per_rank = cfg->derived.microbatches / cfg->parallel.data;
    if (per_rank >= cfg->parallel.pipeline)
        return;
    tr_config_warn(cfg, tr_format("%" PRId64 " microbatch%s per data rank on %" PRId64
                                  " pipeline stages: a rank idles about %.0f%% of a step; a larger "
                                  "train.global_batch or a smaller train.micro_batch helps",
                                  per_rank, per_rank == 1 ? "" : "es", cfg->parallel.pipeline,
                                  100 * idle_share(cfg, per_rank)));
}

/* The two chunks of a V need no setting of their own. */
static void fill_virtual(tr_config *cfg)
{
    if (cfg->parallel.schedule != TR_SCHEDULE_ZB_V || tr_config_is_set(cfg, "parallel.virtual"))
        return;
    cfg->parallel.virtual_ = 2;
    tr_setting_resolved(cfg, "parallel.virtual");
}

tr_status tr_config_fit_stages(tr_config *cfg)
{
    fill_virtual(cfg);
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
