/* How a rank keeps the recorded reduction tree while it makes one leaf after the other (DESIGN section 1, "The reduction tree").
 *
 * A tree has R leaves; d data ranks own R/d neighbouring ones each, R/d a power of two (or d = 1). A rank combines its leaves like a
 * binary counter: leaf l is summed into buffer `slot`, then the topmost buffers are merged pairwise, so that after the last leaf
 * buffer 0 holds the rank's subtree. The tree over the d ranks' buffers (tr_group_reduce_scatter and its kin) is then the tree over
 * all R leaves, whatever d is. Pure arithmetic. */
#ifndef TR_PARALLEL_REDUCE_TREE_H
#define TR_PARALLEL_REDUCE_TREE_H

#include <stdbool.h>

#include "base/tree_sum.h"

/* What to do with one leaf: sum it into buffer `slot`; when it is done, `num_merges` times: slot -= 1, buffer[slot] +=
 * buffer[slot + 1] (an fp32 addition per element). */
typedef struct tr_leaf_step {
    int slot;
    int num_merges;
} tr_leaf_step;

/* Leaf `leaf` of a rank's `num_leaves` (0 <= leaf < num_leaves). */
tr_leaf_step tr_leaf_step_make(int leaf, int num_leaves);

/* Buffers that a rank with `num_leaves` leaves needs: 1 + log2(num_leaves) for powers of two. */
int tr_leaf_num_slots(int num_leaves);

/* True when `num_ranks` ranks can follow a tree of `num_leaves` leaves: num_leaves / num_ranks is a power of two, or one rank. */
bool tr_leaf_follows(int num_leaves, int num_ranks);

#endif
