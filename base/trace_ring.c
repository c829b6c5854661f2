#include "base/trace_ring.h"

#include <string.h>

#include "base/clock.h"
#include "base/status.h"

void tr_trace_ring_init(tr_trace_ring *ring, tr_trace_event *events, int64_t capacity)
{
    TR_ASSERT(capacity >= 1);
    *ring = (tr_trace_ring){.events = events, .capacity = capacity};
    int step = tr_trace_track_add(ring, "step"), compute = tr_trace_track_add(ring, "compute");
    int writer = tr_trace_track_add(ring, "writer");
    TR_ASSERT(step == TR_TRACE_STEP && compute == TR_TRACE_COMPUTE && writer == TR_TRACE_WRITER);
}

int tr_trace_track_add(tr_trace_ring *ring, const char *name)
{
    TR_ASSERT(ring->num_tracks < TR_TRACE_TRACKS);
    ring->tracks[ring->num_tracks] = name;
    return ring->num_tracks++;
}

void tr_trace_ring_start(tr_trace_ring *ring)
{
    /* So that no event meets a page of its memory for the first time. */
    memset(ring->events, 0, (size_t)ring->capacity * sizeof ring->events[0]);
    ring->num_added = 0;
    ring->on = true;
}

void tr_trace_ring_stop(tr_trace_ring *ring)
{
    ring->on = false;
}

int64_t tr_trace_ring_num_lost(const tr_trace_ring *ring)
{
    return ring->num_added > ring->capacity ? ring->num_added - ring->capacity : 0;
}

int64_t tr_trace_ring_count(const tr_trace_ring *ring)
{
    return ring->num_added - tr_trace_ring_num_lost(ring);
}

const tr_trace_event *tr_trace_ring_at(const tr_trace_ring *ring, int64_t index)
{
    TR_ASSERT(index >= 0 && index < tr_trace_ring_count(ring));
    return &ring->events[(tr_trace_ring_num_lost(ring) + index) % ring->capacity];
}

double tr_trace_now(const tr_trace_ring *ring)
{
    return tr_trace_is_on(ring) ? tr_clock_seconds() : 0;
}

tr_trace_event *tr_trace_add(tr_trace_ring *ring, int track, int lane, const char *name,
                             double begin)
{
    tr_trace_event *event = &ring->events[ring->num_added++ % ring->capacity];
    *event = (tr_trace_event){.begin = begin,
                              .end = tr_clock_seconds(),
                              .track = (int16_t)track,
                              .lane = (int16_t)lane,
                              .number = -1,
                              .chunk = -1,
                              .microbatch = -1,
                              .peer = -1,
                              .sequence = -1};
    strncpy(event->name, name, sizeof event->name - 1);
    return event;
}

void tr_trace_part(tr_trace_ring *ring, const char *name, double begin)
{
    if (tr_trace_is_on(ring))
        tr_trace_add(ring, TR_TRACE_STEP, 0, name, begin);
}
