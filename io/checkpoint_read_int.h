/* The inside of an opened checkpoint, read by io/checkpoint_read.c and io/checkpoint_chunks.c. */
#ifndef TR_IO_CHECKPOINT_READ_INT_H
#define TR_IO_CHECKPOINT_READ_INT_H

#include <pthread.h>

#include "io/checkpoint_chunks.h"

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
    tr_chunk_reader reader; /* of tr_checkpoint_read */
    pthread_mutex_t lock;   /* of the files that are open */
    int *num_users;         /* [num_files] readers that have a shard's file open */
};

/* First of the sorted boxes that is not before (tensor, kind). */
int tr_checkpoint_lower_bound(const tr_checkpoint *checkpoint, int tensor, int kind);
/* The shard, whose file is open until the reader turns to another. */
tr_status tr_chunk_reader_turn(tr_chunk_reader *reader, int index, tr_shard **shard);

#endif
