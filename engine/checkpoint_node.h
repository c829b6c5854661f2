/* Reading of a checkpoint by all ranks of a node together: every chunk that any of them needs is read from its file and decoded by
 * one of them, into memory that they share, from which each takes its values.
 *
 * The chunks are dealt out in portions (io/checkpoint_chunks.h), of a slot's size at most, in turn over the threads of all ranks. A
 * round: each thread decodes a portion into one of its two slots, all ranks meet, each takes what it wants from all slots
 * of the round; in the next round the other slots are written, while slower ranks still read these. So a rank waits once
 * per round. Working memory is, for each thread, two slots, a chunk as it is stored, and the codec's planes: TR_NODE_READ_CHUNKS
 * times the largest chunk, or 4 MiB where that is more; beside it are the tables of the checkpoint, and one bit per chunk and node.
 * Other ranks' slots are mapped, not copied.
 *
 * Ranks that share no memory with another read for themselves, in the same way. */
#ifndef TR_ENGINE_CHECKPOINT_NODE_H
#define TR_ENGINE_CHECKPOINT_NODE_H

#include "base/thread_pool.h"
#include "io/checkpoint_chunks.h"
#include "kernels/device.h"
#include "parallel/shm_memory.h"

enum {
    TR_NODE_READ_CHUNKS = 4,
    TR_NODE_READ_THREADS = 4 /* at most: then a disk is slower, or first touch of the state */
};

/* Elements of a tensor that this rank holds. */
typedef struct tr_node_want {
    int tensor;
    tr_shard_kind kind;
    tr_box pieces[TR_BOX_MAX_PIECES];
    int num_pieces;
    float *dst; /* memory of the device: the pieces' buffers, one after the other */
} tr_node_want;

/* What a thread of a rank reads with, and how that went. */
typedef struct tr_node_lane {
    tr_chunk_reader reader;
    tr_status status;
    char *message; /* of a failure; messages belong to threads. tr_free */
} tr_node_lane;

typedef struct tr_node_read {
    tr_checkpoint *checkpoint;
    tr_device *device; /* that the wants' memory belongs to */
    tr_group *group;   /* NULL: alone */
    int size, rank;    /* in it */
    tr_node_want *wants;
    int num_wants;
    tr_thread_pool *pool;
    tr_node_lane *lanes;     /* [num_lanes] */
    int num_lanes;           /* of each rank */
    tr_shm_segment segment;  /* a rank's piece: two slots per lane; the first rank's also the set */
    tr_chunk_word *set;      /* chunks that any rank of the node needs */
    tr_chunk_portion *round; /* [size * num_lanes]: the first rank's lanes, the second's, ... */
    int num_portions;        /* of the round */
    int parity;              /* which slots */
    bool decoding;           /* or only checking */
    size_t slot_bytes;
    int64_t room; /* raw bytes of a portion, unless it is one chunk */
} tr_node_read;

/* Collective over the node (`group`: tr_world_node_group_create's). num_threads: this rank's. Marks what this rank wants; wants is the caller's,
 * is sorted, and stays until the end. On failure nothing needs ending. */
tr_status tr_node_read_begin(tr_node_read *read, tr_world *world, tr_group *group,
                             tr_device *device, tr_checkpoint *checkpoint, tr_node_want *wants,
                             int num_wants, int num_threads);
void tr_node_read_end(tr_node_read *read);

/* Bytes of the chunks that the node needs; the same on all its ranks. */
tr_chunk_sums tr_node_read_needed(const tr_node_read *read);

/* Stored bytes that this rank has read. */
int64_t tr_node_read_bytes(const tr_node_read *read);

/* Reads this rank's share of them and checks their hashes; other shares are the other ranks'. Not collective. */
tr_status tr_node_read_check(tr_node_read *read);

/* Fills all wants. Collective over the node. When another rank of the node cannot read its share, TR_OK with nothing
 * more filled: the caller asks all ranks. */
tr_status tr_node_read_load(tr_node_read *read);

#endif
