/* Integer all-reduce and broadcast over MPI messages: they finish before they return, in about log2(size) exchanges. */
#include <string.h>

#include "parallel/group_mpi.h"

static tr_op *exchange_begin(tr_group *group, tr_op_kind kind)
{
    tr_mpi_state *state = group->state;
    tr_op *op = tr_group_small_begin(group, kind);
    op->sequence = state->num_small++;
    group->world->num_polled++;
    return op;
}

/* Sends `own` and receives `other`, n values each, to and from a peer (-1: not this way), and waits for both. */
static tr_status exchange(tr_group *group, tr_op_kind kind, int to, const int64_t *own, int from,
                          int64_t *other, int n)
{
    tr_op *op = exchange_begin(group, kind);
    size_t bytes = (size_t)n * sizeof *own;
    if (from >= 0)
        TR_TRY(tr_mpi_recv(group, op, TR_MPI_SMALL, 0, from, other, bytes));
    if (to >= 0)
        TR_TRY(tr_mpi_send(group, op, TR_MPI_SMALL, 0, to, own, bytes));
    return tr_group_wait_op(group, op, false);
}

/* Ranks beyond the largest power of two give their values to a partner first and get the result last; the others double. */
tr_status tr_mpi_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op)
{
    int64_t other[TR_GROUP_INTEGERS_MAX];
    tr_op_kind kind = n > 0 ? TR_OP_ALL_REDUCE_I64 : TR_OP_BARRIER;
    int core = 1, rank = group->rank;
    while (core * 2 <= group->size)
        core *= 2;
    int extra = rank < core ? rank + core : -1;
    extra = extra < group->size ? extra : -1;

    if (rank >= core) {
        TR_TRY(exchange(group, kind, rank - core, values, -1, NULL, n));
        return exchange(group, kind, -1, NULL, rank - core, values, n);
    }
    if (extra >= 0) {
        TR_TRY(exchange(group, kind, -1, NULL, extra, other, n));
        tr_group_combine_i64(op, n, other, values);
    }
    for (int distance = 1; distance < core; distance *= 2) {
        TR_TRY(exchange(group, kind, rank ^ distance, values, rank ^ distance, other, n));
        tr_group_combine_i64(op, n, other, values);
    }
    return extra >= 0 ? exchange(group, kind, extra, values, -1, NULL, n) : TR_OK;
}

/* A binomial tree: relative rank r receives from r without its lowest bit, and sends to r plus each lower power of two. */
tr_status tr_mpi_broadcast(tr_group *group, int root, void *data, size_t bytes)
{
    int size = group->size, relative = (group->rank + size - root) % size, bit = 1;
    tr_op *op = exchange_begin(group, TR_OP_BROADCAST);
    while (bit < size && (relative & bit) == 0)
        bit *= 2;
    if (relative != 0) {
        int from = (relative - bit + root) % size;
        TR_TRY(tr_mpi_recv(group, op, TR_MPI_SMALL, 0, from, data, bytes));
        TR_TRY(tr_group_wait_op(group, op, false));
        op = exchange_begin(group, TR_OP_BROADCAST);
    }
    for (bit /= 2; bit > 0; bit /= 2)
        if (relative + bit < size)
            TR_TRY(tr_mpi_send(group, op, TR_MPI_SMALL, 0, (relative + bit + root) % size, data,
                               bytes));
    return tr_group_wait_op(group, op, false);
}
