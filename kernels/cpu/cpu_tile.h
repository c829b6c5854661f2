/* The innermost part of our own matrix products: panels and the register tile.
 *
 * An operand (A: rows i of C, B: columns i of C) is packed into panels of `width` indices i for a run of contraction indices k:
 * panel[k * width + i], fp32, missing i filled with zero. A tile multiplies one A panel by one B panel and keeps its sums in
 * registers. The order of the sum over k is fixed: k ascending, one fused multiply-add each (where the processor has it). */
#ifndef TR_KERNELS_CPU_TILE_H
#define TR_KERNELS_CPU_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

enum { TR_TILE_ROWS_MAX = 6, TR_TILE_COLUMNS_MAX = 16, TR_TILE_PANEL_SLACK = 8 };

/* How one instruction set does tiles. */
typedef struct tr_cpu_tile {
    const char *name; /* of the instruction set */
    int rows, columns;
    /* C[rows, columns] (ldc elements between rows) = or += A panel times B panel over K indices. */
    void (*multiply)(int64_t K, const float *a_panel, const float *b_panel, float *C, int64_t ldc,
                     bool accumulate);
} tr_cpu_tile;

/* The best of this processor. */
const tr_cpu_tile *tr_cpu_tile_get(void);

typedef struct tr_cpu_operand {
    const void *data;
    tr_dtype dtype;
    int64_t ld;
    bool k_outer; /* element (i, k) at data[k * ld + i], else at data[i * ld + k] */
} tr_cpu_operand;

/* Packs indices i in [i0, i0 + num_i), k in [k0, k0 + num_k) into panels of `width`, one after another, each width * num_k
 * floats. dst holds ceil(num_i / width) panels and TR_TILE_PANEL_SLACK floats more. */
void tr_cpu_pack(const tr_cpu_operand *operand, int64_t i0, int64_t num_i, int64_t k0,
                 int64_t num_k, int width, float *dst);

/* dst[c * ld_dst + r] = src[r * ld_src + c] for r in [0, rows), c in [0, columns). */
void tr_cpu_turn(const float *src, int64_t ld_src, int64_t rows, int64_t columns, float *dst,
                 int64_t ld_dst);

/* C[M, N] = or += the product of packed operands (panels as tr_cpu_pack leaves them, K indices deep). */
void tr_cpu_multiply_panels(const tr_cpu_tile *tile, int64_t M, int64_t N, int64_t K,
                            const float *a_panels, const float *b_panels, float *C, int64_t ldc,
                            bool accumulate);

#endif
