/* The inside of the MPI transport. */
#ifndef TR_PARALLEL_GROUP_MPI_H
#define TR_PARALLEL_GROUP_MPI_H

#include "parallel/group_int.h"

/* Streams of messages between two ranks of a group, kept apart by tag. Inside one, MPI keeps the order of posts. */
typedef enum tr_mpi_stream {
    TR_MPI_COLLECTIVE,
    TR_MPI_CHANNEL,
    TR_MPI_SMALL,
    TR_MPI_NOTE
} tr_mpi_stream;

typedef struct tr_mpi_message {
    int peer;  /* rank in the group */
    int bytes; /* expected by a receive, -1 for a send */
} tr_mpi_message;

/* The messages of a slot's operation that are under way, and the memory that its receives need. */
typedef struct tr_mpi_op {
    MPI_Request *requests;
    MPI_Status *statuses;
    tr_mpi_message *messages;
    int num, capacity;
    void *staging;
    size_t staging_bytes;
} tr_mpi_op;

typedef struct tr_mpi_state {
    tr_mpi_op ops[TR_GROUP_SLOTS + 1]; /* by slot */
    uint64_t num_small;
} tr_mpi_state;

/* Starts sending or receiving; messages of more than 1 GiB go in pieces. `number`: of the exchange within its stream. */
tr_status tr_mpi_send(tr_group *group, tr_op *op, tr_mpi_stream stream, uint64_t number, int to,
                      const void *data, size_t bytes);
tr_status tr_mpi_recv(tr_group *group, tr_op *op, tr_mpi_stream stream, uint64_t number, int from,
                      void *data, size_t bytes);
/* At least `bytes` of memory for the slot's operation; grows on first use. */
void *tr_mpi_staging(tr_group *group, const tr_op *op, size_t bytes);

/* --- group_mpi_small.c --- */

tr_status tr_mpi_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op);
tr_status tr_mpi_broadcast(tr_group *group, int root, void *data, size_t bytes);

#endif
