#include "tests/cudasim/sim_nccl_use.h"

#include <time.h>

void use_nap_ms(int ms)
{
    const struct timespec pause = {0, ms * 1000000L};
    nanosleep(&pause, NULL);
}

ncclResult_t use_settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    for (int tries = 0; state == ncclInProgress; tries++) {
        SIM_MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess && tries < 60000);
        if (tries > 20)
            use_nap_ms(1);
    }
    return state;
}

void use_called(ncclComm_t comm, ncclResult_t result)
{
    SIM_MUST(result == ncclSuccess || result == ncclInProgress);
    SIM_MUST(use_settle(comm) == ncclSuccess);
}

ncclComm_t use_comm_begin(const sim_ranks *ranks, int id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.blocking = 0;
    SIM_MUST(cudaSetDevice(ranks->rank) == cudaSuccess);
    SIM_MUST(ncclCommInitRankConfig(&comm, ranks->num_ranks, ranks->shared->ids[id], ranks->rank,
                                    &config) == ncclInProgress);
    return comm;
}

ncclComm_t use_comm_make(const sim_ranks *ranks, int id)
{
    ncclComm_t comm = use_comm_begin(ranks, id);
    SIM_MUST(use_settle(comm) == ncclSuccess);
    return comm;
}

void use_comm_end(ncclComm_t comm)
{
    use_called(comm, ncclCommFinalize(comm));
    SIM_MUST(ncclCommDestroy(comm) == ncclSuccess);
}

cudaStream_t use_stream_make(void)
{
    cudaStream_t stream;
    SIM_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}

static float *device_make(size_t n)
{
    void *memory;
    SIM_MUST(cudaMalloc(&memory, (n + 1) * sizeof(float)) == cudaSuccess);
    return memory;
}

static float *pinned_make(size_t n)
{
    void *memory;
    SIM_MUST(cudaHostAlloc(&memory, (n + 1) * sizeof(float), cudaHostAllocPortable) == cudaSuccess);
    return memory;
}

void use_copy(float *dst, const float *src, size_t n, cudaStream_t stream)
{
    SIM_MUST(cudaMemcpyAsync(dst, src, n * sizeof(float), cudaMemcpyDefault, stream) ==
             cudaSuccess);
}

void use_finish(cudaStream_t stream)
{
    SIM_MUST(cudaStreamSynchronize(stream) == cudaSuccess);
}

cudaEvent_t use_mark(cudaStream_t stream)
{
    cudaEvent_t event;
    SIM_MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    SIM_MUST(cudaEventRecord(event, stream) == cudaSuccess);
    return event;
}

use_memory use_memory_make(size_t n)
{
    use_memory m = {n, device_make(n), device_make(n), pinned_make(n), use_stream_make()};
    return m;
}

void use_memory_end(use_memory *m)
{
    use_finish(m->stream);
    cudaStreamDestroy(m->stream);
    cudaFree(m->src);
    cudaFree(m->dst);
    cudaFreeHost(m->host);
}
