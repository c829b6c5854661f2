/* The resolution: from what was set to a configuration without open ends that fits its ranks, or
 * one message that says why it cannot be. Nothing is allocated for the run before it succeeds. */
#include "engine/config/settings_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

/* All missing settings in one message: whoever writes a file wants the whole list. */
static tr_status check_required(const tr_config *cfg)
{
    char *missing = NULL;
    int count = 0;
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        /* Token files are needed by some verbs only, which ask for them. */
        if (row->open || row->type == TR_SETTING_DATA || !tr_setting_is_open(cfg, row))
            continue;
        char *longer = tr_format("%s%s%s", missing ? missing : "", missing ? ", " : "", row->name);
        tr_free(missing);
        missing = longer;
        count++;
    }
    if (missing == NULL)
        return TR_OK;
    tr_status status = tr_fail(TR_ERR_SETTINGS, "%s: %s must be set: %s",
                               cfg->file ? cfg->file : "the configuration",
                               count > 1 ? "these settings" : "one setting", missing);
    tr_free(missing);
    return status;
}

static void fill_int(tr_config *cfg, int64_t *field, int64_t value, const char *name)
{
    if (*field != 0)
        return;
    *field = value;
    tr_setting_resolved(cfg, name);
}

/* Takes `value` over. */
static void fill_text(tr_config *cfg, char **field, char *value, const char *name)
{
    if (*field != NULL) {
        tr_free(value);
        return;
    }
    *field = value;
    tr_setting_resolved(cfg, name);
}

/* configs/tiny-g.yaml -> tiny-g */
static char *name_of_file(const char *file)
{
    if (file == NULL)
        return tr_strdup("run");
    const char *slash = strrchr(file, '/');
    const char *base = slash ? slash + 1 : file;
    size_t length = strlen(base);
    if (length > 5 && tr_ends_with(base, ".yaml"))
        length -= 5;
    else if (length > 4 && tr_ends_with(base, ".yml"))
        length -= 4;
    return tr_format("%.*s", (int)length, base);
}

static void fill_open(tr_config *cfg)
{
    fill_int(cfg, &cfg->model.kv_heads, cfg->model.heads, "model.kv_heads");
    fill_int(cfg, &cfg->model.head_dim, cfg->model.hidden / cfg->model.heads, "model.head_dim");
    fill_int(cfg, &cfg->model.max_positions, cfg->train.seq_len, "model.max_positions");
    if (cfg->train.min_lr < 0) {
        cfg->train.min_lr = cfg->train.lr / 10;
        tr_setting_resolved(cfg, "train.min_lr");
    }
    fill_text(cfg, &cfg->run.name, name_of_file(cfg->file), "run.name");
    fill_text(cfg, &cfg->run.dir, tr_format("runs/%s", cfg->run.name), "run.dir");
    fill_text(cfg, &cfg->checkpoint.dir, tr_format("%s/checkpoints", cfg->run.dir),
              "checkpoint.dir");
}

void tr_config_warn(tr_config *cfg, char *line)
{
    char *old = cfg->derived.warnings;
    cfg->derived.warnings = old ? tr_format("%s\n%s", old, line) : tr_strdup(line);
    tr_free(old);
    tr_free(line);
}

/* Says which steps of log.trace never come. */
static void warn_trace(tr_config *cfg)
{
    int64_t last = 0;
    for (const char *at = cfg->log.trace; *at != '\0'; at += strspn(at, ",-")) {
        char *end;
        int64_t step = strtoll(at, &end, 10);
        if (end == at) /* "none" */
            return;
        last = step > last ? step : last;
        at = end;
    }
    if (last > cfg->train.steps)
        tr_config_warn(cfg, tr_format("log.trace = %s names steps after the last one, train.steps "
                                      "= %" PRId64 "; these are not traced",
                                      cfg->log.trace, cfg->train.steps));
}

tr_status tr_config_resolve(tr_config *cfg, int64_t num_ranks)
{
    TR_ASSERT(!cfg->derived.resolved);
    TR_TRY(check_required(cfg));
    tr_config_apply_preset(cfg);
    TR_TRY(tr_config_check_model(cfg));
    TR_TRY(tr_config_check_train(cfg));
    fill_open(cfg);
    TR_TRY(tr_config_fit_ranks(cfg, num_ranks));
    if (cfg->device.kind != TR_DEVICE_CHOICE_AUTO)
        TR_TRY(tr_config_check_device(cfg, cfg->device.kind == TR_DEVICE_CHOICE_CUDA));
    TR_TRY(tr_config_fit_batch(cfg));
    TR_TRY(tr_config_check_bytes(cfg));
    TR_TRY(tr_config_fit_cuts(cfg));
    TR_TRY(tr_config_fit_stages(cfg));
    warn_trace(cfg);
    cfg->derived.resolved = true;
    return TR_OK;
}

tr_mesh tr_config_mesh(const tr_config *cfg, int rank)
{
    int shard_size = cfg->parallel.zero == 0 ? 1 : (int)cfg->parallel.shard_ranks;
    return tr_mesh_make((int)cfg->parallel.data, (int)cfg->parallel.tensor,
                        (int)cfg->parallel.pipeline, shard_size, rank);
}

tr_reduction_order tr_config_natural_order(const tr_config *cfg)
{
    return cfg->parallel.zero < 2 ? TR_REDUCTION_BLOCKS : TR_REDUCTION_ROUNDS;
}

tr_reduce_plan tr_config_reduce_plan(const tr_config *cfg)
{
    tr_reduction_order order = cfg->train.reduction_order;
    if (order == TR_REDUCTION_NATIVE)
        order = tr_config_natural_order(cfg);
    return tr_reduce_plan_make(order, (int)cfg->derived.microbatches, (int)cfg->derived.leaves,
                               (int)cfg->parallel.data);
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

char *tr_config_batch_text(const tr_config *cfg)
{
    TR_ASSERT(cfg->derived.resolved);
    int64_t length = cfg->train.seq_len, global = cfg->train.global_batch;
    int64_t micro = cfg->train.micro_batch, data = cfg->parallel.data;
    int64_t mine = global / data, steps = cfg->train.steps;
    return tr_format(
        "global batch    %" PRId64 " sequence%s x %" PRId64 " tokens = %" PRId64
        " tokens per step, %" PRId64 " microbatch%s\n"
        "per data rank   %" PRId64 " sequence%s = %" PRId64 " tokens per step, %" PRId64
        " microbatch%s of %" PRId64 " sequence%s (%" PRId64 " tokens), %" PRId64 " data rank%s\n"
        "whole run       %" PRId64 " step%s = %" PRId64 " sequences = %" PRId64 " tokens",
        global, plural(global), length, global * length, cfg->derived.microbatches,
        cfg->derived.microbatches == 1 ? "" : "es", mine, plural(mine), mine * length, mine / micro,
        mine / micro == 1 ? "" : "es", micro, plural(micro), micro * length, data, plural(data),
        steps, plural(steps), steps * global, steps * global * length);
}

char *tr_config_layout_text(const tr_config *cfg)
{
    TR_ASSERT(cfg->derived.resolved);
    char *name = tr_config_get(cfg, "parallel.schedule"), schedule[64] = "", groups[48] = "";
    int64_t chunks = cfg->parallel.virtual_, shard = cfg->parallel.shard_ranks;
    if (cfg->parallel.pipeline > 1 && chunks > 1)
        snprintf(schedule, sizeof schedule, ", %s with %" PRId64 " chunks a stage", name, chunks);
    else if (cfg->parallel.pipeline > 1)
        snprintf(schedule, sizeof schedule, ", %s", name);
    if (cfg->parallel.zero > 0 && shard < cfg->parallel.data)
        snprintf(groups, sizeof groups, " in groups of %" PRId64, shard);
    tr_free(name);
    return tr_format("%" PRId64 " rank%s = data %" PRId64 " x tensor %" PRId64
                     " x pipeline %" PRId64 "%s, zero %" PRId64 "%s",
                     cfg->derived.num_ranks, cfg->derived.num_ranks == 1 ? "" : "s",
                     cfg->parallel.data, cfg->parallel.tensor, cfg->parallel.pipeline, schedule,
                     cfg->parallel.zero, groups);
}
