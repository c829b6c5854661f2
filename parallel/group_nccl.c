/* Groups over NCCL, in the memory of GPUs: operations run on the device, in the order in which they were posted; the host only enqueues.
 *
 * A post makes the group's stream wait for what the compute stream has by then, enqueues the operation, and records an event behind it; waiting for the operation
 * makes the compute stream wait for that event. Sums are nccl_sums.c's.
 *
 * A channel has a communicator of its two ranks and a stream of its own, since what is enqueued on one stream waits for what is in front of it: two directions on one would
 * wait for one another. Who is later at a collective is not known here; what is late as a whole is (world_device.c). */
#include <string.h>

#include "base/alloc.h"
#include "parallel/nccl_sums.h"

/* Blocks of threads that an operation of a channel may take. They occupy a multiprocessor each while they wait for the other rank, and all channels together must leave
 * most of the GPU to what the other ranks wait for. */
enum { CHANNEL_BLOCKS = 4 };

typedef struct channel {
    tr_channel ends;
    tr_stream stream;
    tr_nccl_comm comm; /* rank 0 sends, rank 1 receives */
} channel;

typedef struct nccl_state {
    tr_nccl_comm all; /* of the collectives */
    channel *channels;
    int num_channels;
    tr_device_event *ready;                /* what the compute stream had at a post */
    tr_device_event *done[TR_GROUP_SLOTS]; /* behind the slot's operation */
} nccl_state;

static tr_device *device_of(const tr_group *group)
{
    return group->world->device;
}

/* ---- operations ---- */

static channel *channel_of(const tr_group *group, const tr_op *op)
{
    nccl_state *state = group->state;
    int from = op->kind == TR_OP_SEND ? group->rank : op->peer;
    int to = op->kind == TR_OP_SEND ? op->peer : group->rank;
    for (int c = 0; c < state->num_channels; c++)
        if (state->channels[c].ends.from == from && state->channels[c].ends.to == to)
            return &state->channels[c];
    return NULL;
}

/* Where rank's part of a gather belongs. */
static char *gather_place(const tr_op *op, int rank)
{
    char *dst = op->dst;
    for (int i = 0; i < rank; i++)
        dst += (size_t)op->counts[i] * op->item_bytes;
    return dst;
}

static tr_status gather_unequal(tr_group *group, const tr_op *op)
{
    nccl_state *state = group->state;
    const tr_nccl *nccl = tr_nccl_of(group);
    tr_device *device = device_of(group);
    ncclComm_t comm = state->all.comm;
    size_t own_bytes = (size_t)op->counts[group->rank] * op->item_bytes;
    char *own = gather_place(op, group->rank);
    if (own != op->src)
        TR_TRY(device->copy(device, group->stream, own, op->src, own_bytes));
    TR_TRY(tr_nccl_begin(&state->all));
    tr_status status = TR_OK;
    for (int step = 1; step < group->size; step++) {
        int to = (group->rank + step) % group->size;
        int from = (group->rank + group->size - step) % group->size;
        size_t bytes = (size_t)op->counts[from] * op->item_bytes;
        if (own_bytes > 0)
            TR_NCCL_TRY_GOTO(
                status, &state->all,
                nccl->Send(op->src, own_bytes, ncclUint8, to, comm, tr_nccl_stream(group)), end);
        if (bytes > 0)
            TR_NCCL_TRY_GOTO(status, &state->all,
                             nccl->Recv(gather_place(op, from), bytes, ncclUint8, from, comm,
                                        tr_nccl_stream(group)),
                             end);
    }
end:
    return tr_nccl_end(&state->all, status);
}

static tr_status post_gather(tr_group *group, const tr_op *op)
{
    nccl_state *state = group->state;
    size_t bytes = (size_t)op->counts[group->rank] * op->item_bytes;
    if (!tr_group_counts_are_equal(group, op))
        return gather_unequal(group, op);
    if (bytes == 0)
        return TR_OK;
    TR_TRY(tr_nccl_begin(&state->all));
    tr_status status =
        tr_nccl_result(&state->all,
                       tr_nccl_of(group)->AllGather(op->src, op->dst, bytes, ncclUint8,
                                                    state->all.comm, tr_nccl_stream(group)),
                       "AllGather");
    return tr_nccl_end(&state->all, status);
}

static tr_status post_transfer(tr_group *group, const tr_op *op, channel *on)
{
    const tr_nccl *nccl = tr_nccl_of(group);
    cudaStream_t stream = tr_cuda_device_stream(device_of(group), on->stream);
    size_t bytes = (size_t)op->n;
    if (bytes == 0)
        return TR_OK;
    TR_TRY(tr_nccl_begin(&on->comm));
    ncclResult_t result = op->kind == TR_OP_SEND
                              ? nccl->Send(op->src, bytes, ncclUint8, 1, on->comm.comm, stream)
                              : nccl->Recv(op->dst, bytes, ncclUint8, 0, on->comm.comm, stream);
    return tr_nccl_end(&on->comm, tr_nccl_result(&on->comm, result, tr_op_name(op->kind)));
}

static tr_status nccl_post(tr_group *group, tr_op *op)
{
    nccl_state *state = group->state;
    tr_device *device = device_of(group);
    bool pair = tr_op_is_pair(op->kind);
    channel *on = pair ? channel_of(group, op) : NULL;
    TR_ASSERT(pair ? on != NULL : state->all.comm != NULL);
    TR_ASSERT(!group->only_gathers ||
              (op->kind == TR_OP_ALL_GATHER && tr_group_counts_are_equal(group, op)));
    tr_stream stream = pair ? on->stream : group->stream;
    TR_TRY(device->event_record(device, state->ready, TR_STREAM_COMPUTE));
    TR_TRY(device->event_wait(device, stream, state->ready));
    if (pair)
        TR_TRY(post_transfer(group, op, on));
    else if (op->kind == TR_OP_ALL_GATHER)
        TR_TRY(post_gather(group, op));
    else
        TR_TRY(tr_nccl_sum(&state->all, op));
    TR_TRY(device->event_record(device, state->done[op->index], stream));
    return tr_world_note_posted(group->world, group, op, stream);
}

static tr_status nccl_await(tr_group *group, const tr_op *op)
{
    const nccl_state *state = group->state;
    tr_device *device = device_of(group);
    return device->event_wait(device, TR_STREAM_COMPUTE, state->done[op->index]);
}

static tr_status nccl_advance(tr_group *group, tr_op *op, bool *moved)
{
    const nccl_state *state = group->state;
    tr_device *device = device_of(group);
    bool done;
    TR_TRY(device->event_query(device, state->done[op->index], &done));
    if (!done)
        return TR_OK;
    *moved = op->result_ready = true;
    op->active = false;
    return TR_OK;
}

/* ---- the end ---- */

static void state_free(tr_group *group, bool abort)
{
    nccl_state *state = group->state;
    tr_device *device = device_of(group);
    tr_nccl_comm_close(&state->all, abort);
    for (int c = 0; c < state->num_channels; c++)
        tr_nccl_comm_close(&state->channels[c].comm, abort);
    device->event_destroy(device, state->ready);
    for (int i = 0; i < TR_GROUP_SLOTS; i++)
        device->event_destroy(device, state->done[i]);
    tr_free(state->channels);
    tr_free(state);
    group->state = NULL;
}

/* Whether all that was posted completes. */
static bool ends_well(tr_group *group)
{
    nccl_state *state = group->state;
    tr_device *device = device_of(group);
    bool well = !group->world->device_failed;
    for (int c = 0; well && c < state->num_channels; c++)
        well = device->event_record(device, state->ready, state->channels[c].stream) == TR_OK &&
               tr_world_ends_well(group->world, state->ready);
    if (well && state->all.comm != NULL)
        well = device->event_record(device, state->ready, group->stream) == TR_OK &&
               tr_world_ends_well(group->world, state->ready);
    return well;
}

/* What goes wrong at the end is not told: mostly it follows from an error that is known, whose message stays. */
static void nccl_close(tr_group *group)
{
    char *message = tr_strdup(tr_error_message());
    bool well = ends_well(group);
    tr_world_forget_posted(group->world, group);
    state_free(group, !well);
    if (message[0] != '\0')
        (void)tr_fail(TR_ERR_TRANSPORT, "%s", message);
    tr_free(message);
}

/* ---- set-up ---- */

static tr_status events_create(tr_group *group, nccl_state *state)
{
    tr_device *device = device_of(group);
    TR_TRY(device->event_create(device, &state->ready));
    for (int i = 0; i < TR_GROUP_SLOTS; i++)
        TR_TRY(device->event_create(device, &state->done[i]));
    return TR_OK;
}

/* The host waits for the communicator's first operation. NCCL connects ranks that send to one another when they first do, whatever its variables say (nccl_comm.c), and needs both
 * for that: posts of a step must not wait for it. */
static tr_status probe_wait(tr_group *group, const tr_op *op, tr_stream stream)
{
    const nccl_state *state = group->state;
    tr_device *device = device_of(group);
    TR_TRY(device->event_record(device, state->ready, stream));
    TR_TRY(tr_world_note_posted(group->world, group, op, stream));
    return tr_world_wait_device(group->world, state->ready);
}

/* counts[size] of an operation of one element of each rank; the caller frees them. */
static int64_t *one_of_each(const tr_group *group)
{
    int64_t *counts = TR_NEW_ARRAY(int64_t, group->size);
    for (int i = 0; i < group->size; i++)
        counts[i] = 1;
    return counts;
}

/* Gathers a byte of each rank, by both ways where both are taken. */
static tr_status collectives_open(tr_group *group)
{
    nccl_state *state = group->state;
    char *probe = group->world->nccl->probe;
    int *members = TR_NEW_ARRAY(int, group->size);
    int64_t *counts = one_of_each(group);
    for (int i = 0; i < group->size; i++)
        members[i] = i;
    const tr_op op = {.kind = TR_OP_ALL_GATHER,
                      .src = probe,
                      .dst = probe + TR_NCCL_PROBE,
                      .counts = counts,
                      .item_bytes = 1};
    tr_status status = tr_nccl_comm_open(&state->all, group, members, group->size, 0, 0);
    if (status == TR_OK)
        status = post_gather(group, &op);
    if (status == TR_OK && !group->only_gathers)
        status = gather_unequal(group, &op);
    if (status == TR_OK)
        status = probe_wait(group, &op, group->stream);
    tr_free(members);
    tr_free(counts);
    return status;
}

static tr_status nccl_open(tr_group *group)
{
    nccl_state *state = TR_NEW(nccl_state);
    group->state = state;
    tr_status status = events_create(group, state);
    if (status == TR_OK && group->stream != TR_STREAM_PIPELINE)
        status = collectives_open(group);
    if (status != TR_OK)
        nccl_close(group);
    return status;
}

/* Sums a float of each rank, by both ways. */
static tr_status nccl_native_open(tr_group *group)
{
    nccl_state *state = group->state;
    char *probe = group->world->nccl->probe;
    int64_t *counts = one_of_each(group);
    const tr_op op = {.kind = TR_OP_REDUCE_SCATTER,
                      .src = probe + TR_NCCL_PROBE,
                      .dst = probe,
                      .counts = counts,
                      .item_bytes = sizeof(float)};
    tr_status status = tr_nccl_sum_equal(&state->all, &op);
    if (status == TR_OK)
        status = tr_nccl_sum_unequal(&state->all, &op);
    if (status == TR_OK)
        status = probe_wait(group, &op, group->stream);
    tr_free(counts);
    return status;
}

/* The first one has the group's stream, the others one each. */
static tr_status channel_open(tr_group *group, const tr_channel *ends, int number)
{
    nccl_state *state = group->state;
    tr_device *device = device_of(group);
    const int members[2] = {ends->from, ends->to};
    channel *made = &state->channels[state->num_channels++];
    made->ends = *ends;
    made->stream = group->stream;
    if (state->num_channels > 1)
        TR_TRY(device->stream_add(device, &made->stream));
    TR_TRY(tr_nccl_comm_open(&made->comm, group, members, 2, number, CHANNEL_BLOCKS));
    bool sends = ends->from == group->rank;
    char *probe = group->world->nccl->probe;
    const tr_op op = {.kind = sends ? TR_OP_SEND : TR_OP_RECV,
                      .src = probe,
                      .dst = probe + TR_NCCL_PROBE,
                      .n = 1,
                      .peer = sends ? ends->to : ends->from};
    TR_TRY(post_transfer(group, &op, made));
    return probe_wait(group, &op, made->stream);
}

static tr_status nccl_channels_open(tr_group *group, const tr_channel *channels, int count)
{
    nccl_state *state = group->state;
    TR_ASSERT(group->stream == TR_STREAM_PIPELINE && state->channels == NULL);
    state->channels = TR_NEW_ARRAY(channel, count + 1);
    for (int i = 0; i < count; i++)
        if (channels[i].from == group->rank || channels[i].to == group->rank)
            TR_TRY(channel_open(group, &channels[i], 1 + i));
    return TR_OK;
}

const tr_group_transport tr_group_transport_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .post = nccl_post,
    .advance = nccl_advance,
    .await = nccl_await,
    .channels_open = nccl_channels_open,
    .native_open = nccl_native_open,
};
