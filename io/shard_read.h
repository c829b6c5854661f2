/* Reading a shard, whatever its bytes are: nothing is believed before it was checked, and nothing
 * is allocated that the file's own size does not cover.
 *
 * Opening checks header, trailer, tables and their hash; chunks are checked against their hash, and
 * decoded, as they are read. Every error is TR_ERR_CHECKPOINT and names the file. A shard holds its
 * tables in memory; its file is open only from the first read after tr_shard_open or tr_shard_rest
 * on, so that a checkpoint of any number of files can be held. One thread per shard and scratch;
 * several may read one shard, each with its own scratch, between tr_shard_wake and tr_shard_rest. */
#ifndef TR_IO_SHARD_READ_H
#define TR_IO_SHARD_READ_H

#include "io/shard_write.h"

typedef struct tr_shard tr_shard;

typedef struct tr_shard_box {
    int tensor;
    tr_shard_kind kind;
    tr_box box; /* not empty; inside which shape is for the caller to check */
    int first_chunk, num_chunks;
} tr_shard_box;

typedef struct tr_shard_chunk {
    int64_t offset; /* in the file */
    int raw_bytes, stored_bytes, codec;
    tr_hash128 hash; /* of the stored bytes */
} tr_shard_chunk;

/* Working memory of reading, shared by any number of shards; grows to the largest chunk (at most
 * TR_SHARD_CHUNK_MOST, three times). */
typedef struct tr_shard_scratch tr_shard_scratch;
tr_shard_scratch *tr_shard_scratch_create(void);
void tr_shard_scratch_destroy(tr_shard_scratch *scratch);
/* The stored bytes of the chunk that was last read or checked with it. */
const unsigned char *tr_shard_scratch_stored(const tr_shard_scratch *scratch);

tr_status tr_shard_open(tr_shard **shard, const char *path);
void tr_shard_close(tr_shard *shard);
/* Opens the file where it is closed; every read does so itself. */
tr_status tr_shard_wake(tr_shard *shard);
/* Closes the file until the next read. */
void tr_shard_rest(tr_shard *shard);

const char *tr_shard_path(const tr_shard *shard);
int64_t tr_shard_bytes(const tr_shard *shard);
/* Of header, tables and trailer, checked; the manifest has the same. */
tr_hash128 tr_shard_table_hash(const tr_shard *shard);
int tr_shard_num_boxes(const tr_shard *shard);
const tr_shard_box *tr_shard_get_box(const tr_shard *shard, int index);
int tr_shard_num_chunks(const tr_shard *shard);
int64_t tr_shard_table_offset(const tr_shard *shard); /* end of the last chunk */
const tr_shard_chunk *tr_shard_get_chunk(const tr_shard *shard, int index);
int tr_shard_chunk_values(const tr_shard *shard); /* of a full chunk */

/* The elements of chunk `chunk` (counted from the box's first) as boxes in buffer order.
 * Returns how many. */
int tr_shard_chunk_pieces(const tr_shard *shard, const tr_shard_box *box, int chunk,
                          tr_box pieces[TR_BOX_MAX_PIECES]);

/* Reads a chunk (number in the file) and checks its hash. */
tr_status tr_shard_check_chunk(tr_shard *shard, int chunk, tr_shard_scratch *scratch);
/* The same, decoded into dst, which has room for raw_bytes. On failure dst may have been written. */
tr_status tr_shard_decode_chunk(tr_shard *shard, int chunk, tr_shard_scratch *scratch, float *dst);
/* The same: *values are raw_bytes / 4 values in the scratch, until its next use. */
tr_status tr_shard_read_chunk(tr_shard *shard, int chunk, tr_shard_scratch *scratch,
                              const float **values);
/* Any bytes of the file as they are, unchecked. */
tr_status tr_shard_read_bytes(tr_shard *shard, int64_t offset, void *dst, size_t size);

#endif
