/* The stand-in for NCCL's operations (sim_nccl.h): groups of calls, what is checked of them, and their way onto a stream. */
#include "tests/cudasim/runtime/sim_nccl.h"

#include <algorithm>
#include <string>

#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_memory.h"
#include "tests/cudasim/runtime/sim_nccl_comm.h"

enum { MOST_POLLS = 3 };

/* The calls of a group on one communicator. */
struct pending {
    ncclComm_t comm;
    cudaStream_t stream;
    std::vector<sim_nccl_call> calls;
};

static thread_local int depth; /* of ncclGroupStart */
static thread_local std::vector<pending> group;

static bool is_collective(const sim_nccl_call &call)
{
    return call.kind != SIM_NCCL_SEND && call.kind != SIM_NCCL_RECV;
}

/* ---- checks of a call ---- */

static bool overlap(sim_range a, sim_range b)
{
    const char *first = (const char *)a.begin, *second = (const char *)b.begin;
    return a.bytes > 0 && b.bytes > 0 && first < second + b.bytes && second < first + a.bytes;
}

static void check_memory(const sim_nccl_call *call, sim_range range)
{
    if (range.bytes > 0 && sim_memory_side(range.begin, range.bytes) != SIM_DEVICE)
        cudasim_fail("nccl: %s: %p ... %zu bytes is not in one living allocation of device memory",
                     sim_nccl_call_name(call->kind), range.begin, range.bytes);
}

/* What may be read and written by one call: only its own place. */
static void check_in_place(const sim_nccl_call *call, const sim_nccl_link *link)
{
    sim_range reads = sim_nccl_reads(call, link->num_ranks);
    sim_range writes = sim_nccl_writes(call, link->num_ranks);
    size_t own = (size_t)link->rank * call->count * sim_nccl_type_bytes(call->type);
    bool in_place = call->kind == SIM_NCCL_ALL_GATHER       ? call->src == call->dst + own
                    : call->kind == SIM_NCCL_REDUCE_SCATTER ? call->dst == call->src + own
                                                            : call->src == call->dst;
    if (overlap(reads, writes) && !in_place)
        cudasim_fail("nccl: %s: its source and its destination overlap, and are not in place",
                     sim_nccl_call_name(call->kind));
}

static ncclResult_t check_arguments(const sim_nccl_call *call, const sim_nccl_link *link)
{
    const char *name = sim_nccl_call_name(call->kind);
    if (sim_nccl_type_bytes(call->type) == 0)
        return sim_nccl_error(ncclInvalidArgument, "%s: no data type %d", name, (int)call->type);
    if (call->peer < 0 || call->peer >= link->num_ranks)
        return sim_nccl_error(ncclInvalidArgument, "%s: no %s %d among %d ranks", name,
                              call->kind == SIM_NCCL_REDUCE ? "root" : "peer", call->peer,
                              link->num_ranks);
    bool sums = sim_nccl_is_sum(call->kind);
    if (sums && ((int)call->op < 0 || call->op >= ncclNumOps))
        return sim_nccl_error(ncclInvalidArgument, "%s: no operation %d", name, (int)call->op);
    if (sums && (call->type != ncclFloat32 || (call->op != ncclSum && call->op != ncclMax)))
        cudasim_fail("nccl: %s of other than float32, sum or max, is not simulated", name);
    return ncclSuccess;
}

/* ---- checks of a group ---- */

/* Two calls of a group run at once. */
static void check_ranges(const std::vector<pending> &all)
{
    std::vector<std::pair<const sim_nccl_call *, int>> calls;
    for (const pending &p : all)
        for (const sim_nccl_call &call : p.calls)
            calls.push_back({&call, p.comm->link->num_ranks});
    for (size_t i = 0; i < calls.size(); i++)
        for (size_t j = 0; j < calls.size(); j++) {
            sim_range writes = sim_nccl_writes(calls[i].first, calls[i].second);
            if (i != j && (overlap(writes, sim_nccl_reads(calls[j].first, calls[j].second)) ||
                           overlap(writes, sim_nccl_writes(calls[j].first, calls[j].second))))
                cudasim_fail("nccl: in one group %s writes what %s uses",
                             sim_nccl_call_name(calls[i].first->kind),
                             sim_nccl_call_name(calls[j].first->kind));
        }
}

static void check_kinds(const std::vector<pending> &all, const pending *p)
{
    for (const pending &other : all)
        if (&other != p && other.stream == p->stream)
            cudasim_fail("nccl: calls on several communicators and one stream in one group are not "
                         "simulated");
    for (const sim_nccl_call &call : p->calls)
        if (is_collective(call) != is_collective(p->calls.front()))
            cudasim_fail("nccl: collectives beside sends and receives in one group are not "
                         "simulated");
}

/* ---- onto the stream ---- */

static cudaError_t enqueue(const pending *p)
{
    std::shared_ptr<sim_nccl_link> link = p->comm->link;
    std::vector<sim_range> ranges;
    for (const sim_nccl_call &call : p->calls) {
        ranges.push_back(sim_nccl_reads(&call, link->num_ranks));
        ranges.push_back(sim_nccl_writes(&call, link->num_ranks));
    }
    const char *name = sim_nccl_call_name(p->calls.front().kind);
    return sim_enqueue_shared(p->stream, name, ranges.data(), (int)ranges.size(),
                              sim_nccl_work(link, p->calls));
}

/* At once, or later: the caller has to ask. */
static ncclResult_t hand_in(const pending &p)
{
    bool connects = false;
    for (const sim_nccl_call &call : p.calls)
        connects = sim_nccl_comm_must_connect(p.comm, &call) || connects;
    if (connects || sim_draw(2) == 0) {
        p.comm->connecting = connects;
        p.comm->stream = p.stream;
        p.comm->enqueue = [p] { return enqueue(&p); };
        p.comm->polls_left = 1 + (int)sim_draw(MOST_POLLS);
        sim_stream_claim(p.stream, sim_nccl_call_name(p.calls.front().kind));
        return ncclInProgress;
    }
    cudaError_t error = enqueue(&p);
    if (error != cudaSuccess)
        return sim_nccl_error(ncclUnhandledCudaError, "%s", cudaGetErrorString(error));
    return ncclSuccess;
}

bool sim_nccl_in_group()
{
    return depth > 0;
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    if (depth == 0)
        return sim_nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--depth > 0)
        return ncclSuccess;
    std::vector<pending> all = std::move(group);
    group.clear();
    check_ranges(all);
    ncclResult_t result = ncclSuccess;
    for (const pending &p : all) {
        check_kinds(all, &p);
        ncclResult_t one = hand_in(p);
        if (result == ncclSuccess || (result == ncclInProgress && one != ncclSuccess))
            result = one;
    }
    return result;
}

/* ---- calls ---- */

static void group_add(ncclComm_t comm, cudaStream_t stream, const sim_nccl_call &call)
{
    auto at =
        std::find_if(group.begin(), group.end(), [=](const pending &p) { return p.comm == comm; });
    if (at == group.end())
        at = group.insert(group.end(), {comm, stream, {}});
    if (at->stream != stream)
        cudasim_fail("nccl: calls on one communicator and several streams in one group are not "
                     "simulated");
    at->calls.push_back(call);
}

static ncclResult_t call_add(sim_nccl_call call, ncclComm_t comm, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    const char *name = sim_nccl_call_name(call.kind);
    ncclResult_t result = sim_nccl_comm_enter(comm, name);
    if (result == ncclSuccess)
        result = check_arguments(&call, comm->link.get());
    if (result != ncclSuccess)
        return result;
    if (call.kind == SIM_NCCL_REDUCE && call.peer != comm->link->rank)
        call.dst = NULL;
    sim_stream_check(stream, name);
    check_memory(&call, sim_nccl_reads(&call, comm->link->num_ranks));
    check_memory(&call, sim_nccl_writes(&call, comm->link->num_ranks));
    check_in_place(&call, comm->link.get());
    ncclGroupStart();
    group_add(comm, stream, call);
    return ncclGroupEnd();
}

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_add({SIM_NCCL_SEND, (const unsigned char *)src, NULL, count, type, ncclSum, peer},
                    comm, stream);
}

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_add({SIM_NCCL_RECV, NULL, (unsigned char *)dst, count, type, ncclSum, peer}, comm,
                    stream);
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t sendcount, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_add({SIM_NCCL_ALL_GATHER, (const unsigned char *)src, (unsigned char *)dst,
                     sendcount, type, ncclSum, 0},
                    comm, stream);
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return call_add(
        {SIM_NCCL_REDUCE, (const unsigned char *)src, (unsigned char *)dst, count, type, op, root},
        comm, stream);
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t recvcount, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call_add({SIM_NCCL_REDUCE_SCATTER, (const unsigned char *)src, (unsigned char *)dst,
                     recvcount, type, op, 0},
                    comm, stream);
}
