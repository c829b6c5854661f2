/* Rows in groups of eight neighbouring elements, the unit of work of one thread: what the kernels that go over rows share.
 *
 * A group is 16 bytes of a 16-bit type or 32 bytes of fp32. WIDE loads and stores it by 16-byte accesses: the row's width is a
 * multiple of eight (or padding follows it) and its address a multiple of 16. Without WIDE the same elements come one by one, into
 * the same places, so that results do not depend on where a tensor lies. */
#ifndef TR_KERNELS_CUDA_ROWS_CUH
#define TR_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/cuda_kernel.cuh"
#include "kernels/ops.h"

enum { TR_GROUP = 8, TR_ROW_THREADS = 256 };

template <typename T> struct tr_group {
    enum { N = tr_vec<T>::N, PARTS = TR_GROUP / N };
    tr_vec<T> part[PARTS];

    __device__ float get(int i) const
    {
        return part[i / N].get(i % N);
    }
    __device__ void set(int i, float value)
    {
        part[i / N].set(i % N, value);
    }
};

/* p[0 ... count-1], then zeros. WIDE reads all eight when count is not 0: what stands behind `count` is then in the group too. */
template <typename T, bool WIDE> __device__ inline tr_group<T> tr_group_load(const T *p, int count)
{
    tr_group<T> group;
    if (WIDE && count > 0) {
#pragma unroll
        for (int k = 0; k < tr_group<T>::PARTS; k++)
            group.part[k] = tr_vec_load(p + k * tr_group<T>::N);
    } else {
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            group.set(i, !WIDE && i < count ? tr_load(p + i) : 0.0f);
    }
    return group;
}

/* p[0 ... count-1]; WIDE writes all eight when count is not 0. */
template <typename T, bool WIDE>
__device__ inline void tr_group_store(T *p, int count, const tr_group<T> &group)
{
    if (WIDE) {
        if (count <= 0)
            return;
#pragma unroll
        for (int k = 0; k < tr_group<T>::PARTS; k++)
            tr_vec_store(p + k * tr_group<T>::N, group.part[k]);
    } else {
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++) {
            if (i < count)
                tr_store(p + i, group.get(i));
        }
    }
}

/* Elements of the group at `column` that lie before `end`, at most eight, at least none. */
__device__ inline int tr_group_count(int64_t column, int64_t end)
{
    int64_t left = end - column;
    return left <= 0 ? 0 : left < TR_GROUP ? (int)left : TR_GROUP;
}

/* A thread for each group of each row: x over groups, y over the rows of a block; grid.x over rows, grid.y over what a block's x
 * does not cover. */
typedef struct tr_row_grid {
    dim3 grid, block;
} tr_row_grid;

inline tr_row_grid tr_row_grid_of(int64_t R, int64_t width)
{
    int64_t groups = tr_blocks(width, TR_GROUP);
    int64_t parts = tr_blocks(groups, TR_ROW_THREADS);
    int64_t warps = parts == 0 ? 1 : tr_blocks(tr_blocks(groups, parts), TR_WARP);
    int64_t x = warps * TR_WARP;
    int64_t y = TR_ROW_THREADS / x;
    tr_row_grid rows;
    rows.grid = dim3((unsigned)tr_blocks(R, y), (unsigned)parts, 1);
    rows.block = dim3((unsigned)x, (unsigned)y, 1);
    return rows;
}

__device__ inline int64_t tr_row_of_thread()
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

__device__ inline int64_t tr_column_of_thread()
{
    return ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * TR_GROUP;
}

/* The statements with T the element type and WIDE a constant. */
#define TR_DISPATCH_WIDE(dtype, wide, T, ...)                                                      \
    do {                                                                                           \
        if (wide) {                                                                                \
            constexpr bool WIDE = true;                                                            \
            TR_DISPATCH(dtype, T, __VA_ARGS__);                                                    \
        } else {                                                                                   \
            constexpr bool WIDE = false;                                                           \
            TR_DISPATCH(dtype, T, __VA_ARGS__);                                                    \
        }                                                                                          \
    } while (0)

/* dst[i] (+)= the sum over k of src[k * stride + i], i < width, in an order that is a function of `rows`: what is left of sums
 * over rows when every block has left its part (cuda_reduce.cu). */
tr_status tr_cuda_rows_sum(cudaStream_t stream, int64_t rows, int64_t width, int64_t stride,
                           const float *src, float *dst, bool accumulate);

#endif
