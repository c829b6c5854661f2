/* Data parallelism: buckets of gradients reduced over the data ranks (ZeRO, Rajbhandari et al. 2020).
 *
 * Items are tensors in the order in which backward finishes them; consecutive items form buckets of about `bucket_bytes` of fp32 gradient.
 * Each data rank holds an interval of each item's state, and one of work inside it (parallel/shard_map.h). A bucket is packed by owner and
 * reduce-scattered, so that a rank gets its work intervals; where ranks of other sharding groups hold the same state, work intervals are gathered over
 * them. The sum is the tree over all data ranks (parallel/group.h), on any cut:
 *
 *     sharding groups of a power of two   reduce-scatter inside the group, then over the replicas: neighbouring ranks are a subtree
 *     other sizes                         reduce-scatter over all data ranks
 *     one group of all, or of one         either, the same
 *
 * A step may have several exchanges (parallel/reduce_tree.h), each of all buckets; what they come to is summed in work intervals, and only the last is gathered.
 * Two buckets are in flight at a time, and one that is gathered. What is posted, and in which order, depends on the calls only, never on how far an operation
 * has come: all ranks post alike. Knows nothing of models. Nothing is allocated after init. One thread; all ranks of the groups make the same
 * calls in the same order. */
#ifndef TR_PARALLEL_BUCKET_REDUCER_H
#define TR_PARALLEL_BUCKET_REDUCER_H

#include <stdbool.h>

#include "kernels/device.h"
#include "memory/arena.h"
#include "parallel/group.h"
#include "parallel/mesh.h"
#include "parallel/shard_sums.h"

enum { TR_BUCKET_SLOTS = 2, TR_BUCKET_MAX_HOPS = 2 };

typedef struct tr_bucket_item {
    int64_t count; /* elements */
    int part;      /* items of different parts share no bucket */
} tr_bucket_item;

/* Data ranks and the groups that they form; a group of one rank is NULL. data is one of the others where they coincide. */
typedef struct tr_data_groups {
    tr_group *data, *shard, *replica;
} tr_data_groups;

typedef struct tr_bucket_slot {
    int bucket; /* in flight, or -1 */
    int exchange;
    int hop; /* under way */
    float *source
        [TR_BUCKET_MAX_HOPS]; /* communication memory: a segment for each rank of the hop's group */
    float *work;              /* this rank's segment of the last one */
    tr_event events[TR_BUCKET_MAX_HOPS];
} tr_bucket_slot;

/* One reduce-scatter on a bucket's way. */
typedef struct tr_bucket_hop {
    tr_group **group; /* of reducer->groups */
    int size;
    int64_t *counts; /* [num_buckets][size] elements of each rank's segment */
} tr_bucket_hop;

typedef struct tr_bucket_reducer {
    tr_data_groups groups; /* set by connect; NULL in the counting pass */
    tr_mesh mesh;
    tr_device *device; /* packs, copies and adds */
    int num_items, num_buckets;
    int64_t *item_counts;
    int *bucket_first; /* [num_buckets + 1] item numbers */
    int num_hops;
    tr_bucket_hop hops[TR_BUCKET_MAX_HOPS];
    int64_t *data_counts; /* [num_buckets][data_size] elements of work of each data rank */
    int64_t *
        shard_counts; /* [num_buckets][shard_size] elements of state of each rank of the sharding group */
    int64_t *
        replica_counts; /* [num_buckets][replica_size] elements of work of each replica in this rank's state */
    /* The caller's, set after init: */
    float **held;         /* [items] this rank's state interval of the reduced gradient */
    tr_shard_sums *sums;  /* what held[] lies in when a step has several exchanges, or NULL */
    int64_t *held_offset; /* [items] elements into `sums` */
    tr_bucket_slot slots[TR_BUCKET_SLOTS];
    int next_slot;
    int gathering;   /* the bucket whose work intervals are on the way to the replicas, or -1 */
    float *own_work; /* communication memory: this rank's, for the replicas */
    tr_event work_event;
    float *gathered; /* the replicas' */
} tr_bucket_reducer;

/* Sources are laid out in `comm`, the rest in `workspace`. With one data rank buckets exist (they pace the caller) but have no memory. */
void tr_bucket_reducer_init(tr_bucket_reducer *reducer, const tr_bucket_item *items, int num_items,
                            int64_t bucket_bytes, const tr_mesh *mesh, tr_device *device,
                            tr_arena *comm, tr_arena *workspace);
void tr_bucket_reducer_clear(tr_bucket_reducer *reducer);

/* What its sums need of a stream's scratch (tr_group_scratch_set) on a device with its own memory. Pure. */
size_t tr_bucket_reducer_scratch_bytes(const tr_bucket_reducer *reducer);

/* Hands the groups in, and reserves their memory. After init on real arenas. */
void tr_bucket_reducer_connect(tr_bucket_reducer *reducer, const tr_data_groups *groups);

/* Bytes that this rank sends in a step of so many exchanges. */
int64_t tr_bucket_reducer_step_bytes(const tr_bucket_reducer *reducer, int num_exchanges);

/* grads[i]: this rank's finished sums of item i in an exchange, for the bucket's items; read, or overwritten, before it returns. Posts; earlier buckets are moved on. The
 * sums over the data ranks go to held[i]. */
tr_status tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, int exchange,
                                float *const *grads);
/* Completes all posted buckets. */
tr_status tr_bucket_reduce_finish(tr_bucket_reducer *reducer);

#endif
