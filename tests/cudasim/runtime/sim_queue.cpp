#include "tests/cudasim/runtime/sim_queue.h"

#include <algorithm>

#include <stdlib.h>
#include <time.h>

#include "tests/cudasim/runtime/sim_device.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_memory.h"
#include "tests/cudasim/simt_launch.h"

std::recursive_mutex sim_lock;

enum { MOOD_CALLS = 24, MAX_WAIT_S = 120, LEAST_PAUSE_US = 20, MOST_PAUSE_US = 200 };

/* Ranks of a job draw differently, else what they do would stay in step. */
static uint64_t first_seed()
{
    const char *seed = getenv("CUDASIM_SEED"), *rank = getenv("PMI_RANK");
    uint64_t value = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    return value * 1000003 + (rank != NULL ? strtoull(rank, NULL, 10) : 0);
}

sim_state &sim_queues()
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
uint64_t sim_draw(uint64_t below)
{
    uint64_t z = sim_queues().random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static CUstream_st *draw_stream()
{
    return sim_queues().streams[sim_draw(sim_queues().streams.size())];
}

CUstream_st *sim_stream_of(cudaStream_t handle, const char *call)
{
    const std::vector<CUstream_st *> &streams = sim_queues().streams;
    sim_context_make();
    if (handle == NULL)
        return streams.front();
    if (std::find(streams.begin(), streams.end(), handle) == streams.end())
        cudasim_fail("%s: stream %p is not alive", call, (void *)handle);
    if (handle->claimed != NULL)
        cudasim_fail("%s on a stream on which %s has yet to enqueue", call, handle->claimed);
    return handle;
}

/* ---- running ---- */

bool sim_advance(CUstream_st *stream)
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
        sim_queues().launches++;
        stream->num_shared -= work.shared;
    }
    if (work.kind == sim_work::RECORD)
        work.point->reached = true;
    stream->queue.pop_front();
    sim_queues().moves++;
    return true;
}

CUstream_st *sim_needed(CUstream_st *stream)
{
    while (!stream->queue.empty() && stream->queue.front().kind == sim_work::WAIT &&
           !stream->queue.front().point->reached)
        stream = stream->queue.front().point->stream;
    return stream;
}

sim_progress sim_run_shared()
{
    sim_state &s = sim_queues();
    size_t num = s.streams.size(), first = sim_draw(num);
    uint64_t moves = s.moves;
    bool waits = false;
    sim_memory_open();
    for (size_t i = 0; i < num; i++) {
        CUstream_st *stream = s.streams[(first + i) % num];
        waits = waits || stream->num_shared > 0;
        while (stream->num_shared > 0 && sim_advance(sim_needed(stream)))
            ;
    }
    sim_memory_close();
    return s.moves != moves ? SIM_MOVED : waits ? SIM_WAITS : SIM_IDLE;
}

/* How long nothing has moved, in pauses that grow. */
struct sim_patience {
    long pause_us = LEAST_PAUSE_US;
    double waited_s = 0.0;
};

/* What is needed waits for another process, which may wait for any shared work of this one. */
static void wait_shared(sim_patience *patience)
{
    if (sim_run_shared() == SIM_MOVED) {
        *patience = sim_patience();
        return;
    }
    const struct timespec pause = {0, patience->pause_us * 1000};
    nanosleep(&pause, NULL);
    patience->waited_s += 1e-6 * (double)patience->pause_us;
    patience->pause_us = std::min(2 * patience->pause_us, (long)MOST_PAUSE_US);
    if (patience->waited_s > MAX_WAIT_S)
        cudasim_fail("nothing moved for %d s: the other ranks do not do what this one waits for",
                     (int)MAX_WAIT_S);
}

void sim_run_until(CUstream_st *stream, const std::function<bool()> &done)
{
    sim_patience patience;
    bool odd = sim_draw(2) == 0;
    sim_memory_open();
    while (!done()) {
        if (odd && sim_draw(2) == 0)
            sim_advance(draw_stream());
        else if (!sim_advance(sim_needed(stream)))
            wait_shared(&patience);
    }
    sim_memory_close();
}

static void redraw_mood()
{
    sim_state &s = sim_queues();
    s.mood = (sim_mood)sim_draw(MOOD_NUM);
    s.favourite = draw_stream();
    s.calls_left = MOOD_CALLS;
}

void sim_nudge()
{
    sim_state &s = sim_queues();
    if (s.calls_left-- <= 0)
        redraw_mood();
    if (s.mood == MOOD_LATEST)
        return;
    sim_memory_open();
    if (s.mood == MOOD_FAVOURITE) {
        while (sim_advance(sim_needed(s.favourite)))
            ;
    } else if (s.mood == MOOD_SOME) {
        for (uint64_t i = sim_draw(4) == 0 ? sim_draw(8) : 0; i > 0; i--)
            sim_advance(draw_stream());
    } else {
        for (bool any = true; any;) {
            any = false;
            for (CUstream_st *stream : s.streams)
                any = sim_advance(stream) || any;
        }
    }
    sim_memory_close();
}

/* ---- for the other stand-ins ---- */

static cudaError_t enqueue(CUstream_st *stream, sim_work work, const sim_range *ranges,
                           int num_ranges)
{
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    for (int i = 0; i < num_ranges; i++)
        work.ranges.push_back(ranges[i]);
    work.any_memory = num_ranges < 0;
    stream->num_shared += work.shared;
    stream->queue.push_back(std::move(work));
    sim_nudge();
    return cudaSuccess;
}

cudaError_t sim_enqueue(cudaStream_t stream, const char *what, const sim_range *ranges,
                        int num_ranges, std::function<bool()> step)
{
    sim_work work = {sim_work::RUN, what, {}, false, false, std::move(step), nullptr};
    return enqueue(sim_stream_of(stream, what), std::move(work), ranges, num_ranges);
}

cudaError_t sim_enqueue_shared(cudaStream_t stream, const char *what, const sim_range *ranges,
                               int num_ranges, std::function<bool()> step)
{
    sim_work work = {sim_work::RUN, what, {}, false, true, std::move(step), nullptr};
    cudaError_t error = enqueue(sim_stream_of(stream, what), std::move(work), ranges, num_ranges);
    sim_progress_wake();
    return error;
}

void sim_note_move()
{
    sim_queues().moves++;
}

void sim_stream_check(cudaStream_t stream, const char *call)
{
    sim_stream_of(stream, call);
}

void sim_stream_claim(cudaStream_t stream, const char *by)
{
    if (by == NULL)
        (stream != NULL ? stream : sim_queues().streams.front())->claimed = NULL;
    else
        sim_stream_of(stream, by)->claimed = by;
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
    for (CUstream_st *stream : sim_queues().streams)
        for (const sim_work &work : stream->queue)
            if (uses(work, begin, bytes))
                return work.what;
    return NULL;
}

cudaError_t sim_lost()
{
    return sim_queues().lost;
}

/* ---- for tests ---- */

void cudasim_seed_set(uint64_t seed)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_queues().random = seed;
    redraw_mood();
}

void cudasim_lose_device(cudaError_t error)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_queues().lost = error;
    for (CUstream_st *stream : sim_queues().streams) {
        for (sim_work &work : stream->queue)
            if (work.kind == sim_work::RECORD)
                work.point->reached = true;
        stream->queue.clear();
        stream->num_shared = 0;
    }
}

void sim_stream_count(cudasim_counts *counts)
{
    counts->streams = (int64_t)sim_queues().streams.size() - 1;
    counts->events = (int64_t)sim_queues().events.size();
    counts->launches = sim_queues().launches;
}
