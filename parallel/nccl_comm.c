#include "parallel/nccl_comm.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"

enum { NUMBER_BITS = 12, MULTI_RANK_VERSION = 23003 };

static const double close_seconds = 10; /* that a good end may take */

/* ---- the library ---- */

typedef struct variable {
    const char *name, *value;
} variable;

/* NCCL's own way for ranks that share a GPU. */
static const variable new_way[] = {
    {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MAX_CTAS", "1"}};

/* Before it had one: each rank has a host of its own, and talks to the others by sockets. Few threads, and none that poll for small messages, since the ranks
 * take turns on the GPU. */
static const variable old_way[] = {{"NCCL_NET", "Socket"},     {"NCCL_IB_DISABLE", "1"},
                                   {"NCCL_P2P_DISABLE", "1"},  {"NCCL_SHM_DISABLE", "1"},
                                   {"NCCL_NVLS_ENABLE", "0"},  {"NCCL_MNNVL_ENABLE", "0"},
                                   {"NCCL_CUMEM_ENABLE", "0"}, {"NCCL_MAX_CTAS", "1"},
                                   {"NCCL_ALGO", "Ring"},      {"NCCL_PROTO", "Simple"}};

static void variables_set(const variable *variables, size_t count)
{
    for (size_t i = 0; i < count; i++)
        setenv(variables[i].name, variables[i].value, 0);
}

/* Before the first communicator: NCCL reads its variables once. */
static void share_set(const tr_world *world, int version)
{
    char host[32];
    bool own_way = version >= MULTI_RANK_VERSION;
    if (own_way) {
        variables_set(new_way, sizeof new_way / sizeof new_way[0]);
    } else {
        variables_set(old_way, sizeof old_way / sizeof old_way[0]);
        snprintf(host, sizeof host, "rank%d", world->rank);
        setenv("NCCL_HOSTID", host, 0);
        if (world->num_nodes == 1)
            setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    }
    if (world->rank == 0)
        tr_log_info("ranks share GPUs: NCCL %d.%d.%d is set up for it by %s, which is slow",
                    version / 10000, version / 100 % 100, version % 100,
                    own_way ? "NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1"
                            : "a host name for each rank (NCCL_HOSTID), sockets (NCCL_NET=Socket) "
                              "and NCCL_MAX_CTAS=1");
}

/* Before the first communicator, too. Ranks connect for all that NCCL may choose when they make one. Else each kind of algorithm connects them at its first use, and NCCL takes one
 * for small operations and another for large ones: the first large one of a step would have its post wait for the other ranks' posts, and take memory that nobody has counted. */
static void connect_set(void)
{
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

static size_t probe_bytes(const tr_world *world)
{
    return TR_NCCL_PROBE + (size_t)world->size * sizeof(float);
}

tr_status tr_nccl_open(tr_world *world, bool shares_device)
{
    const tr_nccl *table;
    int version = 0;
    TR_TRY(tr_nccl_library(&table));
    if (table->GetVersion(&version) != ncclSuccess)
        return tr_fail(TR_ERR_TRANSPORT, "NCCL does not tell its version");
    connect_set();
    if (shares_device)
        share_set(world, version);
    world->nccl_version = version;
    world->nccl = TR_NEW(tr_nccl_world);
    world->nccl->table = table;
    return world->device->memory_create(world->device, TR_MEMORY_DEVICE, probe_bytes(world),
                                        (void **)&world->nccl->probe);
}

void tr_nccl_close(tr_world *world)
{
    TR_ASSERT(world->nccl->first == NULL);
    if (world->nccl->probe != NULL)
        world->device->memory_destroy(world->device, TR_MEMORY_DEVICE, world->nccl->probe,
                                      probe_bytes(world));
    tr_free(world->nccl);
    world->nccl = NULL;
}

/* ---- results ---- */

/* The failure of `comm`, which may be NULL. */
static tr_status failed(tr_nccl_comm *comm, ncclResult_t result, const char *call)
{
    const tr_group *group = comm->group;
    const tr_nccl *table = tr_nccl_of(group);
    const char *more = table->GetLastError(comm->comm);
    group->world->device_failed = true;
    return tr_fail(TR_ERR_TRANSPORT,
                   "NCCL failed in group %s, at its rank %d of %d (world rank %d): %s%s%s\nin %s",
                   group->name, group->rank, group->size, group->world->rank,
                   table->GetErrorString(result), more != NULL && more[0] != '\0' ? ": " : "",
                   more != NULL ? more : "", call);
}

tr_status tr_nccl_result(tr_nccl_comm *comm, ncclResult_t result, const char *call)
{
    return result == ncclSuccess || result == ncclInProgress ? TR_OK : failed(comm, result, call);
}

/* Whether NCCL still works on the last call; its failure since then, too. */
static tr_status ask(tr_nccl_comm *comm, const char *call, bool *working)
{
    ncclResult_t state = ncclSuccess;
    TR_TRY(
        tr_nccl_result(comm, tr_nccl_of(comm->group)->CommGetAsyncError(comm->comm, &state), call));
    *working = state == ncclInProgress;
    return tr_nccl_result(comm, state, call);
}

/* Waits until NCCL has done its part of `call`, for `seconds` at most. */
static tr_status settle(tr_nccl_comm *comm, const char *call, double seconds)
{
    tr_world *world = comm->group->world;
    tr_waiter waiter;
    tr_waiter_begin(&waiter, world, call, comm->group->name, -1, -1);
    tr_status status = TR_OK;
    for (;;) {
        bool working = false, expired = false;
        tr_waiter_look(&waiter);
        TR_TRY_GOTO(status, ask(comm, call, &working), end);
        if (!working)
            break;
        TR_TRY_GOTO(status, tr_waiter_pause(&waiter, true, &expired), end);
        if (expired || tr_clock_seconds() - waiter.start > seconds) {
            world->device_failed = true;
            status = tr_fail(
                TR_ERR_TIMEOUT,
                "timed out after %.1f s in NCCL's %s of group %s, at its rank %d of %d (world "
                "rank %d): another rank of the group has not arrived, or was lost",
                tr_clock_seconds() - waiter.start, call, comm->group->name, comm->group->rank,
                comm->group->size, world->rank);
            break;
        }
    }
end:
    tr_waiter_end(&waiter);
    return status;
}

tr_status tr_nccl_check_all(tr_world *world)
{
    for (tr_nccl_comm *comm = world->nccl->first; comm != NULL; comm = comm->next) {
        bool working;
        TR_TRY(ask(comm, "CommGetAsyncError", &working));
    }
    return TR_OK;
}

tr_status tr_nccl_begin(tr_nccl_comm *comm)
{
    return tr_nccl_result(comm, tr_nccl_of(comm->group)->GroupStart(), "GroupStart");
}

tr_status tr_nccl_end(tr_nccl_comm *comm, tr_status status)
{
    ncclResult_t result = tr_nccl_of(comm->group)->GroupEnd();
    TR_TRY(status);
    TR_TRY(tr_nccl_result(comm, result, "GroupEnd"));
    return settle(comm, "GroupEnd", comm->group->world->timeout_s);
}

/* ---- life ---- */

/* What the first member sends to the others. */
typedef struct invitation {
    ncclUniqueId id;
    int made;
} invitation;

static tr_status invite(tr_group *group, const int *members, int num_members, int tag,
                        const invitation *message)
{
    for (int m = 1; m < num_members; m++) {
        MPI_Request request;
        TR_MPI(MPI_Isend(message, sizeof *message, MPI_BYTE, group->ranks[members[m]], tag,
                         group->world->comm, &request));
        TR_TRY(tr_world_wait_request(group->world, &request, "sending NCCL's unique id"));
    }
    return TR_OK;
}

/* Of the messages that begin communicator `number` of a group. Tags may come again where a job has many groups and MPI few tags (32767 is what it guarantees): all ranks make
 * communicators in one order, and MPI keeps the order of two ranks' messages. */
static int tag_of(const tr_group *group, int number)
{
    return group->index % (group->world->max_tag >> NUMBER_BITS) << NUMBER_BITS | number;
}

/* The unique id that all members start from, made by the first one. */
static tr_status id_get(tr_nccl_comm *comm, const int *members, int num_members, int number,
                        ncclUniqueId *id)
{
    tr_group *group = comm->group;
    int tag = tag_of(group, number);
    if (number >> NUMBER_BITS != 0)
        return tr_fail(TR_ERR_TRANSPORT, "group %s: more than %d communicators", group->name,
                       1 << NUMBER_BITS);
    invitation message = {.made = 0};
    if (members[0] == group->rank) {
        ncclResult_t result = tr_nccl_of(group)->GetUniqueId(&message.id);
        message.made = result == ncclSuccess;
        TR_TRY(invite(group, members, num_members, tag, &message));
        TR_TRY(tr_nccl_result(comm, result, "GetUniqueId"));
    } else {
        MPI_Request request;
        TR_MPI(MPI_Irecv(&message, sizeof message, MPI_BYTE, group->ranks[members[0]], tag,
                         group->world->comm, &request));
        TR_TRY(tr_world_wait_request(group->world, &request, "waiting for NCCL's unique id"));
        if (!message.made)
            return tr_fail(TR_ERR_TRANSPORT, "rank %d could not make NCCL's unique id of group %s",
                           group->ranks[members[0]], group->name);
    }
    *id = message.id;
    return TR_OK;
}

tr_status tr_nccl_comm_open(tr_nccl_comm *comm, tr_group *group, const int *members,
                            int num_members, int number, int max_blocks)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    tr_nccl_world *nccl = group->world->nccl;
    int rank = 0;
    config.blocking = 0;
    if (max_blocks > 0)
        config.maxCTAs = max_blocks;
    comm->group = group;
    while (members[rank] != group->rank)
        rank++;
    TR_TRY(id_get(comm, members, num_members, number, &id));
    ncclResult_t result =
        nccl->table->CommInitRankConfig(&comm->comm, num_members, id, rank, &config);
    if (comm->comm != NULL) {
        comm->next = nccl->first;
        nccl->first = comm;
    }
    TR_TRY(tr_nccl_result(comm, result, "CommInitRankConfig"));
    return settle(comm, "CommInitRankConfig", group->world->timeout_s);
}

void tr_nccl_comm_close(tr_nccl_comm *comm, bool abort)
{
    if (comm->comm == NULL)
        return;
    const tr_nccl *table = tr_nccl_of(comm->group);
    tr_nccl_comm **link = &comm->group->world->nccl->first;
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    if (!abort)
        abort = tr_nccl_result(comm, table->CommFinalize(comm->comm), "CommFinalize") != TR_OK ||
                settle(comm, "CommFinalize", close_seconds) != TR_OK;
    if (abort)
        table->CommAbort(comm->comm);
    else
        table->CommDestroy(comm->comm);
    comm->comm = NULL;
}
