/* Communicators of NCCL: made, asked and ended. Read by group_nccl.c and nccl_comm.c only.
 *
 * They do not block: a call may return before NCCL has done its part, and nothing may be enqueued behind it until it has. tr_nccl_settle waits for that,
 * asleep, against the world's deadline. A failure of NCCL's marks the world's device as failed. */
#ifndef TR_PARALLEL_NCCL_COMM_H
#define TR_PARALLEL_NCCL_COMM_H

#include "kernels/cuda/cuda_device.h"
#include "parallel/group_nccl.h"
#include "parallel/nccl_library.h"

typedef struct tr_nccl_comm {
    tr_group *group;
    ncclComm_t comm; /* NULL: not open */
    struct tr_nccl_comm *next;
} tr_nccl_comm;

typedef struct tr_nccl_world {
    const tr_nccl *table;
    tr_nccl_comm *first; /* of the open communicators */
    char *
        probe; /* device memory for the first operations of a communicator: TR_NCCL_PROBE bytes, and a float for each rank */
} tr_nccl_world;

enum { TR_NCCL_PROBE = 256 };

static inline const tr_nccl *tr_nccl_of(const tr_group *group)
{
    return group->world->nccl->table;
}

/* That of the group's collectives. */
static inline cudaStream_t tr_nccl_stream(const tr_group *group)
{
    return tr_cuda_device_stream(group->world->device, group->stream);
}

/* Collective over `members` (ranks of the group, this one among them), whose places there are the communicator's ranks. number: below 4096, another one for
 * each communicator of the group, the same on all. max_blocks: blocks of threads that an operation may take of the GPU; 0: NCCL chooses. comm stays where it is until it is closed. */
tr_status tr_nccl_comm_open(tr_nccl_comm *comm, tr_group *group, const int *members,
                            int num_members, int number, int max_blocks);
/* Collective over its ranks, unless `abort`: then what is under way ends where it is. One that is not open is fine. */
void tr_nccl_comm_close(tr_nccl_comm *comm, bool abort);

/* Calls of Send, Recv and collectives on one communicator that go off together. `status`: of the calls since begin, returned when it is none. */
tr_status tr_nccl_begin(tr_nccl_comm *comm);
tr_status tr_nccl_end(tr_nccl_comm *comm, tr_status status);
/* A call between them. */
#define TR_NCCL_TRY_GOTO(status_var, comm, call, label)                                            \
    TR_TRY_GOTO(status_var, tr_nccl_result((comm), (call), #call), label)
/* TR_OK, or NCCL's error as a status. */
tr_status tr_nccl_result(tr_nccl_comm *comm, ncclResult_t result, const char *call);

#endif
