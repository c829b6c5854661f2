#include "parallel/tensor_comm.h"

#include "base/alloc.h"

void tr_tensor_comm_init(tr_tensor_comm *tensor, int size, int rank, bool sequence, int64_t rows,
                         int64_t width, tr_dtype dtype, tr_arena *comm, tr_arena *workspace)
{
    *tensor = (tr_tensor_comm){.size = size,
                               .rank = rank,
                               .sequence = sequence && size > 1,
                               .rows = rows,
                               .local_rows = rows,
                               .width = width,
                               .dtype = dtype};
    if (tensor->sequence) {
        tensor->local_rows = rows / size;
        tensor->row_begin = tensor->local_rows * rank;
    }
    size_t partial_bytes = (size_t)(rows * width) * sizeof(float);
    if (size == 1) {
        tensor->partial[0] = tensor->partial[1] = tr_arena_alloc(workspace, partial_bytes);
        return;
    }
    tensor->counts = TR_NEW_ARRAY(int64_t, (size_t)size);
    for (int r = 0; r < size; r++)
        tensor->counts[r] = tensor->local_rows * width;
    size_t local_elements = (size_t)(tensor->local_rows * width);
    for (int i = 0; i < TR_TENSOR_COMM_BUFFERS; i++) {
        tensor->partial[i] = tr_arena_alloc(comm, partial_bytes);
        tensor->statistics[i] = tr_arena_alloc(comm, (size_t)(2 * rows) * sizeof(float));
        if (tensor->sequence)
            tensor->rows_source[i] = tr_arena_alloc(comm, local_elements * tr_dtype_size(dtype));
    }
    tensor->reduced = tr_arena_alloc(workspace, local_elements * sizeof(float));
}

void tr_tensor_comm_clear(tr_tensor_comm *tensor)
{
    tr_free(tensor->counts);
    *tensor = (tr_tensor_comm){0};
}

tr_status tr_tensor_comm_partial(tr_tensor_comm *tensor, float **partial)
{
    int i = tensor->next_partial;
    TR_TRY(tr_event_wait(&tensor->partial_event[i]));
    *partial = tensor->partial[i];
    return TR_OK;
}

tr_status tr_tensor_comm_reduce(tr_tensor_comm *tensor, float *partial, float **result)
{
    if (tensor->size == 1) {
        *result = partial;
        return TR_OK;
    }
    int i = tensor->next_partial;
    TR_ASSERT(partial == tensor->partial[i]);
    tensor->next_partial = (i + 1) % TR_TENSOR_COMM_BUFFERS;
    if (tensor->sequence)
        TR_TRY(tr_group_reduce_scatter(tensor->group, partial, tensor->counts, tensor->reduced,
                                       &tensor->partial_event[i]));
    else
        TR_TRY(tr_group_all_reduce(tensor->group, partial, tensor->reduced,
                                   tensor->rows * tensor->width, &tensor->partial_event[i]));
    TR_TRY(tr_event_wait_result(&tensor->partial_event[i]));
    *result = tensor->reduced;
    return TR_OK;
}

tr_status tr_tensor_comm_rows(tr_tensor_comm *tensor, void **rows)
{
    int i = tensor->next_rows;
    TR_TRY(tr_event_wait(&tensor->rows_event[i]));
    *rows = tensor->rows_source[i];
    return TR_OK;
}

tr_status tr_tensor_comm_gather(tr_tensor_comm *tensor, const void *rows, void *full)
{
    int i = tensor->next_rows;
    TR_ASSERT(tensor->sequence && rows == tensor->rows_source[i]);
    tensor->next_rows = (i + 1) % TR_TENSOR_COMM_BUFFERS;
    TR_TRY(tr_group_all_gather(tensor->group, rows, tensor->counts, tr_dtype_size(tensor->dtype),
                               full, &tensor->rows_event[i]));
    return tr_event_wait_result(&tensor->rows_event[i]);
}

tr_status tr_tensor_comm_statistics(tr_tensor_comm *tensor, float **buffer)
{
    int i = tensor->next_statistics;
    TR_TRY(tr_event_wait(&tensor->statistics_event[i]));
    *buffer = tensor->statistics[i];
    return TR_OK;
}

/* The event of the buffer that tr_tensor_comm_statistics gave out; the other one is next. */
static tr_event *statistics_take(tr_tensor_comm *tensor, const float *buffer)
{
    int i = tensor->next_statistics;
    TR_ASSERT(buffer == tensor->statistics[i]);
    tensor->next_statistics = (i + 1) % TR_TENSOR_COMM_BUFFERS;
    return &tensor->statistics_event[i];
}

tr_status tr_tensor_comm_max(tr_tensor_comm *tensor, const float *buffer, float *dst, int64_t n)
{
    tr_event *event = statistics_take(tensor, buffer);
    TR_TRY(tr_group_all_reduce_max(tensor->group, buffer, dst, n, event));
    return tr_event_wait_result(event);
}

tr_status tr_tensor_comm_sum(tr_tensor_comm *tensor, const float *buffer, float *dst, int64_t n)
{
    tr_event *event = statistics_take(tensor, buffer);
    TR_TRY(tr_group_all_reduce(tensor->group, buffer, dst, n, event));
    return tr_event_wait_result(event);
}
