/* The stand-in for NCCL: what is wrong and NCCL would see is a result here, and what it would not see ends a process with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cudasim/sim_nccl_use.h"

/* ---- results that say what is wrong ---- */

/* A process that ends is seen by the others, whose work does not end. */
static void lost_rank(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(8);
    if (ranks->rank != 1)
        use_called(comm, ncclAllGather(m.src, m.dst, 1, ncclFloat32, comm, m.stream));
    sim_ranks_barrier(ranks);
    if (ranks->rank == 1)
        _exit(0);
    ncclResult_t state = ncclSuccess;
    for (int tries = 0; state == ncclSuccess && tries < 5000; tries++, use_nap_ms(1))
        SIM_MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    SIM_MUST(state == ncclRemoteError);
    SIM_MUST(strcmp(ncclGetLastError(comm), "rank 1: its process has ended") == 0);
    SIM_MUST(cudaStreamQuery(m.stream) == cudaErrorNotReady);
    SIM_MUST(ncclSend(m.src, 1, ncclFloat32, 0, comm, m.stream) == ncclRemoteError);
    SIM_MUST(ncclCommAbort(comm) == ncclSuccess);
    use_memory_end(&m);
}

/* A rank that ends while the others begin, and a test that says so. */
static void lost_early(const sim_ranks *ranks)
{
    if (ranks->rank == 1)
        _exit(0);
    ncclComm_t comm = use_comm_begin(ranks, 0), other;
    for (int tries = 0; tries < 20; tries++, use_nap_ms(1)) {
        ncclResult_t state;
        SIM_MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress);
    }
    cudasim_nccl_fail_all(ncclSystemError);
    SIM_MUST(use_settle(comm) == ncclSystemError);
    SIM_MUST(ncclCommAbort(comm) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    SIM_MUST(ncclCommInitRankConfig(&other, 2, ranks->shared->ids[1], 2, &config) ==
             ncclInvalidArgument);
    SIM_MUST(cudasim_nccl_count() == 0);
}

static void arguments(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(8);
    SIM_MUST(ncclSend(m.src, 1, ncclFloat32, 2, comm, m.stream) == ncclInvalidArgument);
    SIM_MUST(strstr(ncclGetLastError(comm), "no peer 2 among 2 ranks") != NULL);
    SIM_MUST(ncclReduce(m.src, m.dst, 1, ncclFloat32, ncclSum, 2, comm, m.stream) ==
             ncclInvalidArgument);
    SIM_MUST(strstr(ncclGetLastError(comm), "no root 2 among 2 ranks") != NULL);
    SIM_MUST(ncclRecv(m.src, 1, ncclNumTypes, 0, comm, m.stream) == ncclInvalidArgument);
    SIM_MUST(ncclGroupEnd() == ncclInvalidUsage);
    use_called(comm, ncclAllGather(m.src, m.dst, 1, ncclFloat32, comm, m.stream));
    use_comm_end(comm);
    use_memory_end(&m);
}

static ncclResult_t begin_on_one_gpu(const sim_ranks *ranks)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.blocking = 0;
    SIM_MUST(cudaSetDevice(0) == cudaSuccess);
    SIM_MUST(ncclCommInitRankConfig(&comm, ranks->num_ranks, ranks->shared->ids[0], ranks->rank,
                                    &config) == ncclInProgress);
    ncclResult_t state = use_settle(comm);
    SIM_MUST(ncclCommAbort(comm) == ncclSuccess);
    return state;
}

static void one_gpu(const sim_ranks *ranks)
{
    SIM_MUST(begin_on_one_gpu(ranks) == ncclInvalidUsage);
    SIM_MUST(strstr(ncclGetLastError(NULL), "Duplicate GPU") != NULL);
}

static void one_gpu_hosts(const sim_ranks *ranks)
{
    setenv("NCCL_HOSTID", ranks->rank == 0 ? "a" : "b", 1);
    SIM_MUST(begin_on_one_gpu(ranks) == ncclSuccess);
}

static void one_gpu_hosts_late(const sim_ranks *ranks)
{
    ncclUniqueId id;
    SIM_MUST(ncclGetUniqueId(&id) == ncclSuccess);
    setenv("NCCL_HOSTID", ranks->rank == 0 ? "a" : "b", 1);
    SIM_MUST(begin_on_one_gpu(ranks) == ncclInvalidUsage);
}

static void one_gpu_allowed(const sim_ranks *ranks)
{
    SIM_MUST(begin_on_one_gpu(ranks) == ncclSuccess);
}

static void test_results(void **state)
{
    (void)state;
    sim_ranks_run("a rank is lost", 3, lost_rank);
    sim_ranks_run("a rank is lost early", 2, lost_early);
    sim_ranks_run("arguments", 2, arguments);
    sim_ranks_run("two ranks on one GPU", 2, one_gpu);
    sim_ranks_run("two ranks on one GPU, as two hosts", 2, one_gpu_hosts);
    sim_ranks_run("two ranks on one GPU, as two hosts too late", 2, one_gpu_hosts_late);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    sim_ranks_run("two ranks on one GPU, which this version refuses", 2, one_gpu);
    setenv("CUDASIM_NCCL_VERSION", "23003", 1);
    sim_ranks_run("two ranks on one GPU, which this version allows", 2, one_gpu_allowed);
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    sim_ranks_run("two ranks on one GPU, which nobody asked for", 2, one_gpu);
    unsetenv("CUDASIM_NCCL_VERSION");
}

/* ---- misuse ---- */

typedef struct place {
    ncclComm_t comm;
    use_memory m;
} place;

static place place_make(const sim_ranks *ranks)
{
    place p = {use_comm_make(ranks, 0), use_memory_make(16)};
    return p;
}

static void counts_differ(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    use_called(p.comm, ncclAllGather(p.m.src, p.m.dst, (size_t)(2 + ranks->rank), ncclFloat32,
                                     p.comm, p.m.stream));
    use_finish(p.m.stream);
}

static void calls_differ(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    if (ranks->rank == 0)
        use_called(p.comm, ncclSend(p.m.src, 2, ncclFloat32, 1, p.comm, p.m.stream));
    else
        use_called(p.comm,
                   ncclReduce(p.m.src, p.m.dst, 2, ncclFloat32, ncclSum, 1, p.comm, p.m.stream));
    use_finish(p.m.stream);
}

static void types_differ(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    if (ranks->rank == 0)
        use_called(p.comm, ncclSend(p.m.src, 2, ncclFloat32, 1, p.comm, p.m.stream));
    else
        use_called(p.comm, ncclRecv(p.m.src, 2, ncclInt32, 0, p.comm, p.m.stream));
    use_finish(p.m.stream);
}

/* Calls until one is in progress. */
static place in_progress(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    while (ncclAllGather(p.m.src, p.m.dst, 1, ncclFloat32, p.comm, p.m.stream) == ncclSuccess)
        SIM_MUST(use_settle(p.comm) == ncclSuccess);
    return p;
}

static void stream_used_early(const sim_ranks *ranks)
{
    place p = in_progress(ranks);
    use_copy(p.m.dst, p.m.src, 1, p.m.stream);
}

static void event_recorded_early(const sim_ranks *ranks)
{
    place p = in_progress(ranks);
    use_mark(p.m.stream);
}

static void comm_used_early(const sim_ranks *ranks)
{
    place p = in_progress(ranks);
    ncclAllGather(p.m.src, p.m.dst, 1, ncclFloat32, p.comm, p.m.stream);
}

static void comm_used_before_ready(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_begin(ranks, 0);
    use_memory m = use_memory_make(8);
    ncclAllGather(m.src, m.dst, 1, ncclFloat32, comm, m.stream);
}

static void comm_used_finalized(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    use_called(p.comm, ncclCommFinalize(p.comm));
    ncclAllGather(p.m.src, p.m.dst, 1, ncclFloat32, p.comm, p.m.stream);
}

static void comm_destroyed_early(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    ncclCommDestroy(p.comm);
}

static void comm_used_after(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    use_comm_end(p.comm);
    ncclSend(p.m.src, 1, ncclFloat32, 0, p.comm, p.m.stream);
}

static void comm_left(const sim_ranks *ranks)
{
    use_comm_make(ranks, 0);
}

static void host_memory(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    ncclSend(p.m.host, 1, ncclFloat32, 0, p.comm, p.m.stream);
}

static void memory_passed(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    ncclAllGather(p.m.src, p.m.dst, 18, ncclFloat32, p.comm, p.m.stream);
}

static void memory_shifted(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    ncclAllGather(p.m.src, p.m.src + 1, 4, ncclFloat32, p.comm, p.m.stream);
}

static void memory_twice(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    ncclGroupStart();
    ncclSend(p.m.src, 4, ncclFloat32, 0, p.comm, p.m.stream);
    ncclRecv(p.m.src + 3, 4, ncclFloat32, 0, p.comm, p.m.stream);
    ncclGroupEnd();
}

/* The memory is freed while the work is queued. */
static void memory_freed(const sim_ranks *ranks)
{
    place p = place_make(ranks);
    use_called(p.comm, ncclRecv(p.m.dst, 1, ncclFloat32, 0, p.comm, p.m.stream));
    cudaFree(p.m.dst);
}

static void ranks_twice(const sim_ranks *ranks)
{
    const sim_ranks twice = {ranks->num_ranks, 0, ranks->shared};
    use_comm_begin(&twice, 0);
    sim_ranks_barrier(ranks);
}

static void sizes_differ(const sim_ranks *ranks)
{
    const sim_ranks other = {2 + ranks->rank, ranks->rank, ranks->shared};
    use_comm_begin(&other, 0);
    sim_ranks_barrier(ranks);
}

static void blocking(const sim_ranks *ranks)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclCommInitRankConfig(&comm, 2, ranks->shared->ids[0], ranks->rank, &config);
}

static const struct {
    const char *name;
    sim_ranks_body body;
    const char *words;
} misuses[] = {
    {"other counts", counts_differ, "calls ncclAllGather of"},
    {"other calls", calls_differ,
     "rank 0 of a communicator of 2 calls ncclSend of 2 float32 where rank 1 calls ncclReduce "
     "of 2 float32, sum"},
    {"other types", types_differ,
     "calls ncclSend of 2 float32 where rank 1 calls ncclRecv of 2 int32"},
    {"the stream, too early", stream_used_early,
     "cudaMemcpyAsync on a stream on which ncclAllGather has yet to enqueue"},
    {"an event, too early", event_recorded_early,
     "cudaEventRecord on a stream on which ncclAllGather has yet to enqueue"},
    {"another call, too early", comm_used_early, "whose last call is in progress"},
    {"a call before all have come", comm_used_before_ready, "whose last call is in progress"},
    {"a call after the last one", comm_used_finalized, "a communicator that was finalized"},
    {"destroyed and not finalized", comm_destroyed_early, "that is not finalized"},
    {"used after its end", comm_used_after, "is not alive"},
    {"left", comm_left, "1 communicators that nobody destroyed"},
    {"host memory", host_memory, "is not in one living allocation of device memory"},
    {"more than its memory", memory_passed, "is not in one living allocation of device memory"},
    {"not quite in place", memory_shifted, "its source and its destination overlap"},
    {"twice in a group", memory_twice, "in one group ncclRecv writes what ncclSend uses"},
    {"memory freed too early", memory_freed, "ncclRecv, which is still queued, may use it"},
    {"two processes with one rank", ranks_twice, "two processes are rank 0 of 2"},
    {"other sizes", sizes_differ, "another rank said"},
    {"blocking", blocking, "without config.blocking = 0 is not simulated"},
};

static void test_misuse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof misuses / sizeof misuses[0]; i++)
        sim_ranks_expect(misuses[i].name, 2, misuses[i].body, misuses[i].words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_results),
                                       cmocka_unit_test(test_misuse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
