/* The inside of worlds and groups, read by parallel/world*, group* and shm_memory only.
 *
 * group.c keeps the posted operations of a group in slots; a transport starts each when it is posted (`post`) and moves it on
 * (`advance`) whenever this process tests, waits or progresses. group_wait.c is the only place that sleeps. One thread. */
#ifndef TR_PARALLEL_GROUP_INT_H
#define TR_PARALLEL_GROUP_INT_H

#include <mpi.h>

#include "base/trace_ring.h"
#include "base/waitpoint.h"
#include "parallel/group.h"
#include "parallel/shm_memory.h"
#include "parallel/world.h"

enum {
    TR_GROUP_SLOTS =
        64, /* posted operations of a group in flight; a further post waits for one to end */
    TR_GROUP_SMALL = TR_GROUP_SLOTS, /* the slot of the operation that finishes before it returns */
    TR_GROUP_INTEGERS_MAX = 4096
};

/* name, text, rank to rank (instead of collective) */
#define TR_OP_LIST(X)                                                                              \
    X(REDUCE_SCATTER, "reduce_scatter", false)                                                     \
    X(ALL_REDUCE, "all_reduce", false)                                                             \
    X(ALL_REDUCE_MAX, "all_reduce_max", false)                                                     \
    X(ALL_GATHER, "all_gather", false)                                                             \
    X(SEND, "send", true)                                                                          \
    X(RECV, "recv", true)                                                                          \
    X(ALL_REDUCE_I64, "all_reduce_i64", false)                                                     \
    X(BROADCAST, "broadcast", false)                                                               \
    X(BARRIER, "barrier", false)

typedef enum tr_op_kind {
#define TR_OP_ENUM(name, text, pair) TR_OP_##name,
    TR_OP_LIST(TR_OP_ENUM)
#undef TR_OP_ENUM
} tr_op_kind;

typedef struct tr_op {
    tr_op_kind kind;
    int index; /* of the slot */
    uint32_t generation;
    bool active;       /* posted and not complete */
    bool result_ready; /* dst holds the result; the source may still be read by peers */
    int phase;         /* the transport's, 0 when posted */
    /* Number within its stream: the collectives of the group, or one direction of a channel. */
    uint64_t sequence;
    const void *src;
    void *dst;
    const int64_t *counts; /* reduce_scatter, all_gather: items of each rank */
    size_t item_bytes;
    int64_t n; /* elements of an all-reduce, bytes of a transfer */
    int peer;  /* rank in the group, -1 for collectives */
    int64_t tag;
    double begun;      /* transfers: when both ranks had posted; 0: not known */
    double posted;     /* when, while a trace is on; else 0 */
    uint64_t bytes;    /* that this rank sends, or receives of a peer */
    const char *label; /* of a trace: what the caller calls it, or NULL */
    int label_number;
} tr_op;

/* What a transport is. `advance` sets *moved when it did anything, op->result_ready, and op->active = false at the end. */
typedef struct tr_group_transport {
    const char *name;
    tr_status (*open)(tr_group *group);
    void (*close)(tr_group *group);
    /* Memory for `num_ops` operations in flight that each receive up to `bytes`; NULL: nothing is needed. */
    void (*reserve)(tr_group *group, size_t bytes, int num_ops);
    tr_status (*post)(tr_group *group, tr_op *op);
    tr_status (*advance)(tr_group *group, tr_op *op, bool *moved);
    tr_status (*all_reduce_i64)(tr_group *group, int64_t *values, int n, tr_int_op op);
    tr_status (*broadcast)(tr_group *group, int root, void *data, size_t bytes);
    /* Marks the ranks of the group that `op` waits for; returns what they have not done ("not posted by"). */
    const char *(*late)(const tr_group *group, const tr_op *op, bool *late);
    /* Where operations complete on the device: makes its compute stream wait for `op`; there the host waits for none, and progress moves none. NULL
     * elsewhere. */
    tr_status (*await)(tr_group *group, const tr_op *op);
    tr_status (*channels_open)(tr_group *group, const tr_channel *channels,
                               int count);     /* or NULL */
    tr_status (*native_open)(tr_group *group); /* NULL: it has no sums of its own */
} tr_group_transport;

extern const tr_group_transport tr_group_transport_shm;
extern const tr_group_transport tr_group_transport_mpi;
extern const tr_group_transport tr_group_transport_nccl; /* of builds without NCCL, too */

struct tr_group {
    tr_world *world;
    tr_group *next; /* in the world's list */
    const tr_group_transport *transport;
    void *state; /* the transport's */
    tr_stream stream;
    void *scratch; /* of sums on a device, or NULL */
    size_t scratch_bytes;
    bool native;       /* sums may be the transport's own */
    bool only_gathers; /* of equal parts */
    char *name;
    int *ranks; /* [size] world ranks */
    int size, rank;
    int index; /* the how-manieth group of the world; the same on all ranks */
    tr_op ops[TR_GROUP_SLOTS + 1];
    uint8_t active[TR_GROUP_SLOTS + 1]; /* slots in the order of posting */
    int num_active;
    uint64_t num_collectives;        /* posted so far */
    uint64_t *num_sends, *num_recvs; /* [size] */
    const float **sources;           /* [size] scratch of sums */
    bool *late;                      /* [size] scratch of error messages */
    tr_group_stats stats;
    int track;              /* of the world's trace */
    const char *next_label; /* of the next operation posted, or NULL */
    int next_number;
};

struct tr_world {
    MPI_Comm comm, node_comm;
    int rank, size, local_rank, local_size, num_nodes;
    int *node_of;     /* [size] number of the node */
    int *local_of;    /* [size] place among its node's ranks */
    bool *shm_usable; /* [size] that rank's node exchanges through shared memory */
    int *
        shm_groups_of; /* [size] mailboxes in use of each rank: kept by all ranks alike, so that no message is needed */
    tr_transport inside;
    double timeout_s;
    int max_tag;
    int num_groups;        /* made so far */
    tr_group *first_group; /* in order of creation */
    int num_polled;        /* operations in flight that only polling moves on */
    size_t mailbox_bytes;
    tr_shm_segment control; /* doorbell and mailboxes of each rank of the node */
    tr_shm_segment comm_segment;
    bool comm_made;
    tr_device *device;  /* its memory is the communication memory; NULL: the host's */
    bool share_device;  /* ranks may use one GPU */
    int device_sharers; /* ranks of this node that use this rank's, itself among them */
    void *device_comm;  /* that memory */
    size_t device_comm_bytes;
    bool device_failed;             /* what was posted on it may never complete */
    struct tr_posted_queue *posted; /* world_device.c; NULL with one rank */
    struct tr_nccl_world *nccl;     /* NULL before it was opened */
    int nccl_version;               /* 0: not opened */
    tr_status (*idle_callback)(void *context);
    void *idle_context;
    double last_idle;
    tr_waitpoint waitpoint;
    tr_trace_ring *trace; /* NULL: nobody records */
};

/* --- group.c --- */

const char *tr_op_name(tr_op_kind kind);
bool tr_op_is_pair(tr_op_kind kind);
/* Moves all posted operations of this process on. */
tr_status tr_world_progress(tr_world *world, bool *moved);
/* dst = tree sum (or, for ALL_REDUCE_MAX, maximum) of group->sources, n elements each; counts the time. */
void tr_group_combine(tr_group *group, tr_op_kind kind, int64_t n, float *dst);
/* Adds what the operation did since `begin` to the trace, which is on. */
void tr_group_trace_add(tr_group *group, const tr_op *op, int lane, double begin);
/* memcpy that counts the time. */
void tr_group_copy(tr_group *group, void *dst, const void *src, size_t bytes);
/* values[i] = op(values[i], other[i]). */
void tr_group_combine_i64(tr_int_op op, int n, const int64_t *other, int64_t *values);
/* Begins the group's small operation; the transport sets its sequence, and waits. */
tr_op *tr_group_small_begin(tr_group *group, tr_op_kind kind);

/* --- group_share.c --- */

/* The share of `rank` when n elements are cut for an all-reduce: [*begin, *end), cache lines whole. */
void tr_group_share(const tr_group *group, int64_t n, int rank, int64_t *begin, int64_t *end);

/* What a rank adds: its part of a reduce_scatter's source, its share of an all-reduce. Empty ones do not travel. */
typedef struct tr_segment {
    int64_t begin, end; /* elements */
} tr_segment;

tr_segment tr_group_segment(const tr_group *group, const tr_op *op, int rank);
static inline size_t tr_segment_bytes(tr_segment s)
{
    return (size_t)(s.end - s.begin) * sizeof(float);
}
/* Whether all ranks' counts are. */
bool tr_group_counts_are_equal(const tr_group *group, const tr_op *op);
/* Elements between two ranks' segments in a scratch. */
int64_t tr_group_scratch_stride(int64_t elements);

/* --- group_wait.c --- */

/* One wait: begin, then in a loop look, test for the end of the wait, pause; then end. */
typedef struct tr_waiter {
    tr_world *world;
    const char *operation, *group; /* for the wait point */
    int peer, microbatch;
    double start;
    bool paused;
    int num_idle; /* polled pauses since anything moved */
    uint32_t doorbell;
} tr_waiter;

void tr_waiter_begin(tr_waiter *waiter, tr_world *world, const char *operation, const char *group,
                     int peer, int microbatch);
/* Before the test: what rings after this ends the pause. */
void tr_waiter_look(tr_waiter *waiter);
/* Sleeps until something may have changed. polled: nobody rings, so sleep briefly. *expired: the deadline has passed. Fails with what
 * the idle callback returned. */
tr_status tr_waiter_pause(tr_waiter *waiter, bool polled, bool *expired);
/* Returns the seconds since begin. */
double tr_waiter_end(tr_waiter *waiter);

/* Waits until the operation is complete (or its result ready). */
tr_status tr_group_wait_op(tr_group *group, tr_op *op, bool result_only);
/* Waits for a request of set-up on the world's communicators. `what`: "gathering the places of the ranks". */
tr_status tr_world_wait_request(tr_world *world, MPI_Request *request, const char *what);
/* Rings a rank of this node: whatever it waits for, it looks again. */
void tr_world_ring(tr_world *world, int local_rank);

/* --- world.c --- */

/* Whether [data, data + bytes) lies in this rank's communication memory. */
bool tr_world_owns(const tr_world *world, const void *data, size_t bytes);
/* All ranks of `comm` learn whether any of them failed: then each returns its own error, or, where there is none, `status_if_other` and a
 * message that names the failed rank. `what`: "share memory on this node". */
tr_status tr_world_agree(tr_world *world, MPI_Comm comm, tr_status own, tr_status status_if_other,
                         const char *what);
/* Makes a group of any transport (tr_world_group_create). */
tr_status tr_world_group_make(tr_world *world, const tr_group_transport *transport,
                              tr_stream stream, bool only_gathers, const int *ranks, int num_ranks,
                              const char *name, tr_group **group);

/* --- world_device.c --- */

/* Zeroed communication memory of the device. */
tr_status tr_world_device_memory(tr_world *world, size_t bytes);
/* Gives back what the world has of the device. */
void tr_world_device_clear(tr_world *world);
/* Notes that the operation was enqueued, as the last work of `stream` so far: a wait that is too long asks what is not complete. */
tr_status tr_world_note_posted(tr_world *world, const tr_group *group, const tr_op *op,
                               tr_stream stream);
/* When a group ends: whether all went well so far, and the event's point comes in a few seconds. */
bool tr_world_ends_well(tr_world *world, tr_device_event *event);
/* The group ends. */
void tr_world_forget_posted(tr_world *world, const tr_group *group);

/* Maps an MPI error code. */
tr_status tr_mpi_fail(int code, const char *call);
#define TR_MPI(call)                                                                               \
    do {                                                                                           \
        int tr_mpi_code_ = (call);                                                                 \
        if (tr_mpi_code_ != MPI_SUCCESS)                                                           \
            return tr_mpi_fail(tr_mpi_code_, #call);                                               \
    } while (0)

#endif
