/* How the state of one tensor is divided over data ranks: row-major intervals at 64-element multiples (docs/design.md, section 9). Pure. */
#ifndef TR_PARALLEL_SHARD_MAP_H
#define TR_PARALLEL_SHARD_MAP_H

#include <stdint.h>

#include "base/integers.h"

enum { TR_SHARD_MULTIPLE = 64 };

/* Elements [*begin, *end) of a tensor of `count` elements belong to `rank` of `size`; empty for the last ranks of a small tensor. The
 * intervals of ranks 0, 1, ... follow one another. */
static inline void tr_shard_interval(int64_t count, int size, int rank, int64_t *begin,
                                     int64_t *end)
{
    int64_t each = tr_round_up(count, TR_SHARD_MULTIPLE * (int64_t)size) / size;
    *begin = each * rank < count ? each * rank : count;
    *end = *begin + each < count ? *begin + each : count;
}

/* The part of rank `shard`'s interval of a sharding group of `shard_size` that is worked on once over all replicas of the group: `replica`'s of
 * `replica_size`. The parts of all replicas, one after the other, are the interval; those of all data ranks the tensor. */
static inline void tr_work_interval(int64_t count, int shard_size, int shard, int replica_size,
                                    int replica, int64_t *begin, int64_t *end)
{
    int64_t first, last;
    tr_shard_interval(count, shard_size, shard, &first, &last);
    tr_shard_interval(last - first, replica_size, replica, begin, end);
    *begin += first;
    *end += first;
}

#endif
