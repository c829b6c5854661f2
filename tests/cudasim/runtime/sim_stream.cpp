/* The runtime's functions for streams and events (sim_runtime.h). */
#include <algorithm>

#include "tests/cudasim/runtime/sim_device.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_queue.h"

static CUevent_st *event_of(cudaEvent_t handle, const char *call)
{
    if (sim_queues().events.count(handle) == 0)
        cudasim_fail("%s: event %p is not alive", call, (void *)handle);
    return handle;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)priority;
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    if (flags != cudaStreamNonBlocking)
        cudasim_fail("a stream is made that waits for the default stream; only "
                     "cudaStreamNonBlocking is simulated");
    *stream = new CUstream_st{};
    sim_queues().streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUstream_st *stream = sim_stream_of(handle, "cudaStreamDestroy");
    std::vector<CUstream_st *> &streams = sim_queues().streams;
    if (stream == streams.front())
        cudasim_fail("cudaStreamDestroy of the default stream");
    sim_run_until(stream, [=] { return stream->queue.empty(); });
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    sim_queues().calls_left = 0; /* the favourite may be gone */
    delete stream;
    return sim_queues().lost;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUstream_st *stream = sim_stream_of(handle, "cudaStreamSynchronize");
    sim_run_until(stream, [=] { return stream->queue.empty(); });
    return sim_queues().lost;
}

cudaError_t cudaDeviceSynchronize(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    for (CUstream_st *stream : sim_queues().streams) {
        sim_stream_check(stream, "cudaDeviceSynchronize");
        sim_run_until(stream, [=] { return stream->queue.empty(); });
    }
    return sim_queues().lost;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUstream_st *stream = sim_stream_of(handle, "cudaStreamQuery");
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    if (sim_draw(2) == 0)
        sim_advance(sim_needed(stream));
    sim_nudge();
    return stream->queue.empty() ? cudaSuccess : sim_error_set(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)flags;
    CUstream_st *stream = sim_stream_of(handle, "cudaStreamWaitEvent");
    std::shared_ptr<sim_point> point = event_of(event, "cudaStreamWaitEvent")->point;
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    if (point != nullptr && !point->reached)
        stream->queue.push_back(
            {sim_work::WAIT, "cudaStreamWaitEvent", {}, false, false, nullptr, std::move(point)});
    sim_nudge();
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    (void)flags;
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    *event = new CUevent_st();
    sim_queues().events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUevent_st *event = event_of(handle, "cudaEventDestroy");
    sim_queues().events.erase(event);
    delete event;
    return sim_queues().lost;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    CUevent_st *event = event_of(handle, "cudaEventRecord");
    CUstream_st *stream = sim_stream_of(stream_handle, "cudaEventRecord");
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    event->point = std::make_shared<sim_point>(sim_point{stream, false});
    stream->queue.push_back(
        {sim_work::RECORD, "cudaEventRecord", {}, false, false, nullptr, event->point});
    sim_nudge();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    std::shared_ptr<sim_point> point = event_of(handle, "cudaEventQuery")->point;
    if (sim_queues().lost != cudaSuccess)
        return sim_queues().lost;
    if (point == nullptr || point->reached)
        return cudaSuccess;
    if (sim_draw(2) == 0)
        sim_advance(sim_needed(point->stream));
    sim_nudge();
    return point->reached ? cudaSuccess : sim_error_set(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    std::shared_ptr<sim_point> point = event_of(handle, "cudaEventSynchronize")->point;
    if (point != nullptr && !point->reached)
        sim_run_until(point->stream, [=] { return point->reached; });
    return sim_queues().lost;
}
