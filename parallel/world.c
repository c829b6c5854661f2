#include "parallel/world.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "parallel/group_int.h"
#include "parallel/group_shm.h"
#include "parallel/launcher.h"

tr_status tr_mpi_fail(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return tr_fail(TR_ERR_TRANSPORT, "MPI failed: %s\nin %s", text, call);
}

tr_status tr_world_agree(tr_world *world, MPI_Comm comm, tr_status own, tr_status status_if_other,
                         const char *what)
{
    int rank, first_failed;
    TR_MPI(MPI_Comm_rank(comm, &rank));
    int failed = own == TR_OK ? INT_MAX : rank;
    MPI_Request request;
    TR_MPI(MPI_Iallreduce(&failed, &first_failed, 1, MPI_INT, MPI_MIN, comm, &request));
    if (own != TR_OK) {
        /* The wait must not replace the message of the failure. */
        char *message = tr_strdup(tr_error_message());
        tr_status waited = tr_world_wait_request(world, &request, what);
        own = waited != TR_OK ? waited : tr_fail(own, "%s", message);
        tr_free(message);
        return own;
    }
    TR_TRY(tr_world_wait_request(world, &request, what));
    if (first_failed == INT_MAX)
        return TR_OK;
    return tr_fail(status_if_other, "rank %d%s could not %s", first_failed,
                   comm == world->node_comm ? " of this node" : "", what);
}

/* Numbers of nodes in the order of their first ranks, and the places of ranks in them. */
static tr_status find_places(tr_world *world)
{
    int key[2] = {world->rank, world->local_rank}; /* first world rank of the node, place */
    MPI_Request request;
    TR_MPI(MPI_Ibcast(&key[0], 1, MPI_INT, 0, world->node_comm, &request));
    TR_TRY(tr_world_wait_request(world, &request, "finding which ranks share a node"));
    int *keys = TR_NEW_ARRAY(int, 2 * world->size);
    int code = MPI_Iallgather(key, 2, MPI_INT, keys, 2, MPI_INT, world->comm, &request);
    tr_status status =
        code == MPI_SUCCESS
            ? tr_world_wait_request(world, &request, "finding which ranks share a node")
            : tr_mpi_fail(code, "MPI_Iallgather");
    world->num_nodes = 0;
    for (int r = 0; status == TR_OK && r < world->size; r++) {
        int first = keys[2 * r];
        world->node_of[r] = first == r ? world->num_nodes++ : world->node_of[first];
        world->local_of[r] = keys[2 * r + 1];
    }
    tr_free(keys);
    return status;
}

static tr_status open_comms(tr_world *world, MPI_Comm comm)
{
    TR_MPI(MPI_Comm_dup(comm, &world->comm));
    TR_MPI(MPI_Comm_set_errhandler(world->comm, MPI_ERRORS_RETURN));
    TR_MPI(MPI_Comm_rank(world->comm, &world->rank));
    TR_MPI(MPI_Comm_size(world->comm, &world->size));
    TR_MPI(MPI_Comm_split_type(world->comm, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL,
                               &world->node_comm));
    TR_MPI(MPI_Comm_set_errhandler(world->node_comm, MPI_ERRORS_RETURN));
    TR_MPI(MPI_Comm_rank(world->node_comm, &world->local_rank));
    TR_MPI(MPI_Comm_size(world->node_comm, &world->local_size));
    int *max_tag, known;
    TR_MPI(MPI_Comm_get_attr(world->comm, MPI_TAG_UB, (void *)&max_tag, &known));
    world->max_tag = known ? *max_tag : 32767; /* what MPI guarantees */
    return TR_OK;
}

/* Sets up the doorbells and mailboxes of the node, and learns of which ranks they work. */
static tr_status open_control(tr_world *world)
{
    world->mailbox_bytes = tr_shm_mailbox_bytes(world->local_size);
    tr_status status = TR_ERR_TRANSPORT;
    if (world->inside != TR_TRANSPORT_MPI && world->local_size > 1)
        status = tr_shm_segment_create(&world->control, world, tr_shm_control_bytes(world));
    bool wanted = world->inside != TR_TRANSPORT_MPI && world->local_size > 1;
    if (wanted && status != TR_OK && world->inside == TR_TRANSPORT_AUTO && world->local_rank == 0)
        tr_log_warning("shared memory between the ranks of a node does not work, MPI is used: %s",
                       tr_error_message());
    if (world->inside == TR_TRANSPORT_SHM)
        TR_TRY(tr_world_agree(world, world->comm, wanted ? status : TR_OK, TR_ERR_TRANSPORT,
                              "use shared memory on its node (asked for by parallel.inside)"));
    bool usable = status == TR_OK;
    MPI_Request request;
    TR_MPI(MPI_Iallgather(&usable, 1, MPI_C_BOOL, world->shm_usable, 1, MPI_C_BOOL, world->comm,
                          &request));
    return tr_world_wait_request(world, &request, "finding where shared memory works");
}

tr_status tr_world_create(tr_world **out, MPI_Comm comm, const tr_world_options *options)
{
    int mpi_size, size;
    TR_MPI(MPI_Comm_size(MPI_COMM_WORLD, &mpi_size));
    TR_TRY(tr_launcher_check(mpi_size));
    TR_MPI(MPI_Comm_size(comm, &size));

    tr_world *world = TR_NEW(tr_world);
    world->comm = world->node_comm = MPI_COMM_NULL;
    world->inside = options->inside;
    world->timeout_s = options->timeout_s;
    world->share_device = options->share_device;
    world->node_of = TR_NEW_ARRAY(int, size);
    world->local_of = TR_NEW_ARRAY(int, size);
    world->shm_usable = TR_NEW_ARRAY(bool, size);
    world->shm_groups_of = TR_NEW_ARRAY(int, size);
    tr_waitpoint_init(&world->waitpoint);

    tr_status status;
    TR_TRY_GOTO(status, open_comms(world, comm), destroy);
    TR_TRY_GOTO(status, find_places(world), destroy);
    TR_TRY_GOTO(status, open_control(world), destroy);
    *out = world;
    return TR_OK;

destroy:
    tr_world_destroy(world);
    return status;
}

void tr_world_destroy(tr_world *world)
{
    if (world == NULL)
        return;
    TR_ASSERT(world->first_group == NULL);
    tr_world_device_clear(world);
    tr_shm_segment_clear(&world->comm_segment);
    tr_shm_segment_clear(&world->control);
    if (world->node_comm != MPI_COMM_NULL)
        MPI_Comm_free(&world->node_comm);
    if (world->comm != MPI_COMM_NULL)
        MPI_Comm_free(&world->comm);
    tr_free(world->node_of);
    tr_free(world->local_of);
    tr_free(world->shm_usable);
    tr_free(world->shm_groups_of);
    tr_free(world);
}

int tr_world_rank(const tr_world *world)
{
    return world->rank;
}

int tr_world_size(const tr_world *world)
{
    return world->size;
}

int tr_world_local_rank(const tr_world *world)
{
    return world->local_rank;
}

int tr_world_local_size(const tr_world *world)
{
    return world->local_size;
}

int tr_world_num_nodes(const tr_world *world)
{
    return world->num_nodes;
}

int tr_world_node_of(const tr_world *world, int rank)
{
    return world->node_of[rank];
}

bool tr_world_is_one_node(const tr_world *world)
{
    return world->num_nodes == 1 && world->shm_usable[0];
}

const tr_waitpoint *tr_world_waitpoint(const tr_world *world)
{
    return &world->waitpoint;
}

void tr_world_set_trace(tr_world *world, tr_trace_ring *trace)
{
    world->trace = trace;
    for (tr_group *group = world->first_group; group != NULL; group = group->next)
        group->track = tr_trace_track_add(trace, group->name);
}

void tr_world_set_idle_callback(tr_world *world, tr_status (*callback)(void *context),
                                void *context)
{
    world->idle_callback = callback;
    world->idle_context = context;
}

static const tr_group_transport *transport_for(const tr_world *world, const int *ranks,
                                               int num_ranks)
{
    for (int i = 0; i < num_ranks; i++)
        if (!world->shm_usable[ranks[i]] || world->node_of[ranks[i]] != world->node_of[ranks[0]])
            return &tr_group_transport_mpi;
    return &tr_group_transport_shm;
}

const char *tr_world_transport_name(const tr_world *world, const int *ranks, int num_ranks)
{
    return transport_for(world, ranks, num_ranks)->name;
}

tr_status tr_world_comm_memory(tr_world *world, size_t bytes, void **memory)
{
    TR_ASSERT(!world->comm_made);
    bool on_device = world->device != NULL && !world->device->unified;
    tr_status status = on_device ? tr_world_device_memory(world, bytes)
                                 : tr_shm_segment_create_node(&world->comm_segment, world, bytes);
    TR_TRY(
        tr_world_agree(world, world->comm, status, TR_ERR_MEMORY, "have its communication memory"));
    world->comm_made = true;
    *memory = on_device ? world->device_comm : world->comm_segment.base[world->comm_segment.own];
    return TR_OK;
}

bool tr_world_owns(const tr_world *world, const void *data, size_t bytes)
{
    if (bytes == 0)
        return true;
    if (!world->comm_made)
        return false;
    const tr_shm_segment *segment = &world->comm_segment;
    bool on_device = world->device_comm != NULL;
    uintptr_t begin = (uintptr_t)(on_device ? world->device_comm : segment->base[segment->own]);
    size_t size = on_device ? world->device_comm_bytes : segment->bytes[segment->own];
    uintptr_t at = (uintptr_t)data;
    return at >= begin && at - begin <= size && bytes <= size - (at - begin);
}

static tr_group *group_new(tr_world *world, const int *ranks, int num_ranks, const char *name)
{
    tr_group *group = TR_NEW(tr_group);
    group->world = world;
    group->name = tr_strdup(name);
    group->size = num_ranks;
    group->rank = -1;
    group->index = world->num_groups;
    group->ranks = TR_NEW_ARRAY(int, num_ranks);
    for (int i = 0; i < num_ranks; i++) {
        group->ranks[i] = ranks[i];
        if (ranks[i] == world->rank)
            group->rank = i;
    }
    for (int i = 0; i <= TR_GROUP_SLOTS; i++)
        group->ops[i].index = i;
    group->num_sends = TR_NEW_ARRAY(uint64_t, num_ranks);
    group->num_recvs = TR_NEW_ARRAY(uint64_t, num_ranks);
    group->sources = TR_NEW_ARRAY(const float *, num_ranks);
    group->late = TR_NEW_ARRAY(bool, num_ranks);
    return group;
}

static void group_free(tr_group *group)
{
    tr_free(group->name);
    tr_free(group->ranks);
    tr_free(group->num_sends);
    tr_free(group->num_recvs);
    tr_free(group->sources);
    tr_free(group->late);
    tr_free(group);
}

tr_status tr_world_group_make(tr_world *world, const tr_group_transport *transport,
                              tr_stream stream, bool only_gathers, const int *ranks, int num_ranks,
                              const char *name, tr_group **out)
{
    TR_ASSERT(num_ranks >= 1 && num_ranks <= world->size);
    tr_group *group = group_new(world, ranks, num_ranks, name);
    group->transport = transport;
    group->stream = stream;
    group->only_gathers = only_gathers;
    tr_status status = TR_OK;
    if (group->rank >= 0)
        TR_TRY_GOTO(status, group->transport->open(group), free_group);
    world->num_groups++;
    if (group->transport == &tr_group_transport_shm)
        for (int i = 0; i < num_ranks; i++)
            world->shm_groups_of[ranks[i]]++;
    if (group->rank < 0) {
        *out = NULL;
        goto free_group;
    }
    tr_group **end = &world->first_group;
    while (*end != NULL)
        end = &(*end)->next;
    *end = group;
    *out = group;
    return TR_OK;

free_group:
    group_free(group);
    return status;
}

tr_status tr_world_group_create(tr_world *world, const int *ranks, int num_ranks, const char *name,
                                tr_group **out)
{
    return tr_world_group_make(world, transport_for(world, ranks, num_ranks), TR_STREAM_COMPUTE,
                               false, ranks, num_ranks, name, out);
}

static const tr_group_transport *device_transport_for(const tr_world *world, const int *ranks,
                                                      int num_ranks)
{
    TR_ASSERT(world->device != NULL);
    return world->device->unified ? transport_for(world, ranks, num_ranks)
                                  : &tr_group_transport_nccl;
}

tr_status tr_world_device_group_create(tr_world *world, const int *ranks, int num_ranks,
                                       const char *name, tr_stream stream, tr_group **out)
{
    return tr_world_group_make(world, device_transport_for(world, ranks, num_ranks), stream, false,
                               ranks, num_ranks, name, out);
}

tr_status tr_world_device_gather_group_create(tr_world *world, const int *ranks, int num_ranks,
                                              const char *name, tr_stream stream, tr_group **out)
{
    return tr_world_group_make(world, device_transport_for(world, ranks, num_ranks), stream, true,
                               ranks, num_ranks, name, out);
}

tr_status tr_world_node_group_create(tr_world *world, tr_group **out)
{
    int *members = TR_NEW_ARRAY(int, world->size);
    tr_status status = TR_OK;
    *out = NULL;
    for (int node = 0; node < world->num_nodes && status == TR_OK; node++) {
        int count = 0;
        for (int r = 0; r < world->size; r++)
            if (world->node_of[r] == node && world->shm_usable[r])
                members[count++] = r;
        tr_group *group = NULL;
        if (count > 1)
            status = tr_world_group_create(world, members, count, "node", &group);
        if (group != NULL)
            *out = group;
    }
    tr_free(members);
    return status;
}

void tr_group_destroy(tr_group *group)
{
    if (group == NULL)
        return;
    tr_group **link = &group->world->first_group;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    group->transport->close(group);
    group_free(group);
}
