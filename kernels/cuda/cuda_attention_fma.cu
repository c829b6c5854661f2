/* Attention in fp32 multiply-adds, forward: for fp32, and for bf16 and fp16 with head sizes that tensor cores' 16-byte rows do not take.
 *
 * The algorithm is that of cuda_attention_forward.cu, with nothing rounded but the outputs. Must move the bytes of that kernel. */
#include "kernels/cuda/cuda_attention_fma.cuh"

namespace
{

/* Over the 16 threads that share a row. */
__device__ inline float row_max(float value)
{
#pragma unroll
    for (int offset = TR_FMA_SIDE / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(TR_WARP_ALL, value, offset));
    return value;
}

template <typename S> struct fma_rows {
    tr_fma_sum<S> out;
    float max[S::RM], sum[S::RM];
};

/* Scores become dropped-out probabilities relative to the new maxima. query, key: of this thread's first element. */
template <typename S>
__device__ inline void fma_softmax(fma_rows<S> &rows, float (&s)[S::RM][S::RN], float scale,
                                   int query, int key, const tr_attention_mask &mask)
{
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        float top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < S::RN; j++) {
            s[i][j] = key + TR_FMA_SIDE * j > query + TR_FMA_SIDE * i ? -INFINITY : s[i][j] * scale;
            top = fmaxf(top, s[i][j]);
        }
        top = fmaxf(rows.max[i], row_max(top));
        float decay = expf(rows.max[i] - top);
        rows.max[i] = top;
#pragma unroll
        for (int j = 0; j < S::RN; j++) {
            s[i][j] = expf(s[i][j] - top);
            sum += s[i][j];
            s[i][j] *= tr_fma_kept_factor(mask, query + TR_FMA_SIDE * i, key + TR_FMA_SIDE * j);
        }
        rows.sum[i] = fmaf(rows.sum[i], decay, tr_fma_row_sum(sum));
#pragma unroll
        for (int j = 0; j < S::DEPTH; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                rows.out.at[i][j][c] *= decay;
    }
}

template <typename S>
__global__ void __launch_bounds__(TR_FMA_THREADS, 1) fma_forward_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(float, q);
    float *k = q + S::ROWS_TILE, *v = k + S::COLUMNS_TILE, *p = v + S::COLUMNS_TILE;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int A = (int)args.A, K = (int)args.K, kv_head = at.head / (A / K);
    const int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
    const int first = ((int)launch.num_blocks - 1 - at.order) * S::ROWS;
    const tr_fma_head k_head = tr_fma_head_get(args, args.k, at.b, K, kv_head);
    const tr_fma_head v_head = tr_fma_head_get(args, args.v, at.b, K, kv_head);
    const tr_attention_mask mask = tr_attention_mask_get<TR_DROPOUT_ASKED>(launch, at.b, at.head);

    tr_fma_tile_load<S::ROWS, S::DH>(q, tr_fma_head_get(args, args.q, at.b, A, at.head), first);
    fma_rows<S> rows = {};
#pragma unroll
    for (int i = 0; i < S::RM; i++)
        rows.max[i] = -INFINITY;
    for (int key = 0; key < first + S::ROWS && key < args.T; key += S::COLUMNS) {
        __syncthreads(); /* k and v are no longer read */
        tr_fma_tile_load<S::COLUMNS, S::DH>(k, k_head, key);
        tr_fma_tile_load<S::COLUMNS, S::DH>(v, v_head, key);
        __syncthreads();
        float s[S::RM][S::RN];
        tr_fma_product<S>(s, q, k);
        fma_softmax(rows, s, args.scale, first + y, key + x, mask);
        tr_fma_result_put<S>(p, s);
        __syncwarp();
        tr_fma_sum_add(rows.out, p, v);
        __syncwarp();
    }
    float factor[S::RM];
    float *lse = args.lse + (at.b * args.A + at.head) * args.T;
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        int position = first + y + TR_FMA_SIDE * i;
        factor[i] = 1.0f / rows.sum[i];
        if (x == 0 && position < args.T)
            lse[position] = rows.max[i] + logf(rows.sum[i]);
    }
    tr_fma_sum_store(tr_fma_head_get(args, args.out, at.b, A, at.head), rows.out, first, factor);
}

template <typename S> tr_status fma_forward_launch(cudaStream_t stream, tr_attention_launch launch)
{
    unsigned grid = tr_fma_query_grid<S>(&launch);
    size_t shared = (S::ROWS_TILE + 2 * S::COLUMNS_TILE + S::RESULT) * sizeof(float);
    return TR_LAUNCH((fma_forward_kernel<S>), grid, TR_FMA_THREADS, shared, stream, launch);
}

} /* namespace */

tr_status tr_attention_forward_fma(cudaStream_t stream, tr_attention_launch launch)
{
    if (launch.args.D <= 64)
        return fma_forward_launch<tr_fma_shape<64, 4, 4>>(stream, launch);
    if (launch.args.D <= 128)
        return fma_forward_launch<tr_fma_shape<128, 4, 2>>(stream, launch);
    return fma_forward_launch<tr_fma_shape<256, 2, 1>>(stream, launch);
}
