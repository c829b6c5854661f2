/* The emulator's tensor-core product and matrix load, each made by a whole warp together; fragments as in kernels/cuda/cuda_intrinsics.cuh. */
#ifndef TR_TESTS_CUDASIM_SIMT_MATRIX_H
#define TR_TESTS_CUDASIM_SIMT_MATRIX_H

#include <stdint.h>

#include "tests/cudasim/simt.h"

/* d += A B (16 x 8 += 16 x 16, 16 x 8): products are exact, sums fp32 in the order of k. */
void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], simt_site site);
void simt_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], simt_site site);

/* `count` (2 or 4) matrices of 8 x 8 elements of 16 bits. */
void simt_ldmatrix(uint32_t *r, int count, const void *row, bool transposed, simt_site site);

#endif
