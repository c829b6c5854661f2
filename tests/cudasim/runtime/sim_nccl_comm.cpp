#include "tests/cudasim/runtime/sim_nccl_comm.h"

#include <algorithm>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cudasim/runtime/sim_device.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_nccl.h"

enum { MOST_POLLS = 4, SMALL_BYTES = 1024 };
static const double look_s = 0.02; /* between looks at the other processes */

/* Lives until the process ends. */
static std::vector<ncclComm_t> &comms()
{
    static std::vector<ncclComm_t> *the_comms = new std::vector<ncclComm_t>();
    return *the_comms;
}

static char last_error[256];

ncclResult_t sim_nccl_error(ncclResult_t result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return result;
}

static double seconds()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Read at the first use, as NCCL does: a variable that is set later changes nothing. */
static const char *variable_once(const char *name, std::string *text, bool *known)
{
    const char *value = getenv(name);
    if (!*known && value != NULL)
        *text = value;
    *known = true;
    return text->c_str();
}

static const char *host_name()
{
    static std::string text;
    static bool known;
    return variable_once("NCCL_HOSTID", &text, &known);
}

static bool shares_gpus()
{
    static std::string text;
    static bool known;
    int version;
    ncclGetVersion(&version);
    return strcmp(variable_once("NCCL_MULTI_RANK_GPU_ENABLE", &text, &known), "1") == 0 &&
           version >= 23003;
}

/* Whether ranks connect for all that a communicator can do when it is made. */
static bool connects_at_once()
{
    static std::string text;
    static bool known;
    return strcmp(variable_once("NCCL_RUNTIME_CONNECT", &text, &known), "0") == 0;
}

static void variables_read()
{
    host_name();
    shares_gpus();
    connects_at_once();
}

void sim_nccl_comm_check(ncclComm_t comm, const char *call)
{
    if (std::find(comms().begin(), comms().end(), comm) == comms().end())
        cudasim_fail("nccl: %s: communicator %p is not alive", call, (void *)comm);
}

ncclResult_t sim_nccl_comm_enter(ncclComm_t comm, const char *call)
{
    sim_nccl_comm_check(comm, call);
    if (comm->failed != ncclSuccess)
        return comm->failed;
    if (comm->stage == STAGE_INIT || comm->polls_left > 0)
        cudasim_fail("nccl: %s on a communicator whose last call is in progress: "
                     "ncclCommGetAsyncError has not said ncclSuccess",
                     call);
    if (comm->stage != STAGE_READY)
        cudasim_fail("nccl: %s on a communicator that was finalized", call);
    return ncclSuccess;
}

/* ---- the beginning ---- */

ncclResult_t ncclGetVersion(int *version)
{
    const char *told = getenv("CUDASIM_NCCL_VERSION");
    *version = told != NULL ? atoi(told) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    variables_read();
    if (!sim_nccl_id_make(id))
        return sim_nccl_error(ncclSystemError, "no memory to share");
    return ncclSuccess;
}

/* Takes the rank's place in the segment. */
static void come(sim_nccl_link *link)
{
    int32_t none = 0, pid = getpid();
    sim_nccl_segment *segment = link->segment;
    if (!segment->num_ranks.compare_exchange_strong(none, link->num_ranks) &&
        none != link->num_ranks)
        cudasim_fail("nccl: ncclCommInitRankConfig for %d ranks, another rank said %d",
                     link->num_ranks, none);
    sim_nccl_rank *self = &segment->ranks[link->rank];
    none = 0;
    if (!self->pid.compare_exchange_strong(none, pid))
        cudasim_fail("nccl: ncclCommInitRankConfig: two processes are rank %d of %d", link->rank,
                     link->num_ranks);
    snprintf(self->host, sizeof self->host, "%s", host_name());
    cudaGetDevice(&self->device);
    self->ready = true;
}

static void check_no_group(const char *call)
{
    if (sim_nccl_in_group())
        cudasim_fail("nccl: %s in a group is not simulated", call);
}

static void check_config(const ncclConfig_t *config)
{
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (config == NULL || config->blocking != 0)
        cudasim_fail("nccl: a communicator without config.blocking = 0 is not simulated");
    if (config->size != fresh.size || config->magic != fresh.magic)
        cudasim_fail("nccl: config was not made by NCCL_CONFIG_INITIALIZER");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    variables_read();
    check_no_group("ncclCommInitRankConfig");
    check_config(config);
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return sim_nccl_error(ncclInvalidArgument, "rank %d of %d", rank, nranks);
    if (nranks > SIM_NCCL_RANKS)
        cudasim_fail("nccl: more than %d ranks are not simulated", (int)SIM_NCCL_RANKS);
    if (sim_lost() != cudaSuccess)
        return sim_nccl_error(ncclUnhandledCudaError, "%s", cudaGetErrorString(sim_lost()));
    sim_nccl_segment *segment = sim_nccl_segment_map(&id, nranks);
    if (segment == NULL)
        return sim_nccl_error(ncclSystemError, "the process that made the unique id has ended");
    sim_check_at_exit();
    sim_progress_start();
    ncclComm *made = new ncclComm();
    made->link.reset(new sim_nccl_link{segment, nranks, rank, 0, 0, false, false});
    made->id = id;
    made->polls_left = 1 + (int)sim_draw(MOST_POLLS);
    come(made->link.get());
    comms().push_back(made);
    *comm = made;
    return ncclInProgress;
}

static bool all_ranks(const sim_nccl_link *link, bool (*is)(const sim_nccl_rank *rank))
{
    for (int r = 0; r < link->num_ranks; r++)
        if (!is(&link->segment->ranks[r]))
            return false;
    return true;
}

static ncclResult_t check_gpus(const sim_nccl_link *link)
{
    const sim_nccl_rank *ranks = link->segment->ranks;
    for (int a = 0; a < link->num_ranks && !shares_gpus(); a++)
        for (int b = 0; b < a; b++)
            if (ranks[a].device == ranks[b].device && strcmp(ranks[a].host, ranks[b].host) == 0)
                return sim_nccl_error(ncclInvalidUsage,
                                      "Duplicate GPU detected : rank %d and rank %d both on "
                                      "CUDA device %d",
                                      b, a, ranks[a].device);
    return ncclSuccess;
}

/* ---- what goes on ---- */

/* A process that has ended without having finalized is lost to the others. */
static ncclResult_t check_peers(ncclComm_t comm)
{
    double now = seconds();
    if (now - comm->looked < look_s)
        return ncclSuccess;
    comm->looked = now;
    const sim_nccl_rank *ranks = comm->link->segment->ranks;
    for (int r = 0; r < comm->link->num_ranks; r++) {
        int pid = ranks[r].pid;
        if (pid != 0 && !ranks[r].finalized && !sim_process_is_alive(pid))
            return sim_nccl_error(ncclRemoteError, "rank %d: its process has ended", r);
    }
    return ncclSuccess;
}

static ncclResult_t advance_init(ncclComm_t comm)
{
    if (!all_ranks(comm->link.get(), [](const sim_nccl_rank *r) { return r->ready.load(); }) ||
        --comm->polls_left > 0)
        return ncclInProgress;
    sim_nccl_id_release(&comm->id);
    comm->failed = check_gpus(comm->link.get());
    comm->stage = STAGE_READY;
    return comm->failed;
}

static bool all_connect(const sim_nccl_link *link)
{
    return all_ranks(link, [](const sim_nccl_rank *r) { return r->connects.load(); });
}

bool sim_nccl_comm_must_connect(ncclComm_t comm, const sim_nccl_call *call)
{
    bool collective = call->kind != SIM_NCCL_SEND && call->kind != SIM_NCCL_RECV;
    if (connects_at_once() || !collective ||
        call->count * sim_nccl_type_bytes(call->type) <= SMALL_BYTES)
        return false;
    comm->link->segment->ranks[comm->link->rank].connects = true;
    return !all_connect(comm->link.get());
}

static ncclResult_t advance_call(ncclComm_t comm)
{
    if (comm->connecting && !all_connect(comm->link.get()))
        return ncclInProgress;
    if (--comm->polls_left > 0)
        return ncclInProgress;
    comm->connecting = false;
    sim_stream_claim(comm->stream, NULL);
    std::function<cudaError_t()> enqueue = std::move(comm->enqueue);
    comm->enqueue = nullptr;
    cudaError_t error = enqueue();
    if (error != cudaSuccess)
        comm->failed = sim_nccl_error(ncclUnhandledCudaError, "%s", cudaGetErrorString(error));
    return comm->failed;
}

static ncclResult_t advance_finalize(ncclComm_t comm)
{
    const sim_nccl_link *link = comm->link.get();
    if (link->num_done != link->num_made)
        return ncclInProgress;
    link->segment->ranks[link->rank].finalized = true;
    if (!all_ranks(link, [](const sim_nccl_rank *r) { return r->finalized.load(); }) ||
        --comm->polls_left > 0)
        return ncclInProgress;
    comm->stage = STAGE_FINALIZED;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_nccl_comm_check(comm, "ncclCommGetAsyncError");
    if (comm->failed == ncclSuccess && sim_lost() != cudaSuccess)
        comm->failed = sim_nccl_error(ncclUnhandledCudaError, "%s", cudaGetErrorString(sim_lost()));
    if (comm->failed == ncclSuccess && comm->stage != STAGE_FINALIZED)
        comm->failed = check_peers(comm);
    if (comm->failed != ncclSuccess)
        *result = comm->failed;
    else if (comm->stage == STAGE_INIT)
        *result = advance_init(comm);
    else if (comm->stage == STAGE_FINALIZING)
        *result = advance_finalize(comm);
    else
        *result = comm->polls_left > 0 ? advance_call(comm) : ncclSuccess;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",         "a CUDA call failed", "a system call failed", "internal error",
        "invalid argument", "invalid usage",      "a rank has ended",     "in progress"};
    return (int)result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

/* ---- the end ---- */

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    check_no_group("ncclCommFinalize");
    ncclResult_t entered = sim_nccl_comm_enter(comm, "ncclCommFinalize");
    if (entered != ncclSuccess)
        return entered;
    comm->stage = STAGE_FINALIZING;
    comm->polls_left = 1 + (int)sim_draw(MOST_POLLS);
    return ncclInProgress;
}

static void drop(ncclComm_t comm)
{
    comms().erase(std::find(comms().begin(), comms().end(), comm));
    delete comm;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_nccl_comm_check(comm, "ncclCommDestroy");
    if (comm->stage != STAGE_FINALIZED)
        cudasim_fail("nccl: ncclCommDestroy of a communicator that is not finalized; one that has "
                     "failed is aborted");
    drop(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_nccl_comm_check(comm, "ncclCommAbort");
    if (comm->enqueue != nullptr)
        sim_stream_claim(comm->stream, NULL);
    comm->link->aborted = true;
    drop(comm);
    return ncclSuccess;
}

/* ---- for tests ---- */

void cudasim_nccl_fail_all(ncclResult_t error)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    for (ncclComm_t comm : comms()) {
        comm->failed = sim_nccl_error(error, "failed by a test");
        comm->link->stuck = true;
    }
}

int64_t cudasim_nccl_count(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    return (int64_t)comms().size();
}
