/* What a rank did and when: the newest events of a traced step, kept in memory until they are read out.
 *
 * The memory is the caller's and has room for a fixed number of events, so that a traced step allocates nothing; a further event takes the place of the
 * oldest. Whoever records asks tr_trace_is_on first, which is all that an untraced step pays. One thread. */
#ifndef TR_BASE_TRACE_RING_H
#define TR_BASE_TRACE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TR_TRACE_NAME = 16,   /* bytes of a name, with its end */
    TR_TRACE_TRACKS = 16, /* most tracks */
    /* Tracks that every trace has. */
    TR_TRACE_STEP = 0,    /* the parts of a step, one after the other */
    TR_TRACE_COMPUTE = 1, /* what is computed; an event may lie inside another */
    TR_TRACE_WRITER = 2   /* checkpoints, on threads beside the step */
};

typedef struct tr_trace_event {
    double begin, end; /* tr_clock_seconds */
    char name[TR_TRACE_NAME];
    char label[TR_TRACE_NAME]; /* what `number` counts ("layer"), or empty */
    int32_t number;
    int16_t track;
    int16_t lane; /* of the track: events of one lane are apart, or inside one another */
    /* -1: none */
    int32_t chunk, microbatch;
    int32_t peer; /* rank */
    int32_t
        sequence; /* place among the operations of its kind: equal where two ranks do one thing together */
    int64_t bytes;
} tr_trace_event;

typedef struct tr_trace_ring {
    tr_trace_event *events; /* [capacity], the caller's */
    int64_t capacity;
    int64_t num_added; /* since the start; the last `capacity` of them are there */
    bool on;
    const char *tracks[TR_TRACE_TRACKS];
    int num_tracks;
} tr_trace_ring;

/* capacity: at least 1. Tracks: "step", "compute" and "writer". */
void tr_trace_ring_init(tr_trace_ring *ring, tr_trace_event *events, int64_t capacity);
/* A further track; the name stays the caller's. Returns its number. */
int tr_trace_track_add(tr_trace_ring *ring, const char *name);
/* Forgets all events and records from here on; stop keeps them. */
void tr_trace_ring_start(tr_trace_ring *ring);
void tr_trace_ring_stop(tr_trace_ring *ring);
/* How many events there are, and how many of those added are no longer. */
int64_t tr_trace_ring_count(const tr_trace_ring *ring);
int64_t tr_trace_ring_num_lost(const tr_trace_ring *ring);
/* Event `index` of those that there are, in the order in which they were added. */
const tr_trace_event *tr_trace_ring_at(const tr_trace_ring *ring, int64_t index);

/* ring may be NULL. */
static inline bool tr_trace_is_on(const tr_trace_ring *ring)
{
    return ring != NULL && ring->on;
}
/* When it is on: the time; else 0. */
double tr_trace_now(const tr_trace_ring *ring);
/* Only while it is on. Names longer than TR_TRACE_NAME are cut. The event ends now; the caller may fill its other fields until it adds the next one. */
tr_trace_event *tr_trace_add(tr_trace_ring *ring, int track, int lane, const char *name,
                             double begin);
/* The same on the track TR_TRACE_STEP, if it is on. */
void tr_trace_part(tr_trace_ring *ring, const char *name, double begin);

#endif
