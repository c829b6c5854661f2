/* Data parallelism: buckets of gradients reduced over the data group (ZeRO, Rajbhandari et al. 2020).
 *
 * Items are tensors in the order in which backward finishes them; consecutive items form buckets of about `bucket_bytes` of fp32 gradient.
 * A bucket is packed by owner (parallel/shard_map.h cuts each item), reduce-scattered in the fixed tree order, and the reduced shard is put
 * back in place in this rank's interval of the item; with `everywhere` (ZeRO 0) the shards are gathered, so that all of the item is the sum. Two buckets are in flight at a
 * time. Knows nothing of models. Nothing is allocated after init. One thread; all ranks of the group make the same calls in the same order. */
#ifndef TR_PARALLEL_BUCKET_REDUCER_H
#define TR_PARALLEL_BUCKET_REDUCER_H

#include <stdbool.h>

#include "memory/arena.h"
#include "parallel/group.h"

enum { TR_BUCKET_SLOTS = 2 };

typedef struct tr_bucket_item {
    int64_t count; /* elements */
    bool alone;    /* in a bucket of its own */
} tr_bucket_item;

typedef struct tr_bucket_slot {
    int bucket;    /* in flight, or -1 */
    float *packed; /* communication memory: one segment per owner */
    float *shard;  /* communication memory: this rank's segment, reduced */
    tr_event packed_event, shard_event;
} tr_bucket_slot;

typedef struct tr_bucket_reducer {
    tr_group *group; /* NULL in the counting pass */
    int size, rank;
    bool everywhere;
    int num_items, num_buckets;
    int64_t *item_counts;
    int *bucket_first; /* [num_buckets + 1] item numbers */
    int64_t *counts;   /* [num_buckets][size] elements of each owner's segment */
    tr_bucket_slot slots[TR_BUCKET_SLOTS];
    int next_slot;
    float *gathered; /* everywhere: all reduced segments of a bucket */
} tr_bucket_reducer;

/* Sources are laid out in `comm`, the rest in `workspace`. With size 1 buckets exist (they pace the caller) but have no memory. */
void tr_bucket_reducer_init(tr_bucket_reducer *reducer, const tr_bucket_item *items, int num_items,
                            int64_t bucket_bytes, int size, int rank, bool everywhere,
                            tr_arena *comm, tr_arena *workspace);
void tr_bucket_reducer_clear(tr_bucket_reducer *reducer);

/* grads[i]: this rank's finished sums of item i, for all items. Posts; earlier buckets may be completed on the way. */
tr_status tr_bucket_reduce_post(tr_bucket_reducer *reducer, int bucket, float *const *grads);
/* Completes all posted buckets. */
tr_status tr_bucket_reduce_finish(tr_bucket_reducer *reducer, float *const *grads);

#endif
