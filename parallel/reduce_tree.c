/* The bits of a leaf's number are the buffers in use before it: bit b stands for a finished subtree of 2^b leaves. Finishing the leaf
 * adds one to the counter, each carry is a merge. After the last leaf of a number that is no power of two, the subtrees left over
 * are merged from the right, which is what splitting at the largest power of two does. */
#include "parallel/reduce_tree.h"

#include "base/integers.h"

#include "base/status.h"

tr_leaf_step tr_leaf_step_make(int leaf, int num_leaves)
{
    tr_leaf_step step = {.slot = __builtin_popcount((unsigned)leaf)};
    step.num_merges = leaf + 1 == num_leaves ? step.slot : __builtin_ctz((unsigned)leaf + 1);
    return step;
}

int tr_leaf_num_slots(int num_leaves)
{
    int most = 0;
    for (int leaf = 0; leaf < num_leaves; leaf++) {
        int slot = tr_leaf_step_make(leaf, num_leaves).slot;
        most = slot > most ? slot : most;
    }
    return most + 1;
}

int tr_leaf_num_kept(int num_leaves)
{
    int most = 0;
    for (int leaf = 0; leaf < num_leaves - 1; leaf++) {
        tr_leaf_step step = tr_leaf_step_make(leaf, num_leaves);
        most = step.slot - step.num_merges + 1 > most ? step.slot - step.num_merges + 1 : most;
    }
    return most;
}

bool tr_reduce_covers(tr_reduction_order order, int num_leaves, int data_size)
{
    if (num_leaves < 1 || data_size < 1 || num_leaves % data_size != 0)
        return false;
    if (data_size == 1 || tr_is_power_of_two(num_leaves / data_size))
        return true;
    return order == TR_REDUCTION_ROUNDS && tr_is_power_of_two(data_size);
}

tr_reduce_plan tr_reduce_plan_make(tr_reduction_order order, int num_microbatches, int num_leaves,
                                   int data_size)
{
    TR_ASSERT(num_microbatches % num_leaves == 0);
    TR_ASSERT(order == TR_REDUCTION_BLOCKS || order == TR_REDUCTION_ROUNDS);
    TR_ASSERT(tr_reduce_covers(order, num_leaves, data_size));
    int each = num_leaves / data_size, times = num_microbatches / num_leaves;
    if (order == TR_REDUCTION_BLOCKS)
        return (tr_reduce_plan){data_size, times, each, 1, 1};
    if (tr_is_power_of_two(data_size))
        return (tr_reduce_plan){data_size, 1, 1, each, times};
    return (tr_reduce_plan){data_size, 1, each, 1, times};
}

int tr_reduce_per_exchange(const tr_reduce_plan *plan)
{
    return plan->per_leaf * plan->local_leaves;
}

int tr_reduce_num_exchanges(const tr_reduce_plan *plan)
{
    return plan->parts * plan->rounds;
}

int tr_reduce_microbatch(const tr_reduce_plan *plan, int data_rank, int microbatch)
{
    int each = tr_reduce_per_exchange(plan);
    return (microbatch / each * plan->data_size + data_rank) * each + microbatch % each;
}
