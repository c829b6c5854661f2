/* Attention in fp32 multiply-adds, backward: for the calls that cuda_attention_fma.cu computes forward.
 *
 * The algorithms are those of cuda_attention_dq.cu and cuda_attention_dkv.cu, with nothing rounded but the outputs. Must move the bytes
 * of those kernels. */
#include "kernels/cuda/cuda_attention_fma.cuh"

namespace
{

template <typename S> struct fma_dq_rows {
    tr_fma_sum<S> x, p;
    float lse[S::RM], weight[S::RM], sum[S::RM], mean[S::RM];
};

/* Scores become P and dP becomes X, as in cuda_attention_dq.cu. query, key: of this thread's first element. */
template <typename S>
__device__ inline void fma_move_means(fma_dq_rows<S> &rows, float (&s)[S::RM][S::RN],
                                      float (&dp)[S::RM][S::RN], float scale, int query, int key,
                                      const tr_attention_mask &mask)
{
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        float weight = 0.0f, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < S::RN; j++) {
            bool above = key + TR_FMA_SIDE * j > query + TR_FMA_SIDE * i;
            s[i][j] = above ? 0.0f : expf(s[i][j] * scale - rows.lse[i]);
            dp[i][j] *= tr_fma_kept_factor(mask, query + TR_FMA_SIDE * i, key + TR_FMA_SIDE * j);
            weight += s[i][j];
            sum = fmaf(s[i][j], dp[i][j], sum);
        }
        weight = rows.weight[i] += tr_fma_row_sum(weight);
        sum = rows.sum[i] += tr_fma_row_sum(sum);
        float mean = weight > 0.0f ? sum / weight : 0.0f, move = rows.mean[i] - mean;
        rows.mean[i] = mean;
#pragma unroll
        for (int j = 0; j < S::RN; j++)
            dp[i][j] = s[i][j] * (dp[i][j] - mean);
#pragma unroll
        for (int j = 0; j < S::DEPTH; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                rows.x.at[i][j][c] = fmaf(move, rows.p.at[i][j][c], rows.x.at[i][j][c]);
    }
}

template <typename S>
__global__ void __launch_bounds__(TR_FMA_THREADS, 1) fma_dq_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(float, q);
    float *dout = q + S::ROWS_TILE, *k = dout + S::ROWS_TILE, *v = k + S::COLUMNS_TILE;
    float *result_x = v + S::COLUMNS_TILE, *result_p = result_x + S::RESULT;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int A = (int)args.A, K = (int)args.K, kv_head = at.head / (A / K);
    const int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
    const int first = ((int)launch.num_blocks - 1 - at.order) * S::ROWS;
    const tr_fma_head k_head = tr_fma_head_get(args, args.k, at.b, K, kv_head);
    const tr_fma_head v_head = tr_fma_head_get(args, args.v, at.b, K, kv_head);
    const tr_attention_mask mask = tr_attention_mask_get<TR_DROPOUT_ASKED>(launch, at.b, at.head);
    const int64_t stats = (at.b * args.A + at.head) * args.T; /* of lse and delta */

    tr_fma_tile_load<S::ROWS, S::DH>(q, tr_fma_head_get(args, args.q, at.b, A, at.head), first);
    tr_fma_tile_load<S::ROWS, S::DH>(dout, tr_fma_head_get(args, args.dout, at.b, A, at.head),
                                     first);
    fma_dq_rows<S> rows = {};
#pragma unroll
    for (int i = 0; i < S::RM; i++)
        if (first + y + TR_FMA_SIDE * i < args.T)
            rows.lse[i] = args.lse[stats + first + y + TR_FMA_SIDE * i];
    for (int key = 0; key < first + S::ROWS && key < args.T; key += S::COLUMNS) {
        __syncthreads(); /* k and v are no longer read */
        tr_fma_tile_load<S::COLUMNS, S::DH>(k, k_head, key);
        tr_fma_tile_load<S::COLUMNS, S::DH>(v, v_head, key);
        __syncthreads();
        float s[S::RM][S::RN], dp[S::RM][S::RN];
        tr_fma_product<S>(s, q, k);
        tr_fma_product<S>(dp, dout, v);
        fma_move_means(rows, s, dp, args.scale, first + y, key + x, mask);
        tr_fma_result_put<S>(result_x, dp);
        tr_fma_result_put<S>(result_p, s);
        __syncwarp();
        tr_fma_sum_add(rows.x, result_x, k);
        tr_fma_sum_add(rows.p, result_p, k);
        __syncwarp();
    }
    float factor[S::RM];
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        int position = first + y + TR_FMA_SIDE * i;
        factor[i] = args.scale;
        if (x == 0 && position < args.T)
            launch.delta[stats + position] = rows.mean[i];
    }
    tr_fma_sum_store(tr_fma_head_get(args, args.dq, at.b, A, at.head), rows.x, first, factor);
}

/* Scores become M P^T and dP^T becomes dS^T. lse, delta: of the head's queries; query, key: of this thread's first element. */
template <typename S>
__device__ inline void fma_gradients(float (&s)[S::RM][S::RN], float (&dp)[S::RM][S::RN],
                                     const float *lse, const float *delta, int length, float scale,
                                     int query, int key, const tr_attention_mask &mask)
{
#pragma unroll
    for (int j = 0; j < S::RN; j++) {
        int position = query + TR_FMA_SIDE * j;
        float row_lse = position < length ? lse[position] : 0.0f;
        float row_delta = position < length ? delta[position] : 0.0f;
#pragma unroll
        for (int i = 0; i < S::RM; i++) {
            bool above = key + TR_FMA_SIDE * i > position;
            float p = above ? 0.0f : expf(s[i][j] * scale - row_lse);
            float kept = tr_fma_kept_factor(mask, position, key + TR_FMA_SIDE * i);
            s[i][j] = kept * p;
            dp[i][j] = p * (kept * dp[i][j] - row_delta);
        }
    }
}

template <typename S>
__global__ void __launch_bounds__(TR_FMA_THREADS, 1) fma_dkv_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(float, k);
    float *v = k + S::ROWS_TILE, *q = v + S::ROWS_TILE, *dout = q + S::COLUMNS_TILE;
    float *result_p = dout + S::COLUMNS_TILE, *result_ds = result_p + S::RESULT;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int heads = (int)launch.num_heads, A = (int)args.A, K = (int)args.K, group = A / heads;
    const int x = (int)threadIdx.x % TR_FMA_SIDE, y = (int)threadIdx.x / TR_FMA_SIDE;
    const int first = at.order * S::ROWS, kv_head = at.head / (heads / K);

    tr_fma_tile_load<S::ROWS, S::DH>(k, tr_fma_head_get(args, args.k, at.b, K, kv_head), first);
    tr_fma_tile_load<S::ROWS, S::DH>(v, tr_fma_head_get(args, args.v, at.b, K, kv_head), first);
    tr_fma_sum<S> dk = {}, dv = {};
    for (int head = at.head * group; head < (at.head + 1) * group; head++) {
        const tr_fma_head q_head = tr_fma_head_get(args, args.q, at.b, A, head);
        const tr_fma_head dout_head = tr_fma_head_get(args, args.dout, at.b, A, head);
        const tr_attention_mask mask = tr_attention_mask_get<TR_DROPOUT_ASKED>(launch, at.b, head);
        const int64_t stats = (at.b * args.A + head) * args.T;
        for (int query = first / S::COLUMNS * S::COLUMNS; query < args.T; query += S::COLUMNS) {
            __syncthreads(); /* q and dout are no longer read */
            tr_fma_tile_load<S::COLUMNS, S::DH>(q, q_head, query);
            tr_fma_tile_load<S::COLUMNS, S::DH>(dout, dout_head, query);
            __syncthreads();
            float s[S::RM][S::RN], dp[S::RM][S::RN];
            tr_fma_product<S>(s, k, q);
            tr_fma_product<S>(dp, v, dout);
            fma_gradients<S>(s, dp, args.lse + stats, launch.delta + stats, (int)args.T, args.scale,
                             query + x, first + y, mask);
            tr_fma_result_put<S>(result_p, s);
            tr_fma_result_put<S>(result_ds, dp);
            __syncwarp();
            tr_fma_sum_add(dv, result_p, dout);
            tr_fma_sum_add(dk, result_ds, q);
            __syncwarp();
        }
    }
    float dk_factor[S::RM], dv_factor[S::RM];
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        dk_factor[i] = args.scale;
        dv_factor[i] = 1.0f;
    }
    tr_fma_sum_store(tr_fma_head_get(args, args.dk, at.b, heads, at.head), dk, first, dk_factor);
    tr_fma_sum_store(tr_fma_head_get(args, args.dv, at.b, heads, at.head), dv, first, dv_factor);
}

template <typename S> constexpr size_t backward_shared(void)
{
    return (2 * S::ROWS_TILE + 2 * S::COLUMNS_TILE + 2 * S::RESULT) * sizeof(float);
}

template <typename S> tr_status fma_dq_launch(cudaStream_t stream, tr_attention_launch launch)
{
    unsigned grid = tr_fma_query_grid<S>(&launch);
    return TR_LAUNCH((fma_dq_kernel<S>), grid, TR_FMA_THREADS, backward_shared<S>(), stream,
                     launch);
}

template <typename S> tr_status fma_dkv_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    const int heads = tr_attention_gradient_heads(args);
    unsigned grid =
        tr_attention_grid(&launch, heads, S::ROWS, 1, 1, 8 * args->T * args->D * (args->A / heads));
    return TR_LAUNCH((fma_dkv_kernel<S>), grid, TR_FMA_THREADS, backward_shared<S>(), stream,
                     launch);
}

} /* namespace */

tr_status tr_attention_dq_fma(cudaStream_t stream, tr_attention_launch launch)
{
    if (launch.args.D <= 64)
        return fma_dq_launch<tr_fma_shape<64, 2, 4>>(stream, launch);
    if (launch.args.D <= 128)
        return fma_dq_launch<tr_fma_shape<128, 2, 2>>(stream, launch);
    return fma_dq_launch<tr_fma_shape<256, 1, 1>>(stream, launch);
}

tr_status tr_attention_dkv_fma(cudaStream_t stream, tr_attention_launch launch)
{
    if (launch.args.D <= 64)
        return fma_dkv_launch<tr_fma_shape<64, 2, 4>>(stream, launch);
    if (launch.args.D <= 128)
        return fma_dkv_launch<tr_fma_shape<128, 2, 2>>(stream, launch);
    return fma_dkv_launch<tr_fma_shape<256, 1, 1>>(stream, launch);
}
