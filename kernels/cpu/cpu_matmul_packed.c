/* A piece of a product by packed tiles, sums in fp32.
 *
 * K is walked in chunks, in order: the chunk of B's columns is packed once, then A's rows in blocks that stay in the second-level
 * cache. Chunk sums are added to C (fp32) or to an fp32 image of the piece, which is rounded out after the last chunk. The
 * chunk length is a function of K only. */
#include "kernels/cpu/cpu_matmul_int.h"

#include "kernels/cpu/cpu_tile.h"
#include "kernels/cpu/cpu_widen.h"

enum {
    CHUNK =
        256, /* contraction indices packed at a time: a B panel of 16 KiB stays in the first-level cache */
    ROW_BLOCK = 132, /* rows of A packed at a time */
    A_FLOATS = ROW_BLOCK * CHUNK + 64,
    B_FLOATS = TR_PACKED_COLUMNS * CHUNK + 64,
    C_FLOATS = TR_PACKED_ROWS * TR_PACKED_COLUMNS,
    BIAS_FLOATS = TR_PACKED_COLUMNS
};

typedef struct packed_scratch {
    float a[A_FLOATS], b[B_FLOATS], bias[BIAS_FLOATS], c[C_FLOATS];
} packed_scratch;

size_t tr_cpu_packed_scratch(void)
{
    return tr_cpu_align(sizeof(packed_scratch));
}

static int64_t chunk_length(int64_t K)
{
    int64_t chunks = (K + CHUNK - 1) / CHUNK;
    return ((K + chunks - 1) / chunks + 7) / 8 * 8;
}

static void add_bias(const float *bias, int64_t num_columns, float *row)
{
    for (int64_t n = 0; n < num_columns; n++)
        row[n] += bias[n];
}

/* Rows [row, row + num_rows) of the piece are complete: bias, then the one rounding. */
static void finish_rows(const tr_matmul *args, const tr_cpu_piece *piece, int64_t row,
                        int64_t num_rows, packed_scratch *scratch, float *sums, int64_t ld_sums)
{
    for (int64_t m = row; m < row + num_rows; m++) {
        float *sum_row = sums + m * ld_sums;
        if (args->bias != NULL)
            add_bias(scratch->bias, piece->num_columns, sum_row);
        if (args->c_dtype != TR_F32)
            tr_cpu_narrow(args->c_dtype, sum_row, piece->num_columns,
                          tr_cpu_element_mut(args->c_dtype, args->C,
                                             (piece->row + m) * args->ldc + piece->column));
    }
}

void tr_cpu_packed_piece(const tr_matmul *args, const tr_cpu_piece *piece, void *scratch_bytes)
{
    packed_scratch *scratch = scratch_bytes;
    const tr_cpu_tile *tile = tr_cpu_tile_get();
    const tr_cpu_operand a = {args->A, args->dtype, args->lda, args->form == TR_MATMUL_TN};
    const tr_cpu_operand b = {args->B, args->dtype, args->ldb, args->form != TR_MATMUL_NT};
    bool direct = args->c_dtype == TR_F32;
    float *sums = direct ? (float *)args->C + piece->row * args->ldc + piece->column : scratch->c;
    int64_t ld_sums = direct ? args->ldc : piece->num_columns;
    if (args->bias != NULL)
        tr_cpu_widen(args->dtype, tr_cpu_element(args->dtype, args->bias, piece->column),
                     piece->num_columns, scratch->bias);

    int64_t length = chunk_length(args->K);
    for (int64_t k = 0; k < args->K; k += length) {
        int64_t depth = args->K - k < length ? args->K - k : length;
        bool accumulate = k > 0 || args->accumulate;
        tr_cpu_pack(&b, piece->column, piece->num_columns, k, depth, tile->columns, scratch->b);
        for (int64_t m = 0; m < piece->num_rows; m += ROW_BLOCK) {
            int64_t rows = piece->num_rows - m < ROW_BLOCK ? piece->num_rows - m : ROW_BLOCK;
            tr_cpu_pack(&a, piece->row + m, rows, k, depth, tile->rows, scratch->a);
            tr_cpu_multiply_panels(tile, rows, piece->num_columns, depth, scratch->a, scratch->b,
                                   sums + m * ld_sums, ld_sums, accumulate);
            if (k + depth == args->K)
                finish_rows(args, piece, m, rows, scratch, sums, ld_sums);
        }
    }
}
