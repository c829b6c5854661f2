/* The bias of a product whose result is fp32 and whose operands are not: cuBLASLt's epilogue takes a bias of the result's type only.
 *
 * Moves 4 bytes of C in and out and its share of the bias per element; one addition. */
#include "kernels/cuda/cuda_kernel.cuh"
#include "kernels/cuda/cuda_matmul.h"

enum { BIAS_COLUMNS = 256, BIAS_ROWS = 16 };

/* A block adds to BIAS_ROWS rows of BIAS_COLUMNS columns, a thread to one column. */
template <typename T>
__global__ void __launch_bounds__(BIAS_COLUMNS)
    bias_add_kernel(int64_t M, int64_t N, const T *bias, float *C, int64_t ldc)
{
    int64_t column = (int64_t)blockIdx.y * BIAS_COLUMNS + threadIdx.x;
    if (column >= N)
        return;
    float value = tr_load<T>(bias + column);
    int64_t first = (int64_t)blockIdx.x * BIAS_ROWS;
#pragma unroll 4
    for (int r = 0; r < BIAS_ROWS; r++)
        if (first + r < M)
            C[(first + r) * ldc + column] += value;
}

tr_status tr_cuda_bias_add(cudaStream_t stream, tr_dtype dtype, int64_t M, int64_t N,
                           const void *bias, void *C, int64_t ldc)
{
    dim3 grid((unsigned)tr_blocks(M, BIAS_ROWS), (unsigned)tr_blocks(N, BIAS_COLUMNS));
    TR_DISPATCH(dtype, T,
                return TR_LAUNCH((bias_add_kernel<T>), grid, dim3(BIAS_COLUMNS), 0, stream, M, N,
                                 (const T *)bias, (float *)C, ldc));
}
