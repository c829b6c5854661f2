#include "parallel/shard_sums.h"

#include <string.h>

#include "base/alloc.h"

void tr_shard_sums_init(tr_shard_sums *sums, const tr_reduce_plan *plan, int64_t num_elements,
                        tr_arena *arena)
{
    size_t bytes = (size_t)num_elements * sizeof(float);
    *sums = (tr_shard_sums){.plan = *plan, .num_kept = tr_leaf_num_kept(plan->parts)};
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
static void add(int64_t count, const float *left, const float *right, float *dst)
{
    const float *pair[2] = {left, right};
    tr_tree_sum(count, 2, pair, dst);
}

void tr_shard_sums_take(tr_shard_sums *sums, int exchange, int64_t offset, int64_t count,
                        float *values)
{
    int part = exchange % sums->plan.parts;
    tr_leaf_step step = tr_leaf_step_make(part, sums->plan.parts);
    float *total = sums->total + offset;
    for (int k = 1; k <= step.num_merges; k++)
        add(count, sums->kept[step.slot - k] + offset, values, values);
    if (part < sums->plan.parts - 1)
        memcpy(sums->kept[step.slot - step.num_merges] + offset, values,
               (size_t)count * sizeof(float));
    else if (exchange < sums->plan.parts)
        memcpy(total, values, (size_t)count * sizeof(float));
    else
        add(count, total, values, total);
}
