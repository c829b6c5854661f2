/* Attention backward on tensor cores, first pass: dq, and delta for the second (cuda_attention_dkv.cu).
 *
 * A block of four warps owns 64 queries of one head, 16 to a warp, and walks the keys up to its last query. With probabilities
 * recomputed from lse and M = kept / (1 - p) or 0:
 *     P = exp(scale Q K^T - lse);  dP = M (dO V^T);  delta = sum over keys of P dP;  dQ = scale sum over keys of P (dP - delta) K
 * delta comes from fp32 scores, not from dO O, whose rounding would leave rows of dS that do not sum to zero (docs/design.md, section 1).
 * It is known only after the last key. To compute S and dP twice costs five products; instead X = P (dP - d) is used with d, the mean of
 * dP so far (sum P dP / sum P), and each time d moves the sum follows:
 *     sum X K  -=  (d' - d) sum P K
 * for one product more with the fragments of K that are at hand: four products, three streams of fragments, one exponential.
 * Since d is near delta where P is large, rounding X to T costs what rounding dS would. Relative error of dq (bf16, T = 384, D = 64)
 * against double: two loops 2.1e-3 to 2.3e-3, this 2.1e-3 to 2.3e-3; sum P dP K - delta sum P K, which never moves d, 3.3e-3, and up to 4e-2
 * where values have a common part.
 *
 * Must move, of E bytes: q, dout, dq (3 B T A D), k, v (2 B T K D, read again by blocks and heads from the second-level cache), lse, delta.
 * Operations: 4 products of 2 D for each of B A T (T + 1) / 2 scores, and an exponential. Floor in cycles of one multiprocessor: 8 D scores /
 * 4096 on H100 and H200, / 2048 on A100. */
#include "kernels/cuda/cuda_attention_tile.cuh"

namespace
{

enum { WARPS = 4, THREADS = WARPS * TR_WARP, ROWS = 16, QUERIES = WARPS * ROWS };

template <int HEAD> struct dq_shape {
    enum {
        DH = HEAD,
        PARTS = DH <= 128 ? 1 : 2,  /* blocks that share the columns of dq */
        DEPTH = DH / 8 / PARTS,     /* column tiles of dq */
        KEYS = DH <= 128 ? 64 : 16, /* of a stage */
        SCORES = DH <= 64    ? 64
                 : KEYS < 32 ? KEYS
                             : 32, /* keys whose scores are in registers at a time */
        COLUMNS = SCORES / 8,
        STAGE = 2 * KEYS * DH,
        SHARED = (2 * QUERIES * DH + 2 * STAGE) * 2 /* bytes */
    };
};

/* What a warp carries along the keys, of rows g and g + 8. */
template <typename S> struct dq_rows {
    float x[S::DEPTH][4], p[S::DEPTH][4]; /* sum X K, sum P K */
    float lse[2];                         /* times log2 e */
    float weight[2], sum[2], mean[2];     /* sum P, sum P dP, their quotient */
};

/* S = Q K^T and dP = dO V^T. */
template <typename T, typename S>
__device__ inline void scores(float (&s)[S::COLUMNS][4], float (&dp)[S::COLUMNS][4],
                              const T *shared, int k, int row)
{
#pragma unroll
    for (int n = 0; n < S::COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = dp[n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < S::DH / 16; step++) {
        uint32_t a_q[4], a_dout[4], b[4];
        tr_fragment_a<T, S::DH>(a_q, shared, 0, row, step);
        tr_fragment_a<T, S::DH>(a_dout, shared, QUERIES * S::DH, row, step);
#pragma unroll
        for (int n = 0; n < S::COLUMNS; n += 2) {
            tr_fragment_b_rows<T, S::DH>(b, shared, k, 8 * n, step);
            tr_mma_m16n8k16<T>(s[n], a_q, b);
            tr_mma_m16n8k16<T>(s[n + 1], a_q, b + 2);
            tr_fragment_b_rows<T, S::DH>(b, shared, k + S::KEYS * S::DH, 8 * n, step);
            tr_mma_m16n8k16<T>(dp[n], a_dout, b);
            tr_mma_m16n8k16<T>(dp[n + 1], a_dout, b + 2);
        }
    }
}

/* Scores become P, zero above the diagonal. */
template <int COLUMNS>
__device__ inline void probabilities(float (&s)[COLUMNS][4], const float (&lse)[2], float scale,
                                     bool crossed, int query, int key)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = tr_exp2(fmaf(s[n][e], scale, -lse[e >> 1]));
    if (!crossed)
        return;
    int lane = tr_lane(), last = query + (lane >> 2) - key - 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + (e & 1) - 8 * (e >> 1) > last)
                s[n][e] = 0.0f;
}

template <int COLUMNS>
__device__ inline void drop(float (&dp)[COLUMNS][4], const tr_attention_mask &mask, int query,
                            int key)
{
    uint32_t kept[2];
    tr_kept_by_rows<COLUMNS>(kept, mask, query, key);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            dp[n][e] =
                (kept[e >> 1] >> (4 * n + (e & 1)) & 1) != 0 ? dp[n][e] * mask.kept_scale : 0.0f;
}

/* The means move on over these scores, and with them what has been summed; dP becomes X. */
template <typename S>
__device__ inline void move_means(dq_rows<S> &rows, const float (&p)[S::COLUMNS][4],
                                  float (&dp)[S::COLUMNS][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float weight = 0.0f, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < S::COLUMNS; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                weight += p[n][e];
                sum = fmaf(p[n][e], dp[n][e], sum);
            }
        weight = rows.weight[half] += tr_quad_sum(weight);
        sum = rows.sum[half] += tr_quad_sum(sum);
        float mean = weight > 0.0f ? sum / weight : 0.0f, move = rows.mean[half] - mean;
        rows.mean[half] = mean;
#pragma unroll
        for (int n = 0; n < S::DEPTH; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++)
                rows.x[n][e] = fmaf(move, rows.p[n][e], rows.x[n][e]);
#pragma unroll
        for (int n = 0; n < S::COLUMNS; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++)
                dp[n][e] = p[n][e] * (dp[n][e] - mean);
    }
}

/* sum X K and sum P K over these keys. */
template <typename T, typename S>
__device__ inline void add_keys(dq_rows<S> &rows, const float (&p)[S::COLUMNS][4],
                                const float (&x)[S::COLUMNS][4], const T *shared, int k, int chunk)
{
#pragma unroll
    for (int step = 0; step < S::SCORES / 16; step++) {
        uint32_t a_x[4], a_p[4], b[4];
        tr_fragment_of_result<T>(a_x, x, step);
        tr_fragment_of_result<T>(a_p, p, step);
#pragma unroll
        for (int n = 0; n < S::DEPTH; n += 2) {
            tr_fragment_b_columns<T, S::DH>(b, shared, k, 16 * step, chunk + n);
            tr_mma_m16n8k16<T>(rows.x[n], a_x, b);
            tr_mma_m16n8k16<T>(rows.x[n + 1], a_x, b + 2);
            tr_mma_m16n8k16<T>(rows.p[n], a_p, b);
            tr_mma_m16n8k16<T>(rows.p[n + 1], a_p, b + 2);
        }
    }
}

/* The warp's queries and SCORES keys of a stage, the first at shared[k]. query: the warp's first. */
template <typename T, typename S>
__device__ inline void dq_scores(dq_rows<S> &rows, const T *shared, int k, int row, int chunk,
                                 int query, int key, float scale, const tr_attention_mask &mask)
{
    float s[S::COLUMNS][4], dp[S::COLUMNS][4];
    scores<T, S>(s, dp, shared, k, row);
    probabilities(s, rows.lse, scale, key + S::SCORES - 1 > query, query, key);
    if (mask.on)
        drop(dp, mask, query, key);
    move_means(rows, s, dp);
    add_keys<T, S>(rows, s, dp, shared, k, chunk);
}

template <typename T, typename S, int MODE>
__global__ void __launch_bounds__(THREADS) dq_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(T, q);
    T *dout = q + QUERIES * S::DH;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int length = (int)args.T, D = (int)args.D, chunk = at.part * S::DEPTH;
    const int first = ((int)launch.num_blocks - 1 - at.order) * QUERIES;
    const int row = (int)threadIdx.x / TR_WARP * ROWS, query = first + row;
    const int q_stride = (int)args.A * D, k_stride = (int)args.K * D;
    const int64_t q_head = (int64_t)at.b * length * q_stride + at.head * D;
    const int64_t k_head = (int64_t)at.b * length * k_stride + at.head / (int)(args.A / args.K) * D;
    const T *k = (const T *)args.k + k_head, *v = (const T *)args.v + k_head;
    const int64_t stats = (at.b * args.A + at.head) * length; /* of lse and delta */
    const tr_attention_mask mask = tr_attention_mask_get<MODE>(launch, at.b, at.head);

    auto stage_of = [](int key) { return 2 * QUERIES * S::DH + key / S::KEYS % 2 * S::STAGE; };
    auto copy_keys = [&](int key) {
        T *stage = q + stage_of(key);
        tr_tile_copy<T, S::DH, S::KEYS, THREADS>(stage, k, k_stride, key, length, D);
        tr_tile_copy<T, S::DH, S::KEYS, THREADS>(stage + S::KEYS * S::DH, v, k_stride, key, length,
                                                 D);
        tr_copy_async_commit();
    };
    tr_tile_copy<T, S::DH, QUERIES, THREADS>(q, (const T *)args.q + q_head, q_stride, first, length,
                                             D);
    tr_tile_copy<T, S::DH, QUERIES, THREADS>(dout, (const T *)args.dout + q_head, q_stride, first,
                                             length, D);
    copy_keys(0);

    dq_rows<S> rows = {};
    const int position = query + tr_lane() / 4;
    for (int half = 0; half < 2; half++)
        if (position + 8 * half < length)
            rows.lse[half] = args.lse[stats + position + 8 * half] * TR_LOG2_E;
    const int num_keys = min(first + QUERIES, length);
    for (int key = 0; key < num_keys; key += S::KEYS) {
        tr_copy_async_wait<0>();
        __syncthreads(); /* this stage has arrived, the other is no longer read */
        if (key + S::KEYS < num_keys)
            copy_keys(key + S::KEYS);
        const int stage = stage_of(key);
#pragma unroll 1
        for (int i = 0; i < S::KEYS && key + i < query + ROWS; i += S::SCORES)
            dq_scores<T, S>(rows, q, stage + i * S::DH, row, chunk, query, key + i,
                            args.scale * TR_LOG2_E, mask);
    }
    if (at.part == 0 && tr_lane() % 4 == 0)
        for (int half = 0; half < 2; half++)
            if (position + 8 * half < length)
                launch.delta[stats + position + 8 * half] = rows.mean[half];

    __syncthreads();
    const float factor[2] = {args.scale, args.scale};
    tr_tile_put<T, S::DH>(q, rows.x, factor, row, chunk);
    __syncthreads();
    tr_tile_store<T, S::DH, QUERIES, S::DEPTH, THREADS>(q, (T *)args.dq + q_head, q_stride, first,
                                                        length, D, chunk);
}

template <typename T, typename S>
tr_status dq_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    unsigned grid = tr_attention_grid(&launch, args->A, QUERIES, S::PARTS, (int)(args->A / args->K),
                                      2 * args->T * args->D * (int64_t)sizeof(T));
    if (args->dropout.probability > 0.0f)
        return TR_LAUNCH((dq_kernel<T, S, tr_dropout_modes<S::DH>::WITH>), grid, THREADS, S::SHARED,
                         stream, launch);
    return TR_LAUNCH((dq_kernel<T, S, tr_dropout_modes<S::DH>::WITHOUT>), grid, THREADS, S::SHARED,
                     stream, launch);
}

} /* namespace */

tr_status tr_attention_dq_tensor(cudaStream_t stream, tr_attention_launch launch)
{
    const int64_t D = launch.args.D;
    if (launch.args.dtype == TR_BF16)
        TR_ATTENTION_DISPATCH(D, DH, return dq_launch<__nv_bfloat16, dq_shape<DH>>(stream, launch));
    else
        TR_ATTENTION_DISPATCH(D, DH, return dq_launch<__half, dq_shape<DH>>(stream, launch));
}
