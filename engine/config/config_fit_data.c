/* Does the batch divide over the data ranks, which reduction tree do they follow, and in which groups is state sharded? Fills in what was
 * left open, and refuses with the arithmetic and the nearest values that fit. */
#include "engine/config/settings_int.h"

#include <inttypes.h>

#include "base/alloc.h"

static tr_status refuse_batch(const tr_config *cfg)
{
    int64_t global = cfg->train.global_batch, micro = cfg->train.micro_batch;
    int64_t data = cfg->parallel.data;
    char *batches = tr_nearest_multiples(global, data * micro);
    char *micros = global % data == 0 ? tr_nearest_divisors(micro, global / data) : NULL;
    char *sizes = global % micro == 0 ? tr_nearest_divisors(data, global / micro) : NULL;
    int64_t each = cfg->parallel.tensor * cfg->parallel.pipeline; /* ranks of a replica */
    char *ranks = sizes && each > 1 ? tr_format(" (of %" PRId64 " ranks each)", each) : NULL;
    tr_status status =
        tr_fail(TR_ERR_SETTINGS,
                "%s = %" PRId64 " is no multiple of parallel.data %" PRId64 " x %s %" PRId64
                " = %" PRId64 " sequences: use train.global_batch = %s%s%s%s%s%s",
                tr_setting_cite(cfg, "train.global_batch"), global, data,
                tr_setting_cite(cfg, "train.micro_batch"), micro, data * micro, batches,
                micros ? ", or train.micro_batch = " : "", micros ? micros : "",
                sizes ? ", or parallel.data = " : "", sizes ? sizes : "", ranks ? ranks : "");
    tr_free(ranks);
    tr_free(batches);
    tr_free(micros);
    tr_free(sizes);
    return status;
}

static tr_status refuse_leaves(const tr_config *cfg)
{
    int64_t batches = cfg->derived.microbatches, leaves = cfg->train.reduction_leaves;
    char *near = tr_nearest_divisors(leaves, batches);
    tr_status status =
        tr_fail(TR_ERR_SETTINGS,
                "%s = %" PRId64 " does not divide the %" PRId64 " microbatches of a step (train."
                "global_batch %" PRId64 " / train.micro_batch %" PRId64
                "): use train.reduction_leaves = %s",
                tr_setting_cite(cfg, "train.reduction_leaves"), leaves, batches,
                cfg->train.global_batch, cfg->train.micro_batch, near);
    tr_free(near);
    return status;
}

/* "1, 2, 4 and 8": the data sizes that follow the recorded tree. tr_free. */
static char *sizes_covered(const tr_config *cfg)
{
    int leaves = (int)cfg->train.reduction_leaves, last = leaves;
    char *text = NULL;
    for (int d = 1; d <= leaves; d++) {
        if (!tr_reduce_covers(cfg->train.reduction_order, leaves, d))
            continue;
        char *longer = text == NULL ? tr_format("%d", d)
                                    : tr_format("%s%s%d", text, d == last ? " and " : ", ", d);
        tr_free(text);
        text = longer;
    }
    return text;
}

/* A data size that the recorded tree does not cover runs the tree with as many leaves as it has ranks. */
static void warn_not_covered(tr_config *cfg)
{
    char *sizes = sizes_covered(cfg);
    tr_config_warn(
        cfg,
        tr_format("train.reduction_leaves = %" PRId64 " does not cover parallel.data = %" PRId64
                  " (in order %s it covers %s): gradients are summed in another "
                  "order, equal within rounding only; a data size that it covers "
                  "keeps the bits",
                  cfg->train.reduction_leaves, cfg->parallel.data,
                  cfg->train.reduction_order == TR_REDUCTION_BLOCKS ? "blocks" : "rounds", sizes));
    tr_free(sizes);
}

static void warn_no_leaves(tr_config *cfg)
{
    tr_config_warn(cfg, tr_format("train.reduction_leaves = %" PRId64
                                  " has no effect: train.reduction_order "
                                  "= native follows no tree, and sums as parallel.data = %" PRId64
                                  " does at no cost; use blocks or rounds for bits that another "
                                  "parallel.data has too",
                                  cfg->train.reduction_leaves, cfg->parallel.data));
}

/* The reduction tree (docs/design.md, section 1): R leaves over M microbatches, in an order. What is open becomes what costs nothing in this layout. */
static tr_status fit_tree(tr_config *cfg)
{
    if (cfg->train.reduction_order == TR_REDUCTION_OPEN) {
        cfg->train.reduction_order = tr_config_natural_order(cfg);
        tr_setting_resolved(cfg, "train.reduction_order");
    }
    if (cfg->train.reduction_leaves == 0) {
        cfg->train.reduction_leaves = cfg->parallel.data;
        tr_setting_resolved(cfg, "train.reduction_leaves");
    }
    int64_t leaves = cfg->train.reduction_leaves;
    if (cfg->derived.microbatches % leaves != 0)
        return refuse_leaves(cfg);
    if (cfg->train.reduction_order ==
        TR_REDUCTION_NATIVE) { /* no tree that another layout could follow */
        cfg->derived.leaves = cfg->parallel.data;
        if (leaves != cfg->parallel.data)
            warn_no_leaves(cfg);
        return TR_OK;
    }
    bool covered =
        tr_reduce_covers(cfg->train.reduction_order, (int)leaves, (int)cfg->parallel.data);
    cfg->derived.leaves = covered ? leaves : cfg->parallel.data;
    if (!covered)
        warn_not_covered(cfg);
    return TR_OK;
}

static tr_status refuse_shards(const tr_config *cfg)
{
    char *near = tr_nearest_divisors(cfg->parallel.shard_ranks, cfg->parallel.data);
    tr_status status =
        tr_fail(TR_ERR_SETTINGS,
                "%s = %" PRId64 " does not divide %s = %" PRId64 ": use parallel.shard_ranks = %s",
                tr_setting_cite(cfg, "parallel.shard_ranks"), cfg->parallel.shard_ranks,
                tr_setting_cite(cfg, "parallel.data"), cfg->parallel.data, near);
    tr_free(near);
    return status;
}

/* The sharding group: all data ranks unless it is said to be smaller. */
static tr_status fit_shards(tr_config *cfg)
{
    if (cfg->parallel.shard_ranks == 0) {
        cfg->parallel.shard_ranks = cfg->parallel.data;
        tr_setting_resolved(cfg, "parallel.shard_ranks");
    }
    if (cfg->parallel.zero > 0 && cfg->parallel.data % cfg->parallel.shard_ranks != 0)
        return refuse_shards(cfg);
    return TR_OK;
}

tr_status tr_config_fit_batch(tr_config *cfg)
{
    if (cfg->train.global_batch % (cfg->parallel.data * cfg->train.micro_batch) != 0)
        return refuse_batch(cfg);
    cfg->derived.microbatches = cfg->train.global_batch / cfg->train.micro_batch;
    TR_TRY(fit_shards(cfg));
    return fit_tree(cfg);
}
