#include "engine/step_sums.h"

#include <string.h>

#include "parallel/world.h"

enum { BYTES = TR_STEP_SUMS * sizeof(int64_t) };

void tr_step_sums_init(tr_step_sums *sums, bool alone, tr_device *device, tr_arena *memory,
                       tr_arena *host)
{
    int64_t *all = tr_arena_alloc(memory, BYTES);
    *sums = (tr_step_sums){.device = device, .squares = all, .loss = all + TR_SQUARE_SUM_LIMBS};
    sums->total = alone ? all : tr_arena_alloc(memory, BYTES);
    sums->host = device->unified ? NULL : tr_arena_alloc(host, BYTES);
}

tr_status tr_step_sums_reset(tr_step_sums *sums)
{
    return sums->device->ops->fill_zero(sums->device, sums->squares, BYTES);
}

tr_status tr_step_sums_reset_squares(tr_step_sums *sums)
{
    return sums->device->ops->fill_zero(sums->device, sums->squares,
                                        TR_SQUARE_SUM_LIMBS * (int64_t)sizeof(int64_t));
}

tr_status tr_step_sums_get(tr_step_sums *sums, int64_t *values)
{
    tr_device *device = sums->device;
    if (sums->host != NULL) {
        TR_TRY(device->copy(device, TR_STREAM_COMPUTE, sums->host, sums->squares, BYTES));
        TR_TRY(sums->world != NULL ? tr_world_synchronize(sums->world, TR_STREAM_COMPUTE)
                                   : device->synchronize(device, TR_STREAM_COMPUTE));
    }
    memcpy(values, sums->host != NULL ? sums->host : sums->squares, BYTES);
    return TR_OK;
}

tr_status tr_step_sums_set_total(tr_step_sums *sums, const int64_t *values)
{
    tr_device *device = sums->device;
    memcpy(sums->host != NULL ? sums->host : sums->total, values, BYTES);
    return sums->host == NULL
               ? TR_OK
               : device->copy(device, TR_STREAM_COMPUTE, sums->total, sums->host, BYTES);
}
