/* How the CUDA kernels cut sums over rows into blocks, and the scratch that this takes: functions of shapes only. C17, C++17;
 * pure. */
#ifndef TR_KERNELS_CUDA_SCRATCH_H
#define TR_KERNELS_CUDA_SCRATCH_H

#include <stdint.h>

#include "kernels/ops.h"

enum {
    TR_NORM_BLOCKS = 512,    /* blocks of rows of norm_backward that are aimed at */
    TR_NORM_LEAST_ROWS = 16, /* and the rows of a block */
    TR_NORM_MOST_ROWS = 512,
    TR_COLUMN_BLOCKS = 1024, /* blocks of column_sum that are aimed at, of 256 columns each */
    TR_COLUMN_WIDTH = 256,
    TR_COLUMN_LEAST_ROWS = 32,
    TR_SORT_TILE = 1024, /* rows that a block of embed_backward's sort ranks */
    TR_SORT_BITS = 9     /* of the digit of one pass */
};

static inline int64_t tr_cuda_ceil(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Rows of a block of norm_backward over R rows. */
static inline int64_t tr_cuda_norm_rows(int64_t R)
{
    int64_t rows = tr_cuda_ceil(R, TR_NORM_BLOCKS);
    if (rows < TR_NORM_LEAST_ROWS)
        return TR_NORM_LEAST_ROWS;
    return rows < TR_NORM_MOST_ROWS ? rows : (int64_t)TR_NORM_MOST_ROWS;
}

/* Blocks of rows of column_sum of R rows and N columns, at least 1. */
static inline int64_t tr_cuda_column_blocks(int64_t R, int64_t N)
{
    int64_t tiles = tr_cuda_ceil(N, TR_COLUMN_WIDTH), most = tr_cuda_ceil(R, TR_COLUMN_LEAST_ROWS);
    int64_t blocks = tiles == 0 ? 1 : tr_cuda_ceil(TR_COLUMN_BLOCKS, tiles);
    blocks = blocks < most ? blocks : most;
    return blocks < 1 ? 1 : blocks;
}

/* Bytes that cuDNN's backward of attention keeps of its queries (cuda_cudnn_attention.h), in front of the plan's own scratch. */
static inline size_t tr_cuda_cudnn_delta_bytes(int64_t B, int64_t T, int64_t A)
{
    return ((size_t)(B * T * A) * sizeof(float) + 255) & ~(size_t)255;
}

/* Scratch of embed_backward's sort of R rows: keys and rows twice, ranks, and the counts of each digit in each tile. */
typedef struct tr_sort_scratch {
    uint32_t *keys[2];
    int32_t *rows[2];
    uint32_t *ranks;
    uint32_t *counts; /* [digits][tiles] */
} tr_sort_scratch;

/* Lays it out at `memory`, which may be NULL to count; returns the bytes. */
static inline size_t tr_cuda_sort_layout(int64_t R, void *memory, tr_sort_scratch *scratch)
{
    size_t bytes = ((size_t)R * sizeof(uint32_t) + 255) & ~(size_t)255;
    char *at = (char *)memory;
    for (int i = 0; i < 2; i++) {
        scratch->keys[i] = (uint32_t *)(void *)(at + (size_t)i * bytes);
        scratch->rows[i] = (int32_t *)(void *)(at + (size_t)(2 + i) * bytes);
    }
    scratch->ranks = (uint32_t *)(void *)(at + 4 * bytes);
    scratch->counts = (uint32_t *)(void *)(at + 5 * bytes);
    size_t tiles = (size_t)tr_cuda_ceil(R, TR_SORT_TILE);
    return 5 * bytes + (tiles << TR_SORT_BITS) * sizeof(uint32_t);
}

#endif
