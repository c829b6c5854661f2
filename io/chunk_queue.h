/* The chunks of a shard on their way into its file, while the values that they are made of are about to change.
 *
 * A queue lists the chunks of a rank's boxes in file order. Encoders take them in that order, each chunk once. Whoever owns the values calls preserve before they change: chunks
 * that nobody has taken by then are copied into a pool of bounded size, the last ones first, since encoders come to the first ones soonest; what the pool has no room
 * for is waited for. From then on the values are the owner's again, and what is written is the state at the queue's making.
 *
 * Where the owner will do that, a chunk is taken by copying it into the encoder's buffer, so that reading in place is short and the owner never waits for an encoder that is
 * compressing or writing. Values that lie where the host cannot read them (a device's memory) are fetched by a function that is handed in, into the encoder's buffer or
 * the pool. One owner, any number of encoders; nobody spins, and nothing is allocated after the making. */
#ifndef TR_IO_CHUNK_QUEUE_H
#define TR_IO_CHUNK_QUEUE_H

#include "io/shard_write.h"

typedef struct tr_chunk_queue tr_chunk_queue;

/* parts [num_parts]: none empty; kept until the queue is destroyed. chunk_bytes: a multiple of 4 up to TR_SHARD_CHUNK_MOST. */
tr_chunk_queue *tr_chunk_queue_create(const tr_shard_part *parts, int num_parts, int chunk_bytes);
void tr_chunk_queue_destroy(tr_chunk_queue *queue);
/* Before the first take: the owner will call preserve, which may copy `bytes` (0: none) to `pool`. */
void tr_chunk_queue_set_pool(tr_chunk_queue *queue, void *pool, size_t bytes);
/* Copies values to host memory; encoders and the owner call it, at the same time too. */
typedef tr_status (*tr_chunk_fetch)(void *context, void *host, const float *values, size_t bytes);
/* Before the first take: how values are read; without it they lie in host memory. */
void tr_chunk_queue_set_fetch(tr_chunk_queue *queue, tr_chunk_fetch fetch, void *context);

const tr_shard_part *tr_chunk_queue_get_parts(const tr_chunk_queue *queue, int *num_parts);
int tr_chunk_queue_get_chunk_bytes(const tr_chunk_queue *queue);
/* Of a part's values, of all parts. */
int64_t tr_chunk_queue_count_part(const tr_chunk_queue *queue, const tr_shard_part *part);
int64_t tr_chunk_queue_count(const tr_chunk_queue *queue);

/* ---- encoders ---- */

typedef struct tr_queued_chunk {
    int64_t index; /* in the file */
    const tr_shard_part *part;
    const float *values; /* until the next take with the same buffer */
    size_t num_values;
} tr_queued_chunk;

/* Whether a take needs a buffer, of chunk_bytes. */
bool tr_chunk_queue_needs_buffer(const tr_chunk_queue *queue);
/* The next chunk; *taken is false when there is none, or when the queue was stopped. Fails as the fetch does. */
tr_status tr_chunk_queue_take(tr_chunk_queue *queue, float *buffer, tr_queued_chunk *chunk,
                              bool *taken);
/* Any thread: nothing is handed out from here on. */
void tr_chunk_queue_stop(tr_chunk_queue *queue);
bool tr_chunk_queue_is_stopped(tr_chunk_queue *queue);

/* ---- the owner of the values ---- */

/* True when the values may change. The first call copies what the pool has room for; then, and in further calls, waits up to `seconds` for the rest to be taken. */
bool tr_chunk_queue_preserve(tr_chunk_queue *queue, double seconds);
/* Bytes copied so far, and bytes that the pool had no room for. */
void tr_chunk_queue_get_preserved(tr_chunk_queue *queue, int64_t *copied, int64_t *no_room);

#endif
