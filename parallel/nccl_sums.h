/* Sums over the ranks of a group of GPUs, enqueued on its stream. Read by group_nccl.c only. `all`: the communicator of all ranks of the group. */
#ifndef TR_PARALLEL_NCCL_SUMS_H
#define TR_PARALLEL_NCCL_SUMS_H

#include "parallel/nccl_comm.h"

/* A reduce_scatter, all_reduce or all_reduce_max. */
tr_status tr_nccl_sum(tr_nccl_comm *all, const tr_op *op);

/* The two ways of a reduce_scatter of a native group, by NCCL's own sums: op->counts are equal, or need not be. */
tr_status tr_nccl_sum_equal(tr_nccl_comm *all, const tr_op *op);
tr_status tr_nccl_sum_unequal(tr_nccl_comm *all, const tr_op *op);

#endif
