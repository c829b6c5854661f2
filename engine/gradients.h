/* The gradients of one rank: fp32 accumulators along the recorded reduction tree, and their way over the tensor and data groups.
 *
 * A rank sums its microbatches leaf by leaf (parallel/reduce_tree.h); its subtree ends in buffer 0. As the last microbatch's backward
 * finishes parameters, in the order of tr_local_params, full buckets are completed (last merges) and
 * their reduction over the data group is posted, under the rest of backward when `overlap` is on; what tensor ranks saw only part of is summed over them last. After finish, buffer 0 holds the global sum in this rank's interval
 * [shard_begin, shard_end) of each parameter, with ZeRO 0 in all of it. A tied head keeps its own sum. */
#ifndef TR_ENGINE_GRADIENTS_H
#define TR_ENGINE_GRADIENTS_H

#include "engine/model/local_params.h"
#include "kernels/device.h"
#include "parallel/bucket_reducer.h"

/* Which sum over tensor ranks an item needs after the data group's. */
typedef enum tr_replica_kind {
    TR_REPLICA_NONE,
    TR_REPLICA_ROWS,
    TR_REPLICA_KV,
    TR_REPLICA_NUM
} tr_replica_kind;

typedef struct tr_gradients {
    const tr_local_params *local;
    tr_device *device;
    int num_buffers;
    float **buffers;                  /* [num_buffers] flat, local->num_elements each */
    int num_microbatches, num_leaves; /* of this rank */
    bool overlap;
    bool sequence; /* row_partial items need the tensor sum */
    tr_bucket_reducer reducer;
    float **item_grads; /* [items] in buffer 0 */
    int num_ready;      /* items finished in this step */
    int next_bucket;    /* first bucket not yet posted */
    tr_group *replica_groups
        [TR_REPLICA_NUM]; /* tensor group for ROWS, sharers of key/value heads for KV; set after init, NULL where not needed */
    int64_t replica_elements; /* of the largest sum over replicas */
    float *replica_source, *replica_sum;
    tr_event replica_event;
} tr_gradients;

/* Lays buffers out; data_size etc. from mesh. */
void tr_gradients_init(tr_gradients *gradients, const tr_local_params *local, const tr_config *cfg,
                       const tr_mesh *mesh, tr_device *device, tr_arena *arena, tr_arena *comm,
                       tr_arena *workspace);
void tr_gradients_clear(tr_gradients *gradients);

void tr_gradients_step_begin(tr_gradients *gradients);
/* Where the chunk's microbatch accumulates: buffer to use, and whether it adds. */
float *tr_gradients_microbatch_begin(const tr_gradients *gradients, int microbatch,
                                     bool *accumulate);
/* After the chunk's backward of a microbatch: merges of a finished leaf (not the last, which merges by bucket). */
tr_status tr_gradients_microbatch_end(tr_gradients *gradients, int chunk, int microbatch);
/* In the last microbatch: the first `num_items` items are final on this rank. */
tr_status tr_gradients_ready(tr_gradients *gradients, int num_items);
/* Completes every bucket. */
tr_status tr_gradients_finish(tr_gradients *gradients);

#endif
