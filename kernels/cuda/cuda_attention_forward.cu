/* Attention forward on tensor cores (bf16, fp16): Dao 2023, FlashAttention-2, algorithm 1.
 *
 * A block of four warps owns QUERIES queries of one head, 16 MT to a warp, and walks tiles of KEYS keys up to its last query:
 *     S = Q K^T;  m' = max(m, scale S);  P = exp(scale S - m');  l = l exp(m - m') + sum P;  O = O exp(m - m') + dropout(P) V
 * where m is raised only when it is exceeded by a lot (MAX_SLACK). P is rounded to T for the product with V, everything else is fp32; out = O / l is rounded once. Exponentials are of base two,
 * of scores times scale log2 e. Q stays in shared memory, K and V come by asynchronous copies into one of two stages while the other
 * is used. Warps skip tiles that lie above their diagonal and mask only tiles that it crosses.
 *
 * Must move, of E bytes each: q, out (2 B T A D), k, v (2 B T K D, read again by every block of queries and head, from the second-level
 * cache), lse. Operations: 2 products of 2 D for each of B A T (T + 1) / 2 scores, and an exponential. Floor in cycles of one multiprocessor:
 * 4 D scores / 4096 on H100 and H200 (2048 multiply-adds a cycle; mma.sync reaches about 0.6 of that), / 2048 on A100; exponentials: scores / 16. */
#include "kernels/cuda/cuda_attention_tile.cuh"

namespace
{

enum { WARPS = 4, THREADS = WARPS * TR_WARP };

template <int HEAD> struct forward_shape {
    enum {
        DH = HEAD,
        MT = DH <= 128 ? 2 : 1, /* row tiles of a warp: each fragment of K and V is used MT times */
        ROWS = 16 * MT,
        QUERIES = WARPS * ROWS,
        KEYS = DH <= 128 ? 64 : 32,    /* of a stage */
        SCORES = DH <= 64 ? KEYS : 32, /* keys whose scores are in registers at a time */
        COLUMNS = SCORES / 8,          /* column tiles of S */
        DEPTH = DH / 8,                /* column tiles of O */
        STAGE = 2 * KEYS * DH,
        SHARED = (QUERIES * DH + 2 * STAGE) * 2 /* bytes */
    };
};

/* What a warp carries along the keys. */
template <typename S> struct forward_rows {
    float out[S::MT][S::DEPTH][4];
    float max[S::MT][2], sum[S::MT][2]; /* sum: this lane's columns only */
};

template <typename T, typename S>
__device__ inline void scores(float (&s)[S::MT][S::COLUMNS][4], const T *shared, int k, int row)
{
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
        for (int n = 0; n < S::COLUMNS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < S::DH / 16; step++) {
        uint32_t a[S::MT][4], b[4];
#pragma unroll
        for (int m = 0; m < S::MT; m++)
            tr_fragment_a<T, S::DH>(a[m], shared, 0, row + 16 * m, step);
#pragma unroll
        for (int n = 0; n < S::COLUMNS; n += 2) {
            tr_fragment_b_rows<T, S::DH>(b, shared, k, 8 * n, step);
#pragma unroll
            for (int m = 0; m < S::MT; m++) {
                tr_mma_m16n8k16<T>(s[m][n], a[m], b);
                tr_mma_m16n8k16<T>(s[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Scores of keys above the diagonal become -inf. */
template <int COLUMNS>
__device__ inline void mask_scores(float (&s)[COLUMNS][4], int query, int key)
{
    int lane = tr_lane(), last = query + (lane >> 2) - key - 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + (e & 1) - 8 * (e >> 1) > last)
                s[n][e] = -INFINITY;
}

/* Maxima of the rows grow only when one of the warp's has been exceeded by more than this, as powers of two: P stays below 2^8, and
 * sums and output need not be brought to a new maximum with every tile. */
#define MAX_SLACK 8.0f

/* Raises the maxima of rows g and g + 8 when they must be, and brings sums and output to them. */
template <int COLUMNS, int DEPTH>
__device__ inline void raise_max(const float (&s)[COLUMNS][4], float (&out)[DEPTH][4],
                                 float (&max)[2], float (&sum)[2], float scale)
{
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < COLUMNS; n++)
            top[half] = fmaxf(top[half], fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top[half] = tr_quad_max(top[half]) * scale;
    }
    bool exceeded = top[0] > max[0] + MAX_SLACK || top[1] > max[1] + MAX_SLACK;
    if (__ballot_sync(TR_WARP_ALL, exceeded) == 0)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float raised = fmaxf(max[half], top[half]), decay = tr_exp2(max[half] - raised);
        max[half] = raised;
        sum[half] *= decay;
#pragma unroll
        for (int n = 0; n < DEPTH; n++) {
            out[n][2 * half] *= decay;
            out[n][2 * half + 1] *= decay;
        }
    }
}

/* Scores become exp(scale S - max); this lane's are added to the sums. */
template <int COLUMNS>
__device__ inline void probabilities(float (&s)[COLUMNS][4], const float (&max)[2], float (&sum)[2],
                                     float scale)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = tr_exp2(fmaf(s[n][e], scale, -max[e >> 1]));
            sum[e >> 1] += s[n][e];
        }
}

template <int COLUMNS>
__device__ inline void drop(float (&s)[COLUMNS][4], const tr_attention_mask &mask, int query,
                            int key)
{
    uint32_t kept[2];
    tr_kept_by_rows<COLUMNS>(kept, mask, query, key);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if ((kept[e >> 1] >> (4 * n + (e & 1)) & 1) == 0)
                s[n][e] = 0.0f;
}

/* O += P V. */
template <typename T, typename S>
__device__ inline void add_values(float (&out)[S::MT][S::DEPTH][4],
                                  const float (&p)[S::MT][S::COLUMNS][4], const T *shared, int v)
{
#pragma unroll
    for (int step = 0; step < S::SCORES / 16; step++) {
        uint32_t a[S::MT][4], b[4];
#pragma unroll
        for (int m = 0; m < S::MT; m++)
            tr_fragment_of_result<T>(a[m], p[m], step);
#pragma unroll
        for (int n = 0; n < S::DEPTH; n += 2) {
            tr_fragment_b_columns<T, S::DH>(b, shared, v, 16 * step, n);
#pragma unroll
            for (int m = 0; m < S::MT; m++) {
                tr_mma_m16n8k16<T>(out[m][n], a[m], b);
                tr_mma_m16n8k16<T>(out[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* A warp's rows and SCORES keys of a stage, the first at shared[k]. query: the warp's first. */
template <typename T, typename S>
__device__ inline void forward_scores(forward_rows<S> &rows, const T *shared, int k, int row,
                                      int query, int key, float scale,
                                      const tr_attention_mask &mask)
{
    float s[S::MT][S::COLUMNS][4];
    scores<T, S>(s, shared, k, row);
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
        if (key + S::SCORES - 1 > query + 16 * m)
            mask_scores(s[m], query + 16 * m, key);
        raise_max(s[m], rows.out[m], rows.max[m], rows.sum[m], scale);
        probabilities(s[m], rows.max[m], rows.sum[m], scale);
        if (mask.on)
            drop(s[m], mask, query + 16 * m, key);
    }
    add_values<T, S>(rows.out, s, shared, k + S::KEYS * S::DH);
}

/* The warp's rows of out into the tile, of lse to memory. */
template <typename T, typename S>
__device__ inline void forward_finish(const tr_attention_launch &launch, forward_rows<S> &rows,
                                      T *tile, float *lse, int row, int query)
{
    int lane = tr_lane(), g = lane >> 2;
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = tr_quad_sum(rows.sum[m][half]);
            int position = query + 16 * m + 8 * half + g;
            factor[half] = launch.kept_scale / sum;
            if (lane % 4 == 0 && position < launch.args.T)
                lse[position] = fmaf(rows.max[m][half], TR_LN_2, logf(sum));
        }
        tr_tile_put<T, S::DH>(tile, rows.out[m], factor, row + 16 * m, 0);
    }
}

template <typename T, typename S, int MODE>
__global__ void __launch_bounds__(THREADS) forward_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(T, q);
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int length = (int)args.T, D = (int)args.D;
    const int first = ((int)launch.num_blocks - 1 - at.order) * S::QUERIES;
    const int row = (int)threadIdx.x / TR_WARP * S::ROWS, query = first + row;
    const int q_stride = (int)args.A * D, k_stride = (int)args.K * D;
    const int64_t q_head = (int64_t)at.b * length * q_stride + at.head * D;
    const int64_t k_head = (int64_t)at.b * length * k_stride + at.head / (int)(args.A / args.K) * D;
    const T *k = (const T *)args.k + k_head, *v = (const T *)args.v + k_head;
    const tr_attention_mask mask = tr_attention_mask_get<MODE>(launch, at.b, at.head);

    auto stage_of = [](int key) { return S::QUERIES * S::DH + key / S::KEYS % 2 * S::STAGE; };
    auto copy_keys = [&](int key) {
        T *stage = q + stage_of(key);
        tr_tile_copy<T, S::DH, S::KEYS, THREADS>(stage, k, k_stride, key, length, D);
        tr_tile_copy<T, S::DH, S::KEYS, THREADS>(stage + S::KEYS * S::DH, v, k_stride, key, length,
                                                 D);
        tr_copy_async_commit();
    };
    tr_tile_copy<T, S::DH, S::QUERIES, THREADS>(q, (const T *)args.q + q_head, q_stride, first,
                                                length, D);
    copy_keys(0);

    forward_rows<S> rows = {};
#pragma unroll
    for (int m = 0; m < S::MT; m++)
        rows.max[m][0] = rows.max[m][1] = -INFINITY;
    const int num_keys = min(first + S::QUERIES, length);
    for (int key = 0; key < num_keys; key += S::KEYS) {
        tr_copy_async_wait<0>();
        __syncthreads(); /* this stage has arrived, the other is no longer read */
        if (key + S::KEYS < num_keys)
            copy_keys(key + S::KEYS);
        const int stage = stage_of(key);
#pragma unroll 1
        for (int i = 0; i < S::KEYS && key + i < query + S::ROWS; i += S::SCORES)
            forward_scores<T, S>(rows, q, stage + i * S::DH, row, query, key + i,
                                 args.scale * TR_LOG2_E, mask);
    }
    __syncthreads();
    forward_finish<T, S>(launch, rows, q, args.lse + (at.b * args.A + at.head) * length, row,
                         query);
    __syncthreads();
    tr_tile_store<T, S::DH, S::QUERIES, S::DEPTH, THREADS>(q, (T *)args.out + q_head, q_stride,
                                                           first, length, D, 0);
}

template <typename T, typename S>
tr_status forward_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    unsigned grid = tr_attention_grid(&launch, args->A, S::QUERIES, 1, (int)(args->A / args->K),
                                      2 * args->T * args->D * (int64_t)sizeof(T));
    if (args->dropout.probability > 0.0f)
        return TR_LAUNCH((forward_kernel<T, S, tr_dropout_modes<S::DH>::WITH>), grid, THREADS,
                         S::SHARED, stream, launch);
    return TR_LAUNCH((forward_kernel<T, S, tr_dropout_modes<S::DH>::WITHOUT>), grid, THREADS,
                     S::SHARED, stream, launch);
}

} /* namespace */

tr_status tr_attention_forward_tensor(cudaStream_t stream, tr_attention_launch launch)
{
    const int64_t D = launch.args.D;
    if (launch.args.dtype == TR_BF16)
        TR_ATTENTION_DISPATCH(
            D, DH, return forward_launch<__nv_bfloat16, forward_shape<DH>>(stream, launch));
    else
        TR_ATTENTION_DISPATCH(D, DH,
                              return forward_launch<__half, forward_shape<DH>>(stream, launch));
}
