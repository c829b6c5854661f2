/* The gradient of the token table: rows of dx are added to the table's rows in order of rows, as the CPU device does, bit for
 * bit.
 *
 * Rows are sorted by their id, rows of one id staying in order, by a radix sort of TR_SORT_BITS bits a pass: a block ranks a tile of
 * rows within each digit, counts become places by a scan over (digit, tile), rows move there. Then each run of equal ids is
 * one block's work. Rows of other ranks' ids are sorted behind all others and left out. Scratch: kernels/cuda/cuda_scratch.h. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"
#include "kernels/cuda/cuda_scratch.h"

enum { DIGITS = 1 << TR_SORT_BITS, TILE_WARPS = TR_SORT_TILE / TR_WARP, RUN_BATCH = 8 };

/* Keys of rows: the table's row, or V. */
__global__ void sort_keys_kernel(int64_t R, int64_t V, int64_t vocab_begin, const int32_t *ids,
                                 uint32_t *keys, int32_t *rows)
{
    int64_t r = (int64_t)blockIdx.x * TR_ROW_THREADS + threadIdx.x;
    if (r >= R)
        return;
    int64_t id = ids[r] - vocab_begin;
    keys[r] = (uint32_t)(id >= 0 && id < V ? id : V);
    rows[r] = (int32_t)r;
}

/* The lanes of the warp, of those in `there`, that have the same digit. */
__device__ inline uint32_t warp_peers(uint32_t digit, bool there)
{
    uint32_t peers = __ballot_sync(TR_WARP_ALL, there);
#pragma unroll
    for (int bit = 0; bit < TR_SORT_BITS; bit++) {
        bool set = (digit >> bit & 1) != 0;
        uint32_t with = __ballot_sync(TR_WARP_ALL, set);
        peers &= set ? with : ~with;
    }
    return peers;
}

/* ranks[i]: rows of the tile before i with the same digit; counts[digit][tile]: rows of the tile with the digit. */
__global__ void __launch_bounds__(TR_SORT_TILE)
    sort_rank_kernel(int64_t R, int shift, const uint32_t *keys, uint32_t *ranks, uint32_t *counts)
{
    TR_SHARED(uint16_t, of_warp, [TILE_WARPS][DIGITS]);
    int warp = threadIdx.x / TR_WARP, lane = threadIdx.x % TR_WARP;
    for (int d = lane; d < DIGITS; d += TR_WARP)
        of_warp[warp][d] = 0;
    __syncwarp();
    int64_t i = (int64_t)blockIdx.x * TR_SORT_TILE + threadIdx.x;
    uint32_t digit = i < R ? keys[i] >> shift & (DIGITS - 1) : 0;
    uint32_t peers = warp_peers(digit, i < R), before = peers & ((1u << lane) - 1);
    if (i < R && before == 0)
        of_warp[warp][digit] = (uint16_t)__popc(peers);
    __syncthreads();
    /* Counts of the warps become those of all warps before. */
    for (int d = threadIdx.x; d < DIGITS; d += TR_SORT_TILE) {
        uint32_t sum = 0;
        for (int w = 0; w < TILE_WARPS; w++) {
            uint32_t own = of_warp[w][d];
            of_warp[w][d] = (uint16_t)sum;
            sum += own;
        }
        counts[(int64_t)d * gridDim.x + blockIdx.x] = sum;
    }
    __syncthreads();
    if (i < R)
        ranks[i] = of_warp[warp][digit] + (uint32_t)__popc(before);
}

/* The exclusive sums of counts[0 ... n-1], in place, by one block. */
__global__ void __launch_bounds__(TR_SORT_TILE) sort_scan_kernel(int64_t n, uint32_t *counts)
{
    TR_SHARED(uint32_t, warps, [TILE_WARPS]);
    int warp = threadIdx.x / TR_WARP, lane = threadIdx.x % TR_WARP;
    uint32_t base = 0;
    for (int64_t begin = 0; begin < n; begin += TR_SORT_TILE) {
        int64_t i = begin + threadIdx.x;
        uint32_t own = i < n ? counts[i] : 0, sum = own;
        for (int offset = 1; offset < TR_WARP; offset *= 2) {
            uint32_t left = __shfl_up_sync(TR_WARP_ALL, sum, offset);
            sum += lane >= offset ? left : 0;
        }
        if (lane == TR_WARP - 1)
            warps[warp] = sum;
        __syncthreads();
        uint32_t of_lane = warps[lane], before = lane < warp ? of_lane : 0, all = of_lane;
        for (int offset = TR_WARP / 2; offset > 0; offset /= 2) {
            before += __shfl_xor_sync(TR_WARP_ALL, before, offset);
            all += __shfl_xor_sync(TR_WARP_ALL, all, offset);
        }
        if (i < n)
            counts[i] = base + before + sum - own;
        base += all;
        __syncthreads();
    }
}

/* Every row to its place. */
__global__ void sort_move_kernel(int64_t R, int shift, int64_t tiles, const uint32_t *keys,
                                 const int32_t *rows, const uint32_t *ranks, const uint32_t *places,
                                 uint32_t *sorted_keys, int32_t *sorted_rows)
{
    int64_t i = (int64_t)blockIdx.x * TR_ROW_THREADS + threadIdx.x;
    if (i >= R)
        return;
    uint32_t digit = keys[i] >> shift & (DIGITS - 1);
    uint32_t place = places[digit * tiles + i / TR_SORT_TILE] + ranks[i];
    sorted_keys[place] = keys[i];
    sorted_rows[place] = rows[i];
}

/* Sorted keys and rows are left in scratch->keys[*sorted], rows[*sorted]. */
static tr_status sort(cudaStream_t stream, int64_t R, int64_t V, int64_t vocab_begin,
                      const int32_t *ids, const tr_sort_scratch *scratch, int *sorted)
{
    int64_t tiles = tr_blocks(R, TR_SORT_TILE);
    unsigned blocks = (unsigned)tr_blocks(R, TR_ROW_THREADS);
    TR_TRY(TR_LAUNCH(sort_keys_kernel, blocks, TR_ROW_THREADS, 0, stream, R, V, vocab_begin, ids,
                     scratch->keys[0], scratch->rows[0]));
    int from = 0;
    for (int shift = 0; V >> shift != 0; shift += TR_SORT_BITS, from = 1 - from) {
        TR_TRY(TR_LAUNCH(sort_rank_kernel, (unsigned)tiles, TR_SORT_TILE, 0, stream, R, shift,
                         scratch->keys[from], scratch->ranks, scratch->counts));
        TR_TRY(TR_LAUNCH(sort_scan_kernel, 1, TR_SORT_TILE, 0, stream, DIGITS * tiles,
                         scratch->counts));
        TR_TRY(TR_LAUNCH(sort_move_kernel, blocks, TR_ROW_THREADS, 0, stream, R, shift, tiles,
                         scratch->keys[from], scratch->rows[from], scratch->ranks, scratch->counts,
                         scratch->keys[1 - from], scratch->rows[1 - from]));
    }
    *sorted = from;
    return TR_OK;
}

/* Row i of the sorted ones heads a run when the one before has another key; its threads then have a group of columns each, and
 * add the run's rows in order, eight on their way at once. Moves R H sizes of T and 8 H bytes a run. */
template <typename T, bool WIDE>
__global__ void run_sum_kernel(int64_t R, int64_t H, int64_t V, const uint32_t *keys,
                               const int32_t *rows, const T *dx, float *dtable, bool accumulate)
{
    int64_t i = blockIdx.x;
    uint32_t key = keys[i];
    if (key >= V || (i > 0 && keys[i - 1] == key))
        return;
    int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * TR_GROUP;
    int count = tr_group_count(c, H);
    if (count == 0)
        return;
    float *dst = dtable + (int64_t)key * H + c;
    tr_group<float> old = tr_group_load<float, WIDE>(dst, accumulate ? count : 0), sum;
    float values[TR_GROUP];
#pragma unroll
    for (int e = 0; e < TR_GROUP; e++)
        values[e] = accumulate ? old.get(e) : 0.0f;
    for (; i + RUN_BATCH <= R && keys[i + RUN_BATCH - 1] == key; i += RUN_BATCH) {
        tr_group<T> batch[RUN_BATCH];
#pragma unroll
        for (int k = 0; k < RUN_BATCH; k++)
            batch[k] = tr_group_load<T, WIDE>(dx + rows[i + k] * H + c, count);
#pragma unroll
        for (int k = 0; k < RUN_BATCH; k++) {
#pragma unroll
            for (int e = 0; e < TR_GROUP; e++)
                values[e] += batch[k].get(e);
        }
    }
    for (; i < R && keys[i] == key; i++) {
        tr_group<T> row = tr_group_load<T, WIDE>(dx + rows[i] * H + c, count);
#pragma unroll
        for (int e = 0; e < TR_GROUP; e++)
            values[e] += row.get(e);
    }
#pragma unroll
    for (int e = 0; e < TR_GROUP; e++)
        sum.set(e, values[e]);
    tr_group_store<float, WIDE>(dst, count, sum);
}

extern "C" tr_status tr_cuda_embed_backward(cudaStream_t stream, void *workspace, tr_dtype dtype,
                                            int64_t R, int64_t H, int64_t V, int64_t vocab_begin,
                                            const int32_t *ids, const void *dx, float *dtable,
                                            bool accumulate)
{
    if (!accumulate)
        TR_TRY(tr_cuda_fill_zero(stream, dtable, V * H * (int64_t)sizeof(float)));
    if (R == 0 || V == 0)
        return TR_OK;
    tr_sort_scratch scratch;
    int sorted;
    (void)tr_cuda_sort_layout(R, workspace, &scratch);
    TR_TRY(sort(stream, R, V, vocab_begin, ids, &scratch, &sorted));
    bool wide = H % TR_GROUP == 0 && tr_vec_aligned(dx) && tr_vec_aligned(dtable);
    int64_t groups = tr_blocks(H, TR_GROUP), threads = groups < 128 ? groups : 128;
    threads = tr_blocks(threads, TR_WARP) * TR_WARP;
    dim3 grid((unsigned)R, (unsigned)tr_blocks(groups, threads));
    TR_DISPATCH_WIDE(dtype, wide, T,
                     return TR_LAUNCH((run_sum_kernel<T, WIDE>), grid, (unsigned)threads, 0, stream,
                                      R, H, V, scratch.keys[sorted], scratch.rows[sorted],
                                      (const T *)dx, dtable, accumulate));
}
