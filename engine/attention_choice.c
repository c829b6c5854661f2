/* Whose attention a run on CUDA computes with: the device's own kernels or cuDNN's (device.attention).
 *
 * One of them computes all of a run, on all layers, layouts' passes and ranks, and is part of the numerics. What can be said of the settings alone is
 * said the same way for plans; the rest is tried once on each GPU, and all ranks take cuDNN or none does. */
#include "engine/run_int.h"

#include "base/log.h"
#include "kernels/cuda/cuda_device.h"

/* Scratch that auto spends on cuDNN, whose backward keeps the gradient of the scores; device.attention=cudnn takes what it needs. */
static const size_t most_scratch = (size_t)2 << 30;

/* What every call of the run looks like on a rank. */
static tr_attention shape_of(const tr_config *cfg)
{
    int64_t tensor = cfg->parallel.tensor, heads = cfg->model.kv_heads;
    return (tr_attention){.B = cfg->train.micro_batch,
                          .T = cfg->train.seq_len,
                          .A = cfg->model.heads / tensor,
                          .K = heads > tensor ? heads / tensor : 1,
                          .D = cfg->model.head_dim,
                          .dtype = cfg->train.precision,
                          .dropout = {.probability = (float)cfg->model.dropout}};
}

/* Why the settings alone keep cuDNN out, or NULL. */
static const char *obstacle(const tr_config *cfg)
{
    tr_attention shape = shape_of(cfg);
    if (cfg->derived.tensor_slices > 0)
        return "train.tensor_slices promises the same bits on any parallel.tensor, which it does "
               "not";
    if (!tr_cuda_attention_is_served(&shape))
        return "it serves bf16 and fp16, model.dropout=0, sequences of 2 tokens or more, and head "
               "sizes that are multiples of 8 up to 128";
    if (cfg->device.attention == TR_ATTENTION_AUTO &&
        tr_cuda_attention_scratch(&shape) > most_scratch)
        return "it would take more than 2 GiB of scratch; device.attention=cudnn takes it all the "
               "same";
    return NULL;
}

bool tr_attention_may_be_cudnns(const tr_config *cfg)
{
    return cfg->device.attention != TR_ATTENTION_OWN && obstacle(cfg) == NULL;
}

/* A rank's own try under auto, told at the level that it deserves: a comparison that failed is news, a library that is missing is not. */
static void refusal_tell(tr_status status)
{
    tr_log(status == TR_ERR_NUMERICS   ? TR_LOG_WARNING
           : status == TR_ERR_INTERNAL ? TR_LOG_INFO
                                       : TR_LOG_DEBUG,
           "attention by trine's own kernels: %s", tr_error_message());
}

tr_status tr_run_attention_choose(tr_run *run)
{
    const tr_config *cfg = &run->cfg;
    bool wanted = cfg->device.attention == TR_ATTENTION_CUDNN;
    if (cfg->device.attention == TR_ATTENTION_OWN)
        return TR_OK;
    if (!tr_attention_may_be_cudnns(cfg)) {
        if (run->mesh.rank == 0)
            tr_log(wanted ? TR_LOG_WARNING : TR_LOG_DEBUG,
                   "attention by trine's own kernels, not cuDNN's: %s", obstacle(cfg));
        return TR_OK;
    }
    tr_attention shape = shape_of(cfg);
    tr_status status = tr_cuda_device_cudnn_prepare(run->device, &shape);
    if (wanted)
        TR_TRY(status);
    else if (status != TR_OK)
        refusal_tell(status);
    int64_t ready = status == TR_OK;
    TR_TRY(tr_run_min(run, &ready, 1));
    if (!ready && status == TR_OK)
        tr_log_debug("attention by trine's own kernels: cuDNN's cannot be used on another rank");
    tr_cuda_device_cudnn_use(run->device, ready);
    return TR_OK;
}
