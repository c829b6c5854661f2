/* Attention in fp32 multiply-adds: for fp32, and for bf16 and fp16 with head sizes that tensor cores' 16-byte rows do not take.
 *
 * The algorithms are those of cuda_attention_forward.cu, cuda_attention_dq.cu and cuda_attention_dkv.cu, with nothing rounded but the
 * outputs. A block is 16 x 16 threads. Its products have 16 RM rows and 16 RN columns (keys, or queries in the second backward pass),
 * thread (y, x) making elements (y + 16 i, x + 16 j); sums over the columns have DH columns, thread (y, x) making the four from
 * 4 x + 64 j on. Operands lie in shared memory as fp32 rows of DH + 4 floats, which a warp reads 16 bytes a lane without bank
 * conflicts; a row of a product is made and read by one half of a warp.
 *
 * Must move the bytes of those kernels. Floor in cycles of one multiprocessor: D scores x (2 forward, 8 backward) / 128 multiply-adds on
 * H100, H200 and B200, / 64 on A100. */
#include "kernels/cuda/cuda_attention_tile.cuh"

namespace
{

enum { SIDE = 16, THREADS = SIDE * SIDE };

/* RM, RN: rows and columns of a thread in a product. */
template <int HEAD, int ROWS_OF_THREAD, int COLUMNS_OF_THREAD> struct fma_shape {
    enum {
        DH = HEAD,
        RM = ROWS_OF_THREAD,
        RN = COLUMNS_OF_THREAD,
        ROWS = SIDE * RM,
        COLUMNS = SIDE * RN,
        DEPTH = DH / 64, /* groups of four columns of a thread in a sum */
        PITCH = DH + 4,
        ROWS_TILE = ROWS * PITCH,
        COLUMNS_TILE = COLUMNS * PITCH,
        RESULT_PITCH = COLUMNS + 4,
        RESULT = ROWS * RESULT_PITCH
    };
};

template <typename S> struct fma_sum {
    float at[S::RM][S::DEPTH][4];
};

/* One head of a tensor [B,T,heads,D]. */
struct fma_head {
    tr_dtype dtype;
    const void *base;
    int64_t offset;
    int stride, length, D;
};

__device__ inline fma_head fma_head_get(const tr_attention &args, const void *base, int b,
                                        int heads, int head)
{
    int D = (int)args.D, stride = heads * D;
    int64_t offset = (int64_t)b * args.T * stride + head * D;
    return {args.dtype, base, offset, stride, (int)args.T, D};
}

__device__ inline float load(const fma_head &head, int64_t index)
{
    if (head.dtype == TR_F32)
        return static_cast<const float *>(head.base)[index];
    if (head.dtype == TR_BF16)
        return tr_load(static_cast<const __nv_bfloat16 *>(head.base) + index);
    return tr_load(static_cast<const __half *>(head.base) + index);
}

__device__ inline void store(const fma_head &head, int64_t index, float value)
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
__device__ inline bool in_fours(const fma_head &head)
{
    return head.dtype == TR_F32 && head.D % 4 == 0;
}

/* Rows [first, first + ROWS) of a head, padded with zeros. */
template <int ROWS, int DH>
__device__ inline void fma_tile_load(float *tile, const fma_head &head, int first)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < ROWS * DH / 4; i += THREADS) {
        int row = i / (DH / 4), column = i % (DH / 4) * 4;
        int64_t index = head.offset + (int64_t)(first + row) * head.stride + column;
        float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
        if (first + row < head.length && column < head.D) {
            if (in_fours(head)) {
                four = *reinterpret_cast<const float4 *>(static_cast<const float *>(head.base) +
                                                         index);
            } else {
                four.x = load(head, index);
                four.y = column + 1 < head.D ? load(head, index + 1) : 0.0f;
                four.z = column + 2 < head.D ? load(head, index + 2) : 0.0f;
                four.w = column + 3 < head.D ? load(head, index + 3) : 0.0f;
            }
        }
        *reinterpret_cast<float4 *>(tile + row * (DH + 4) + column) = four;
    }
}

/* This thread's columns of its rows, times factor[i], to rows [first, first + ROWS) of a head. */
template <typename S>
__device__ inline void fma_sum_store(const fma_head &head, const fma_sum<S> &sum, int first,
                                     const float (&factor)[S::RM])
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
#pragma unroll
    for (int i = 0; i < S::RM; i++)
#pragma unroll
        for (int j = 0; j < S::DEPTH; j++) {
            int row = first + y + SIDE * i, column = 4 * x + 64 * j;
            int64_t index = head.offset + (int64_t)row * head.stride + column;
            const float *at = sum.at[i][j];
            if (row >= head.length || column >= head.D)
                continue;
            if (in_fours(head)) {
                float4 four = {at[0] * factor[i], at[1] * factor[i], at[2] * factor[i],
                               at[3] * factor[i]};
                float *dst = static_cast<float *>(const_cast<void *>(head.base)) + index;
                *reinterpret_cast<float4 *>(dst) = four;
            } else {
                for (int c = 0; c < 4 && column + c < head.D; c++)
                    store(head, index + c, at[c] * factor[i]);
            }
        }
}

/* s = rows times columns^T. */
template <typename S>
__device__ inline void fma_product(float (&s)[S::RM][S::RN], const float *rows,
                                   const float *columns)
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
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
            a[i] = *reinterpret_cast<const float4 *>(rows + (y + SIDE * i) * S::PITCH + d);
#pragma unroll
        for (int j = 0; j < S::RN; j++)
            b[j] = *reinterpret_cast<const float4 *>(columns + (x + SIDE * j) * S::PITCH + d);
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
__device__ inline void fma_result_put(float *result, const float (&s)[S::RM][S::RN])
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
#pragma unroll
    for (int i = 0; i < S::RM; i++)
#pragma unroll
        for (int j = 0; j < S::RN; j++)
            result[(y + SIDE * i) * S::RESULT_PITCH + x + SIDE * j] = s[i][j];
}

/* sum += result times columns. */
template <typename S>
__device__ inline void fma_sum_add(fma_sum<S> &sum, const float *result, const float *columns)
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
#pragma unroll 2
    for (int key = 0; key < S::COLUMNS; key++) {
        float p[S::RM];
#pragma unroll
        for (int i = 0; i < S::RM; i++)
            p[i] = result[(y + SIDE * i) * S::RESULT_PITCH + key];
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

/* Sum and maximum over the 16 threads that share a row. */
__device__ inline float row_sum(float value)
{
#pragma unroll
    for (int offset = SIDE / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(TR_WARP_ALL, value, offset);
    return value;
}

__device__ inline float row_max(float value)
{
#pragma unroll
    for (int offset = SIDE / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(TR_WARP_ALL, value, offset));
    return value;
}

/* 1 / (1 - p) or 0; 1 without dropout. */
__device__ inline float kept_factor(const tr_attention_mask &mask, int query, int key)
{
    if (!mask.on)
        return 1.0f;
    uint32_t bits = mask.kept((uint32_t)query, (uint32_t)key / 4);
    return (bits >> (key % 4) & 1) != 0 ? mask.kept_scale : 0.0f;
}

template <typename S> struct fma_rows {
    fma_sum<S> out;
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
            s[i][j] = key + SIDE * j > query + SIDE * i ? -INFINITY : s[i][j] * scale;
            top = fmaxf(top, s[i][j]);
        }
        top = fmaxf(rows.max[i], row_max(top));
        float decay = expf(rows.max[i] - top);
        rows.max[i] = top;
#pragma unroll
        for (int j = 0; j < S::RN; j++) {
            s[i][j] = expf(s[i][j] - top);
            sum += s[i][j];
            s[i][j] *= kept_factor(mask, query + SIDE * i, key + SIDE * j);
        }
        rows.sum[i] = fmaf(rows.sum[i], decay, row_sum(sum));
#pragma unroll
        for (int j = 0; j < S::DEPTH; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                rows.out.at[i][j][c] *= decay;
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, 1) fma_forward_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(float, q);
    float *k = q + S::ROWS_TILE, *v = k + S::COLUMNS_TILE, *p = v + S::COLUMNS_TILE;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int A = (int)args.A, K = (int)args.K, kv_head = at.head / (A / K);
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int first = ((int)launch.num_blocks - 1 - at.order) * S::ROWS;
    const fma_head k_head = fma_head_get(args, args.k, at.b, K, kv_head);
    const fma_head v_head = fma_head_get(args, args.v, at.b, K, kv_head);
    const tr_attention_mask mask = tr_attention_mask_get<TR_DROPOUT_ASKED>(launch, at.b, at.head);

    fma_tile_load<S::ROWS, S::DH>(q, fma_head_get(args, args.q, at.b, A, at.head), first);
    fma_rows<S> rows = {};
#pragma unroll
    for (int i = 0; i < S::RM; i++)
        rows.max[i] = -INFINITY;
    for (int key = 0; key < first + S::ROWS && key < args.T; key += S::COLUMNS) {
        __syncthreads(); /* k and v are no longer read */
        fma_tile_load<S::COLUMNS, S::DH>(k, k_head, key);
        fma_tile_load<S::COLUMNS, S::DH>(v, v_head, key);
        __syncthreads();
        float s[S::RM][S::RN];
        fma_product<S>(s, q, k);
        fma_softmax(rows, s, args.scale, first + y, key + x, mask);
        fma_result_put<S>(p, s);
        __syncwarp();
        fma_sum_add(rows.out, p, v);
        __syncwarp();
    }
    float factor[S::RM];
    float *lse = args.lse + (at.b * args.A + at.head) * args.T;
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        int position = first + y + SIDE * i;
        factor[i] = 1.0f / rows.sum[i];
        if (x == 0 && position < args.T)
            lse[position] = rows.max[i] + logf(rows.sum[i]);
    }
    fma_sum_store(fma_head_get(args, args.out, at.b, A, at.head), rows.out, first, factor);
}

template <typename S> struct fma_dq_rows {
    fma_sum<S> x, p;
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
            bool above = key + SIDE * j > query + SIDE * i;
            s[i][j] = above ? 0.0f : expf(s[i][j] * scale - rows.lse[i]);
            dp[i][j] *= kept_factor(mask, query + SIDE * i, key + SIDE * j);
            weight += s[i][j];
            sum = fmaf(s[i][j], dp[i][j], sum);
        }
        weight = rows.weight[i] += row_sum(weight);
        sum = rows.sum[i] += row_sum(sum);
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
__global__ void __launch_bounds__(THREADS, 1) fma_dq_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(float, q);
    float *dout = q + S::ROWS_TILE, *k = dout + S::ROWS_TILE, *v = k + S::COLUMNS_TILE;
    float *result_x = v + S::COLUMNS_TILE, *result_p = result_x + S::RESULT;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int A = (int)args.A, K = (int)args.K, kv_head = at.head / (A / K);
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int first = ((int)launch.num_blocks - 1 - at.order) * S::ROWS;
    const fma_head k_head = fma_head_get(args, args.k, at.b, K, kv_head);
    const fma_head v_head = fma_head_get(args, args.v, at.b, K, kv_head);
    const tr_attention_mask mask = tr_attention_mask_get<TR_DROPOUT_ASKED>(launch, at.b, at.head);
    const int64_t stats = (at.b * args.A + at.head) * args.T; /* of lse and delta */

    fma_tile_load<S::ROWS, S::DH>(q, fma_head_get(args, args.q, at.b, A, at.head), first);
    fma_tile_load<S::ROWS, S::DH>(dout, fma_head_get(args, args.dout, at.b, A, at.head), first);
    fma_dq_rows<S> rows = {};
#pragma unroll
    for (int i = 0; i < S::RM; i++)
        if (first + y + SIDE * i < args.T)
            rows.lse[i] = args.lse[stats + first + y + SIDE * i];
    for (int key = 0; key < first + S::ROWS && key < args.T; key += S::COLUMNS) {
        __syncthreads(); /* k and v are no longer read */
        fma_tile_load<S::COLUMNS, S::DH>(k, k_head, key);
        fma_tile_load<S::COLUMNS, S::DH>(v, v_head, key);
        __syncthreads();
        float s[S::RM][S::RN], dp[S::RM][S::RN];
        fma_product<S>(s, q, k);
        fma_product<S>(dp, dout, v);
        fma_move_means(rows, s, dp, args.scale, first + y, key + x, mask);
        fma_result_put<S>(result_x, dp);
        fma_result_put<S>(result_p, s);
        __syncwarp();
        fma_sum_add(rows.x, result_x, k);
        fma_sum_add(rows.p, result_p, k);
        __syncwarp();
    }
    float factor[S::RM];
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        int position = first + y + SIDE * i;
        factor[i] = args.scale;
        if (x == 0 && position < args.T)
            launch.delta[stats + position] = rows.mean[i];
    }
    fma_sum_store(fma_head_get(args, args.dq, at.b, A, at.head), rows.x, first, factor);
}

/* Scores become M P^T and dP^T becomes dS^T. lse, delta: of the head's queries; query, key: of this thread's first element. */
template <typename S>
__device__ inline void fma_gradients(float (&s)[S::RM][S::RN], float (&dp)[S::RM][S::RN],
                                     const float *lse, const float *delta, int length, float scale,
                                     int query, int key, const tr_attention_mask &mask)
{
#pragma unroll
    for (int j = 0; j < S::RN; j++) {
        int position = query + SIDE * j;
        float row_lse = position < length ? lse[position] : 0.0f;
        float row_delta = position < length ? delta[position] : 0.0f;
#pragma unroll
        for (int i = 0; i < S::RM; i++) {
            bool above = key + SIDE * i > position;
            float p = above ? 0.0f : expf(s[i][j] * scale - row_lse);
            float kept = kept_factor(mask, position, key + SIDE * i);
            s[i][j] = kept * p;
            dp[i][j] = p * (kept * dp[i][j] - row_delta);
        }
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, 1) fma_dkv_kernel(tr_attention_launch launch)
{
    TR_SHARED_DYNAMIC(float, k);
    float *v = k + S::ROWS_TILE, *q = v + S::ROWS_TILE, *dout = q + S::COLUMNS_TILE;
    float *result_p = dout + S::COLUMNS_TILE, *result_ds = result_p + S::RESULT;
    const tr_attention &args = launch.args;
    const tr_attention_place at = tr_attention_place_get(launch);
    const int heads = (int)launch.num_heads, A = (int)args.A, K = (int)args.K, group = A / heads;
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int first = at.order * S::ROWS, kv_head = at.head / (heads / K);

    fma_tile_load<S::ROWS, S::DH>(k, fma_head_get(args, args.k, at.b, K, kv_head), first);
    fma_tile_load<S::ROWS, S::DH>(v, fma_head_get(args, args.v, at.b, K, kv_head), first);
    fma_sum<S> dk = {}, dv = {};
    for (int head = at.head * group; head < (at.head + 1) * group; head++) {
        const fma_head q_head = fma_head_get(args, args.q, at.b, A, head);
        const fma_head dout_head = fma_head_get(args, args.dout, at.b, A, head);
        const tr_attention_mask mask = tr_attention_mask_get<TR_DROPOUT_ASKED>(launch, at.b, head);
        const int64_t stats = (at.b * args.A + head) * args.T;
        for (int query = first / S::COLUMNS * S::COLUMNS; query < args.T; query += S::COLUMNS) {
            __syncthreads(); /* q and dout are no longer read */
            fma_tile_load<S::COLUMNS, S::DH>(q, q_head, query);
            fma_tile_load<S::COLUMNS, S::DH>(dout, dout_head, query);
            __syncthreads();
            float s[S::RM][S::RN], dp[S::RM][S::RN];
            fma_product<S>(s, k, q);
            fma_product<S>(dp, v, dout);
            fma_gradients<S>(s, dp, args.lse + stats, launch.delta + stats, (int)args.T, args.scale,
                             query + x, first + y, mask);
            fma_result_put<S>(result_p, s);
            fma_result_put<S>(result_ds, dp);
            __syncwarp();
            fma_sum_add(dv, result_p, dout);
            fma_sum_add(dk, result_ds, q);
            __syncwarp();
        }
    }
    float dk_factor[S::RM], dv_factor[S::RM];
#pragma unroll
    for (int i = 0; i < S::RM; i++) {
        dk_factor[i] = args.scale;
        dv_factor[i] = 1.0f;
    }
    fma_sum_store(fma_head_get(args, args.dk, at.b, heads, at.head), dk, first, dk_factor);
    fma_sum_store(fma_head_get(args, args.dv, at.b, heads, at.head), dv, first, dv_factor);
}

template <typename S> tr_status fma_forward_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    unsigned grid = tr_attention_grid(&launch, args->A, S::ROWS, 1, (int)(args->A / args->K),
                                      8 * args->T * args->D);
    size_t shared = (S::ROWS_TILE + 2 * S::COLUMNS_TILE + S::RESULT) * sizeof(float);
    return TR_LAUNCH((fma_forward_kernel<S>), grid, THREADS, shared, stream, launch);
}

template <typename S> constexpr size_t backward_shared(void)
{
    return (2 * S::ROWS_TILE + 2 * S::COLUMNS_TILE + 2 * S::RESULT) * sizeof(float);
}

template <typename S> tr_status fma_dq_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    unsigned grid = tr_attention_grid(&launch, args->A, S::ROWS, 1, (int)(args->A / args->K),
                                      8 * args->T * args->D);
    return TR_LAUNCH((fma_dq_kernel<S>), grid, THREADS, backward_shared<S>(), stream, launch);
}

template <typename S> tr_status fma_dkv_launch(cudaStream_t stream, tr_attention_launch launch)
{
    const tr_attention *args = &launch.args;
    const int heads = tr_attention_gradient_heads(args);
    unsigned grid =
        tr_attention_grid(&launch, heads, S::ROWS, 1, 1, 8 * args->T * args->D * (args->A / heads));
    return TR_LAUNCH((fma_dkv_kernel<S>), grid, THREADS, backward_shared<S>(), stream, launch);
}

} /* namespace */

tr_status tr_attention_forward_fma(cudaStream_t stream, tr_attention_launch launch)
{
    if (launch.args.D <= 64)
        return fma_forward_launch<fma_shape<64, 4, 4>>(stream, launch);
    if (launch.args.D <= 128)
        return fma_forward_launch<fma_shape<128, 4, 2>>(stream, launch);
    return fma_forward_launch<fma_shape<256, 2, 1>>(stream, launch);
}

tr_status tr_attention_dq_fma(cudaStream_t stream, tr_attention_launch launch)
{
    if (launch.args.D <= 64)
        return fma_dq_launch<fma_shape<64, 2, 4>>(stream, launch);
    if (launch.args.D <= 128)
        return fma_dq_launch<fma_shape<128, 2, 2>>(stream, launch);
    return fma_dq_launch<fma_shape<256, 1, 1>>(stream, launch);
}

tr_status tr_attention_dkv_fma(cudaStream_t stream, tr_attention_launch launch)
{
    if (launch.args.D <= 64)
        return fma_dkv_launch<fma_shape<64, 2, 4>>(stream, launch);
    if (launch.args.D <= 128)
        return fma_dkv_launch<fma_shape<128, 2, 2>>(stream, launch);
    return fma_dkv_launch<fma_shape<256, 1, 1>>(stream, launch);
}
