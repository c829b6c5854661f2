/* What the launchers of cuda_kernels.h need of the workspace at most. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_scratch.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Most blocks of norm_backward over at most R rows: fewer rows can have more blocks than R has. */
static int64_t norm_blocks_most(int64_t R)
{
    int64_t least = tr_cuda_ceil(R, TR_NORM_LEAST_ROWS);
    int64_t most = larger(TR_NORM_BLOCKS, (size_t)tr_cuda_ceil(R, TR_NORM_MOST_ROWS));
    return least < most ? least : most;
}

/* Weight and bias gradients of each block, of rows of the stream and of rows of heads. */
static size_t norm_bytes(const tr_workspace_need *need)
{
    int64_t rows = need->B * need->T, heads = need->A > need->K ? need->A : need->K;
    size_t hidden = (size_t)(norm_blocks_most(rows) * need->H);
    size_t head = (size_t)(norm_blocks_most(rows * heads) * need->D);
    return 2 * larger(hidden, head) * sizeof(float);
}

/* A row of sums per block: as many blocks as fill TR_COLUMN_BLOCKS together with the tiles, so one tile's width more at most. */
static size_t column_bytes(const tr_workspace_need *need)
{
    int64_t columns = TR_COLUMN_BLOCKS * (int64_t)TR_COLUMN_WIDTH + need->max_matmul;
    int64_t rows = tr_cuda_ceil(need->B * need->T, TR_COLUMN_LEAST_ROWS) * need->max_matmul;
    return (size_t)(columns < rows ? columns : rows) * sizeof(float);
}

size_t tr_cuda_kernels_workspace(const tr_workspace_need *need)
{
    tr_sort_scratch sort;
    size_t bytes = tr_cuda_sort_layout(need->B * need->T, NULL, &sort);
    bytes = larger(bytes, norm_bytes(need));
    bytes = larger(bytes, column_bytes(need));
    bytes = larger(bytes, TR_REDUCE_MAX * sizeof(const float *)); /* tree_sum's pointers */
    return (bytes + 255) & ~(size_t)255;
}
