/* An opened checkpoint: any part of any global tensor, whoever wrote it in whatever layout.
 *
 * Opening reads the manifest and the tables of all shards (memory: about 110 bytes per box and per
 * chunk, so 1/40,000 of the state), checks sizes and hashes of both against each other, and that
 * every box lies inside its tensor. Values are read chunk by chunk. Errors are TR_ERR_CHECKPOINT
 * and name file and tensor. Needs neither MPI nor a run. One thread. */
#ifndef TR_IO_CHECKPOINT_READ_H
#define TR_IO_CHECKPOINT_READ_H

#include "io/manifest.h"
#include "io/shard_read.h"

typedef struct tr_checkpoint tr_checkpoint;

/* path: the folder step-N. */
tr_status tr_checkpoint_open(tr_checkpoint **checkpoint, const char *path);
void tr_checkpoint_close(tr_checkpoint *checkpoint);

const char *tr_checkpoint_path(const tr_checkpoint *checkpoint);
const tr_manifest *tr_checkpoint_manifest(const tr_checkpoint *checkpoint);
tr_shard *tr_checkpoint_shard(const tr_checkpoint *checkpoint, int index); /* as in the manifest */

/* The whole tensor of a row as a box. */
tr_box tr_checkpoint_tensor_box(const tr_checkpoint *checkpoint, int tensor);

/* That the shards hold every element of `wanted` exactly once. */
tr_status tr_checkpoint_cover(const tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                              const tr_box *wanted);

/* Reads `wanted` pieces, which follow one another in dst (each its buffer, row-major): all chunks
 * with an element of them, each chunk once. dst = NULL: only checks their hashes. Elements that are
 * in no shard stay as they are: tr_checkpoint_cover first. */
tr_status tr_checkpoint_read(tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                             const tr_box *wanted, int num_wanted, float *dst);

/* Whether any of the boxes a and any of b have an element in common. */
bool tr_boxes_meet(const tr_box *a, int num_a, const tr_box *b, int num_b);
/* Copies the common elements; the buffers of the boxes of either side follow one another. */
void tr_boxes_copy(const tr_box *src_boxes, int num_src, const float *src, const tr_box *dst_boxes,
                   int num_dst, float *dst);
/* The same by `copy` (memory/box.h). */
tr_status tr_boxes_copy_runs(const tr_box *src_boxes, int num_src, const float *src,
                             const tr_box *dst_boxes, int num_dst, float *dst, tr_box_run_copy copy,
                             void *context);

/* XXH3-128 of all values of a tensor, row-major, as fp32: the same for every layout that wrote it.
 * Reads a panel of at most 64 MiB at a time. */
tr_status tr_checkpoint_hash(tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                             tr_hash128 *hash);

/* Stored bytes of chunks that tr_checkpoint_read and _hash have read since it was opened. */
int64_t tr_checkpoint_bytes_read(const tr_checkpoint *checkpoint);

#endif
