/* Matrix products of the CUDA device (kernels/ops.h, tr_matmul) by cuBLASLt.
 *
 * The library's heuristic names the algorithm, once for each shape; nothing is timed. Its choice, and so the bits of a product,
 * depend on form, sizes, dtypes, epilogue, the alignment of what is given, and GPU and library version. Operands that are
 * parts of wider tensors (args->parts) are described to the heuristic as if they were dense and as aligned as their own widths make every part, so that
 * the bits do not depend on the tensor that they are cut from. Partial sums of a K that the library splits stay fp32, and are added in a step of its own, without
 * atomics.
 *
 * Epilogues, which spare a pass over the result:
 *   - a bias of the result's type; another one is added by cuda_bias.cu;
 *   - gelu' of gelu_input, whose rows the library wants to be a multiple of 8 elements: its GELU is the tanh form. Where they are not, or where it has no algorithm for the
 *     shape, the product is rounded and gelu_backward follows: a function of shape, GPU and library, as the choice of the algorithm is;
 *   - not GELU itself: the library takes it of the sum before it is rounded to what is kept for the backward pass, and recomputation has only the rounded one, so that
 *     memory.recompute would change bits;
 *   - not bias gradients beside weight gradients: the library overwrites them, so that microbatches would need a row of scratch and an addition, and sums them in an order of
 *     its own that changes with the width of the other operand, to spare one read of dy. */
#ifndef TR_KERNELS_CUDA_MATMUL_H
#define TR_KERNELS_CUDA_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch that the library may use for a product. Its size takes part in the heuristic's choice, so it is one constant. */
enum { TR_CUDA_MATMUL_WORKSPACE = 32 << 20 };

/* The library's handle and what was chosen so far. */
typedef struct tr_cuda_products tr_cuda_products;

/* For the current GPU. tf32: fp32 products round their inputs to TF32 (10 bits of mantissa); sums stay fp32. */
tr_status tr_cuda_products_create(tr_cuda_products **products, bool tf32);
void tr_cuda_products_destroy(tr_cuda_products *products);

/* Enqueues the product. workspace: TR_CUDA_MATMUL_WORKSPACE bytes of device memory, 256-byte aligned. The first product of a shape allocates
 * host memory; TR_ERR_INTERNAL with the shape when the library has no algorithm for it. */
tr_status tr_cuda_products_multiply(tr_cuda_products *products, cudaStream_t stream,
                                    void *workspace, const tr_matmul *args);

/* cuda_bias.cu: C[m,n] += bias[n], C fp32 [M,N] with ldc elements between rows, bias `dtype` [N]: what the library has no epilogue for. */
tr_status tr_cuda_bias_add(cudaStream_t stream, tr_dtype dtype, int64_t M, int64_t N,
                           const void *bias, void *C, int64_t ldc);

#ifdef __cplusplus
}
#endif

#endif
