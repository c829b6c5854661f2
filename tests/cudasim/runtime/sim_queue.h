/* The queues of the simulated streams (sim_runtime.h): what stands in them, and what makes it run. Read by the functions of the runtime
 * (sim_stream.cpp) and by the thread that goes on without the host (sim_progress.cpp); all of it under sim_lock. */
#ifndef TR_TESTS_SIM_QUEUE_H
#define TR_TESTS_SIM_QUEUE_H

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <stdint.h>

#include "tests/cudasim/runtime/sim_stream.h"

/* A point in a stream's queue that work of others may wait for. */
struct sim_point {
    CUstream_st *stream;
    bool reached;
};

struct sim_work {
    enum { RUN, RECORD, WAIT } kind;
    const char *what;
    std::vector<sim_range> ranges;
    bool any_memory;
    bool shared; /* other processes may wait for it */
    std::function<bool()> step;
    std::shared_ptr<sim_point> point; /* RECORD reaches it, WAIT waits for it */
};

struct CUstream_st {
    std::deque<sim_work> queue;
    int num_shared;      /* of them in the queue */
    const char *claimed; /* by the call that has yet to enqueue work here, or NULL */
};

struct CUevent_st {
    std::shared_ptr<sim_point> point; /* none: never recorded */
};

/* How queued work runs ahead of what somebody waits for. */
enum sim_mood {
    MOOD_LATEST,    /* not at all */
    MOOD_FAVOURITE, /* one stream as far as it can, with what it waits for */
    MOOD_SOME,      /* now and then a few works of any stream */
    MOOD_EAGER,     /* everything that can run does */
    MOOD_NUM
};

struct sim_state {
    std::vector<CUstream_st *>
        streams; /* in the order of creation, the default one first: a seed repeats a run */
    std::set<CUevent_st *> events;
    uint64_t random;
    sim_mood mood;
    CUstream_st *favourite;
    int calls_left; /* of this mood */
    int64_t launches;
    uint64_t moves; /* works that have run, and pieces of shared ones */
    cudaError_t lost;
};

/* Lives until the process ends. */
sim_state &sim_queues();

/* The stream, which has to be alive and not claimed. call: for the message. */
CUstream_st *sim_stream_of(cudaStream_t handle, const char *call);

/* Runs the first work of the queue when it can; false when it has to wait. */
bool sim_advance(CUstream_st *stream);

/* The stream whose first work has to run so that `stream` gets on: where its waits lead. */
CUstream_st *sim_needed(CUstream_st *stream);

/* Runs what `stream` needs, and by chance other work, until done(). */
void sim_run_until(CUstream_st *stream, const std::function<bool()> &done);

/* Every call gives the device a chance to run ahead. */
void sim_nudge();

/* Runs what other processes may wait for as far as it goes. */
typedef enum sim_progress { SIM_IDLE, SIM_WAITS, SIM_MOVED } sim_progress;
sim_progress sim_run_shared();

/* Tells the thread that there is shared work. */
void sim_progress_wake();

#endif
