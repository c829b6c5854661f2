/* Does the layout fit the ranks, the batch and the model? Each function checks one kind of fit,
 * fills in what was left open there, and refuses with the arithmetic and the nearest values that
 * fit. */
#include "engine/config/settings_int.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/integers.h"

char *tr_config_nearest_fit(const tr_config *cfg, int64_t n, int64_t most,
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

bool tr_config_pipeline_fits(const tr_config *cfg, int64_t pipeline)
{
    return pipeline * cfg->parallel.virtual_ <= cfg->model.layers;
}

static bool pipeline_fits_ranks(const tr_config *cfg, int64_t pipeline)
{
    return cfg->derived.num_ranks % (cfg->parallel.tensor * pipeline) == 0 &&
           tr_config_pipeline_fits(cfg, pipeline);
}

/* ", or with 6 ranks parallel.tensor = 1 or 3, or parallel.pipeline = 1 or 3"; tr_free. */
static char *axes_that_fit(const tr_config *cfg)
{
    int64_t ranks = cfg->derived.num_ranks;
    char *tensor = tr_config_nearest_fit(cfg, cfg->parallel.tensor, ranks, tensor_fits_ranks);
    char *pipeline = tr_config_nearest_fit(cfg, cfg->parallel.pipeline, ranks, pipeline_fits_ranks);
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

/* ---- tensor slices ---- */

static bool slices_fit(const tr_config *cfg, int64_t slices)
{
    return tr_is_power_of_two(slices) && heads_cut(cfg, slices) && cfg->model.ffn % slices == 0 &&
           cfg->train.micro_batch * cfg->train.seq_len % slices == 0;
}

/* The mathematics must allow the slices on every layout; a tensor size that does not divide them runs without. */
static tr_status fit_slices(tr_config *cfg)
{
    int64_t slices = cfg->train.tensor_slices, tensor = cfg->parallel.tensor;
    cfg->derived.tensor_slices = 0;
    if (slices == 0)
        return TR_OK;
    if (!slices_fit(cfg, slices)) {
        char *near = tr_config_nearest_fit(cfg, slices, 64, slices_fit);
        tr_status status = tr_fail(
            TR_ERR_SETTINGS,
            "%s = %" PRId64 " must be a power of two that divides model.heads %" PRId64
            ", model.ffn %" PRId64 " and the tokens of a microbatch (%" PRId64 "), and divides "
            "model.kv_heads %" PRId64 " or is divided by them: use train.tensor_slices = %s, or 0",
            tr_setting_cite(cfg, "train.tensor_slices"), slices, cfg->model.heads, cfg->model.ffn,
            cfg->train.micro_batch * cfg->train.seq_len, cfg->model.kv_heads, near ? near : "1");
        tr_free(near);
        return status;
    }
    if (slices % tensor == 0)
        cfg->derived.tensor_slices = slices;
    else
        tr_config_warn(
            cfg, tr_format("train.tensor_slices = %" PRId64 " is no multiple of parallel.tensor = "
                           "%" PRId64 ": this layout runs without slices, equal within rounding "
                           "only to those that follow them",
                           slices, tensor));
    return TR_OK;
}

/* One size that does not divide by the tensor ranks: the numbers, sizes that do, tensor ranks that
 * would. */
static tr_status refuse_cut(const tr_config *cfg, const char *name, int64_t size, const char *rule,
                            char *sizes)
{
    char *tensors =
        tr_config_nearest_fit(cfg, cfg->parallel.tensor, 2 * cfg->parallel.tensor, tensor_fits);
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
        return refuse_cut(
            cfg, "model.kv_heads", cfg->model.kv_heads, "neither divides nor is divided by",
            tr_config_nearest_fit(cfg, cfg->model.kv_heads, cfg->model.heads, kv_heads_fit));
    if (cfg->model.ffn % tensor != 0)
        return refuse_cut(cfg, "model.ffn", cfg->model.ffn, divide,
                          tr_nearest_multiples(cfg->model.ffn, tensor));
    if (!rows_cut(cfg, tensor))
        return refuse_rows(cfg);
    return fit_slices(cfg);
}
