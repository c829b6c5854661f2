/* Verifying a shard: every byte of the file read once, every chunk's hash checked and its values
 * decoded, and the hash of the whole file formed, on several threads.
 *
 * A verifier is threads and working memory for any number of shards, one after the other: two
 * scratches a thread (about 24 MiB a thread with the chunks that Trine writes), whatever the size
 * of the files. */
#ifndef TR_IO_SHARD_VERIFY_H
#define TR_IO_SHARD_VERIFY_H

#include "io/shard_read.h"

typedef struct tr_shard_verifier tr_shard_verifier;

/* num_threads >= 1, the caller included. TR_ERR_MEMORY when the system has no more threads. */
tr_status tr_shard_verifier_create(int num_threads, tr_shard_verifier **verifier);
void tr_shard_verifier_destroy(tr_shard_verifier *verifier);

/* Told on the calling thread, several times a second: bytes of the file that were verified since
 * the call before. */
typedef void (*tr_shard_progress)(void *context, int64_t bytes);

/* *hash is that of all bytes of the file. TR_ERR_CHECKPOINT names the file and the first place that
 * is wrong. progress may be NULL. The file is closed again (tr_shard_rest). */
tr_status tr_shard_verify(tr_shard_verifier *verifier, tr_shard *shard, tr_shard_progress progress,
                          void *context, tr_hash128 *hash);

#endif
