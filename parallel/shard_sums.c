#include "parallel/shard_sums.h"

#include "base/alloc.h"

void tr_shard_sums_init(tr_shard_sums *sums, const tr_reduce_plan *plan, int64_t num_elements,
                        tr_device *device, tr_arena *arena)
{
    size_t bytes = (size_t)num_elements * sizeof(float);
    *sums =
        (tr_shard_sums){.device = device, .plan = *plan, .num_kept = tr_leaf_num_kept(plan->parts)};
    sums->total = tr_arena_alloc(arena, bytes);
    sums->kept = TR_NEW_ARRAY(float *, (size_t)sums->num_kept + 1);
    for (int k = 0; k < sums->num_kept; k++)
        sums->kept[k] = tr_arena_alloc(arena, bytes);
}

void tr_shard_sums_clear(tr_shard_sums *sums)
{
    tr_free(sums->kept);
    *sums = (tr_shard_sums){0};
}

/* dst = left + right, elementwise. */
static tr_status add(const tr_shard_sums *sums, int64_t count, const float *left,
                     const float *right, float *dst)
{
    const float *pair[2] = {left, right};
    return sums->device->ops->tree_sum(sums->device, count, 2, pair, dst);
}

tr_status tr_shard_sums_take(tr_shard_sums *sums, int exchange, int64_t offset, int64_t count,
                             float *values)
{
    int part = exchange % sums->plan.parts;
    tr_leaf_step step = tr_leaf_step_make(part, sums->plan.parts);
    float *total = sums->total + offset;
    for (int k = 1; k <= step.num_merges; k++)
        TR_TRY(add(sums, count, sums->kept[step.slot - k] + offset, values, values));
    if (part == sums->plan.parts - 1 && exchange >= sums->plan.parts)
        return add(sums, count, total, values, total);
    bool kept = part < sums->plan.parts - 1;
    const tr_copy copy = {kept ? sums->kept[step.slot - step.num_merges] + offset : total, values,
                          (size_t)count * sizeof(float)};
    return sums->device->ops->copy_many(sums->device, 1, &copy);
}
