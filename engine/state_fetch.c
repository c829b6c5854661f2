#include "engine/state_fetch.h"

#include <string.h>

enum { LANDING_BYTES = 4 << 20 };

void tr_state_fetch_layout(tr_state_fetch *fetch, tr_device *device, tr_arena *host)
{
    *fetch = (tr_state_fetch){.device = device, .mutex = PTHREAD_MUTEX_INITIALIZER};
    if (!device->unified)
        fetch->landing = tr_arena_alloc(host, LANDING_BYTES);
}

static tr_status land(const tr_state_fetch *fetch, const void *values, size_t bytes)
{
    tr_device *device = fetch->device;
    TR_TRY(device->copy(device, TR_STREAM_COPY, fetch->landing, values, bytes));
    return device->synchronize(device, TR_STREAM_COPY);
}

tr_status tr_state_fetch_values(void *context, void *host, const float *values, size_t bytes)
{
    tr_state_fetch *fetch = context;
    tr_status status = TR_OK;
    pthread_mutex_lock(&fetch->mutex);
    for (size_t done = 0, some; done < bytes && status == TR_OK; done += some) {
        some = bytes - done < LANDING_BYTES ? bytes - done : LANDING_BYTES;
        status = land(fetch, (const char *)values + done, some);
        if (status == TR_OK)
            memcpy((char *)host + done, fetch->landing, some);
    }
    pthread_mutex_unlock(&fetch->mutex);
    return status;
}
