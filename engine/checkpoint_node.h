/* Reading of a checkpoint by all ranks of a node together: every chunk that any of them needs is read from its file and decoded by
 * one of them, into memory that they share, from which each takes its values.
 *
 * The chunks are dealt out in portions (io/checkpoint_chunks.h), of a slot's size at most, in turn. A round: each rank decodes its
 * portion into one of its two slots, all meet, each takes what it wants from all slots of the round; in the next round the other
 * slots are written, while slower ranks still read these. So a rank waits once per round, and working memory is the two slots of
 * each rank, a chunk as it is stored, and the codec's: TR_NODE_READ_CHUNKS times the largest chunk, or 4 MiB where that is
 * more, beside the tables of the checkpoint and one bit per chunk and node. Other ranks' slots are mapped, not copied.
 *
 * Ranks that share no memory with another read for themselves, in the same way. */
#ifndef TR_ENGINE_CHECKPOINT_NODE_H
#define TR_ENGINE_CHECKPOINT_NODE_H

#include "io/checkpoint_chunks.h"
#include "parallel/shm_memory.h"

enum { TR_NODE_READ_CHUNKS = 4 };

/* Elements of a tensor that this rank holds. */
typedef struct tr_node_want {
    int tensor;
    tr_shard_kind kind;
    tr_box pieces[TR_BOX_MAX_PIECES];
    int num_pieces;
    float *dst; /* the pieces' buffers, one after the other */
} tr_node_want;

typedef struct tr_node_read {
    tr_checkpoint *checkpoint;
    tr_group *group; /* NULL: alone */
    int size, rank;  /* in it */
    tr_node_want *wants;
    int num_wants;
    tr_shm_segment segment;  /* a rank's piece: two slots; the first rank's also the set */
    tr_chunk_word *set;      /* chunks that any rank of the node needs */
    tr_chunk_portion *round; /* [size] */
    size_t slot_bytes;
    int64_t room; /* raw bytes of a portion, unless it is one chunk */
} tr_node_read;

/* Collective over the node (`group`: tr_world_node_group_create's). Marks what this rank wants; wants is the caller's,
 * is sorted, and stays until the end. On failure nothing needs ending. */
tr_status tr_node_read_begin(tr_node_read *read, tr_world *world, tr_group *group,
                             tr_checkpoint *checkpoint, tr_node_want *wants, int num_wants);
void tr_node_read_end(tr_node_read *read);

/* Bytes of the chunks that the node needs; the same on all its ranks. */
tr_chunk_sums tr_node_read_needed(const tr_node_read *read);

/* Reads this rank's share of them and checks their hashes; other shares are the other ranks'. Not collective. */
tr_status tr_node_read_check(tr_node_read *read);

/* Fills all wants. Collective over the node. When another rank of the node cannot read its share, TR_OK with nothing
 * more filled: the caller asks all ranks. */
tr_status tr_node_read_load(tr_node_read *read);

#endif
