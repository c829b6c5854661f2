/* Attention backward on tensor cores, second pass: dk and dv, with delta from the first (cuda_attention_dq.cu).
 *
 * A block of four warps owns 64 keys of one gradient head (a key/value head, or one part of it), 16 to a warp, and walks the queries
 * from its first key on, of each query head of the gradient head in turn. With scores transposed, keys as rows, P and dS come out of one
 * product as the operands of the next without leaving registers:
 *     P^T = exp(scale K Q^T - lse);  dP^T = M (V dO^T);  dV += (M P)^T dO;  dS^T = P^T (dP^T - delta);  dK += scale dS^T Q
 * M P and dS are rounded to T, everything else is fp32; dk and dv are summed over queries and heads in order and rounded once. Q and dO come
 * by asynchronous copies into one of two stages while the other is used, lse and delta through registers.
 *
 * Must move, of E bytes: k, v, dk, dv (4 B T K D), q, dout (2 B T A D, read again by every block of keys, from the second-level cache), lse,
 * delta. Operations: 4 products of 2 D for each of B A T (T + 1) / 2 scores, and an exponential. Floor in cycles of one multiprocessor:
 * 8 D scores / 4096 on H100 and H200, / 2048 on A100. */
#include "kernels/cuda/cuda_attention_tile.cuh"

namespace
{

enum { WARPS = 4, THREADS = WARPS * TR_WARP, ROWS = 16, KEYS = WARPS * ROWS };

template <int HEAD> struct dkv_shape {
    enum {
        DH = HEAD,
        PARTS = DH <= 128 ? 1 : 2,     /* blocks that share the columns of dk and dv */
        DEPTH = DH / 8 / PARTS,        /* column tiles of dk and dv */
        QUERIES = DH <= 128 ? 64 : 16, /* of a stage */
        SCORES = DH <= 64       ? 64
                 : QUERIES < 32 ? QUERIES
                                : 32, /* queries whose scores are in registers at a time */
        COLUMNS = SCORES / 8,
        STAGE = 2 * QUERIES * DH,
        STATS = 2 * QUERIES,                                     /* floats of a stage */
        SHARED = (2 * KEYS * DH + 2 * STAGE) * 2 + 2 * STATS * 4 /* bytes */
    };
};

template <typename S> struct dkv_rows {
    float dk[S::DEPTH][4], dv[S::DEPTH][4];
};

/* S^T = K Q^T and dP^T = V dO^T. */
template <typename T, typename S>
__device__ inline void scores(float (&s)[S::COLUMNS][4], float (&dp)[S::COLUMNS][4],
                              const T *shared, int q, int row)
{
#pragma unroll
    for (int n = 0; n < S::COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = dp[n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < S::DH / 16; step++) {
        uint32_t a_k[4], a_v[4], b[4];
        tr_fragment_a<T, S::DH>(a_k, shared, 0, row, step);
        tr_fragment_a<T, S::DH>(a_v, shared, KEYS * S::DH, row, step);
#pragma unroll
        for (int n = 0; n < S::COLUMNS; n += 2) {
            tr_fragment_b_rows<T, S::DH>(b, shared, q, 8 * n, step);
            tr_mma_m16n8k16<T>(s[n], a_k, b);
            tr_mma_m16n8k16<T>(s[n + 1], a_k, b + 2);
            tr_fragment_b_rows<T, S::DH>(b, shared, q + S::QUERIES * S::DH, 8 * n, step);
            tr_mma_m16n8k16<T>(dp[n], a_v, b);
            tr_mma_m16n8k16<T>(dp[n + 1], a_v, b + 2);
        }
    }
}

/* Scores become P^T, zero above the diagonal. lse: of the first query, times log2 e. */
template <int COLUMNS>
__device__ inline void probabilities(float (&s)[COLUMNS][4], const float *lse, float scale,
                                     bool crossed, int query, int key)
{
    int lane = tr_lane(), t = lane & 3;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        float2 pair = *reinterpret_cast<const float2 *>(lse + 8 * n + 2 * t);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = tr_exp2(fmaf(s[n][e], scale, (e & 1) != 0 ? -pair.y : -pair.x));
    }
    if (!crossed)
        return;
    int first = key + (lane >> 2) - query - 2 * t;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + (e & 1) - 8 * (e >> 1) < first)
                s[n][e] = 0.0f;
}

/* Scores become dS^T; P^T becomes kept P^T, whose 1 / (1 - p) is applied to dv at the end. */
template <int COLUMNS>
__device__ inline void gradients(float (&p)[COLUMNS][4], float (&dp)[COLUMNS][4],
                                 const float *delta, const tr_attention_mask &mask,
                                 const uint32_t (&kept)[COLUMNS / 2])
{
    int t = tr_lane() & 3;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        float2 pair = *reinterpret_cast<const float2 *>(delta + 8 * n + 2 * t);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float own = (e & 1) != 0 ? pair.y : pair.x, probability = p[n][e];
            if (mask.on) {
                bool keep = (kept[n / 2] >> (16 * (n % 2) + 4 * e) & 1) != 0;
                dp[n][e] = keep ? dp[n][e] * mask.kept_scale : 0.0f;
                p[n][e] = keep ? probability : 0.0f;
            }
            dp[n][e] = probability * (dp[n][e] - own);
        }
    }
}

/* dV += P^T dO and dK += dS^T Q over these queries. */
template <typename T, typename S>
__device__ inline void add_queries(dkv_rows<S> &rows, const float (&p)[S::COLUMNS][4],
                                   const float (&ds)[S::COLUMNS][4], const T *shared, int q,
                                   int chunk)
{
#pragma unroll
    for (int step = 0; step < S::SCORES / 16; step++) {
        uint32_t a_p[4], a_ds[4], b[4];
        tr_fragment_of_result<T>(a_p, p, step);
        tr_fragment_of_result<T>(a_ds, ds, step);
#pragma unroll
        for (int n = 0; n < S::DEPTH; n += 2) {
            tr_fragment_b_columns<T, S::DH>(b, shared, q + S::QUERIES * S::DH, 16 * step,
                                            chunk + n);
            tr_mma_m16n8k16<T>(rows.dv[n], a_p, b);
            tr_mma_m16n8k16<T>(rows.dv[n + 1], a_p, b + 2);
            tr_fragment_b_columns<T, S::DH>(b, shared, q, 16 * step, chunk + n);
            tr_mma_m16n8k16<T>(rows.dk[n], a_ds, b);
            tr_mma_m16n8k16<T>(rows.dk[n + 1], a_ds, b + 2);
        }
    }
}

/* The warp's keys and SCORES queries of a stage, the first at shared[q]. key: the warp's first; lse, delta: of the first query. */
template <typename T, typename S>
__device__ inline void dkv_scores(dkv_rows<S> &rows, const T *shared, int q, const float *lse,
                                  int row, int chunk, int query, int key, float scale,
                                  const tr_attention_mask &mask)
{
    uint32_t kept[S::COLUMNS / 2] = {}; /* made first, while scores need no registers */
    if (mask.on)
        tr_kept_by_columns<S::COLUMNS>(kept, mask, query, key);
    float s[S::COLUMNS][4], dp[S::COLUMNS][4];
    scores<T, S>(s, dp, shared, q, row);
    probabilities(s, lse, scale, key + ROWS - 1 > query, query, key);
    gradients<S::COLUMNS>(s, dp, lse + S::QUERIES, mask, kept);
    add_queries<T, S>(rows, s, dp, shared, q, chunk);
}

/* A tile of queries and the stage that it goes to. */
struct dkv_tile {
    int head, query, stage;
};

/* The walk of a block: tiles of queries from its first key on, for each query head of its gradient head. */
template <typename T, typename S> struct dkv_walk {
    const tr_attention_launch &launch;
    int b, first_query;
    T *shared;
    float lse, delta; /* of one query of the tile that was fetched last, on their way */

    __device__ dkv_tile after(dkv_tile tile) const
    {
        int query = tile.query + S::QUERIES, stage = tile.stage ^ 1;
        return query < (int)launch.args.T ? dkv_tile{tile.head, query, stage}
                                          : dkv_tile{tile.head + 1, first_query, stage};
    }
    /* Where a stage's elements begin. */
    __device__ int elements(int stage) const
    {
        return 2 * KEYS * S::DH + stage * S::STAGE;
    }
    __device__ float *stats(int stage) const
    {
        return reinterpret_cast<float *>(shared + 2 * KEYS * S::DH + 2 * S::STAGE) +
               stage * S::STATS;
    }

    /* Starts bringing a tile to its stage. */
    __device__ void fetch(dkv_tile tile)
    {
        const tr_attention &args = launch.args;
        int length = (int)args.T, D = (int)args.D, stride = (int)args.A * D;
        int64_t at = (int64_t)b * length * stride + tile.head * D;
        T *dst = shared + elements(tile.stage);
        tr_tile_copy<T, S::DH, S::QUERIES, THREADS>(dst, (const T *)args.q + at, stride, tile.query,
                                                    length, D);
        tr_tile_copy<T, S::DH, S::QUERIES, THREADS>(
            dst + S::QUERIES * S::DH, (const T *)args.dout + at, stride, tile.query, length, D);
        tr_copy_async_commit();
        int position = tile.query + (int)threadIdx.x;
        lse = delta = 0.0f;
        if (threadIdx.x < S::QUERIES && position < length) {
            int64_t index = (b * args.A + tile.head) * length + position;
            lse = args.lse[index] * TR_LOG2_E;
            delta = launch.delta[index];
        }
    }

    /* Puts lse and delta of the tile that was fetched last to its stage. */
    __device__ void put_stats(dkv_tile tile)
    {
        if (threadIdx.x < S::QUERIES) {
            stats(tile.stage)[threadIdx.x] = lse;
            stats(tile.stage)[S::QUERIES + threadIdx.x] = delta;
        }
    }
};

template <typename T, typename S, int MODE>
__global__ void __launch_bounds__(THREADS) dkv_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(T, k);
    T *v = k + KEYS * S::DH;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int length = (int)args.T, D = (int)args.D, chunk = at.part * S::DEPTH;
    const int first = at.order * KEYS;
    const int row = (int)threadIdx.x / TR_WARP * ROWS, key = first + row;
    const int heads = (int)launch.num_heads, group = (int)args.A / heads;
    const int k_stride = (int)args.K * D, stride = heads * D;
    const int64_t k_head = (int64_t)at.b * length * k_stride + at.head / (heads / (int)args.K) * D;
    tr_tile_copy<T, S::DH, KEYS, THREADS>(k, (const T *)args.k + k_head, k_stride, first, length,
                                          D);
    tr_tile_copy<T, S::DH, KEYS, THREADS>(v, (const T *)args.v + k_head, k_stride, first, length,
                                          D);

    dkv_walk<T, S> walk = {launch, at.b, first, k, 0.0f, 0.0f};
    dkv_tile tile = {at.head * group, first, 0};
    walk.fetch(tile);
    walk.put_stats(tile);
    dkv_rows<S> rows = {};
    while (tile.head < (at.head + 1) * group) {
        tr_copy_async_wait<0>();
        __syncthreads(); /* this stage has arrived, the other is no longer read */
        const dkv_tile next = walk.after(tile);
        const bool more = next.head < (at.head + 1) * group;
        if (more)
            walk.fetch(next);
        const tr_attention_mask mask = tr_attention_mask_get<MODE>(launch, at.b, tile.head);
#pragma unroll 1
        for (int j = 0; j < S::QUERIES; j += S::SCORES)
            if (tile.query + j + S::SCORES > key)
                dkv_scores<T, S>(rows, k, walk.elements(tile.stage) + j * S::DH,
                                 walk.stats(tile.stage) + j, row, chunk, tile.query + j, key,
                                 args.scale * TR_LOG2_E, mask);
        if (more)
            walk.put_stats(next);
        tile = next;
    }

    __syncthreads();
    const float dk_factor[2] = {args.scale, args.scale};
    const float dv_factor[2] = {launch.kept_scale, launch.kept_scale};
    tr_tile_put<T, S::DH>(k, rows.dk, dk_factor, row, chunk);
    tr_tile_put<T, S::DH>(v, rows.dv, dv_factor, row, chunk);
    __syncthreads();
    const int64_t head = (int64_t)at.b * length * stride + at.head * D;
    tr_tile_store<T, S::DH, KEYS, S::DEPTH, THREADS>(k, (T *)args.dk + head, stride, first, length,
                                                     D, chunk);
    tr_tile_store<T, S::DH, KEYS, S::DEPTH, THREADS>(v, (T *)args.dv + head, stride, first, length,
                                                     D, chunk);
}

template <typename T, typename S>
tr_status dkv_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    const int heads = tr_attention_gradient_heads(args);
    unsigned grid =
        tr_attention_grid(&launch, heads, KEYS, S::PARTS, 1,
                          2 * args->T * (args->A / heads) * args->D * (int64_t)sizeof(T));
    if (args->dropout.probability > 0.0f)
        return TR_LAUNCH((dkv_kernel<T, S, tr_dropout_modes<S::DH>::WITH>), grid, THREADS,
                         S::SHARED, stream, launch);
    return TR_LAUNCH((dkv_kernel<T, S, tr_dropout_modes<S::DH>::WITHOUT>), grid, THREADS, S::SHARED,
                     stream, launch);
}

} /* namespace */

tr_status tr_attention_dkv_tensor(cudaStream_t stream, tr_attention_launch launch)
{
    const int64_t D = launch.args.D;
    if (launch.args.dtype == TR_BF16)
        TR_ATTENTION_DISPATCH(D, DH,
                              return dkv_launch<__nv_bfloat16, dkv_shape<DH>>(stream, launch));
    else
        TR_ATTENTION_DISPATCH(D, DH, return dkv_launch<__half, dkv_shape<DH>>(stream, launch));
}
