/* The gradients of one rank: fp32 accumulators along the recorded reduction tree, and their way over the tensor and data groups.
 *
 * The plan (parallel/reduce_tree.h) says which microbatches are summed where, and when the sums are exchanged. What this rank needs of its own is either
 *
 *     whole buffers   one for all items, and more where several leaves are combined here; ZeRO 0 and 1, and any order that sums microbatches before an exchange
 *     a unit's        one buffer that units use in turn: each is packed for its exchange as soon as it is complete (ZeRO 2, Rajbhandari et al. 2020)
 *
 * As a microbatch's backward finishes items and units, in the order of tr_local_params, the reduction of full buckets over the data ranks is posted, under the rest
 * of backward when `overlap` is on; a bucket at a time, since few may be under way. What tensor ranks saw only part of is summed over them last, when all microbatches are in. After finish, the global sum of this rank's interval
 * [state_begin, state_end) of each parameter is held: in place in buffer 0 after a single exchange of whole buffers, else in accumulators of that size. A tied head keeps its own sum. */
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
    tr_reduce_plan plan;
    bool whole; /* buffers hold all items; else one unit at a time */
    int num_buffers;
    float **buffers; /* [num_buffers] flat, local->num_elements each; or one of the largest unit */
    bool overlap;
    bool
        complete; /* train.tensor_slices: no item needs a sum over tensor ranks, each microbatch's is complete */
    bool sequence; /* row_partial items need the tensor sum */
    tr_bucket_reducer reducer;
    tr_shard_sums sums; /* used when the reduced gradients are not in place in buffer 0 */
    float **item_grads; /* [items] in buffer 0 */
    int *first_bucket, *next_bucket; /* [chunks] of the chunk; not yet posted in its exchange */
    bool *written;                   /* [items] of the unit at work */
    tr_group *replica_groups
        [TR_REPLICA_NUM]; /* tensor group for ROWS, sharers of key/value heads for KV; set after init, NULL where not needed */
    int64_t replica_elements; /* of the largest sum over replicas */
    float *replica_source, *replica_sum;
    tr_event replica_event;
} tr_gradients;

/* Lays buffers out. */
void tr_gradients_init(tr_gradients *gradients, const tr_local_params *local, const tr_config *cfg,
                       const tr_mesh *mesh, tr_device *device, tr_arena *arena, tr_arena *comm,
                       tr_arena *workspace);
void tr_gradients_clear(tr_gradients *gradients);

/* Bytes that rank `rank` of the `size` that sum items of a kind sends for that in a step. */
int64_t tr_gradients_replica_bytes(const tr_gradients *gradients, tr_replica_kind kind, int size,
                                   int rank);

/* Where a microbatch writes an item's gradient [count], and whether it adds to what is there (the same for all items). */
float *tr_gradients_place(const tr_gradients *gradients, int microbatch,
                          const tr_local_param *item);
bool tr_gradients_accumulates(const tr_gradients *gradients, int microbatch);
/* A microbatch's gradient of an item is written, while its unit is at work. May be left out: the end of the unit ends its items. */
tr_status tr_gradients_item_end(tr_gradients *gradients, int item, int microbatch);
/* A microbatch's gradients of a unit (its index, tr_local_unit) are written. Each chunk's units come in their order, its microbatches one after the other. */
tr_status tr_gradients_unit_end(tr_gradients *gradients, int unit, int microbatch);
/* Completes every bucket. */
tr_status tr_gradients_finish(tr_gradients *gradients);
/* After finish: the global sum in this rank's interval [state_begin, state_end) of an item. */
float *tr_gradients_held(const tr_gradients *gradients, const tr_local_param *item);

#endif
