/* Products on the piece grid (DESIGN section 1).
 *
 * C is cut over rows and columns, never over K, by a grid that is a function of form, M, N and dtypes; each piece is
 * computed by one thread, start to end, so that an element's bits do not depend on the number of threads. How a piece is computed
 * depends on dtype and processor, and on whether operands are parts of wider tensors: by packed tiles of our own, which widen while they pack, on AVX2 and for fp16; by oneDNN's sgemm
 * in fp32 on other processors, by oneDNN's matmul in bf16 where the processor has instructions for it. */
#include "kernels/cpu/cpu_matmul_int.h"

#include "kernels/cpu/cpu_isa.h"

#include <stdatomic.h>
#include <string.h>

typedef enum product_way { WAY_SGEMM, WAY_PRIMITIVE, WAY_PACKED } product_way;

typedef struct product_job {
    const tr_matmul *args;
    product_way way;
    tr_cpu_grid grid;
    tr_cpu_product *products[2][2]; /* WAY_PRIMITIVE: [last row block][last column block] */
    unsigned char *scratch;         /* WAY_PACKED: tr_cpu_packed_scratch() bytes per thread */
    _Atomic int status;             /* the first failure of a piece */
} product_job;

/* Our tiles are written for AVX2, where they are as fast as oneDNN's sgemm and, unlike it, allocate nothing. */
static bool packed_beats_sgemm(void)
{
    return strcmp(tr_cpu_isa_name(tr_cpu_isa_best()), "avx2") == 0;
}

static product_way choose_way(const tr_cpu_device *device, const tr_matmul *args)
{
    if (args->parts) /* oneDNN chooses kernels by strides, too */
        return WAY_PACKED;
    if (args->dtype == TR_F32)
        return packed_beats_sgemm() ? WAY_PACKED : WAY_SGEMM;
    if (args->dtype == TR_BF16 && device->products != NULL)
        return WAY_PRIMITIVE;
    return WAY_PACKED;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The block size that cuts `size` into equal blocks of at most `limit`, a multiple of `multiple`. */
static int64_t even_block(int64_t size, int64_t limit, int64_t multiple)
{
    int64_t blocks = ceil_div(size, limit);
    return ceil_div(ceil_div(size, blocks), multiple) * multiple;
}

static tr_cpu_grid make_grid(product_way way, int64_t M, int64_t N)
{
    tr_cpu_grid grid;
    if (way == WAY_PACKED) {
        /* Large pieces pack less; a small product is cut finer, so that several threads have work. */
        int64_t columns = even_block(N, TR_PACKED_COLUMNS, 16);
        int64_t rows = even_block(M, TR_PACKED_ROWS, 6);
        while (rows > 132 && ceil_div(M, rows) * ceil_div(N, columns) < 6)
            rows = even_block(M, rows / 2, 6);
        grid.piece_rows = rows;
        grid.piece_columns = columns;
    } else {
        grid.piece_rows = even_block(M, 256, 16);
        grid.piece_columns = even_block(N, 1024, 64);
    }
    grid.row_blocks = ceil_div(M, grid.piece_rows);
    grid.column_blocks = ceil_div(N, grid.piece_columns);
    return grid;
}

static tr_cpu_piece piece_of(const tr_cpu_grid *grid, const tr_matmul *args, int64_t index)
{
    tr_cpu_piece piece;
    piece.row = index % grid->row_blocks * grid->piece_rows;
    piece.column = index / grid->row_blocks * grid->piece_columns;
    int64_t rows = args->M - piece.row, columns = args->N - piece.column;
    piece.num_rows = rows < grid->piece_rows ? rows : grid->piece_rows;
    piece.num_columns = columns < grid->piece_columns ? columns : grid->piece_columns;
    return piece;
}

static void run_piece(void *ctx, int64_t index, int thread)
{
    product_job *job = ctx;
    const tr_cpu_grid *grid = &job->grid;
    tr_cpu_piece piece = piece_of(grid, job->args, index);
    tr_status status = TR_OK;
    if (job->way == WAY_PACKED) {
        tr_cpu_packed_piece(job->args, &piece,
                            job->scratch + (size_t)thread * tr_cpu_packed_scratch());
    } else if (job->way == WAY_SGEMM) {
        status = tr_cpu_sgemm_piece(job->args, &piece);
    } else {
        bool last_row = index % grid->row_blocks == grid->row_blocks - 1;
        bool last_column = index / grid->row_blocks == grid->column_blocks - 1;
        status =
            tr_cpu_product_run(job->products[last_row][last_column], job->args, &piece, thread);
    }
    if (status != TR_OK)
        atomic_store(&job->status, (int)status);
}

/* One primitive for each shape of piece: inside, and at the far row and column edges. */
static tr_status prepare_primitives(tr_cpu_device *device, product_job *job)
{
    const tr_cpu_grid *grid = &job->grid;
    for (int last_row = 0; last_row < 2; last_row++)
        for (int last_column = 0; last_column < 2; last_column++) {
            int64_t row_block = last_row ? grid->row_blocks - 1 : 0;
            int64_t column_block = last_column ? grid->column_blocks - 1 : 0;
            tr_cpu_piece piece =
                piece_of(grid, job->args, column_block * grid->row_blocks + row_block);
            TR_TRY(tr_cpu_product_prepare(device->products, job->args, piece.num_rows,
                                          piece.num_columns,
                                          &job->products[last_row][last_column]));
        }
    return TR_OK;
}

static void check_args(const tr_matmul *args)
{
    bool a_by_k = args->form != TR_MATMUL_TN; /* rows of A are rows of C */
    bool b_by_k = args->form == TR_MATMUL_NT;
    TR_ASSERT(args->dtype == TR_F32 || args->dtype == TR_BF16 || args->dtype == TR_F16);
    TR_ASSERT(args->c_dtype == TR_F32 || args->c_dtype == args->dtype);
    TR_ASSERT(!args->accumulate || args->c_dtype == TR_F32);
    TR_ASSERT(args->M >= 0 && args->N >= 0 && args->K >= 1);
    TR_ASSERT(args->lda >= (a_by_k ? args->K : args->M));
    TR_ASSERT(args->ldb >= (b_by_k ? args->K : args->N));
    TR_ASSERT(args->ldc >= args->N);
    TR_ASSERT(args->gelu_input == NULL ||
              (args->c_dtype == args->dtype && args->bias == NULL && !args->accumulate));
}

/* C becomes gelu'(gelu_input) C: all of it at once, or the rows of a range of columns one after the other. */
static tr_status gelu_apply(tr_device *device, const tr_matmul *args)
{
    const tr_ops *ops = &tr_cpu_device_of(device)->ops;
    bool dense = args->ldc == args->N;
    int64_t num_ranges = dense ? 1 : args->M, n = dense ? args->M * args->N : args->N;
    size_t stride = (size_t)args->ldc * tr_dtype_size(args->dtype);
    for (int64_t i = 0; i < num_ranges; i++) {
        const void *x = (const char *)args->gelu_input + (size_t)i * stride;
        void *c = (char *)args->C + (size_t)i * stride;
        TR_TRY(ops->gelu_backward(device, args->dtype, n, x, c, c));
    }
    return TR_OK;
}

tr_status tr_cpu_matmul(tr_device *base, const tr_matmul *args)
{
    tr_cpu_device *device = tr_cpu_device_of(base);
    check_args(args);
    if (args->M == 0 || args->N == 0)
        return TR_OK;
    product_job job = {.args = args, .way = choose_way(device, args)};
    job.grid = make_grid(job.way, args->M, args->N);
    if (job.way == WAY_PRIMITIVE)
        TR_TRY(prepare_primitives(device, &job));
    if (job.way == WAY_PACKED)
        job.scratch =
            tr_cpu_workspace(base, (size_t)tr_cpu_num_threads(base) * tr_cpu_packed_scratch());
    tr_cpu_parallel_for(base, job.grid.row_blocks * job.grid.column_blocks, run_piece, &job);
    if (job.status != TR_OK)
        return tr_fail((tr_status)job.status,
                       "oneDNN failed in a matrix product of %lld x %lld x %lld",
                       (long long)args->M, (long long)args->N, (long long)args->K);
    return args->gelu_input == NULL ? TR_OK : gelu_apply(base, args);
}

size_t tr_cpu_matmul_workspace(const tr_workspace_need *need, int num_threads)
{
    (void)need;
    return (size_t)num_threads * tr_cpu_packed_scratch();
}
