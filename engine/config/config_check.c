/* What the mathematics must satisfy by itself, whatever the layout: presets, sizes of the model,
 * the learning rate, the loss scale and the precision. */
#include "engine/config/settings_int.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/cuda_device.h"

void tr_config_apply_preset(tr_config *cfg)
{
    bool gpt2 = cfg->model.preset == TR_PRESET_GPT2;
    for (size_t i = 0; i < tr_num_settings; i++) {
        const tr_setting *row = &tr_settings[i];
        if (row->preset_gpt2 == NULL || tr_origin_of(cfg, row)->kind != TR_ORIGIN_DEFAULT)
            continue;
        const char *text = gpt2 ? row->preset_gpt2 : row->preset_llama;
        tr_status status = tr_setting_parse(cfg, row, "preset", text);
        TR_ASSERT(status == TR_OK);
        tr_origin_set(cfg, row, TR_ORIGIN_PRESET, gpt2 ? "gpt2" : "llama");
    }
}

static tr_status check_heads(const tr_config *cfg)
{
    if (cfg->model.head_dim == 0 && cfg->model.hidden % cfg->model.heads != 0) {
        char *near = tr_nearest_divisors(cfg->model.heads, cfg->model.hidden);
        tr_status status =
            tr_fail(TR_ERR_SETTINGS,
                    "%s = %" PRId64 " does not divide model.hidden = %" PRId64
                    ": use model.heads = %s, or set model.head_dim",
                    tr_setting_cite(cfg, "model.heads"), cfg->model.heads, cfg->model.hidden, near);
        tr_free(near);
        return status;
    }
    if (cfg->model.kv_heads != 0 && cfg->model.heads % cfg->model.kv_heads != 0) {
        char *near = tr_nearest_divisors(cfg->model.kv_heads, cfg->model.heads);
        tr_status status = tr_fail(
            TR_ERR_SETTINGS,
            "%s = %" PRId64 " does not divide model.heads = %" PRId64 ": use model.kv_heads = %s",
            tr_setting_cite(cfg, "model.kv_heads"), cfg->model.kv_heads, cfg->model.heads, near);
        tr_free(near);
        return status;
    }
    return TR_OK;
}

tr_status tr_config_check_model(const tr_config *cfg)
{
    TR_TRY(check_heads(cfg));
    int64_t head_dim =
        cfg->model.head_dim ? cfg->model.head_dim : cfg->model.hidden / cfg->model.heads;
    if (cfg->model.position == TR_POSITION_ROPE && head_dim % 2 != 0)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %" PRId64 " is odd, and model.position = rope turns pairs of features:"
                       " use model.head_dim = %" PRId64 " or %" PRId64,
                       tr_setting_cite(cfg, "model.head_dim"), head_dim,
                       head_dim > 1 ? head_dim - 1 : head_dim + 3, head_dim + 1);
    if (cfg->model.position == TR_POSITION_LEARNED && cfg->model.max_positions != 0 &&
        cfg->model.max_positions < cfg->train.seq_len)
        return tr_fail(TR_ERR_SETTINGS,
                       "train.seq_len = %" PRId64 " is longer than %s = %" PRId64
                       ": use at most %" PRId64 " tokens, or more positions",
                       cfg->train.seq_len, tr_setting_cite(cfg, "model.max_positions"),
                       cfg->model.max_positions, cfg->model.max_positions);
    if (cfg->data.tokenizer && strcmp(cfg->data.tokenizer, "bytes") == 0 && cfg->model.vocab < 257)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %" PRId64 ": the tokenizer `bytes` has 257 tokens (256 values and the "
                       "end of a document); use model.vocab = 257 or more",
                       tr_setting_cite(cfg, "model.vocab"), cfg->model.vocab);
    return TR_OK;
}

/* Bytes of the whole model's state, and of everything that the tokens of one data rank's step can keep
 * alive, without a layout: an upper bound that only has to be right within a power of ten. */
static double bytes_of(const tr_config *cfg, double tokens)
{
    double hidden = (double)cfg->model.hidden, layers = (double)cfg->model.layers;
    double ffn = (double)cfg->model.ffn, vocab = (double)cfg->model.vocab;
    double heads = (double)cfg->model.heads, kv_heads = (double)cfg->model.kv_heads;
    double queries = heads * (double)cfg->model.head_dim;
    double keys = kv_heads * (double)cfg->model.head_dim;
    double layer = hidden * (2 * queries + 2 * keys + 3 * ffn + 8);
    double outer = hidden * (2 * vocab + (double)cfg->model.max_positions + 2);
    double token = layers * (8 * hidden + 4 * queries + 4 * keys + 4 * ffn) + 2 * vocab;
    return 20 * (layers * layer + outer) + 8 * tokens * token;
}

tr_status tr_config_check_bytes(const tr_config *cfg)
{
    static const double most = 0x1p60; /* sums of a few of these fit 64 bits */
    double model = bytes_of(cfg, 0);
    if (model > most)
        return tr_fail(TR_ERR_SETTINGS,
                       "the model's state comes to about %.1e bytes (%s %" PRId64
                       " x hidden %" PRId64 ", ffn %" PRId64 ", vocab %" PRId64
                       "), more than the %.1e that this version counts: use smaller sizes",
                       model, tr_setting_cite(cfg, "model.layers"), cfg->model.layers,
                       cfg->model.hidden, cfg->model.ffn, cfg->model.vocab, most);
    double sequences = (double)cfg->train.global_batch / (double)cfg->parallel.data;
    double all = bytes_of(cfg, sequences * (double)cfg->train.seq_len);
    if (all > most)
        return tr_fail(TR_ERR_SETTINGS,
                       "a data rank's step of %.0f sequences (%s %" PRId64 ") of %" PRId64
                       " tokens comes to about %.1e bytes, more than the %.1e that "
                       "this version counts: use a smaller batch or train.seq_len",
                       sequences, tr_setting_cite(cfg, "train.global_batch"),
                       cfg->train.global_batch, cfg->train.seq_len, all, most);
    return TR_OK;
}

static const char *precision_name(const tr_config *cfg)
{
    return cfg->train.precision == TR_F32    ? "fp32"
           : cfg->train.precision == TR_BF16 ? "bf16"
                                             : "fp16";
}

static tr_status check_tf32(const tr_config *cfg)
{
    if (!cfg->train.tf32 || cfg->train.precision == TR_F32)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS,
                   "%s = true: TF32 is for products of fp32, and train.precision is %s; leave "
                   "train.tf32 out, or use train.precision = fp32",
                   tr_setting_cite(cfg, "train.tf32"), precision_name(cfg));
}

tr_status tr_config_check_train(const tr_config *cfg)
{
    TR_TRY(check_tf32(cfg));
    int64_t sequences, tokens;
    if (__builtin_mul_overflow(cfg->train.steps, cfg->train.global_batch, &sequences) ||
        __builtin_mul_overflow(sequences, cfg->train.seq_len, &tokens))
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %" PRId64 " x train.global_batch %" PRId64 " x train.seq_len %" PRId64
                       " is more than 2^63 tokens: use fewer steps",
                       tr_setting_cite(cfg, "train.steps"), cfg->train.steps,
                       cfg->train.global_batch, cfg->train.seq_len);
    if (cfg->train.warmup_steps > cfg->train.steps)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %" PRId64 " is more than train.steps = %" PRId64
                       ": use at most %" PRId64,
                       tr_setting_cite(cfg, "train.warmup_steps"), cfg->train.warmup_steps,
                       cfg->train.steps, cfg->train.steps);
    if (cfg->train.min_lr > cfg->train.lr)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %g is more than train.lr = %g: the rate falls from lr to min_lr; use "
                       "min_lr of at most %g",
                       tr_setting_cite(cfg, "train.min_lr"), cfg->train.min_lr, cfg->train.lr,
                       cfg->train.lr);
    if (cfg->train.loss_scale != 0 && cfg->train.precision != TR_F16)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %g: only train.precision = fp16 scales the loss, and it is %s; leave "
                       "train.loss_scale out",
                       tr_setting_cite(cfg, "train.loss_scale"), cfg->train.loss_scale,
                       precision_name(cfg));
    if (cfg->train.eval_every != 0 && cfg->data.valid == NULL)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %" PRId64 " needs data.valid, and it is none: set data.valid, or "
                       "train.eval_every = 0",
                       tr_setting_cite(cfg, "train.eval_every"), cfg->train.eval_every);
    return TR_OK;
}

/* ---- the device ---- */

/* Between GPUs tensors go by NCCL, between CPUs they cannot. */
static tr_status check_transport(const tr_config *cfg, bool on_gpus, const char *name,
                                 tr_config_transport asked)
{
    bool nccl = asked == TR_CONFIG_TRANSPORT_NCCL;
    if (!on_gpus && nccl)
        return tr_fail(
            TR_ERR_SETTINGS,
            "%s = nccl: NCCL exchanges the memory of GPUs, this run computes on the CPU; "
            "use %s=auto, or device.kind=cuda",
            tr_setting_cite(cfg, name), name);
    if (!on_gpus || nccl || asked == TR_CONFIG_TRANSPORT_AUTO || cfg->derived.num_ranks == 1)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS,
                   "%s = %s is not in this version for several ranks with device.kind=cuda, which "
                   "exchange tensors by NCCL; use %s=auto, or device.kind=cpu",
                   tr_setting_cite(cfg, name), asked == TR_CONFIG_TRANSPORT_SHM ? "shm" : "mpi",
                   name);
}

static tr_status check_cpu(const tr_config *cfg)
{
    const char *kind = cfg->device.kind == TR_DEVICE_CHOICE_AUTO ? "auto" : "cpu";
    if (cfg->train.tf32)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = true: only GPUs have TF32, and device.kind=%s computes on the CPU "
                       "here; leave train.tf32 out, or use device.kind=cuda",
                       tr_setting_cite(cfg, "train.tf32"), kind);
    if (cfg->device.attention == TR_ATTENTION_CUDNN)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = cudnn: cuDNN computes on GPUs, and device.kind=%s computes on the CPU "
                       "here; leave device.attention out, or use device.kind=cuda",
                       tr_setting_cite(cfg, "device.attention"), kind);
    return TR_OK;
}

tr_status tr_config_check_device(const tr_config *cfg, bool on_gpus)
{
    TR_TRY(check_transport(cfg, on_gpus, "parallel.inside", cfg->parallel.inside));
    TR_TRY(check_transport(cfg, on_gpus, "parallel.across", cfg->parallel.across));
    if (on_gpus && cfg->model.head_dim > TR_CUDA_HEAD_DIM_MAX)
        return tr_fail(TR_ERR_SETTINGS,
                       "%s = %" PRId64 ": attention on GPUs takes heads of up to %d features; use "
                       "model.head_dim = %d or less, more model.heads, or device.kind=cpu",
                       tr_setting_cite(cfg, "model.head_dim"), cfg->model.head_dim,
                       TR_CUDA_HEAD_DIM_MAX, TR_CUDA_HEAD_DIM_MAX);
    return on_gpus ? TR_OK : check_cpu(cfg);
}
