/* The fixed blocks of rows in which the CPU device sums over rows: part sums of blocks are added in block order, so that
 * the bits of a sum depend on the number of rows only. */
#ifndef TR_KERNELS_CPU_ROWWISE_H
#define TR_KERNELS_CPU_ROWWISE_H

#include <stdint.h>

enum { TR_BLOCK_ROWS = 64 };

static inline int64_t tr_row_blocks(int64_t R)
{
    return (R + TR_BLOCK_ROWS - 1) / TR_BLOCK_ROWS;
}

#endif
