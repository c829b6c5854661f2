/* How the elements of a sum are cut over the ranks of a group: the same on every transport. */
#include "base/integers.h"
#include "parallel/group_int.h"

enum {
    SHARE_MULTIPLE =
        16, /* elements of one cache line: shares begin on lines where the tensor does */
    SCRATCH_MULTIPLE = 64 /* elements of 256 bytes */
};

static void share_of(int size, int64_t n, int rank, int64_t *begin, int64_t *end)
{
    int64_t each = tr_round_up(n, SHARE_MULTIPLE * (int64_t)size) / size;
    *begin = each * rank < n ? each * rank : n;
    *end = *begin + each < n ? *begin + each : n;
}

void tr_group_share(const tr_group *group, int64_t n, int rank, int64_t *begin, int64_t *end)
{
    share_of(group->size, n, rank, begin, end);
}

int64_t tr_group_all_reduce_bytes(int size, int rank, int64_t n)
{
    int64_t begin, end;
    share_of(size, n, rank, &begin, &end);
    int64_t share = end - begin;
    return (n - share + share * (size - 1)) * (int64_t)sizeof(float);
}

int64_t tr_group_largest_share(int size, int64_t n)
{
    int64_t begin, end;
    share_of(size, n, 0, &begin, &end);
    return end;
}

int64_t tr_group_scratch_stride(int64_t elements)
{
    return tr_round_up(elements, SCRATCH_MULTIPLE);
}

size_t tr_group_scratch_bytes(int size, int64_t elements)
{
    return (size_t)tr_group_scratch_stride(elements) * (size_t)(size - 1) * sizeof(float);
}

tr_segment tr_group_segment(const tr_group *group, const tr_op *op, int rank)
{
    tr_segment found = {0, 0};
    if (op->kind != TR_OP_REDUCE_SCATTER) {
        tr_group_share(group, op->n, rank, &found.begin, &found.end);
        return found;
    }
    for (int i = 0; i < rank; i++)
        found.begin += op->counts[i];
    found.end = found.begin + op->counts[rank];
    return found;
}

bool tr_group_counts_are_equal(const tr_group *group, const tr_op *op)
{
    for (int i = 1; i < group->size; i++)
        if (op->counts[i] != op->counts[0])
            return false;
    return true;
}
