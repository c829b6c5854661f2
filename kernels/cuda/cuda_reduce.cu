/* Sums of rows and of arrays in fixed orders: column sums (bias gradients), the parts that blocks of rows leave behind, and the ordered
 * sum of several arrays. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"
#include "kernels/cuda/cuda_scratch.h"

enum {
    COLUMN_GROUPS = 32, /* a warp's groups: 256 columns */
    COLUMN_TEAMS = 8,   /* warps of a block, which take rows in turn */
    SUM_COLUMNS = 32,
    SUM_TEAMS = 32 /* at most */
};

/* The block's rows of 256 columns: warp w adds rows w, w + 8, ... in order, then the warps are added in order. Moves
 * R N sizes of T, and writes one row of fp32 per block of rows. */
template <typename T, bool WIDE>
__global__ void column_sum_kernel(int64_t R, int64_t N, int64_t rows, const T *dy, float *out,
                                  bool accumulate)
{
    TR_SHARED(float, parts, [COLUMN_TEAMS][TR_GROUP][COLUMN_GROUPS]);
    int lane = threadIdx.x % TR_WARP, team = threadIdx.x / TR_WARP;
    int64_t c = ((int64_t)blockIdx.x * COLUMN_GROUPS + lane) * TR_GROUP;
    int count = tr_group_count(c, N);
    int64_t begin = (int64_t)blockIdx.y * rows, end = begin + rows < R ? begin + rows : R;
    float sum[TR_GROUP] = {0};
#pragma unroll 4
    for (int64_t r = begin + team; r < end; r += COLUMN_TEAMS) {
        tr_group<T> row = tr_group_load<T, WIDE>(dy + r * N + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            sum[i] += row.get(i);
    }
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        parts[team][i][lane] = sum[i];
    __syncthreads();
    /* Now a thread for each column: element `team` of the lane's group. */
    if (team >= count)
        return;
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < COLUMN_TEAMS; k++)
        total += parts[k][team][lane];
    float *dst = out + (int64_t)blockIdx.y * N + c + team;
    *dst = accumulate ? total + *dst : total;
}

extern "C" tr_status tr_cuda_column_sum(cudaStream_t stream, void *workspace, tr_dtype dtype,
                                        int64_t R, int64_t N, const void *dy, float *out,
                                        bool accumulate)
{
    int64_t blocks = tr_cuda_column_blocks(R, N);
    int64_t rows = tr_blocks(R, blocks);
    bool wide = N % TR_GROUP == 0 && tr_vec_aligned(dy);
    bool whole = blocks == 1;
    float *parts = whole ? out : (float *)workspace;
    dim3 grid((unsigned)tr_blocks(N, COLUMN_GROUPS * TR_GROUP), (unsigned)blocks);
    TR_DISPATCH_WIDE(
        dtype, wide, T,
        TR_TRY(TR_LAUNCH((column_sum_kernel<T, WIDE>), grid, COLUMN_TEAMS * TR_WARP, 0, stream, R,
                         N, rows, (const T *)dy, parts, whole && accumulate)));
    return whole ? TR_OK : tr_cuda_rows_sum(stream, blocks, N, N, parts, out, accumulate);
}

/* Team k of a block, a warp, adds rows k, k + TEAMS, ... in order; the teams' sums are a tree. Moves 4 rows width bytes. */
__global__ void rows_sum_kernel(int64_t rows, int64_t width, int64_t stride, const float *src,
                                float *dst, bool accumulate)
{
    TR_SHARED(float, parts, [SUM_TEAMS][SUM_COLUMNS + 1]);
    int lane = threadIdx.x % TR_WARP, team = threadIdx.x / TR_WARP, teams = blockDim.x / TR_WARP;
    int64_t first = (int64_t)blockIdx.x * SUM_COLUMNS, c = first + lane;
    float sum = 0.0f;
    if (c < width) {
#pragma unroll 8
        for (int64_t r = team; r < rows; r += teams)
            sum += src[r * stride + c];
    }
    parts[team][lane] = sum;
    __syncthreads();
    /* Turned: a warp has the teams' sums of one column. */
    for (int column = team; column < SUM_COLUMNS; column += teams) {
        float total = tr_warp_sum(lane < teams ? parts[lane][column] : 0.0f);
        c = first + column;
        if (lane == 0 && c < width)
            dst[c] = accumulate ? total + dst[c] : total;
    }
}

tr_status tr_cuda_rows_sum(cudaStream_t stream, int64_t rows, int64_t width, int64_t stride,
                           const float *src, float *dst, bool accumulate)
{
    int teams = 1;
    while (teams < SUM_TEAMS && teams < rows)
        teams *= 2;
    return TR_LAUNCH(rows_sum_kernel, (unsigned)tr_blocks(width, SUM_COLUMNS), teams * TR_WARP, 0,
                     stream, rows, width, stride, src, dst, accumulate);
}

/* ---- the ordered sum ---- */

enum {
    TREE_THREADS = 128,
    TREE_DIRECT = 64, /* sources that fit the kernel's parameters */
    TREE_CHUNK = 256, /* pointers that one launch writes to the table */
    TREE_FEW = 7,     /* levels of so many sources */
    TREE_LEVELS = 12  /* log2(TR_REDUCE_MAX) */
};

typedef struct tree_sources {
    const float *src[TREE_DIRECT];
} tree_sources;

typedef struct tree_chunk {
    const float *src[TREE_CHUNK];
} tree_chunk;

__global__ void tree_table_kernel(int begin, int count, tree_chunk chunk, const float **table)
{
    int i = threadIdx.x;
    if (i < count)
        table[begin + i] = chunk.src[i];
}

/* N neighbouring elements, all in one register file. */
template <int N> struct tree_value {
    float element[N];
};

template <int N> __device__ inline tree_value<N> tree_load(const float *p)
{
    tree_value<N> value;
    if constexpr (N == 4) {
        float4 four = *reinterpret_cast<const float4 *>(p);
        value.element[0] = four.x;
        value.element[1] = four.y;
        value.element[2] = four.z;
        value.element[3] = four.w;
    } else {
        value.element[0] = *p;
    }
    return value;
}

template <int N>
__device__ inline tree_value<N> tree_add(const tree_value<N> &a, const tree_value<N> &b)
{
    tree_value<N> sum;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum.element[i] = a.element[i] + b.element[i];
    return sum;
}

/* The tree over `count` sources at element `at`: complete subtrees of four are loaded at once; level l of `waiting` holds a complete
 * subtree of 2^l sources that waits for its neighbour (the binary digits of the sources so far say which do). What is left at the
 * end is added from the right, since the tree splits at the largest power of two. */
template <int N, int LEVELS, typename SOURCES>
__device__ inline tree_value<N> tree_at(int count, const SOURCES &src, int64_t at)
{
    tree_value<N> waiting[LEVELS];
    int k = 0;
    for (; k + 4 <= count; k += 4) {
        tree_value<N> a = tree_load<N>(src[k] + at), b = tree_load<N>(src[k + 1] + at);
        tree_value<N> c = tree_load<N>(src[k + 2] + at), d = tree_load<N>(src[k + 3] + at);
        tree_value<N> sum = tree_add(tree_add(a, b), tree_add(c, d));
        bool carried = true;
#pragma unroll
        for (int level = 2; level < LEVELS; level++) {
            bool full = (k >> level & 1) != 0;
            if (carried && full)
                sum = tree_add(waiting[level], sum);
            else if (carried)
                waiting[level] = sum;
            carried = carried && full;
        }
    }
    tree_value<N> total;
    int left = count - k;
    bool any = left > 0;
    if (left > 0)
        total = tree_load<N>(src[k] + at);
    if (left > 1)
        total = tree_add(total, tree_load<N>(src[k + 1] + at));
    if (left > 2)
        total = tree_add(total, tree_load<N>(src[k + 2] + at));
#pragma unroll
    for (int level = 2; level < LEVELS; level++) {
        if ((k >> level & 1) != 0) {
            total = any ? tree_add(waiting[level], total) : waiting[level];
            any = true;
        }
    }
    return total;
}

template <int N> __device__ inline void tree_store(float *p, const tree_value<N> &value)
{
    if constexpr (N == 4)
        *reinterpret_cast<float4 *>(p) =
            make_float4(value.element[0], value.element[1], value.element[2], value.element[3]);
    else
        *p = value.element[0];
}

/* Moves 4 n (count + 1) bytes. dst may be a source: a thread has read its elements of all sources when it writes. */
template <int N>
__global__ void tree_direct_kernel(int64_t n, int count, tree_sources sources, float *dst)
{
    int64_t at = ((int64_t)blockIdx.x * TREE_THREADS + threadIdx.x) * N;
    if (at < n)
        tree_store<N>(dst + at, tree_at<N, TREE_FEW>(count, sources.src, at));
}

template <int N>
__global__ void tree_table_sum_kernel(int64_t n, int count, const float *const *table, float *dst)
{
    int64_t at = ((int64_t)blockIdx.x * TREE_THREADS + threadIdx.x) * N;
    if (at < n)
        tree_store<N>(dst + at, tree_at<N, TREE_LEVELS + 1>(count, table, at));
}

/* Sources from element `begin` on, n elements of each, N at a time. */
template <int N>
static tr_status tree_launch(cudaStream_t stream, const float **table, int64_t begin, int64_t n,
                             int count, const float *const *src, float *dst)
{
    dim3 grid((unsigned)tr_blocks(n, TREE_THREADS * N));
    if (count > TREE_DIRECT) /* the table's pointers stand at `begin` already */
        return TR_LAUNCH((tree_table_sum_kernel<N>), grid, TREE_THREADS, 0, stream, n, count, table,
                         dst + begin);
    tree_sources sources;
    for (int k = 0; k < TREE_DIRECT; k++)
        sources.src[k] = k < count ? src[k] + begin : NULL;
    return TR_LAUNCH((tree_direct_kernel<N>), grid, TREE_THREADS, 0, stream, n, count, sources,
                     dst + begin);
}

static tr_status tree_table_write(cudaStream_t stream, int count, const float *const *src,
                                  int64_t begin, const float **table)
{
    for (int first = 0; first < count; first += TREE_CHUNK) {
        tree_chunk chunk;
        int n = count - first < TREE_CHUNK ? count - first : TREE_CHUNK;
        for (int k = 0; k < TREE_CHUNK; k++)
            chunk.src[k] = k < n ? src[first + k] + begin : NULL;
        TR_TRY(TR_LAUNCH(tree_table_kernel, 1, TREE_CHUNK, 0, stream, first, n, chunk, table));
    }
    return TR_OK;
}

extern "C" tr_status tr_cuda_tree_sum(cudaStream_t stream, void *workspace, int64_t n, int count,
                                      const float *const *src, float *dst)
{
    TR_ASSERT(count >= 1 && count <= TR_REDUCE_MAX);
    if (count == 1)
        return dst == src[0] ? TR_OK : tr_cuda_convert(stream, n, TR_F32, src[0], TR_F32, dst);
    const float **table = (const float **)workspace;
    bool wide = tr_vec_aligned(dst);
    for (int k = 0; k < count; k++)
        wide = wide && tr_vec_aligned(src[k]);
    int64_t whole = wide ? n / 4 * 4 : 0;
    if (whole > 0) {
        if (count > TREE_DIRECT)
            TR_TRY(tree_table_write(stream, count, src, 0, table));
        TR_TRY(tree_launch<4>(stream, table, 0, whole, count, src, dst));
    }
    if (n > whole) {
        if (count > TREE_DIRECT)
            TR_TRY(tree_table_write(stream, count, src, whole, table));
        TR_TRY(tree_launch<1>(stream, table, whole, n - whole, count, src, dst));
    }
    return TR_OK;
}

/* ---- what the ranks of a group sent ---- */

/* Source k: the rank's own, or a place among the others'. No table in memory: streams that combine share nothing. */
struct combine_sources {
    const float *own, *others;
    int64_t stride;
    int own_index;
    __device__ const float *operator[](int k) const
    {
        return k == own_index ? own : others + (k < own_index ? k : k - 1) * stride;
    }
};

/* Moves 4 n (count + 1) bytes. dst may be the own source: a thread has read its elements of all sources when it writes. */
template <int N, int LEVELS>
__global__ void combine_sum_kernel(int64_t n, int count, combine_sources sources, float *dst)
{
    int64_t at = ((int64_t)blockIdx.x * TREE_THREADS + threadIdx.x) * N;
    if (at < n)
        tree_store<N>(dst + at, tree_at<N, LEVELS>(count, sources, at));
}

/* In the order of the sources, so that zeros of both signs and NaNs come out as on the CPU; a NaN wins. Moves 4 n (count + 1) bytes. */
template <int N>
__global__ void combine_max_kernel(int64_t n, int count, combine_sources sources, float *dst)
{
    int64_t at = ((int64_t)blockIdx.x * TREE_THREADS + threadIdx.x) * N;
    if (at >= n)
        return;
    tree_value<N> most = tree_load<N>(sources[0] + at);
    for (int k = 1; k < count; k++) {
        tree_value<N> other = tree_load<N>(sources[k] + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float a = most.element[i], b = other.element[i];
            most.element[i] = a > b || a != a ? a : b;
        }
    }
    tree_store<N>(dst + at, most);
}

template <int N>
static tr_status combine_launch(cudaStream_t stream, const tr_combine *args, int64_t begin,
                                int64_t n)
{
    dim3 grid((unsigned)tr_blocks(n, TREE_THREADS * N));
    combine_sources sources = {args->own + begin, args->others + begin, args->stride,
                               args->own_index};
    float *dst = args->dst + begin;
    if (args->kind == TR_COMBINE_MAXIMUM)
        return TR_LAUNCH((combine_max_kernel<N>), grid, TREE_THREADS, 0, stream, n, args->count,
                         sources, dst);
    if (args->count <= TREE_DIRECT)
        return TR_LAUNCH((combine_sum_kernel<N, TREE_FEW>), grid, TREE_THREADS, 0, stream, n,
                         args->count, sources, dst);
    return TR_LAUNCH((combine_sum_kernel<N, TREE_LEVELS + 1>), grid, TREE_THREADS, 0, stream, n,
                     args->count, sources, dst);
}

extern "C" tr_status tr_cuda_combine(cudaStream_t stream, const tr_combine *args)
{
    TR_ASSERT(args->count >= 1 && args->count <= TR_REDUCE_MAX);
    bool wide = tr_vec_aligned(args->own) && tr_vec_aligned(args->others) &&
                tr_vec_aligned(args->dst) && args->stride % 4 == 0;
    int64_t whole = wide ? args->n / 4 * 4 : 0;
    TR_TRY(combine_launch<4>(stream, args, 0, whole));
    return combine_launch<1>(stream, args, whole, args->n - whole);
}
