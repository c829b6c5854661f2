/* The chunks of an opened checkpoint in one numbering, for processes that share the work of reading them: those of the first
 * file in order, then those of the second, and so on. Whoever opens a checkpoint numbers its chunks alike.
 *
 * Each process marks what it needs in a set that all share (one bit per chunk, set atomically). When all have marked, all cut the
 * marked chunks into the same portions: runs of them in the order of their numbers, so that a portion is read front to back. */
#ifndef TR_IO_CHECKPOINT_CHUNKS_H
#define TR_IO_CHECKPOINT_CHUNKS_H

#include <stdatomic.h>

#include "io/checkpoint_read.h"

/* A word of a set, 64 chunks; lies in memory that processes may share. Zero at first. */
typedef _Atomic uint64_t tr_chunk_word;

typedef struct tr_numbered_chunk {
    int tensor;
    tr_shard_kind kind;
    tr_box pieces[TR_BOX_MAX_PIECES]; /* its values are theirs, one after the other */
    int num_pieces;
    int raw_bytes, stored_bytes;
} tr_numbered_chunk;

int64_t tr_checkpoint_num_chunks(const tr_checkpoint *checkpoint);
/* Raw bytes of the largest chunk. */
int tr_checkpoint_largest_chunk(const tr_checkpoint *checkpoint);
void tr_checkpoint_get_chunk(const tr_checkpoint *checkpoint, int64_t number,
                             tr_numbered_chunk *chunk);

/* Words of a set. */
size_t tr_checkpoint_set_words(const tr_checkpoint *checkpoint);
/* Marks all chunks with an element of the wanted boxes. Any number of processes at once. */
void tr_checkpoint_mark(const tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                        const tr_box *wanted, int num_wanted, tr_chunk_word *set);

/* Bytes of all marked chunks. */
typedef struct tr_chunk_sums {
    int64_t raw, stored;
} tr_chunk_sums;
tr_chunk_sums tr_checkpoint_set_sums(const tr_checkpoint *checkpoint, const tr_chunk_word *set);

/* The marked chunks among the numbers [begin, end). */
typedef struct tr_chunk_portion {
    int64_t begin, end;
} tr_chunk_portion;

/* The portion that begins where *portion ends, first for {0, 0}: as many marked chunks as have at most `room` raw bytes
 * together, but at least one. False behind the last. */
bool tr_checkpoint_portion_next(const tr_checkpoint *checkpoint, const tr_chunk_word *set,
                                int64_t room, tr_chunk_portion *portion);
/* First marked number from `number` on in a portion, or -1. */
int64_t tr_chunk_portion_find(const tr_chunk_portion *portion, const tr_chunk_word *set,
                              int64_t number);

/* What a thread reads chunks with: working memory of two chunks, and one open file. Several may read one checkpoint at once. */
typedef struct tr_chunk_reader {
    tr_checkpoint *checkpoint;
    tr_shard_scratch *scratch;
    int shard;          /* whose file is open, or -1 */
    int64_t bytes_read; /* stored bytes of chunks so far */
} tr_chunk_reader;
void tr_chunk_reader_init(tr_chunk_reader *reader, tr_checkpoint *checkpoint);
void tr_chunk_reader_clear(tr_chunk_reader *reader);

/* Read and check a portion's chunks, in order; with dst also decode them, one after the other. */
tr_status tr_chunk_portion_read(tr_chunk_reader *reader, const tr_chunk_word *set,
                                const tr_chunk_portion *portion, float *dst);

#endif
