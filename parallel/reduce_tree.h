/* The recorded reduction tree of a gradient over the microbatches of a global batch, and how data ranks follow it (docs/design.md, section 1).
 *
 * The tree is mathematics: an order, M microbatches and R leaves, R a divisor of M. A tree over n things splits them at the largest power of two below n.
 *
 *     blocks   leaf l is the sum, in order, of microbatches l*M/R ... (l+1)*M/R - 1; the result is the tree over leaves
 *     rounds   round j is the tree over microbatches j*R ... (j+1)*R - 1; the result is the sum of rounds, in order
 *
 * Its execution on d data ranks is a plan. A rank's microbatches make leaves, its leaves are combined by the tree before an exchange, and
 * exchanges (sums over the data ranks by the tree, see tr_group_reduce_scatter and its kin) are combined by the tree into rounds:
 *
 *     microbatches of a rank = per_leaf x local_leaves x parts x rounds
 *
 * Ranks take neighbouring leaves, so that all ranks' subtrees of an exchange are a subtree of the whole; and exchanges are parts of a round where
 * d is a power of two, so that each is a whole subtree of d leaves: what must be kept from one exchange to the next is then a rank's shard only. A rank combines
 * things like a binary counter (tr_leaf_step). Pure arithmetic. */
#ifndef TR_PARALLEL_REDUCE_TREE_H
#define TR_PARALLEL_REDUCE_TREE_H

#include <stdbool.h>

#include "base/tree_sum.h"

typedef enum tr_reduction_order {
    TR_REDUCTION_OPEN, /* not yet decided; no plan has it */
    TR_REDUCTION_BLOCKS,
    TR_REDUCTION_ROUNDS,
    TR_REDUCTION_NATIVE /* no tree: a transport's own sums, along one of the above; no plan has it */
} tr_reduction_order;

/* What to do with one of n things that come in order: sum it into buffer `slot`; when it is done, `num_merges` times: slot -= 1, buffer[slot] +=
 * buffer[slot + 1] (an fp32 addition per element). After the last one buffer 0 holds the tree over all. */
typedef struct tr_leaf_step {
    int slot;
    int num_merges;
} tr_leaf_step;

/* Thing `leaf` of `num_leaves` (0 <= leaf < num_leaves). */
tr_leaf_step tr_leaf_step_make(int leaf, int num_leaves);

/* Buffers that n things need: 1 + log2(n) for powers of two. */
int tr_leaf_num_slots(int num_leaves);
/* Buffers that n things need when each is merged where it arrives, before it is put away: log2(n) for powers of two, 0 for one. */
int tr_leaf_num_kept(int num_leaves);

typedef struct tr_reduce_plan {
    int data_size;    /* d */
    int per_leaf;     /* microbatches of a rank summed in order into one leaf */
    int local_leaves; /* leaves that a rank combines by the tree before an exchange */
    int parts;        /* exchanges combined by the tree into a round */
    int rounds;       /* summed in order */
} tr_reduce_plan;

/* True when `data_size` ranks can follow the order's tree over `num_leaves` leaves. blocks: leaves / ranks is a power of two, or there is
 * one rank. rounds: that, or the number of ranks is a power of two that divides the leaves. */
bool tr_reduce_covers(tr_reduction_order order, int num_leaves, int data_size);

/* num_leaves divides num_microbatches, of all ranks; data_size is covered. */
tr_reduce_plan tr_reduce_plan_make(tr_reduction_order order, int num_microbatches, int num_leaves,
                                   int data_size);

/* Microbatches of a rank in one exchange, and exchanges of a step. */
int tr_reduce_per_exchange(const tr_reduce_plan *plan);
int tr_reduce_num_exchanges(const tr_reduce_plan *plan);
/* The number in the global batch of a data rank's microbatch. */
int tr_reduce_microbatch(const tr_reduce_plan *plan, int data_rank, int microbatch);

#endif
