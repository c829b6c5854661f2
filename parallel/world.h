/* The world: all ranks of a run, which of them share a node, and the memory that they exchange through.
 *
 * Made from an MPI communicator (MPI_Init stays with the caller). Chooses a transport per group: shared memory with futex waits when all its ranks share a node (and settings allow), MPI otherwise;
 * NCCL for groups that exchange tensors in the memory of GPUs. One thread calls everything here. */
#ifndef TR_PARALLEL_WORLD_H
#define TR_PARALLEL_WORLD_H

#include <mpi.h>

#include "base/trace_ring.h"
#include "base/waitpoint.h"
#include "kernels/device.h"
#include "parallel/group.h"

typedef struct tr_world tr_world;

typedef enum tr_transport { TR_TRANSPORT_AUTO, TR_TRANSPORT_MPI, TR_TRANSPORT_SHM } tr_transport;

typedef struct tr_world_options {
    tr_transport inside; /* between ranks of one node */
    double timeout_s;    /* any wait longer than this fails */
    bool share_device;   /* several ranks may use one GPU */
} tr_world_options;

/* Collective over `comm`. Errors: TR_ERR_TRANSPORT (e.g. singletons under a launcher: says what was seen and what to run instead). */
tr_status tr_world_create(tr_world **world, MPI_Comm comm, const tr_world_options *options);
void tr_world_destroy(tr_world *world);

int tr_world_rank(const tr_world *world);
int tr_world_size(const tr_world *world);
int tr_world_local_rank(const tr_world *world); /* among the ranks of this node */
int tr_world_local_size(const tr_world *world);
int tr_world_num_nodes(const tr_world *world);
/* The number of the node that a rank is on, from 0. */
int tr_world_node_of(const tr_world *world, int rank);
/* Whether all ranks exchange through shared memory. */
bool tr_world_is_one_node(const tr_world *world);
/* "shm" or "mpi": what a group of these ranks would use, in the host's memory. */
const char *tr_world_transport_name(const tr_world *world, const int *ranks, int num_ranks);

/* What this rank computes on; it outlives the world. Collective; once, before tr_world_comm_memory and tr_world_device_group_create. A device with its own
 * memory opens NCCL when there are several ranks. TR_ERR_MEMORY, with what to do: NCCL is missing, or two ranks use one GPU without having
 * asked for it (tr_world_options.share_device). With it NCCL is set up for that by its environment variables, those that are set already excepted. */
tr_status tr_world_set_device(tr_world *world, tr_device *device);
/* Ranks that compute on the same GPU as this one, itself among them. */
int tr_world_device_sharers(const tr_world *world);
/* As NCCL writes it (22809 is 2.28.9); 0 where groups of the device do not use it. */
int tr_world_nccl_version(const tr_world *world);

/* The communication arena's backing, once per world, before any group operation: `bytes` (may differ by rank) of zeroed memory: of a device with its own memory, else host
 * memory that this node's ranks map too. Collective over the world. Freed with the world. TR_ERR_MEMORY with the size when it cannot be had. */
tr_status tr_world_comm_memory(tr_world *world, size_t bytes, void **memory);

/* Collective over the listed ranks only in the sense that each of them makes the same call in the same order as all other groups: every rank of the world calls it for every
 * group (also those it is not in; *group is NULL there). ranks: world ranks in group order. The name is kept. */
tr_status tr_world_group_create(tr_world *world, const int *ranks, int num_ranks, const char *name,
                                tr_group **group);
/* The same for a group that exchanges tensors of the world's device. Where that has its own memory, operations run on `stream`, by NCCL (parallel/group.h says what
 * posts and waits mean then), and a group on TR_STREAM_PIPELINE has the channels of tr_group_channels_open only, each with a stream of its own. */
tr_status tr_world_device_group_create(tr_world *world, const int *ranks, int num_ranks,
                                       const char *name, tr_stream stream, tr_group **group);
/* The same for a group on which all-gathers of equal parts are all that is posted: ranks of it connect along a ring, not each with all others. */
tr_status tr_world_device_gather_group_create(tr_world *world, const int *ranks, int num_ranks,
                                              const char *name, tr_stream stream, tr_group **group);
/* The same for the groups "node" of all nodes: the ranks of this rank's node in the order of the world. NULL where a rank is alone on its
 * node, or the node's ranks do not exchange through shared memory. */
tr_status tr_world_node_group_create(tr_world *world, tr_group **group);
void tr_group_destroy(tr_group *group);

/* The host waits until the world's device has reached the event's point. TR_ERR_TIMEOUT past the world's deadline, naming the oldest operation of a group of the
 * device that is not complete; TR_ERR_TRANSPORT when NCCL has lost a rank. After an error groups end without waiting for their operations. */
tr_status tr_world_wait_device(tr_world *world, tr_device_event *event);
/* The same for all work that a stream of the device has so far. */
tr_status tr_world_synchronize(tr_world *world, tr_stream stream);

/* What this rank waits for at the moment: for a watchdog thread or a signal handler. Lives as long as the world. */
const tr_waitpoint *tr_world_waitpoint(const tr_world *world);

/* Lanes of a group's track in a trace. */
enum {
    TR_GROUP_LANE_WAITS, /* waits for operations of the group */
    TR_GROUP_LANE_SMALL, /* operations that finish before they return */
    /* Posted operations until they are complete on this rank, from here up: sums, and what only moves (gathers, sends, receives). */
    TR_GROUP_LANE_SUMS,
    TR_GROUP_LANE_MOVES = TR_GROUP_LANE_SUMS + 32,
};
/* While the trace is on, the operations and waits of all groups that there are now are recorded. The ring stays the caller's and outlives the groups. Once
 * per world, when its groups are made. */
void tr_world_set_trace(tr_world *world, tr_trace_ring *trace);

/* Called by the waiting code while a rank sleeps, at least every 100 ms (signals, watchdog); may be NULL. A status other than TR_OK ends the wait with it. */
void tr_world_set_idle_callback(tr_world *world, tr_status (*callback)(void *context),
                                void *context);

#endif
