/* Streams as queues, events as points in them, and the choice of what runs when (sim_runtime.h). */
#include "tests/cudasim/runtime/sim_stream.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "tests/cudasim/runtime/sim_device.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_memory.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/cudasim/simt_launch.h"

std::recursive_mutex sim_lock;

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
    std::function<bool()> step;
    std::shared_ptr<sim_point> point; /* RECORD reaches it, WAIT waits for it */
};

struct CUstream_st {
    std::deque<sim_work> queue;
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

enum { MOOD_CALLS = 24, MAX_WAIT_S = 120 };

struct sim_state {
    std::vector<CUstream_st *>
        streams; /* in the order of creation, the default one first: a seed repeats a run */
    std::set<CUevent_st *> events;
    uint64_t random;
    sim_mood mood;
    CUstream_st *favourite;
    int calls_left; /* of this mood */
    int64_t launches;
    cudaError_t lost;
};

/* Ranks of a job draw differently, else what they do would stay in step. */
static uint64_t first_seed()
{
    const char *seed = getenv("CUDASIM_SEED"), *rank = getenv("PMI_RANK");
    uint64_t value = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    return value * 1000003 + (rank != NULL ? strtoull(rank, NULL, 10) : 0);
}

/* Lives until the process ends. */
static sim_state &state()
{
    static sim_state *the_state = [] {
        sim_state *s = new sim_state();
        s->streams.push_back(new CUstream_st{});
        s->random = first_seed();
        return s;
    }();
    return *the_state;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(uint64_t below)
{
    uint64_t z = state().random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static CUstream_st *draw_stream()
{
    return state().streams[draw(state().streams.size())];
}

static CUstream_st *stream_of(cudaStream_t handle, const char *call)
{
    const std::vector<CUstream_st *> &streams = state().streams;
    if (handle == NULL)
        return streams.front();
    if (std::find(streams.begin(), streams.end(), handle) == streams.end())
        cudasim_fail("%s: stream %p is not alive", call, (void *)handle);
    return handle;
}

static CUevent_st *event_of(cudaEvent_t handle, const char *call)
{
    if (state().events.count(handle) == 0)
        cudasim_fail("%s: event %p is not alive", call, (void *)handle);
    return handle;
}

/* ---- running ---- */

/* Runs the first work of the queue when it can; false when it has to wait. */
static bool advance(CUstream_st *stream)
{
    if (stream->queue.empty())
        return false;
    sim_work &work = stream->queue.front();
    if (work.kind == sim_work::WAIT && !work.point->reached)
        return false;
    if (work.kind == sim_work::RUN) {
        sim_memory_open();
        bool done = work.step();
        sim_memory_close();
        if (!done)
            return false;
        state().launches++;
    }
    if (work.kind == sim_work::RECORD)
        work.point->reached = true;
    stream->queue.pop_front();
    return true;
}

/* The stream whose first work has to run so that `stream` gets on: where its waits lead. */
static CUstream_st *needed(CUstream_st *stream)
{
    while (!stream->queue.empty() && stream->queue.front().kind == sim_work::WAIT &&
           !stream->queue.front().point->reached)
        stream = stream->queue.front().point->stream;
    return stream;
}

/* What is needed waits for another process, which may wait for any of our streams: all run now, as on a device. */
static void advance_all(double *waited)
{
    bool any = false;
    for (CUstream_st *stream : state().streams)
        any = advance(stream) || any;
    if (any) {
        *waited = 0.0;
        return;
    }
    const struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
    *waited += 200e-6;
    if (*waited > MAX_WAIT_S)
        cudasim_fail("nothing moved for %d s: the other ranks do not do what this one waits for",
                     (int)MAX_WAIT_S);
}

/* Runs what `stream` needs, and by chance other work, until `done`. */
template <typename Done> static void run_until(CUstream_st *stream, Done done)
{
    double waited = 0.0;
    bool odd = draw(2) == 0;
    sim_memory_open();
    while (!done()) {
        if (odd && draw(2) == 0)
            advance(draw_stream());
        else if (!advance(needed(stream)))
            advance_all(&waited);
    }
    sim_memory_close();
}

static void redraw_mood()
{
    sim_state &s = state();
    s.mood = (sim_mood)draw(MOOD_NUM);
    s.favourite = draw_stream();
    s.calls_left = MOOD_CALLS;
}

/* Every call gives the device a chance to run ahead. */
static void nudge()
{
    sim_state &s = state();
    if (s.calls_left-- <= 0)
        redraw_mood();
    if (s.mood == MOOD_LATEST)
        return;
    sim_memory_open();
    if (s.mood == MOOD_FAVOURITE) {
        while (advance(needed(s.favourite)))
            ;
    } else if (s.mood == MOOD_SOME) {
        for (uint64_t i = draw(4) == 0 ? draw(8) : 0; i > 0; i--)
            advance(draw_stream());
    } else {
        for (bool any = true; any;) {
            any = false;
            for (CUstream_st *stream : s.streams)
                any = advance(stream) || any;
        }
    }
    sim_memory_close();
}

/* ---- for the other stand-ins ---- */

cudaError_t sim_enqueue(cudaStream_t handle, const char *what, const sim_range *ranges,
                        int num_ranges, std::function<bool()> step)
{
    CUstream_st *stream = stream_of(handle, what);
    if (state().lost != cudaSuccess)
        return state().lost;
    sim_work work = {sim_work::RUN, what, {}, num_ranges < 0, std::move(step), nullptr};
    for (int i = 0; i < num_ranges; i++)
        work.ranges.push_back(ranges[i]);
    stream->queue.push_back(std::move(work));
    nudge();
    return cudaSuccess;
}

cudaError_t cudasim_launch(cudaStream_t stream, const char *name, std::function<void()> run)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    return sim_enqueue(stream, name, NULL, -1, [run = std::move(run)] {
        run();
        return true;
    });
}

static bool uses(const sim_work &work, const void *begin, size_t bytes)
{
    if (work.kind != sim_work::RUN)
        return false;
    if (work.any_memory)
        return true;
    uintptr_t first = (uintptr_t)begin, last = first + bytes;
    for (const sim_range &range : work.ranges)
        if ((uintptr_t)range.begin < last && first < (uintptr_t)range.begin + range.bytes)
            return true;
    return false;
}

const char *sim_user_of(const void *begin, size_t bytes)
{
    for (CUstream_st *stream : state().streams)
        for (const sim_work &work : stream->queue)
            if (uses(work, begin, bytes))
                return work.what;
    return NULL;
}

cudaError_t sim_lost()
{
    return state().lost;
}

/* ---- for tests ---- */

void cudasim_seed_set(uint64_t seed)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    state().random = seed;
    redraw_mood();
}

void cudasim_lose_device(cudaError_t error)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    state().lost = error;
    for (CUstream_st *stream : state().streams) {
        for (sim_work &work : stream->queue)
            if (work.kind == sim_work::RECORD)
                work.point->reached = true;
        stream->queue.clear();
    }
}

void sim_stream_count(cudasim_counts *counts)
{
    counts->streams = (int64_t)state().streams.size() - 1;
    counts->events = (int64_t)state().events.size();
    counts->launches = state().launches;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)priority;
    if (state().lost != cudaSuccess)
        return state().lost;
    if (flags != cudaStreamNonBlocking)
        cudasim_fail("a stream is made that waits for the default stream; only "
                     "cudaStreamNonBlocking is simulated");
    *stream = new CUstream_st();
    state().streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUstream_st *stream = stream_of(handle, "cudaStreamDestroy");
    std::vector<CUstream_st *> &streams = state().streams;
    if (stream == streams.front())
        cudasim_fail("cudaStreamDestroy of the default stream");
    run_until(stream, [=] { return stream->queue.empty(); });
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    state().calls_left = 0; /* the favourite may be gone */
    delete stream;
    return state().lost;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUstream_st *stream = stream_of(handle, "cudaStreamSynchronize");
    run_until(stream, [=] { return stream->queue.empty(); });
    return state().lost;
}

cudaError_t cudaDeviceSynchronize(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    for (CUstream_st *stream : state().streams)
        run_until(stream, [=] { return stream->queue.empty(); });
    return state().lost;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUstream_st *stream = stream_of(handle, "cudaStreamQuery");
    if (state().lost != cudaSuccess)
        return state().lost;
    if (draw(2) == 0)
        advance(needed(stream));
    nudge();
    return stream->queue.empty() ? cudaSuccess : sim_error_set(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)flags;
    CUstream_st *stream = stream_of(handle, "cudaStreamWaitEvent");
    std::shared_ptr<sim_point> point = event_of(event, "cudaStreamWaitEvent")->point;
    if (state().lost != cudaSuccess)
        return state().lost;
    if (point != nullptr && !point->reached)
        stream->queue.push_back(
            {sim_work::WAIT, "cudaStreamWaitEvent", {}, false, nullptr, std::move(point)});
    nudge();
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)flags;
    if (state().lost != cudaSuccess)
        return state().lost;
    *event = new CUevent_st();
    state().events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUevent_st *event = event_of(handle, "cudaEventDestroy");
    state().events.erase(event);
    delete event;
    return state().lost;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUevent_st *event = event_of(handle, "cudaEventRecord");
    CUstream_st *stream = stream_of(stream_handle, "cudaEventRecord");
    if (state().lost != cudaSuccess)
        return state().lost;
    event->point = std::make_shared<sim_point>(sim_point{stream, false});
    stream->queue.push_back(
        {sim_work::RECORD, "cudaEventRecord", {}, false, nullptr, event->point});
    nudge();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    std::shared_ptr<sim_point> point = event_of(handle, "cudaEventQuery")->point;
    if (state().lost != cudaSuccess)
        return state().lost;
    if (point == nullptr || point->reached)
        return cudaSuccess;
    if (draw(2) == 0)
        advance(needed(point->stream));
    nudge();
    return point->reached ? cudaSuccess : sim_error_set(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    std::shared_ptr<sim_point> point = event_of(handle, "cudaEventSynchronize")->point;
    if (point != nullptr && !point->reached)
        run_until(point->stream, [=] { return point->reached; });
    return state().lost;
}
