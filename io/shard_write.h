/* Writing a shard: one rank's boxes of global tensors in one file (docs/checkpoint-format.md).
 *
 * The file is written in place, front to back, and flushed; that it appears whole or not at all is
 * the business of the folder around it (io/dir_commit.h). Its chunks come from a queue
 * (io/chunk_queue.h); encoders, a thread each, look whether values are finite, encode and hash side
 * by side, and append in the queue's order, so that the bytes do not depend on their number. Working
 * memory is three chunks an encoder, whatever the size of the state. Any thread may call this, on
 * different paths at once. */
#ifndef TR_IO_SHARD_WRITE_H
#define TR_IO_SHARD_WRITE_H

#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "base/trace_lanes.h"
#include "memory/box.h"

/* What of a tensor a box holds; the numbers stand in files. */
typedef enum tr_shard_kind { TR_SHARD_MASTER, TR_SHARD_M, TR_SHARD_V } tr_shard_kind;
enum { TR_SHARD_NUM_KINDS = 3 };
const char *tr_shard_kind_name(tr_shard_kind kind); /* "master", "m", "v" */

enum { TR_SHARD_CODEC_RAW, TR_SHARD_CODEC_PLANES, TR_SHARD_NUM_CODECS };
enum {
    TR_SHARD_CHUNK_DEFAULT = 4 << 20, /* raw bytes of a chunk */
    TR_SHARD_CHUNK_MOST = 64 << 20
};

/* One box to be written; empty ones are not allowed. */
typedef struct tr_shard_part {
    int tensor; /* row of the manifest's parameter table */
    tr_shard_kind kind;
    tr_box box;          /* 1 or 2 dimensions, global coordinates */
    const float *values; /* the box's buffer: row-major without gaps */
    const char *name;    /* the tensor's: values that are not finite are refused; NULL: any are
                            written */
} tr_shard_part;

typedef struct tr_shard_summary {
    int64_t bytes;     /* of the file */
    int64_t raw_bytes; /* of the values */
    tr_hash128 hash;   /* of all bytes of the file */
    tr_hash128
        table_hash; /* of header, tables and trailer: ties the chunks' hashes to the manifest */
    double
        disk_seconds; /* in writing and flushing the file; what is encoded meanwhile counts too */
} tr_shard_summary;

struct tr_chunk_queue;

/* Writes all of the queue, with num_encoders threads, of which the caller is one. level: 0 stores
 * raw, 1 to 19 is zstd's. TR_ERR_IO with the path and the reason, or with the tensor that holds
 * values that are not finite; TR_STOPPED, without a message, when the queue was stopped by someone
 * else. The file is removed then. trace: NULL, or where encoder i records on lane i what it does: "encode" and "write" of each chunk
 * with its number in the file, the first one "flush" too. */
tr_status tr_shard_write_queue(const char *path, struct tr_chunk_queue *queue, int level,
                               int num_encoders, tr_trace_lanes *trace, tr_shard_summary *summary);

/* The same for parts that stay as they are, on one thread. chunk_bytes: a multiple of 4 up to
 * TR_SHARD_CHUNK_MOST. */
tr_status tr_shard_write(const char *path, const tr_shard_part *parts, int num_parts, int level,
                         int chunk_bytes, tr_shard_summary *summary);

#endif
