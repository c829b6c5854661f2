/* Whose attention a CUDA device computes with: its own, or cuDNN's (cuda_device.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda_attention_check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_device_int.h"

bool tr_cuda_attention_is_served(const tr_attention *shape)
{
    return tr_cuda_cudnn_serves(shape);
}

size_t tr_cuda_attention_scratch(const tr_attention *shape)
{
    const tr_workspace_need need = {.dtype = shape->dtype,
                                    .B = shape->B,
                                    .T = shape->T,
                                    .A = shape->A,
                                    .K = shape->K,
                                    .D = shape->D};
    return tr_cuda_cudnn_workspace(&need);
}

/* What was planned on machines that have no such library. */
static tr_status check_scratch(const tr_cuda_cudnn *cudnn, const tr_attention *shape)
{
    size_t planned = tr_cuda_attention_scratch(shape), wanted = tr_cuda_cudnn_bytes(cudnn, shape);
    if (wanted <= planned)
        return TR_OK;
    return tr_fail(TR_ERR_INTERNAL,
                   "cuDNN %s's attention wants %zu bytes of scratch on this GPU (B %" PRId64
                   ", T %" PRId64 ", %" PRId64 " heads over %" PRId64 ", head size %" PRId64
                   "), %zu are planned for it; use device.attention=own",
                   tr_cuda_cudnn_version(cudnn), wanted, shape->B, shape->T, shape->A, shape->K,
                   shape->D, planned);
}

tr_status tr_cuda_device_cudnn_prepare(tr_device *base, const tr_attention *shape)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    if (device->cudnn == NULL)
        TR_TRY(tr_cuda_cudnn_create(&device->cudnn, device->capability));
    TR_TRY(tr_cuda_cudnn_prepare(device->cudnn, shape));
    TR_TRY(check_scratch(device->cudnn, shape));
    return tr_cuda_attention_check(base, device->cudnn, shape);
}

void tr_cuda_device_cudnn_use(tr_device *base, bool use)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    TR_ASSERT(!device->cudnn_used);
    if (!use) {
        tr_cuda_cudnn_destroy(device->cudnn);
        device->cudnn = NULL;
        return;
    }
    TR_ASSERT(device->cudnn != NULL);
    device->cudnn_used = true;
    size_t length = strlen(device->numerics);
    snprintf(device->numerics + length, sizeof device->numerics - length, " cudnn %s attention",
             tr_cuda_cudnn_version(device->cudnn));
}
