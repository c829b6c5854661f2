/* The world's device: whose GPU is whose, communication memory on it, and the wait for it that names what hangs. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "parallel/group_nccl.h"

enum { PLACE_BYTES = 64, POSTED = 256, MESSAGE = 256 };

static const double close_seconds = 10; /* that what was posted may take when its group ends */

/* An operation that was enqueued, with the point behind it. */
typedef struct posted_op {
    const tr_group *group; /* NULL: it has ended */
    tr_op op;
    tr_device_event *behind;
} posted_op;

/* The oldest operations of all groups that may not be complete, in the order of posting. What finds it full is not noted: then the culprit
 * is among those. */
typedef struct tr_posted_queue {
    posted_op ops[POSTED];
    int first, count;
    tr_device_event *mark; /* of tr_world_synchronize */
} tr_posted_queue;

/* ---- set-up ---- */

/* The world ranks of the first two of this node that have one GPU. */
static bool find_shared(const tr_world *world, char (*places)[PLACE_BYTES], int pair[2])
{
    for (int a = 0; a < world->local_size; a++)
        for (int b = a + 1; b < world->local_size; b++)
            if (strcmp(places[a], places[b]) == 0) {
                for (int r = 0; r < world->size; r++)
                    if (world->node_of[r] == world->node_of[world->rank] &&
                        (world->local_of[r] == a || world->local_of[r] == b))
                        pair[world->local_of[r] == b] = r;
                return true;
            }
    return false;
}

/* *shared: two ranks of a node, of any, use one GPU. */
static tr_status look_for_shared(tr_world *world, bool *shared)
{
    char place[PLACE_BYTES] = "";
    strncpy(place, tr_cuda_device_place(world->device), PLACE_BYTES - 1);
    char(*places)[PLACE_BYTES] = tr_alloc((size_t)world->local_size, PLACE_BYTES);
    MPI_Request request;
    int pair[2], code = MPI_Iallgather(place, PLACE_BYTES, MPI_CHAR, places, PLACE_BYTES, MPI_CHAR,
                                       world->node_comm, &request);
    tr_status status =
        code == MPI_SUCCESS
            ? tr_world_wait_request(world, &request, "finding which ranks share a GPU")
            : tr_mpi_fail(code, "MPI_Iallgather");
    int mine = status == TR_OK && find_shared(world, places, pair), any = 0;
    for (int r = 0; status == TR_OK && r < world->local_size; r++)
        world->device_sharers += r != world->local_rank && strcmp(places[r], place) == 0;
    tr_free(places);
    TR_TRY(status);
    if (mine && !world->share_device)
        status = tr_fail(
            TR_ERR_MEMORY,
            "ranks %d and %d use one GPU (%s): each rank needs its own; start as many ranks on a "
            "node as it has GPUs, or set the environment variable TRINE_SHARE_GPU=1 for ranks that "
            "share GPUs, which is slow and meant for tests; device.kind=cpu needs none",
            pair[0], pair[1], place);
    TR_TRY(tr_world_agree(world, world->comm, status, TR_ERR_MEMORY, "have a GPU of its own"));
    TR_MPI(MPI_Iallreduce(&mine, &any, 1, MPI_INT, MPI_MAX, world->comm, &request));
    TR_TRY(tr_world_wait_request(world, &request, "finding which ranks share a GPU"));
    *shared = any != 0;
    return TR_OK;
}

static tr_status posted_create(tr_world *world)
{
    world->posted = TR_NEW(tr_posted_queue);
    for (int i = 0; i < POSTED; i++)
        TR_TRY(world->device->event_create(world->device, &world->posted->ops[i].behind));
    return world->device->event_create(world->device, &world->posted->mark);
}

tr_status tr_world_set_device(tr_world *world, tr_device *device)
{
    TR_ASSERT(world->device == NULL && !world->comm_made);
    world->device = device;
    world->device_sharers = 1;
    if (device->unified || world->size == 1)
        return TR_OK;
    bool shared = false;
    TR_TRY(look_for_shared(world, &shared));
    tr_status status = tr_nccl_open(world, shared);
    if (status == TR_OK)
        status = posted_create(world);
    return tr_world_agree(world, world->comm, status, TR_ERR_MEMORY, "open NCCL");
}

int tr_world_device_sharers(const tr_world *world)
{
    return world->device_sharers;
}

int tr_world_nccl_version(const tr_world *world)
{
    return world->nccl_version;
}

tr_status tr_world_device_memory(tr_world *world, size_t bytes)
{
    TR_TRY(
        world->device->memory_create(world->device, TR_MEMORY_DEVICE, bytes, &world->device_comm));
    world->device_comm_bytes = bytes;
    return TR_OK;
}

void tr_world_device_clear(tr_world *world)
{
    tr_device *device = world->device;
    if (world->nccl != NULL)
        tr_nccl_close(world);
    for (int i = 0; world->posted != NULL && i < POSTED; i++)
        device->event_destroy(device, world->posted->ops[i].behind);
    if (world->posted != NULL)
        device->event_destroy(device, world->posted->mark);
    tr_free(world->posted);
    if (world->device_comm != NULL)
        device->memory_destroy(device, TR_MEMORY_DEVICE, world->device_comm,
                               world->device_comm_bytes);
}

/* ---- what is under way ---- */

/* Drops what is complete from the front. */
static tr_status posted_settle(tr_world *world)
{
    tr_posted_queue *queue = world->posted;
    tr_device *device = world->device;
    while (queue->count > 0) {
        const posted_op *oldest = &queue->ops[queue->first];
        bool done = true;
        if (oldest->group != NULL)
            TR_TRY(device->event_query(device, oldest->behind, &done));
        if (!done)
            break;
        queue->first = (queue->first + 1) % POSTED;
        queue->count--;
    }
    return TR_OK;
}

tr_status tr_world_note_posted(tr_world *world, const tr_group *group, const tr_op *op,
                               tr_stream stream)
{
    tr_posted_queue *queue = world->posted;
    TR_TRY(posted_settle(world));
    if (queue->count == POSTED)
        return TR_OK;
    posted_op *last = &queue->ops[(queue->first + queue->count++) % POSTED];
    last->group = group;
    last->op = *op;
    return world->device->event_record(world->device, last->behind, stream);
}

void tr_world_forget_posted(tr_world *world, const tr_group *group)
{
    tr_posted_queue *queue = world->posted;
    for (int i = 0; i < queue->count; i++) {
        posted_op *op = &queue->ops[(queue->first + i) % POSTED];
        if (op->group == group)
            op->group = NULL;
    }
}

/* ---- the wait ---- */

static tr_status timed_out(tr_world *world, double seconds)
{
    char pair[MESSAGE] = "";
    world->device_failed = true;
    TR_TRY(posted_settle(world));
    const tr_posted_queue *queue = world->posted;
    const posted_op *oldest = &queue->ops[queue->first];
    if (queue->count == 0)
        return tr_fail(TR_ERR_TIMEOUT,
                       "timed out after %.1f s waiting for the GPU of world rank %d, on which no "
                       "operation between ranks is under way",
                       seconds, world->rank);
    const tr_group *group = oldest->group;
    const tr_op *op = &oldest->op;
    if (tr_op_is_pair(op->kind))
        snprintf(pair, sizeof pair, " %s rank %d (world rank %d), tag %lld,",
                 op->kind == TR_OP_SEND ? "to" : "from", op->peer, group->ranks[op->peer],
                 (long long)op->tag);
    return tr_fail(
        TR_ERR_TIMEOUT,
        "timed out after %.1f s waiting for the GPU: %s number %llu%s of group %s, at its rank %d "
        "of %d (world rank %d), is not complete: %s has not joined it, or was lost",
        seconds, tr_op_name(op->kind), (unsigned long long)op->sequence, pair, group->name,
        group->rank, group->size, world->rank,
        pair[0] != '\0' ? "that rank" : "another rank of the group");
}

/* *reached: whether the event's point came within `seconds`. */
static tr_status wait_reached(tr_world *world, tr_device_event *event, double seconds,
                              bool *reached)
{
    tr_device *device = world->device;
    tr_waiter waiter;
    tr_waiter_begin(&waiter, world, "the GPU", NULL, -1, -1);
    tr_status status = TR_OK;
    for (bool expired = false; !expired;) {
        tr_waiter_look(&waiter);
        TR_TRY_GOTO(status, device->event_query(device, event, reached), end);
        if (*reached)
            break;
        TR_TRY_GOTO(status, tr_nccl_check_all(world), end);
        TR_TRY_GOTO(status, tr_waiter_pause(&waiter, true, &expired), end);
        expired = expired || tr_clock_seconds() - waiter.start > seconds;
    }
end:
    tr_waiter_end(&waiter);
    return status;
}

tr_status tr_world_wait_device(tr_world *world, tr_device_event *event)
{
    if (world->posted == NULL) /* nothing on it depends on other ranks */
        return world->device->event_synchronize(world->device, event);
    double start = tr_clock_seconds();
    bool reached = false;
    tr_status status = wait_reached(world, event, world->timeout_s, &reached);
    if (status == TR_OK && !reached)
        status = timed_out(world, tr_clock_seconds() - start);
    world->device_failed = world->device_failed || status != TR_OK;
    return status;
}

tr_status tr_world_synchronize(tr_world *world, tr_stream stream)
{
    tr_device *device = world->device;
    if (world->posted == NULL)
        return device->synchronize(device, stream);
    TR_TRY(device->event_record(device, world->posted->mark, stream));
    return tr_world_wait_device(world, world->posted->mark);
}

bool tr_world_ends_well(tr_world *world, tr_device_event *event)
{
    bool reached = false;
    if (!world->device_failed)
        world->device_failed =
            wait_reached(world, event, close_seconds, &reached) != TR_OK || !reached;
    return !world->device_failed;
}
