/* Operations that finish before they return: values go through the two small buffers of each rank's mailbox in turn, in any memory. */
#include <string.h>

#include "parallel/group_shm.h"

tr_status tr_shm_advance_small(tr_group *group, tr_op *op, bool *moved)
{
    tr_shm_state *state = group->state;
    if (tr_shm_arrived(group, &state->mailboxes[0]->board.small[op->sequence % 2],
                       op->sequence / 2)) {
        op->result_ready = true;
        op->active = false;
        *moved = true;
    }
    return TR_OK;
}

/* Puts `bytes` of `data` (0: nothing) into this rank's buffer, and waits until all ranks have come as far. *number: of the exchange. */
static tr_status exchange(tr_group *group, tr_op_kind kind, const void *data, size_t bytes,
                          uint64_t signature, uint64_t *number)
{
    tr_shm_state *state = group->state;
    tr_shm_mailbox *own = state->mailboxes[group->rank];
    tr_op *op = tr_group_small_begin(group, kind);
    op->sequence = *number = state->num_small++;
    if (bytes > 0)
        memcpy(own->small[*number % 2], data, bytes);
    own->small_signature[*number % 2] = signature;
    atomic_store_explicit(&own->num_small, *number + 1, memory_order_relaxed);
    tr_shm_arrive(group, &state->mailboxes[0]->board.small[*number % 2], *number / 2);
    TR_TRY(tr_group_wait_op(group, op, false));
    for (int i = 0; i < group->size; i++)
        if (state->mailboxes[i]->small_signature[*number % 2] != signature)
            return tr_fail(
                TR_ERR_INTERNAL,
                "%s of group %s: ranks %d and %d of the group called different operations "
                "or sizes",
                tr_op_name(kind), group->name, group->rank, i);
    return TR_OK;
}

tr_status tr_shm_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op)
{
    tr_shm_state *state = group->state;
    uint64_t number;
    TR_TRY(exchange(group, n > 0 ? TR_OP_ALL_REDUCE_I64 : TR_OP_BARRIER, values,
                    (size_t)n * sizeof *values, ((uint64_t)n << 8) + (uint64_t)op, &number));
    for (int i = 0; i < group->size; i++)
        if (i != group->rank)
            tr_group_combine_i64(
                op, n, (const int64_t *)(const void *)state->mailboxes[i]->small[number % 2],
                values);
    return TR_OK;
}

tr_status tr_shm_broadcast(tr_group *group, int root, void *data, size_t bytes)
{
    tr_shm_state *state = group->state;
    for (size_t begin = 0; begin < bytes; begin += TR_SHM_SMALL_BYTES) {
        size_t n = bytes - begin < TR_SHM_SMALL_BYTES ? bytes - begin : TR_SHM_SMALL_BYTES;
        bool is_root = group->rank == root;
        char *at = (char *)data + begin;
        uint64_t number;
        TR_TRY(exchange(group, TR_OP_BROADCAST, at, is_root ? n : 0,
                        (1u << 31) + ((uint64_t)root << 40) + n, &number));
        if (!is_root)
            memcpy(at, state->mailboxes[root]->small[number % 2], n);
    }
    return TR_OK;
}
