#include "io/chunk_queue.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

/* LISTED -> TAKEN, or LISTED -> COPYING -> COPIED -> TAKEN. */
typedef enum chunk_state { LISTED, COPYING, COPIED, TAKEN } chunk_state;

typedef struct chunk {
    const float *values;
    int part;
    int num_values;
    chunk_state state;
} chunk;

struct tr_chunk_queue {
    const tr_shard_part *parts;
    int num_parts, chunk_bytes;
    bool values_change;   /* the owner will call preserve */
    tr_chunk_fetch fetch; /* NULL: values lie in host memory */
    void *fetch_context;
    unsigned char *pool;
    size_t pool_bytes;
    int64_t num_chunks;
    pthread_mutex_t mutex;         /* guards what follows, and the chunks' state and values */
    pthread_cond_t copied, unread; /* a chunk is no longer COPYING; num_unread is 0 */
    int64_t next;                  /* to be taken */
    int64_t num_unread;  /* chunks that an encoder will read, or is reading, where they lie */
    int64_t num_reading; /* of them, those that one is reading */
    bool preserved;      /* what the pool has room for is copied */
    bool stopped;
    size_t pool_used;
    int64_t no_room; /* bytes */
    chunk chunks[];
};

static int64_t values_per_chunk(int chunk_bytes)
{
    return chunk_bytes / (int64_t)sizeof(float);
}

static int64_t count_chunks(const tr_shard_part *part, int chunk_bytes)
{
    int64_t most = values_per_chunk(chunk_bytes);
    return (tr_box_volume(&part->box) + most - 1) / most;
}

tr_chunk_queue *tr_chunk_queue_create(const tr_shard_part *parts, int num_parts, int chunk_bytes)
{
    int64_t num_chunks = 0, most = values_per_chunk(chunk_bytes);
    TR_ASSERT(chunk_bytes > 0 && chunk_bytes % 4 == 0 && chunk_bytes <= TR_SHARD_CHUNK_MOST);
    for (int p = 0; p < num_parts; p++)
        num_chunks += count_chunks(&parts[p], chunk_bytes);
    tr_chunk_queue *queue =
        tr_alloc(1, sizeof(tr_chunk_queue) + (size_t)num_chunks * sizeof(chunk));
    queue->parts = parts;
    queue->num_parts = num_parts;
    queue->chunk_bytes = chunk_bytes;
    queue->num_chunks = queue->num_unread = num_chunks;
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->copied, NULL);
    pthread_cond_init(&queue->unread, NULL);
    chunk *at = queue->chunks;
    for (int p = 0; p < num_parts; p++) {
        int64_t volume = tr_box_volume(&parts[p].box);
        TR_ASSERT(volume > 0);
        for (int64_t v = 0; v < volume; v += most)
            *at++ = (chunk){.values = parts[p].values + v,
                            .part = p,
                            .num_values = (int)(volume - v < most ? volume - v : most)};
    }
    return queue;
}

void tr_chunk_queue_destroy(tr_chunk_queue *queue)
{
    if (queue == NULL)
        return;
    pthread_cond_destroy(&queue->unread);
    pthread_cond_destroy(&queue->copied);
    pthread_mutex_destroy(&queue->mutex);
    tr_free(queue);
}

void tr_chunk_queue_set_pool(tr_chunk_queue *queue, void *pool, size_t bytes)
{
    queue->values_change = true;
    queue->pool = pool;
    queue->pool_bytes = bytes;
}

void tr_chunk_queue_set_fetch(tr_chunk_queue *queue, tr_chunk_fetch fetch, void *context)
{
    queue->fetch = fetch;
    queue->fetch_context = context;
}

static tr_status values_copy(const tr_chunk_queue *queue, void *host, const float *values,
                             size_t bytes)
{
    if (queue->fetch != NULL)
        return queue->fetch(queue->fetch_context, host, values, bytes);
    memcpy(host, values, bytes);
    return TR_OK;
}

const tr_shard_part *tr_chunk_queue_get_parts(const tr_chunk_queue *queue, int *num_parts)
{
    *num_parts = queue->num_parts;
    return queue->parts;
}

int tr_chunk_queue_get_chunk_bytes(const tr_chunk_queue *queue)
{
    return queue->chunk_bytes;
}

int64_t tr_chunk_queue_count_part(const tr_chunk_queue *queue, const tr_shard_part *part)
{
    return count_chunks(part, queue->chunk_bytes);
}

int64_t tr_chunk_queue_count(const tr_chunk_queue *queue)
{
    return queue->num_chunks;
}

/* ---- encoders ---- */

bool tr_chunk_queue_needs_buffer(const tr_chunk_queue *queue)
{
    return queue->values_change || queue->fetch != NULL;
}

/* With the mutex held: one chunk fewer is read in place. */
static void unread_drop(tr_chunk_queue *queue)
{
    if (--queue->num_unread == 0 || queue->stopped)
        pthread_cond_signal(&queue->unread);
}

tr_status tr_chunk_queue_take(tr_chunk_queue *queue, float *buffer, tr_queued_chunk *out,
                              bool *is_taken)
{
    pthread_mutex_lock(&queue->mutex);
    while (!queue->stopped && queue->next < queue->num_chunks &&
           queue->chunks[queue->next].state == COPYING)
        pthread_cond_wait(&queue->copied, &queue->mutex);
    if (queue->stopped || queue->next == queue->num_chunks) {
        pthread_mutex_unlock(&queue->mutex);
        *is_taken = false;
        return TR_OK;
    }
    chunk *taken = &queue->chunks[queue->next];
    *out = (tr_queued_chunk){.index = queue->next++,
                             .part = &queue->parts[taken->part],
                             .values = taken->values,
                             .num_values = (size_t)taken->num_values};
    bool in_place = taken->state == LISTED && tr_chunk_queue_needs_buffer(queue);
    taken->state = TAKEN;
    queue->num_reading += in_place;
    pthread_mutex_unlock(&queue->mutex);
    *is_taken = true;
    if (!in_place)
        return TR_OK;
    tr_status status = values_copy(queue, buffer, out->values, out->num_values * sizeof(float));
    out->values = buffer;
    pthread_mutex_lock(&queue->mutex);
    queue->num_reading--;
    unread_drop(queue);
    pthread_mutex_unlock(&queue->mutex);
    return status;
}

void tr_chunk_queue_stop(tr_chunk_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    queue->stopped = true;
    pthread_cond_broadcast(&queue->copied);
    pthread_cond_signal(&queue->unread);
    pthread_mutex_unlock(&queue->mutex);
}

bool tr_chunk_queue_is_stopped(tr_chunk_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    bool stopped = queue->stopped;
    pthread_mutex_unlock(&queue->mutex);
    return stopped;
}

/* ---- the owner ---- */

/* With the mutex held, which is let go while a chunk is copied. Encoders move on meanwhile. */
static void copy_what_fits(tr_chunk_queue *queue)
{
    for (int64_t i = queue->num_chunks - 1; i >= queue->next && !queue->stopped; i--) {
        chunk *at = &queue->chunks[i];
        size_t bytes = (size_t)at->num_values * sizeof(float);
        if (at->state != LISTED || bytes > queue->pool_bytes - queue->pool_used)
            continue;
        float *copy = (float *)(void *)(queue->pool + queue->pool_used);
        queue->pool_used += bytes;
        at->state = COPYING;
        pthread_mutex_unlock(&queue->mutex);
        tr_status status = values_copy(queue, copy, at->values, bytes);
        pthread_mutex_lock(&queue->mutex);
        if (status == TR_OK) {
            at->values = copy;
            at->state = COPIED;
            unread_drop(queue);
        } else { /* its encoder will meet the same failure, and tells */
            queue->pool_used -= bytes;
            at->state = LISTED;
        }
        pthread_cond_broadcast(&queue->copied);
        if (status != TR_OK)
            break;
    }
    for (int64_t i = queue->next; i < queue->num_chunks; i++)
        if (queue->chunks[i].state == LISTED)
            queue->no_room += queue->chunks[i].num_values * (int64_t)sizeof(float);
    queue->preserved = true;
}

/* With the mutex held. What was stopped is not read any more, but for what is being read. */
static bool is_clear(const tr_chunk_queue *queue)
{
    return (queue->stopped ? queue->num_reading : queue->num_unread) == 0;
}

bool tr_chunk_queue_preserve(tr_chunk_queue *queue, double seconds)
{
    TR_ASSERT(queue->values_change);
    pthread_mutex_lock(&queue->mutex);
    if (!queue->preserved)
        copy_what_fits(queue);
    struct timespec deadline = tr_clock_deadline(seconds);
    while (!is_clear(queue) && pthread_cond_clockwait(&queue->unread, &queue->mutex,
                                                      CLOCK_MONOTONIC, &deadline) != ETIMEDOUT) {
    }
    bool clear = is_clear(queue);
    pthread_mutex_unlock(&queue->mutex);
    return clear;
}

void tr_chunk_queue_get_preserved(tr_chunk_queue *queue, int64_t *copied, int64_t *no_room)
{
    pthread_mutex_lock(&queue->mutex);
    *copied = (int64_t)queue->pool_used;
    *no_room = queue->no_room;
    pthread_mutex_unlock(&queue->mutex);
}
