/* What the attention kernels of fp32 multiply-adds share: tiles, products and sums of a block.
 *
 * A block is 16 x 16 threads. Its products have 16 RM rows and 16 RN columns (keys, or queries in the second backward pass),
 * thread (y, x) making elements (y + 16 i, x + 16 j); sums over the columns have DH columns, thread (y, x) making the four from
 * 4 x + 64 j on. Operands lie in shared memory as fp32 rows of DH + 4 floats, which a warp reads 16 bytes a lane without bank
 * conflicts; a row of a product is made and read by one half of a warp.
 *
 * Floor in cycles of one multiprocessor: D scores x (2 forward, 8 backward) / 128 multiply-adds on H100, H200 and B200, / 64 on A100. */
#ifndef TR_KERNELS_CUDA_ATTENTION_FMA_CUH
#define TR_KERNELS_CUDA_ATTENTION_FMA_CUH

#include "kernels/cuda/cuda_attention_tile.cuh"

enum { TR_FMA_SIDE = 16, TR_FMA_THREADS = TR_FMA_SIDE * TR_FMA_SIDE };

/* RM, RN: rows and columns of a thread in a product. */
template <int HEAD, int ROWS_OF_THREAD, int COLUMNS_OF_THREAD> struct tr_fma_shape {
    enum {
        DH = HEAD,
        RM = ROWS_OF_THREAD,
        RN = COLUMNS_OF_THREAD,
        ROWS = TR_FMA_SIDE * RM,
        COLUMNS = TR_FMA_SIDE * RN,
        DEPTH = DH / 64, /* groups of four columns of a thread in a sum */
        PITCH = DH + 4,
        ROWS_TILE = ROWS * PITCH,
        COLUMNS_TILE = COLUMNS * PITCH,
        RESULT_PITCH = COLUMNS + 4,
        RESULT = ROWS * RESULT_PITCH
    };
};

template <typename S> struct tr_fma_sum {
    float at[S::RM][S::DEPTH][4];
};

/* One head of a tensor [B,T,heads,D]. */
struct tr_fma_head {
    tr_dtype dtype;
    const void *base;
    int64_t offset;
    int stride, length, D;
};

__device__ inline tr_fma_head tr_fma_head_get(const tr_attention &args, const void *base, int b,
                                              int heads, int head)
{
    int D = (int)args.D, stride = heads * D;
    int64_t offset = (int64_t)b * args.T * stride + head * D;
    return {args.dtype, base, offset, stride, (int)args.T, D};
}

__device__ inline float tr_fma_load(const tr_fma_head &head, int64_t index)
{
    if (head.dtype == TR_F32)
        return static_cast<const float *>(head.base)[index];
    if (head.dtype == TR_BF16)
        return tr_load(static_cast<const __nv_bfloat16 *>(head.base) + index);
    return tr_load(static_cast<const __half *>(head.base) + index);
}

__device__ inline void tr_fma_store(const tr_fma_head &head, int64_t index, float value)
{
    void *base = const_cast<void *>(head.base);
    if (head.dtype == TR_F32)
        static_cast<float *>(base)[index] = value;
    else if (head.dtype == TR_BF16)
        tr_store(static_cast<__nv_bfloat16 *>(base) + index, value);
    else
        tr_store(static_cast<__half *>(base) + index, value);
}

/* Four columns move at once; tensors are 16-byte aligned, so that whole rows are when D is a multiple of four. */
__device__ inline bool tr_fma_in_fours(const tr_fma_head &head)
{
    return head.dtype == TR_F32 && head.D % 4 == 0;
}

/* Rows [first, first + ROWS) of a head, padded with zeros. */
template <int ROWS, int DH>
__device__ inline void tr_fma_tile_load(float *tile, const tr_fma_head &head, int first)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < ROWS * DH / 4; i += TR_FMA_THREADS) {
        int row = i / (DH / 4), column = i % (DH / 4) * 4;
        int64_t index = head.offset + (int64_t)(first + row) * head.stride + column;
        float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
        if (first + row < head.length && column < head.D) {
            if (tr_fma_in_fours(head)) {
                four = *reinterpret_cast<const float4 *>(static_cast<const float *>(head.base) +
                                                         index);
            } else {
                four.x = tr_fma_load(head, index);
                four.y = column + 1 < head.D ? tr_fma_load(head, index + 1) : 0.0f;
                four.z = column + 2 < head.D ? tr_fma_load(head, index + 2) : 0.0f;
                four.w = column + 3 < head.D ? tr_fma_load(head, index + 3) : 0.0f;
            }
        }
        *reinterpret_cast<float4 *>(tile + row * (DH + 4) + column) = four;
    }
}

/* This thread's columns of its rows, times factor[i], to rows [first, first + ROWS) of a head. */
template <typename S>
__device__ inline void tr_fma_sum_store(const tr_fma_head &head, const tr_fma_sum<S> &sum,
                                        int first, const float (&factor)[S::RM])
{
    int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
#pragma unroll
    for (int i = 0; i < S::RM; i++)
#pragma unroll
        for (int j = 0; j < S::DEPTH; j++) {
            int row = first + y + TR_FMA_SIDE * i, column = 4 * x + 64 * j;
            int64_t index = head.offset + (int64_t)row * head.stride + column;
            const float *at = sum.at[i][j];
            if (row >= head.length || column >= head.D)
                continue;
            if (tr_fma_in_fours(head)) {
                float4 four = {at[0] * factor[i], at[1] * factor[i], at[2] * factor[i],
                               at[3] * factor[i]};
                float *dst = static_cast<float *>(const_cast<void *>(head.base)) + index;
                *reinterpret_cast<float4 *>(dst) = four;
            } else {
                for (int c = 0; c < 4 && column + c < head.D; c++)
                    tr_fma_store(head, index + c, at[c] * factor[i]);
            }
        }
}

/* s = rows times columns^T. */
template <typename S>
__device__ inline void tr_fma_product(float (&s)[S::RM][S::RN], const float *rows,
                                      const float *columns)
{
    int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
#pragma unroll
    for (int i = 0; i < S::RM; i++)
#pragma unroll
        for (int j = 0; j < S::RN; j++)
            s[i][j] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < S::DH; d += 4) {
        float4 a[S::RM], b[S::RN];
#pragma unroll
        for (int i = 0; i < S::RM; i++)
            a[i] = *reinterpret_cast<const float4 *>(rows + (y + TR_FMA_SIDE * i) * S::PITCH + d);
#pragma unroll
        for (int j = 0; j < S::RN; j++)
            b[j] =
                *reinterpret_cast<const float4 *>(columns + (x + TR_FMA_SIDE * j) * S::PITCH + d);
#pragma unroll
        for (int i = 0; i < S::RM; i++)
#pragma unroll
            for (int j = 0; j < S::RN; j++)
                s[i][j] =
                    fmaf(a[i].w, b[j].w,
                         fmaf(a[i].z, b[j].z, fmaf(a[i].y, b[j].y, fmaf(a[i].x, b[j].x, s[i][j]))));
    }
}

template <typename S>
__device__ inline void tr_fma_result_put(float *result, const float (&s)[S::RM][S::RN])
{
    int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
#pragma unroll
    for (int i = 0; i < S::RM; i++)
#pragma unroll
        for (int j = 0; j < S::RN; j++)
            result[(y + TR_FMA_SIDE * i) * S::RESULT_PITCH + x + TR_FMA_SIDE * j] = s[i][j];
}

/* sum += result times columns. */
template <typename S>
__device__ inline void tr_fma_sum_add(tr_fma_sum<S> &sum, const float *result, const float *columns)
{
    int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
#pragma unroll 2
    for (int key = 0; key < S::COLUMNS; key++) {
        float p[S::RM];
#pragma unroll
        for (int i = 0; i < S::RM; i++)
            p[i] = result[(y + TR_FMA_SIDE * i) * S::RESULT_PITCH + key];
#pragma unroll
        for (int j = 0; j < S::DEPTH; j++) {
            float4 v = *reinterpret_cast<const float4 *>(columns + key * S::PITCH + 4 * x + 64 * j);
#pragma unroll
            for (int i = 0; i < S::RM; i++) {
                float *at = sum.at[i][j];
                at[0] = fmaf(p[i], v.x, at[0]);
                at[1] = fmaf(p[i], v.y, at[1]);
                at[2] = fmaf(p[i], v.z, at[2]);
                at[3] = fmaf(p[i], v.w, at[3]);
            }
        }
    }
}

/* Over the 16 threads that share a row. */
__device__ inline float tr_fma_row_sum(float value)
{
#pragma unroll
    for (int offset = TR_FMA_SIDE / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(TR_WARP_ALL, value, offset);
    return value;
}

/* 1 / (1 - p) or 0; 1 without dropout. */
__device__ inline float tr_fma_kept_factor(const tr_attention_mask &mask, int query, int key)
{
    if (!mask.on)
        return 1.0f;
    uint32_t bits = mask.kept((uint32_t)query, (uint32_t)key / 4);
    return (bits >> (key % 4) & 1) != 0 ? mask.kept_scale : 0.0f;
}

/* Fills in the grid of kernels whose rows are queries, and returns its number of blocks. */
template <typename S> unsigned tr_fma_query_grid(tr_attention_launch *launch)
{
    const tr_attention *args = &launch->args;
    return tr_attention_grid(launch, args->A, S::ROWS, 1, (int)(args->A / args->K),
                             8 * args->T * args->D);
}

#endif
