/* The inside of an opened checkpoint, read by io/checkpoint_read.c and io/checkpoint_chunks.c. */
#ifndef TR_IO_CHECKPOINT_READ_INT_H
#define TR_IO_CHECKPOINT_READ_INT_H

#include "io/checkpoint_read.h"

/* A box of a shard, sorted by tensor and kind. */
typedef struct tr_placed_box {
    const tr_shard_box *box;
    int shard;
} tr_placed_box;

struct tr_checkpoint {
    char *path;
    tr_manifest manifest;
    tr_shard **shards;    /* [num_files] */
    int64_t *first_chunk; /* [num_files + 1] number of a shard's first chunk; the last: of chunks */
    tr_placed_box *boxes;
    int num_boxes;
    tr_shard_scratch *scratch;
    int awake; /* shard whose file is open, or -1 */
    int64_t bytes_read;
};

/* First of the sorted boxes that is not before (tensor, kind). */
int tr_checkpoint_lower_bound(const tr_checkpoint *checkpoint, int tensor, int kind);
/* The shard, whose file alone may be open from now on. */
tr_shard *tr_checkpoint_wake(tr_checkpoint *checkpoint, int shard);

#endif
