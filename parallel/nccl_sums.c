/* Sums of GPUs. The ordered ones are the tree's: the ranks exchange segments into the scratch, a kernel adds them in tree order (tr_device's combine), and an
 * all-reduce sends the shares of the result around; NCCL carries bytes only, and the bits are those of host memory (group_mpi.c).
 *
 * Reduce-scatters of native groups are NCCL's own, in an order of its own. Its ReduceScatter takes equal parts only, which the parts of a bucket seldom are: unequal
 * ones are a Reduce to each rank, all in one launch. By NCCL's rings both send what the ordered exchange sends. */
#include "parallel/nccl_sums.h"

/* The other ranks' segments stand in the scratch one behind the other, in their order. */
static float *scratch_place(const tr_group *group, int64_t elements, int rank)
{
    int place = rank < group->rank ? rank : rank - 1;
    return (float *)group->scratch + place * tr_group_scratch_stride(elements);
}

/* Each peer's segment of the source to it, all peers' segments for this rank into the scratch. */
static tr_status exchange_segments(tr_nccl_comm *all, const tr_op *op)
{
    const tr_group *group = all->group;
    const tr_nccl *nccl = tr_nccl_of(group);
    tr_segment own = tr_group_segment(group, op, group->rank);
    int64_t elements = own.end - own.begin;
    TR_ASSERT(tr_group_scratch_bytes(group->size, elements) <= group->scratch_bytes);
    TR_TRY(tr_nccl_begin(all));
    tr_status status = TR_OK;
    for (int step = 1; step < group->size; step++) {
        int to = (group->rank + step) % group->size;
        int from = (group->rank + group->size - step) % group->size;
        tr_segment s = tr_group_segment(group, op, to);
        if (s.end > s.begin)
            TR_NCCL_TRY_GOTO(status, all,
                             nccl->Send((const float *)op->src + s.begin, tr_segment_bytes(s),
                                        ncclUint8, to, all->comm, tr_nccl_stream(group)),
                             end);
        if (elements > 0)
            TR_NCCL_TRY_GOTO(status, all,
                             nccl->Recv(scratch_place(group, elements, from), tr_segment_bytes(own),
                                        ncclUint8, from, all->comm, tr_nccl_stream(group)),
                             end);
    }
end:
    return tr_nccl_end(all, status);
}

static tr_status combine_segments(const tr_group *group, const tr_op *op)
{
    tr_device *device = group->world->device;
    tr_segment own = tr_group_segment(group, op, group->rank);
    float *dst = op->dst;
    const tr_combine args = {.kind = op->kind == TR_OP_ALL_REDUCE_MAX ? TR_COMBINE_MAXIMUM
                                                                      : TR_COMBINE_TREE_SUM,
                             .count = group->size,
                             .own_index = group->rank,
                             .n = own.end - own.begin,
                             .own = (const float *)op->src + own.begin,
                             .others = group->scratch,
                             .stride = tr_group_scratch_stride(own.end - own.begin),
                             .dst = op->kind == TR_OP_REDUCE_SCATTER ? dst : dst + own.begin};
    return device->combine(device, group->stream, &args);
}

/* The second half of an all-reduce: the shares of the result. */
static tr_status gather_shares(tr_nccl_comm *all, const tr_op *op)
{
    const tr_group *group = all->group;
    const tr_nccl *nccl = tr_nccl_of(group);
    tr_segment own = tr_group_segment(group, op, group->rank);
    float *dst = op->dst;
    TR_TRY(tr_nccl_begin(all));
    tr_status status = TR_OK;
    for (int step = 1; step < group->size; step++) {
        int to = (group->rank + step) % group->size;
        int from = (group->rank + group->size - step) % group->size;
        tr_segment s = tr_group_segment(group, op, from);
        if (own.end > own.begin)
            TR_NCCL_TRY_GOTO(status, all,
                             nccl->Send(dst + own.begin, tr_segment_bytes(own), ncclUint8, to,
                                        all->comm, tr_nccl_stream(group)),
                             end);
        if (s.end > s.begin)
            TR_NCCL_TRY_GOTO(status, all,
                             nccl->Recv(dst + s.begin, tr_segment_bytes(s), ncclUint8, from,
                                        all->comm, tr_nccl_stream(group)),
                             end);
    }
end:
    return tr_nccl_end(all, status);
}

tr_status tr_nccl_sum_equal(tr_nccl_comm *all, const tr_op *op)
{
    const tr_group *group = all->group;
    if (op->counts[0] == 0)
        return TR_OK;
    TR_TRY(tr_nccl_begin(all));
    ncclResult_t result =
        tr_nccl_of(group)->ReduceScatter(op->src, op->dst, (size_t)op->counts[0], ncclFloat32,
                                         ncclSum, all->comm, tr_nccl_stream(group));
    return tr_nccl_end(all, tr_nccl_result(all, result, "ReduceScatter"));
}

tr_status tr_nccl_sum_unequal(tr_nccl_comm *all, const tr_op *op)
{
    const tr_group *group = all->group;
    const tr_nccl *nccl = tr_nccl_of(group);
    TR_TRY(tr_nccl_begin(all));
    tr_status status = TR_OK;
    for (int root = 0; root < group->size; root++) {
        tr_segment s = tr_group_segment(group, op, root);
        if (s.end > s.begin)
            TR_NCCL_TRY_GOTO(status, all,
                             nccl->Reduce((const float *)op->src + s.begin,
                                          root == group->rank ? op->dst : NULL,
                                          (size_t)(s.end - s.begin), ncclFloat32, ncclSum, root,
                                          all->comm, tr_nccl_stream(group)),
                             end);
    }
end:
    return tr_nccl_end(all, status);
}

tr_status tr_nccl_sum(tr_nccl_comm *all, const tr_op *op)
{
    const tr_group *group = all->group;
    if (group->native && op->kind == TR_OP_REDUCE_SCATTER)
        return tr_group_counts_are_equal(group, op) ? tr_nccl_sum_equal(all, op)
                                                    : tr_nccl_sum_unequal(all, op);
    TR_TRY(exchange_segments(all, op));
    TR_TRY(combine_segments(group, op));
    return op->kind == TR_OP_REDUCE_SCATTER ? TR_OK : gather_shares(all, op);
}
