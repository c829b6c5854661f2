#include "parallel/tensor_comm.h"

#include "base/alloc.h"

static void shared_init(tr_tensor_comm *tensor, const tr_tensor_comm_sizes *sizes, tr_arena *comm,
                        tr_arena *workspace)
{
    size_t bytes = (size_t)sizes->shared * sizeof(float);
    if (sizes->shared == 0)
        return;
    tensor->num_shared = sizes->shared;
    tensor->shared_sum = tr_arena_alloc(workspace, bytes);
    tensor->shared_source = sizes->sharers > 1 ? tr_arena_alloc(comm, bytes) : tensor->shared_sum;
}

/* Elements of a rank's rows in a half of all rows. */
static int64_t half_elements(const tr_tensor_comm *tensor, int rank, int half)
{
    int64_t half_rows = tr_tensor_comm_half_rows(tensor);
    if (!tensor->sequence)
        return half_rows * tensor->width;
    int64_t begin = tensor->local_rows * rank, end = begin + tensor->local_rows;
    int64_t half_begin = half_rows * half, half_end = half_begin + half_rows;
    begin = begin > half_begin ? begin : half_begin;
    end = end < half_end ? end : half_end;
    return end > begin ? (end - begin) * tensor->width : 0;
}

static void buffers_init(tr_tensor_comm *tensor, const tr_tensor_comm_sizes *sizes, tr_arena *comm,
                         tr_arena *workspace)
{
    size_t partial_bytes = (size_t)(tensor->rows * tensor->width) * sizeof(float);
    size_t local_elements = (size_t)(tensor->local_rows * tensor->width);
    for (int i = 0; i < TR_TENSOR_COMM_BUFFERS; i++) {
        tensor->partial[i] = tr_arena_alloc(comm, partial_bytes);
        tensor->statistics[i] = tr_arena_alloc(comm, (size_t)sizes->statistics * sizeof(float));
        if (tensor->sequence)
            tensor->rows_source[i] =
                tr_arena_alloc(comm, local_elements * tr_dtype_size(sizes->dtype));
    }
    tensor->reduced = tr_arena_alloc(workspace, local_elements * sizeof(float));
}

void tr_tensor_comm_init(tr_tensor_comm *tensor, int size, int rank, bool sequence, bool overlap,
                         const tr_tensor_comm_sizes *sizes, tr_arena *comm, tr_arena *workspace)
{
    int64_t rows = sizes->rows;
    *tensor = (tr_tensor_comm){.size = size,
                               .rank = rank,
                               .sequence = sequence && size > 1,
                               .overlap = overlap,
                               .num_halves = (size > 1 || sizes->halves) && rows % 2 == 0 ? 2 : 1,
                               .rows = rows,
                               .local_rows = rows,
                               .width = sizes->width,
                               .num_statistics = sizes->statistics,
                               .dtype = sizes->dtype};
    shared_init(tensor, sizes, comm, workspace);
    if (tensor->sequence) {
        tensor->local_rows = rows / size;
        tensor->row_begin = tensor->local_rows * rank;
    }
    if (size == 1) {
        size_t bytes = (size_t)(rows * sizes->width) * sizeof(float);
        tensor->partial[0] = tensor->partial[1] = tr_arena_alloc(workspace, bytes);
        return;
    }
    for (int h = 0; h < tensor->num_halves; h++) {
        tensor->counts[h] = TR_NEW_ARRAY(int64_t, (size_t)size);
        for (int r = 0; r < size; r++)
            tensor->counts[h][r] = half_elements(tensor, r, h);
    }
    buffers_init(tensor, sizes, comm, workspace);
}

void tr_tensor_comm_clear(tr_tensor_comm *tensor)
{
    for (int h = 0; h < TR_TENSOR_COMM_HALVES; h++)
        tr_free(tensor->counts[h]);
    *tensor = (tr_tensor_comm){0};
}

int64_t tr_tensor_comm_half_rows(const tr_tensor_comm *tensor)
{
    return tensor->rows / tensor->num_halves;
}

/* Elements of this rank in the halves before one. */
static int64_t before_half(const tr_tensor_comm *tensor, int half)
{
    return half == 0 ? 0 : half_elements(tensor, tensor->rank, 0);
}

/* ---- partial sums ---- */

tr_status tr_tensor_comm_partial(tr_tensor_comm *tensor, float **partial)
{
    int i = tensor->next_partial;
    for (int h = 0; h < tensor->num_halves; h++)
        TR_TRY(tr_event_wait(&tensor->partial_event[i][h]));
    *partial = tensor->partial[i];
    return TR_OK;
}

tr_status tr_tensor_comm_reduce_post(tr_tensor_comm *tensor, float *partial, int half)
{
    if (tensor->size == 1)
        return TR_OK;
    int i = tensor->next_partial;
    int64_t elements = tr_tensor_comm_half_rows(tensor) * tensor->width;
    const float *src = partial + half * elements;
    float *dst = tensor->reduced + before_half(tensor, half);
    tr_event *event = &tensor->partial_event[i][half];
    TR_ASSERT(partial == tensor->partial[i]);
    if (tensor->sequence)
        TR_TRY(tr_group_reduce_scatter(tensor->group, src, tensor->counts[half], dst, event));
    else
        TR_TRY(tr_group_all_reduce(tensor->group, src, dst, elements, event));
    return tensor->overlap ? TR_OK : tr_event_wait_result(event);
}

tr_status tr_tensor_comm_reduce_finish(tr_tensor_comm *tensor, float *partial, float **result)
{
    *result = partial;
    if (tensor->size == 1)
        return TR_OK;
    int i = tensor->next_partial;
    tensor->next_partial = (i + 1) % TR_TENSOR_COMM_BUFFERS;
    *result = tensor->reduced;
    for (int h = 0; h < tensor->num_halves; h++)
        TR_TRY(tr_event_wait_result(&tensor->partial_event[i][h]));
    return TR_OK;
}

/* ---- rows ---- */

tr_status tr_tensor_comm_rows(tr_tensor_comm *tensor, void **rows)
{
    int i = tensor->next_rows;
    for (int h = 0; h < tensor->num_halves; h++)
        TR_TRY(tr_event_wait(&tensor->rows_event[i][h]));
    *rows = tensor->rows_source[i];
    return TR_OK;
}

tr_status tr_tensor_comm_gather_post(tr_tensor_comm *tensor, const void *rows, void *full)
{
    int i = tensor->next_rows;
    size_t item = tr_dtype_size(tensor->dtype);
    TR_ASSERT(tensor->sequence && rows == tensor->rows_source[i]);
    tensor->next_rows = (i + 1) % TR_TENSOR_COMM_BUFFERS;
    tensor->gathered = full;
    for (int h = 0; h < tensor->num_halves; h++) {
        const char *src = (const char *)rows + (size_t)before_half(tensor, h) * item;
        int64_t begin = h * tr_tensor_comm_half_rows(tensor) * tensor->width;
        TR_TRY(tr_group_all_gather(tensor->group, src, tensor->counts[h], item,
                                   (char *)full + (size_t)begin * item, &tensor->rows_event[i][h]));
    }
    return tensor->overlap ? TR_OK : tr_tensor_comm_gather_wait(tensor, full, -1);
}

tr_status tr_tensor_comm_gather_wait(tr_tensor_comm *tensor, const void *full, int half)
{
    if (!tensor->sequence || full != tensor->gathered)
        return TR_OK;
    int i = (tensor->next_rows + TR_TENSOR_COMM_BUFFERS - 1) % TR_TENSOR_COMM_BUFFERS;
    for (int h = 0; h < tensor->num_halves; h++)
        if (half < 0 || half == h)
            TR_TRY(tr_event_wait_result(&tensor->rows_event[i][h]));
    return TR_OK;
}

/* ---- small things ---- */

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

tr_status tr_tensor_comm_shared(tr_tensor_comm *tensor, float **buffer)
{
    TR_TRY(tr_event_wait(&tensor->shared_event));
    *buffer = tensor->shared_source;
    return TR_OK;
}

tr_status tr_tensor_comm_shared_sum(tr_tensor_comm *tensor, float *buffer, float **sum)
{
    TR_ASSERT(buffer == tensor->shared_source);
    *sum = tensor->shared_sum;
    if (buffer == tensor->shared_sum)
        return TR_OK;
    TR_TRY(tr_group_all_reduce(tensor->sharers, buffer, tensor->shared_sum, tensor->num_shared,
                               &tensor->shared_event));
    return tr_event_wait_result(&tensor->shared_event);
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
