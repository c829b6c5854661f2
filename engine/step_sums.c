#include "engine/step_sums.h"

#include <string.h>

#include "base/alloc.h"
#include "parallel/world.h"

enum { BYTES = TR_STEP_SUMS * sizeof(int64_t) };

void tr_step_sums_init(tr_step_sums *sums, int num_ranks, tr_device *device, tr_arena *comm,
                       tr_arena *memory, tr_arena *host)
{
    bool alone = num_ranks == 1, gathers = !alone && !device->unified;
    int64_t *own = tr_arena_alloc(gathers ? comm : memory, BYTES);
    *sums = (tr_step_sums){.device = device,
                           .squares = own,
                           .loss = own + TR_SQUARE_SUM_LIMBS,
                           .num_parts = gathers ? num_ranks : 1};
    sums->parts = alone ? own : tr_arena_alloc(memory, (size_t)sums->num_parts * BYTES);
    sums->host = device->unified ? NULL : tr_arena_alloc(host, BYTES);
    sums->counts = TR_NEW_ARRAY(int64_t, (size_t)sums->num_parts);
    for (int p = 0; p < sums->num_parts; p++)
        sums->counts[p] = TR_STEP_SUMS;
}

void tr_step_sums_clear(tr_step_sums *sums)
{
    tr_free(sums->counts);
    *sums = (tr_step_sums){0};
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

tr_status tr_step_sums_join(tr_step_sums *sums, tr_group *all)
{
    if (all == NULL)
        return TR_OK;
    if (sums->device->unified) {
        memcpy(sums->parts, sums->squares, BYTES);
        return tr_group_all_reduce_i64(all, sums->parts, TR_STEP_SUMS, TR_INT_SUM);
    }
    TR_TRY(tr_group_all_gather(all, sums->squares, sums->counts, sizeof(int64_t), sums->parts,
                               &sums->gathered));
    return tr_event_wait(&sums->gathered);
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
