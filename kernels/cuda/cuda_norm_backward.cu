/* RMSNorm and LayerNorm, backward:
 *     RMS:   dx = rstd (w dy - xhat mean(w dy xhat))
 *     Layer: dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat))
 * A block has a fixed number of rows (kernels/cuda/cuda_scratch.h); its teams take them in turn and keep their parts of the weight and
 * bias gradients in registers. The teams' parts are added in order into the block's row of the workspace, and these rows by
 * tr_cuda_rows_sum. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_norm.cuh"
#include "kernels/cuda/cuda_scratch.h"

typedef struct norm_backward {
    cudaStream_t stream;
    int64_t R, H, rows; /* rows of a block */
    bool layer, wide;
    const float *dy;
    const void *x, *weight, *dresidual; /* dresidual NULL: zero; may be dx */
    const float *mean, *rstd;
    void *dx;
    float *parts; /* [blocks][vectors][H]: dweight, then dbias */
    int vectors;

    template <typename T, int TEAM, int ITEMS> tr_status run() const;
} norm_backward;

/* A row's statistics, and what its gradient needs of all its elements. */
typedef struct norm_row {
    float mean, rstd;
    float dot;   /* sum, then mean, of w dy xhat */
    float total; /* sum, then mean, of w dy; LayerNorm only */
} norm_row;

__device__ inline norm_row row_begin(const norm_backward &a, int64_t r, bool there)
{
    norm_row row = {0.0f, 0.0f, 0.0f, 0.0f};
    if (there) {
        row.rstd = a.rstd[r];
        row.mean = a.layer ? a.mean[r] : 0.0f;
    }
    return row;
}

template <int TEAM>
__device__ inline void row_sums(const norm_backward &a, norm_row *row, float *shared)
{
    norm_team_sum2<TEAM>(&row->dot, &row->total, shared);
    row->dot /= (float)a.H;
    row->total = a.layer ? row->total / (float)a.H : 0.0f;
}

/* Adds the group to the row's sums and to the gradients. */
template <typename T>
__device__ inline void group_reduce(const tr_group<T> &x, const tr_group<float> &dy,
                                    const tr_group<T> &weight, norm_row *row,
                                    float dweight[TR_GROUP], float dbias[TR_GROUP])
{
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) { /* behind the row dy is 0 */
        float xhat = (x.get(i) - row->mean) * row->rstd, wdy = weight.get(i) * dy.get(i);
        row->dot += wdy * xhat;
        row->total += wdy;
        dweight[i] += dy.get(i) * xhat;
        dbias[i] += dy.get(i);
    }
}

/* x becomes dx. dresidual holds zeros where there is none: x + 0 is x. */
template <typename T>
__device__ inline void group_dx(tr_group<T> *x, const tr_group<float> &dy,
                                const tr_group<T> &weight, const tr_group<T> &dresidual,
                                const norm_row &row)
{
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) {
        float xhat = (x->get(i) - row.mean) * row.rstd;
        float inner = weight.get(i) * dy.get(i) - xhat * row.dot - row.total;
        x->set(i, row.rstd * inner + dresidual.get(i));
    }
}

/* What a thread holds of a row. */
template <typename T, int ITEMS> struct norm_items {
    tr_group<T> x[ITEMS], dresidual[ITEMS];
    tr_group<float> dy[ITEMS];
};

template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void items_load(const norm_backward &a, int64_t at, int lane, int64_t width,
                                  norm_items<T, ITEMS> *items)
{
    norm_load<T, WIDE, TEAM, ITEMS>((const T *)a.x + at, lane, width, items->x);
    norm_load<float, WIDE, TEAM, ITEMS>(a.dy + at, lane, width, items->dy);
    norm_load<T, WIDE, TEAM, ITEMS>((const T *)a.dresidual + at, lane,
                                    a.dresidual != NULL ? width : 0, items->dresidual);
}

/* Adds the row to its sums and to the gradients. */
template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void items_reduce(const norm_backward &a, int lane, int64_t width,
                                    const norm_items<T, ITEMS> &items, norm_row *row,
                                    float (*dweight)[TR_GROUP], float (*dbias)[TR_GROUP])
{
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
        tr_group<T> weight =
            tr_group_load<T, WIDE>((const T *)a.weight + c, tr_group_count(c, width));
        group_reduce(items.x[k], items.dy[k], weight, row, dweight[k], dbias[k]);
    }
}

template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void items_dx(const norm_backward &a, int64_t at, int lane, int64_t width,
                                norm_items<T, ITEMS> *items, const norm_row &row)
{
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
        int count = tr_group_count(c, width);
        tr_group<T> weight = tr_group_load<T, WIDE>((const T *)a.weight + c, count);
        group_dx(&items->x[k], items->dy[k], weight, items->dresidual[k], row);
        tr_group_store<T, WIDE>((T *)a.dx + at + c, count, items->x[k]);
    }
}

/* The group at column c of a row. */
template <typename T>
__device__ inline void items_load_at(const norm_backward &a, int64_t at, int64_t c, int count,
                                     norm_items<T, 1> *items)
{
    items->x[0] = tr_group_load<T, false>((const T *)a.x + at + c, count);
    items->dy[0] = tr_group_load<float, false>(a.dy + at + c, count);
    items->dresidual[0] =
        tr_group_load<T, false>((const T *)a.dresidual + at + c, a.dresidual != NULL ? count : 0);
}

/* Adds the teams' parts in order into the block's row of vector `index`. parts: TEAMS rows of TEAM ITEMS groups. A block of
 * one team writes its own. */
template <int TEAM, int ITEMS>
__device__ inline void block_part(const norm_backward &a, int index, float (*values)[TR_GROUP],
                                  float *parts)
{
    const int width = TEAM * ITEMS * TR_GROUP, threads = norm_threads(TEAM);
    int lane = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    float *dst = a.parts + ((int64_t)blockIdx.x * a.vectors + index) * a.H;
    if (TEAM == threads) {
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
#pragma unroll
            for (int i = 0; i < TR_GROUP; i++) {
                if (c + i < a.H)
                    dst[c + i] = values[k][i];
            }
        }
        return;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            parts[team * width + (lane + k * TEAM) * TR_GROUP + i] = values[k][i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width && c < a.H; c += threads) {
        float sum = 0.0f;
#pragma unroll 8
        for (int k = 0; k < threads / TEAM; k++)
            sum += parts[k * width + c];
        dst[c] = sum;
    }
}

/* As norm_blocks: at most 80 registers a thread, or 128 where it holds two groups. */
__host__ __device__ constexpr int norm_backward_blocks(int team, int items)
{
    return (items > 1 ? 512 : 768) / norm_threads(team);
}

/* Moves R H (4 + 3 sizes of T, or 2 without dresidual) bytes, 8 bytes a row, and writes 4 or 8 H bytes a block. */
template <typename T, int TEAM, int ITEMS>
__global__ void __launch_bounds__(norm_threads(TEAM), norm_backward_blocks(TEAM, ITEMS))
    norm_backward_kernel(norm_backward a)
{
    const int teams = norm_threads(TEAM) / TEAM;
    TR_SHARED(float, shared, [2][64]);
    TR_SHARED(float, parts, [teams > 1 ? norm_threads(TEAM) * ITEMS * TR_GROUP : 1]);
    int lane = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    int64_t begin = (int64_t)blockIdx.x * a.rows, end = begin + a.rows < a.R ? begin + a.rows : a.R;
    float dweight[ITEMS][TR_GROUP] = {}, dbias[ITEMS][TR_GROUP] = {};
    for (int64_t first = begin, turn = 0; first < end; first += teams, turn++) {
        int64_t r = first + team, at = r * a.H;
        int64_t width = r < end ? a.H : 0; /* teams without a row help their warp */
        norm_items<T, ITEMS> items;
        if (a.wide)
            items_load<T, true, TEAM, ITEMS>(a, at, lane, width, &items);
        else
            items_load<T, false, TEAM, ITEMS>(a, at, lane, width, &items);
        norm_row row = row_begin(a, r, width > 0);
        if (a.wide)
            items_reduce<T, true, TEAM, ITEMS>(a, lane, width, items, &row, dweight, dbias);
        else
            items_reduce<T, false, TEAM, ITEMS>(a, lane, width, items, &row, dweight, dbias);
        row_sums<TEAM>(a, &row, shared[turn % 2]);
        if (a.wide)
            items_dx<T, true, TEAM, ITEMS>(a, at, lane, width, &items, row);
        else
            items_dx<T, false, TEAM, ITEMS>(a, at, lane, width, &items, row);
    }
    block_part<TEAM, ITEMS>(a, 0, dweight, parts);
    if (a.vectors > 1)
        block_part<TEAM, ITEMS>(a, 1, dbias, parts);
}

/* Rows of any length: read twice, the gradients kept in the block's rows of the workspace, an element always by the same thread. */
template <typename T>
__global__ void __launch_bounds__(NORM_LONG) norm_backward_long_kernel(norm_backward a)
{
    TR_SHARED(float, shared, [2][64]);
    int64_t begin = (int64_t)blockIdx.x * a.rows, end = begin + a.rows < a.R ? begin + a.rows : a.R;
    float *parts = a.parts + (int64_t)blockIdx.x * a.vectors * a.H;
    const int64_t first = (int64_t)threadIdx.x * TR_GROUP, step = (int64_t)NORM_LONG * TR_GROUP;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * a.H;
        norm_row row = row_begin(a, r, true);
        norm_items<T, 1> items;
        for (int64_t c = first; c < a.H; c += step) {
            int count = tr_group_count(c, a.H);
            float dweight[TR_GROUP] = {}, dbias[TR_GROUP] = {};
            items_load_at(a, at, c, count, &items);
            group_reduce(items.x[0], items.dy[0],
                         tr_group_load<T, false>((const T *)a.weight + c, count), &row, dweight,
                         dbias);
            for (int i = 0; i < count; i++) {
                parts[c + i] = r == begin ? dweight[i] : parts[c + i] + dweight[i];
                if (a.vectors > 1)
                    parts[a.H + c + i] = r == begin ? dbias[i] : parts[a.H + c + i] + dbias[i];
            }
        }
        row_sums<NORM_LONG>(a, &row, shared[(r - begin) % 2]);
        for (int64_t c = first; c < a.H; c += step) {
            int count = tr_group_count(c, a.H);
            items_load_at(a, at, c, count, &items);
            group_dx(&items.x[0], items.dy[0],
                     tr_group_load<T, false>((const T *)a.weight + c, count), items.dresidual[0],
                     row);
            tr_group_store<T, false>((T *)a.dx + at + c, count, items.x[0]);
        }
    }
}

template <typename T, int TEAM, int ITEMS> tr_status norm_backward::run() const
{
    unsigned blocks = (unsigned)tr_blocks(R, rows);
    if constexpr (ITEMS == 0)
        return TR_LAUNCH((norm_backward_long_kernel<T>), blocks, NORM_LONG, 0, stream, *this);
    else
        return TR_LAUNCH((norm_backward_kernel<T, TEAM, ITEMS>), blocks, norm_threads(TEAM), 0,
                         stream, *this);
}

extern "C" tr_status tr_cuda_norm_backward(cudaStream_t stream, void *workspace, tr_norm_kind kind,
                                           tr_dtype dtype, int64_t R, int64_t H, const float *dy,
                                           const void *x, const void *weight, const float *mean,
                                           const float *rstd, const void *dresidual, void *dx,
                                           float *dweight, float *dbias, bool accumulate)
{
    bool wide = H % TR_GROUP == 0 && tr_vec_aligned(dy) && tr_vec_aligned(x) &&
                tr_vec_aligned(weight) && tr_vec_aligned(dresidual) && tr_vec_aligned(dx);
    norm_backward args = {stream,
                          R,
                          H,
                          tr_cuda_norm_rows(R),
                          kind == TR_NORM_KIND_LAYER,
                          wide,
                          dy,
                          x,
                          weight,
                          dresidual,
                          mean,
                          rstd,
                          dx,
                          (float *)workspace,
                          dbias != NULL ? 2 : 1};
    TR_TRY(norm_dispatch(dtype, H, args));
    int64_t blocks = tr_blocks(R, args.rows), stride = args.vectors * H;
    TR_TRY(tr_cuda_rows_sum(stream, blocks, H, stride, args.parts, dweight, accumulate));
    return dbias == NULL
               ? TR_OK
               : tr_cuda_rows_sum(stream, blocks, H, stride, args.parts + H, dbias, accumulate);
}
