#include "base/trace_lanes.h"

#include "base/clock.h"
#include "base/status.h"

void tr_trace_lanes_init(tr_trace_lanes *lanes, int track, tr_trace_event *events, int64_t capacity)
{
    *lanes = (tr_trace_lanes){.track = track, .mutex = PTHREAD_MUTEX_INITIALIZER};
    for (int i = 0; i < 2; i++)
        tr_trace_ring_init(&lanes->halves[i], events + i * capacity, capacity);
}

/* With the mutex held: what the lane did since the last cut, up to now. */
static void piece_add(tr_trace_lanes *lanes, int lane)
{
    tr_trace_doing *doing = &lanes->doing[lane];
    tr_trace_ring *ring = &lanes->halves[lanes->half];
    if (doing->name == NULL || !tr_trace_is_on(ring))
        return;
    tr_trace_event *event = tr_trace_add(ring, lanes->track, lane, doing->name, doing->begin);
    event->number = (int32_t)doing->number;
    event->bytes = doing->bytes;
    doing->begin = event->end;
}

void tr_trace_lanes_start(tr_trace_lanes *lanes)
{
    tr_trace_ring *ring = &lanes->halves[lanes->half];
    if (ring->capacity == 0 || tr_trace_is_on(ring))
        return;
    pthread_mutex_lock(&lanes->mutex);
    tr_trace_ring_start(ring);
    double now = tr_clock_seconds();
    for (int i = 0; i < TR_TRACE_LANES; i++)
        lanes->doing[i].begin = now;
    pthread_mutex_unlock(&lanes->mutex);
}

void tr_trace_lanes_stop(tr_trace_lanes *lanes)
{
    if (lanes->halves[0].capacity == 0)
        return;
    pthread_mutex_lock(&lanes->mutex);
    tr_trace_ring_stop(&lanes->halves[lanes->half]);
    pthread_mutex_unlock(&lanes->mutex);
}

const tr_trace_ring *tr_trace_lanes_cut(tr_trace_lanes *lanes)
{
    tr_trace_ring *ring = &lanes->halves[lanes->half], *other = &lanes->halves[1 - lanes->half];
    if (ring->capacity == 0 || !tr_trace_is_on(ring)) {
        other->num_added = 0;
        return other;
    }
    tr_trace_ring_start(other);
    pthread_mutex_lock(&lanes->mutex);
    for (int i = 0; i < TR_TRACE_LANES; i++)
        piece_add(lanes, i);
    tr_trace_ring_stop(ring);
    lanes->half = 1 - lanes->half;
    pthread_mutex_unlock(&lanes->mutex);
    return ring;
}

void tr_trace_lane_switch(tr_trace_lanes *lanes, int lane, const char *name, int64_t number,
                          int64_t bytes)
{
    if (lanes == NULL)
        return;
    TR_ASSERT(lane >= 0 && lane < TR_TRACE_LANES);
    pthread_mutex_lock(&lanes->mutex);
    piece_add(lanes, lane);
    lanes->doing[lane] = (tr_trace_doing){name, tr_clock_seconds(), number, bytes};
    pthread_mutex_unlock(&lanes->mutex);
}
