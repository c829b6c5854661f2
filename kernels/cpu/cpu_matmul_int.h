/* Matrix products of the CPU device: what the piece grid hands to the ways of computing a piece. */
#ifndef TR_KERNELS_CPU_MATMUL_INT_H
#define TR_KERNELS_CPU_MATMUL_INT_H

#include "kernels/cpu/cpu_device_int.h"

/* A rectangle of C. */
typedef struct tr_cpu_piece {
    int64_t row, column, num_rows, num_columns;
} tr_cpu_piece;

/* C cut into pieces of piece_rows x piece_columns, smaller at the far edges. Piece p is row block p mod row_blocks of column
 * block p / row_blocks. */
typedef struct tr_cpu_grid {
    int64_t piece_rows, piece_columns;
    int64_t row_blocks, column_blocks;
} tr_cpu_grid;

/* Of a product by packed tiles (cpu_matmul_packed.c): pieces of at most these sizes, scratch in bytes per thread. */
enum { TR_PACKED_ROWS = 528, TR_PACKED_COLUMNS = 512 };
size_t tr_cpu_packed_scratch(void);
void tr_cpu_packed_piece(const tr_matmul *args, const tr_cpu_piece *piece, void *scratch);

/* fp32 products by a single-threaded dnnl_sgemm. */
tr_status tr_cpu_sgemm_piece(const tr_matmul *args, const tr_cpu_piece *piece);

/* bf16 products by oneDNN's matmul primitive, where this processor has bf16 instructions that oneDNN uses; *cache = NULL where
 * it has not. One cache per device; `prepare` is called by the thread that owns the device, before `run`. */
tr_status tr_cpu_product_cache_create(struct tr_cpu_product_cache **cache, int num_threads);
void tr_cpu_product_cache_destroy(struct tr_cpu_product_cache *cache);
/* The primitive of a piece's shape, made at its first use (which allocates); later calls only look it up. */
typedef struct tr_cpu_product tr_cpu_product;
tr_status tr_cpu_product_prepare(struct tr_cpu_product_cache *cache, const tr_matmul *args,
                                 int64_t num_rows, int64_t num_columns, tr_cpu_product **product);
/* Pieces of one product run on several threads at once, each with its own `thread`. */
tr_status tr_cpu_product_run(const tr_cpu_product *product, const tr_matmul *args,
                             const tr_cpu_piece *piece, int thread);
/* The implementation's name, "" where the cache does not exist. Valid until the process ends. */
const char *tr_cpu_product_implementation(void);

#endif
