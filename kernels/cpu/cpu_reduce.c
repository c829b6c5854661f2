/* Column sums (bias gradients) and the ordered sum of several arrays. A column sum takes COLUMNS columns at a time: the rows
 * of a block are added in registers, and the blocks in order. */
#include "base/tree_sum.h"
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_rowwise.h"
#include "kernels/cpu/cpu_vec.h"

enum { COLUMN_VECS = 4, COLUMNS = 64, AHEAD = 12, TREE_PIECE = 16384 };

typedef struct column_sums {
    tr_dtype dtype;
    int64_t R, N;
    const void *dy;
    float *out;
    bool accumulate;
} column_sums;

/* Rows of few columns each lie too far apart for the processor to foresee. */
TR_VEC_INLINE void prefetch_row(tr_dtype dtype, const column_sums *a, int64_t row, int64_t column,
                                int count)
{
    const int64_t size = dtype == TR_F32 ? 4 : 2;
    if (row >= a->R)
        return;
    const char *start = (const char *)a->dy + (row * a->N + column) * size;
    for (int64_t byte = 0; byte < count * size; byte += 64)
        __builtin_prefetch(start + byte);
}

/* The first `count` of COLUMN_VECS * TR_VEC_LANES columns from `column`. */
TR_VEC_INLINE void sum_columns(tr_dtype dtype, const column_sums *a, int64_t column, int count)
{
    tr_vec total[COLUMN_VECS], block[COLUMN_VECS];
    for (int v = 0; v < COLUMN_VECS; v++)
        total[v] = tr_vec_zero();
    for (int64_t begin = 0; begin < a->R; begin += TR_BLOCK_ROWS) {
        int64_t end = begin + TR_BLOCK_ROWS < a->R ? begin + TR_BLOCK_ROWS : a->R;
        for (int v = 0; v < COLUMN_VECS; v++)
            block[v] = tr_vec_zero();
        for (int64_t r = begin; r < end; r++) {
            int64_t at = r * a->N + column;
            prefetch_row(dtype, a, r + AHEAD, column, count);
#pragma GCC unroll 4
            for (int v = 0; v < COLUMN_VECS; v++) {
                int left = count - v * TR_VEC_LANES;
                if (left > 0)
                    block[v] += tr_vec_load(dtype, a->dy, at + v * TR_VEC_LANES,
                                            left < TR_VEC_LANES ? left : TR_VEC_LANES);
            }
        }
        for (int v = 0; v < COLUMN_VECS; v++)
            total[v] += block[v];
    }
    for (int v = 0; v < COLUMN_VECS; v++) {
        int left = count - v * TR_VEC_LANES;
        if (left <= 0)
            break;
        int n = left < TR_VEC_LANES ? left : TR_VEC_LANES;
        int64_t at = column + v * TR_VEC_LANES;
        if (a->accumulate)
            total[v] += tr_vec_load(TR_F32, a->out, at, n);
        tr_vec_store(TR_F32, a->out, at, n, total[v]);
    }
}

TR_VEC_INLINE void sum_column_piece(tr_dtype dtype, const column_sums *a, int64_t begin,
                                    int64_t end)
{
    enum { STEP = COLUMN_VECS * TR_VEC_LANES };
    int64_t column = begin;
    for (; column + STEP <= end; column += STEP)
        sum_columns(dtype, a, column, STEP);
    if (column < end)
        sum_columns(dtype, a, column, (int)(end - column));
}

static void column_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const column_sums *a = ctx;
    int64_t begin = piece * COLUMNS;
    int64_t end = begin + COLUMNS < a->N ? begin + COLUMNS : a->N;
    TR_VEC_DTYPE_SWITCH(a->dtype, sum_column_piece, a, begin, end);
}

static tr_status column_sum(tr_device *device, tr_dtype dtype, int64_t R, int64_t N, const void *dy,
                            float *out, bool accumulate)
{
    column_sums a = {dtype, R, N, dy, out, accumulate};
    tr_cpu_parallel_for(device, (N + COLUMNS - 1) / COLUMNS, column_piece, &a);
    return TR_OK;
}

typedef struct tree_args {
    int64_t n;
    int count;
    const float *const *src;
    float *dst;
} tree_args;

static void tree_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const tree_args *a = ctx;
    const float *src[TR_TREE_SUM_MAX];
    int64_t begin = piece * TREE_PIECE;
    for (int k = 0; k < a->count; k++)
        src[k] = a->src[k] + begin;
    tr_tree_sum(a->n - begin < TREE_PIECE ? a->n - begin : TREE_PIECE, a->count, src,
                a->dst + begin);
}

static tr_status tree_sum(tr_device *device, int64_t n, int count, const float *const *src,
                          float *dst)
{
    _Static_assert((int)TR_REDUCE_MAX == (int)TR_TREE_SUM_MAX, "one limit of sources");
    TR_ASSERT(count >= 1 && count <= TR_TREE_SUM_MAX);
    tree_args a = {n, count, src, dst};
    tr_cpu_parallel_for(device, (n + TREE_PIECE - 1) / TREE_PIECE, tree_piece, &a);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_reduce_ops)(tr_ops *ops)
{
    ops->column_sum = column_sum;
    ops->tree_sum = tree_sum;
}
