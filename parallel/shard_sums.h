/* The fp32 accumulators of one rank's share of reduced gradients, over the exchanges of a step (parallel/reduce_tree.h).
 *
 * The exchanges of a round are combined by the tree as they come, each merged where it arrives; a finished round is written to the accumulators, the
 * later ones are added, in order. Extra memory: log2(parts) times the share. Elements are independent: every element must see all exchanges in order. One thread. */
#ifndef TR_PARALLEL_SHARD_SUMS_H
#define TR_PARALLEL_SHARD_SUMS_H

#include "kernels/device.h"
#include "memory/arena.h"
#include "parallel/reduce_tree.h"

typedef struct tr_shard_sums {
    tr_device *device;
    tr_reduce_plan plan;
    float *total; /* [elements] after the last exchange: the whole sum */
    float **kept; /* [num_kept][elements] subtrees of the round under way */
    int num_kept;
} tr_shard_sums;

/* Lays out accumulators for so many elements; `device` adds and copies. */
void tr_shard_sums_init(tr_shard_sums *sums, const tr_reduce_plan *plan, int64_t num_elements,
                        tr_device *device, tr_arena *arena);
void tr_shard_sums_clear(tr_shard_sums *sums);

/* Takes the sum over data ranks of elements [offset, offset + count) in exchange number `exchange` of the step. `values` may be overwritten. */
tr_status tr_shard_sums_take(tr_shard_sums *sums, int exchange, int64_t offset, int64_t count,
                             float *values);

#endif
