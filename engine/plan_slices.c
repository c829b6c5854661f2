/* What train.tensor_slices costs a layout, beside the same layout without it. */
#include "base/alloc.h"
#include "engine/plan.h"

tr_status tr_plan_slices_count(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks,
                               tr_plan_slices *cost)
{
    int num_ranks = (int)cfg->derived.num_ranks;
    tr_plan_rank *plain_ranks = TR_NEW_ARRAY(tr_plan_rank, (size_t)num_ranks);
    tr_config plain;
    *cost = (tr_plan_slices){0};
    tr_config_copy(&plain, cfg);
    plain.train.tensor_slices = plain.derived.tensor_slices = 0;
    tr_status status = tr_plan_count(&plain, device, plain_ranks);
    cost->memory = (int64_t)ranks[tr_plan_largest(ranks, num_ranks)].total -
                   (int64_t)plain_ranks[tr_plan_largest(plain_ranks, num_ranks)].total;
    for (int r = 0; r < num_ranks; r++) {
        int64_t sent = ranks[r].traffic.tensor - plain_ranks[r].traffic.tensor;
        cost->sent = r == 0 || sent > cost->sent ? sent : cost->sent;
    }
    tr_config_clear(&plain);
    tr_free(plain_ranks);
    return status;
}
