/* Parts of the state on their way to writers that cannot read the device's memory.
 *
 * Values pass through one chunk of pinned memory on the copy stream, beside what the device computes. Any threads may fetch, one at a time, while the device's owner
 * goes on. Where the host shares the device's memory nothing is laid out, and nothing needs fetching. */
#ifndef TR_ENGINE_STATE_FETCH_H
#define TR_ENGINE_STATE_FETCH_H

#include <pthread.h>

#include "kernels/device.h"
#include "memory/arena.h"

typedef struct tr_state_fetch {
    tr_device *device;
    void *landing;         /* pinned, a chunk; NULL where nothing is fetched */
    pthread_mutex_t mutex; /* whose turn it is */
} tr_state_fetch;

/* host: memory that the host reads and writes. Counting arenas too; holds nothing that needs clearing. */
void tr_state_fetch_layout(tr_state_fetch *fetch, tr_device *device, tr_arena *host);
static inline bool tr_state_fetch_is_needed(const tr_state_fetch *fetch)
{
    return fetch->landing != NULL;
}
/* What was enqueued on the compute stream is done (tr_world_synchronize), so that the state is what it will stay. context: the tr_state_fetch. host: any host
 * memory. A tr_chunk_fetch (io/chunk_queue.h). */
tr_status tr_state_fetch_values(void *context, void *host, const float *values, size_t bytes);

#endif
