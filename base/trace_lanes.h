/* What threads beside the step do and when, for the trace: each has a lane, on which it does one thing after the other.
 *
 * Threads say when they begin something else; the thread that makes the steps cuts the record into pieces, of which each has what was done since the cut before. What
 * lasts beyond a cut is in both pieces with its part. The memory is the caller's: two halves, of which one is read while the other
 * is written, so that reading holds nobody up. Any thread may call switch, each for lanes of its own; one thread calls the others. */
#ifndef TR_BASE_TRACE_LANES_H
#define TR_BASE_TRACE_LANES_H

#include <pthread.h>

#include "base/trace_ring.h"

enum { TR_TRACE_LANES = 8 };

typedef struct tr_trace_doing {
    const char *name; /* NULL: nothing */
    double begin;     /* tr_clock_seconds; of the part since the last cut */
    int64_t number, bytes;
} tr_trace_doing;

typedef struct tr_trace_lanes {
    int track; /* of all events */
    pthread_mutex_t mutex;
    tr_trace_ring halves[2];
    int half; /* the one that is written; both are off while nothing is recorded */
    tr_trace_doing doing[TR_TRACE_LANES];
} tr_trace_lanes;

/* events: [2 * capacity], capacity at least 1. Records nothing yet. Zeros are lanes that never do. */
void tr_trace_lanes_init(tr_trace_lanes *lanes, int track, tr_trace_event *events,
                         int64_t capacity);
/* Records from here on; goes on where it does already. */
void tr_trace_lanes_start(tr_trace_lanes *lanes);
/* Forgets what was not cut off yet. */
void tr_trace_lanes_stop(tr_trace_lanes *lanes);
/* What was done until now; until the next call of start or cut. Without start there is nothing in it. */
const tr_trace_ring *tr_trace_lanes_cut(tr_trace_lanes *lanes);

/* The lane's thread ends what it did and begins something else; name NULL: nothing. The name stays the caller's. number, bytes: -1 is none. lanes may be NULL. */
void tr_trace_lane_switch(tr_trace_lanes *lanes, int lane, const char *name, int64_t number,
                          int64_t bytes);

#endif
