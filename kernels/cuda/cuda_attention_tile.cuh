/* What the attention kernels share: the grid, tiles in shared memory, fragments of tensor cores, dropout bits of a fragment.
 *
 * A tile is [rows][DH] elements of 16 bits, DH the head size padded with zeros to one of a few sizes. Its 16-byte chunks are
 * permuted within a row (tr_tile_index) so that eight rows at the same chunk lie in eight different groups of four banks: matrix
 * loads, 16-byte stores and fragment stores have no bank conflicts. Fragment layouts are those of cuda_intrinsics.cuh;
 * g = lane / 4 and t = lane % 4 throughout. */
#ifndef TR_KERNELS_CUDA_ATTENTION_TILE_CUH
#define TR_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/cuda_kernel.cuh"

#include <string.h>

#include "kernels/cuda/cuda_intrinsics.cuh"
#include "kernels/dropout.h"
#include "kernels/ops.h"

#define TR_LOG2_E 1.4426950408889634f
#define TR_LN_2 0.6931471805599453f

/* A launch: the grid is one row of blocks. `num_heads` heads of each sequence have `num_blocks` blocks of positions each, times
 * `num_parts` parts of the head's columns. Sections of `section` heads follow each other, so that what a section's blocks read
 * again stays in the second-level cache; inside one the longest blocks come first. */
typedef struct tr_attention_launch {
    tr_attention args;
    float *delta; /* [B,A,T] */
    uint32_t threshold;
    float kept_scale; /* 1 without dropout */
    uint32_t num_heads, num_blocks, num_parts, section;
} tr_attention_launch;

/* Whether a kernel has dropout. Head sizes that most models have get a kernel for either case; in the others one kernel asks, which halves
 * what is to be compiled. */
enum tr_dropout_mode { TR_DROPOUT_OFF, TR_DROPOUT_ON, TR_DROPOUT_ASKED };

template <int DH> struct tr_dropout_modes {
    enum {
        COMMON = DH == 64 || DH == 128,
        WITHOUT = COMMON ? TR_DROPOUT_OFF : TR_DROPOUT_ASKED,
        WITH = COMMON ? TR_DROPOUT_ON : TR_DROPOUT_ASKED
    };
};

/* Launchers by file. */
tr_status tr_attention_forward_tensor(cudaStream_t stream, tr_attention_launch launch);
tr_status tr_attention_dq_tensor(cudaStream_t stream, tr_attention_launch launch);
tr_status tr_attention_dkv_tensor(cudaStream_t stream, tr_attention_launch launch);
tr_status tr_attention_forward_fma(cudaStream_t stream, tr_attention_launch launch);
tr_status tr_attention_dq_fma(cudaStream_t stream, tr_attention_launch launch);
tr_status tr_attention_dkv_fma(cudaStream_t stream, tr_attention_launch launch);

/* Heads of dk and dv. */
__host__ __device__ inline int tr_attention_gradient_heads(const tr_attention *args)
{
    return (int)(args->kv_parts > 1 ? args->K * args->kv_parts : args->K);
}

/* Fills in the grid and returns its number of blocks. Positions are cut into blocks of `block`; `heads` heads read `bytes` of other
 * tensors again and again together with the `sharing` - 1 heads beside them. */
inline unsigned tr_attention_grid(tr_attention_launch *launch, int64_t heads, int block, int parts,
                                  int sharing, int64_t bytes)
{
    const int64_t cache = 16 << 20; /* a part of every second-level cache: A100 40 MB, H100 50 MB */
    int64_t all = launch->args.B * heads;
    int64_t section = (bytes < cache ? cache / bytes : 1) * sharing;
    launch->num_heads = (uint32_t)heads;
    launch->num_blocks = (uint32_t)tr_blocks(launch->args.T, block);
    launch->num_parts = (uint32_t)parts;
    launch->section = (uint32_t)(section < all ? section : all);
    return (unsigned)(all * launch->num_blocks * parts);
}

/* Where the calling block works; `order` counts the head's blocks of positions from the first to be run. */
struct tr_attention_place {
    int b, head, order, part;
};

__device__ inline tr_attention_place tr_attention_place_get(const tr_attention_launch &launch)
{
    uint32_t index = blockIdx.x, all = (uint32_t)launch.args.B * launch.num_heads;
    tr_attention_place place;
    place.part = (int)(index % launch.num_parts);
    index /= launch.num_parts;
    uint32_t per_section = launch.section * launch.num_blocks;
    uint32_t first = index / per_section * launch.section;
    uint32_t count = min(launch.section, all - first);
    uint32_t rest = index % per_section;
    uint32_t head = first + rest % count;
    place.order = (int)(rest / count);
    place.b = (int)(head / launch.num_heads);
    place.head = (int)(head % launch.num_heads);
    return place;
}

/* The element where `chunk` (eight elements) of `row` begins. */
template <int DH> __device__ inline int tr_tile_index(int row, int chunk)
{
    int swizzle = DH / 8 % 8 == 0 ? row & 7 : row >> 1 & 3;
    return row * DH + (chunk ^ swizzle) * 8;
}

/* The index `index` of a row's first or second chunk, moved on by an even number of chunks. With tiles that begin at multiples of 64
 * elements that is an exclusive or, which needs no register for each chunk. */
template <int DH> __device__ inline int tr_tile_step(int index, int chunk)
{
    const int period = DH / 8 % 8 == 0 ? 8 : 4;
    return (index ^ chunk % period * 8) + chunk / period * period * 8;
}

/* How THREADS threads share the chunks of a tile: LANES neighbours take neighbouring chunks of a row, STEP rows at a time. */
template <int CHUNKS_, int THREADS> struct tr_tile_threads {
    enum {
        CHUNKS = CHUNKS_,
        LANES = CHUNKS % 8 == 0 ? (CHUNKS < 32 ? CHUNKS : 32) : 4,
        STEP = THREADS / LANES
    };
    static_assert(CHUNKS % LANES == 0 && THREADS % LANES == 0, "each thread has the same share");
};

/* Starts copying rows [first, first + ROWS) of a head into a tile. `head`: its row 0, rows `stride` elements apart. Rows from
 * `length` on and columns from D on become zero. */
template <typename T, int DH, int ROWS, int THREADS>
__device__ inline void tr_tile_copy(T *tile, const T *head, int stride, int first, int length,
                                    int D)
{
    typedef tr_tile_threads<DH / 8, THREADS> share;
    static_assert(ROWS % share::STEP == 0, "whole steps");
    int row = (int)threadIdx.x / share::LANES, lane = (int)threadIdx.x % share::LANES;
    int rows = length - first - row;
    const T *src = head + (int64_t)(first + row) * stride + lane * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += share::STEP) {
#pragma unroll
        for (int chunk = 0; chunk < share::CHUNKS; chunk += share::LANES)
            tr_copy_async16(tile + tr_tile_index<DH>(row + i, chunk + lane), src + chunk * 8,
                            i < rows && (chunk + lane) * 8 < D);
        src += (int64_t)share::STEP * stride;
    }
}

/* Rows of a tile to rows [first, first + ROWS) of a head, chunks [begin, begin + CHUNKS), 16 bytes a store. */
template <typename T, int DH, int ROWS, int CHUNKS, int THREADS>
__device__ inline void tr_tile_store(const T *tile, T *head, int stride, int first, int length,
                                     int D, int begin)
{
    typedef tr_tile_threads<CHUNKS, THREADS> share;
    static_assert(ROWS % share::STEP == 0, "whole steps");
    int row = (int)threadIdx.x / share::LANES, lane = (int)threadIdx.x % share::LANES;
#pragma unroll
    for (int i = row; i < ROWS; i += share::STEP)
#pragma unroll
        for (int chunk = begin + lane; chunk < begin + CHUNKS; chunk += share::LANES)
            if (first + i < length && chunk * 8 < D)
                tr_vec_store(head + (int64_t)(first + i) * stride + chunk * 8,
                             tr_vec_load(tile + tr_tile_index<DH>(i, chunk)));
}

/* Two elements in a register, the first in its low half. */
template <typename T> __device__ inline uint32_t tr_pack(float low, float high);
template <> __device__ inline uint32_t tr_pack<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
template <> __device__ inline uint32_t tr_pack<__half>(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

__device__ inline int tr_lane(void)
{
    return (int)(threadIdx.x % TR_WARP);
}

/* A fragment: rows row ... row+15 of the tile at shared[tile], columns 16 step ... 16 step + 15. row: a multiple of 16. */
template <typename T, int DH>
__device__ inline void tr_fragment_a(uint32_t a[4], const T *shared, int tile, int row, int step)
{
    int lane = tr_lane(), index = tile + tr_tile_index<DH>(lane & 15, lane >> 4);
    tr_ldmatrix_x4(a, shared + tr_tile_step<DH>(index, 2 * step) + row * DH);
}

/* Two B fragments whose columns are rows of a tile (a product with the tile's transpose): b[0], b[1] for rows row ... row+7, b[2], b[3]
 * for the next eight, row a multiple of 16; depth: columns 16 step ... 16 step + 15. */
template <typename T, int DH>
__device__ inline void tr_fragment_b_rows(uint32_t b[4], const T *shared, int tile, int row,
                                          int step)
{
    int lane = tr_lane();
    int index = tile + tr_tile_index<DH>((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    tr_ldmatrix_x4(b, shared + tr_tile_step<DH>(index, 2 * step) + row * DH);
}

/* Two B fragments whose columns are columns of a tile: chunks chunk and chunk + 1, chunk even; depth: rows row ... row+15. */
template <typename T, int DH>
__device__ inline void tr_fragment_b_columns(uint32_t b[4], const T *shared, int tile, int row,
                                             int chunk)
{
    int lane = tr_lane(), index = tile + tr_tile_index<DH>(lane & 15, lane >> 4);
    tr_ldmatrix_x4_trans(b, shared + tr_tile_step<DH>(index, chunk) + row * DH);
}

/* The A fragment of columns 16 step ... 16 step + 15 of a product's result, rounded to T: accumulators of two neighbouring column
 * tiles hold just its elements. */
template <typename T, int N>
__device__ inline void tr_fragment_of_result(uint32_t a[4], const float (&result)[N][4], int step)
{
    a[0] = tr_pack<T>(result[2 * step][0], result[2 * step][1]);
    a[1] = tr_pack<T>(result[2 * step][2], result[2 * step][3]);
    a[2] = tr_pack<T>(result[2 * step + 1][0], result[2 * step + 1][1]);
    a[3] = tr_pack<T>(result[2 * step + 1][2], result[2 * step + 1][3]);
}

/* Accumulators [N column tiles] of rows row ... row+15 into a tile from `chunk` on, times factor[0] (rows g) and factor[1] (rows g + 8). */
template <typename T, int DH, int N>
__device__ inline void tr_tile_put(T *tile, const float (&result)[N][4], const float factor[2],
                                   int row, int chunk)
{
    int lane = tr_lane(), g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *pair = &result[n][2 * half];
            uint32_t word = tr_pack<T>(pair[0] * factor[half], pair[1] * factor[half]);
            T *at = tile + tr_tile_index<DH>(row + g + 8 * half, chunk + n) + 2 * t;
            *reinterpret_cast<uint32_t *>(at) = word;
        }
}

/* Sum and maximum over the four lanes that share a row. */
__device__ inline float tr_quad_sum(float value)
{
    value += __shfl_xor_sync(TR_WARP_ALL, value, 1);
    return value + __shfl_xor_sync(TR_WARP_ALL, value, 2);
}

__device__ inline float tr_quad_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(TR_WARP_ALL, value, 1));
    return fmaxf(value, __shfl_xor_sync(TR_WARP_ALL, value, 2));
}

/* The dropout of one head of one sequence. */
struct tr_attention_mask {
    bool on; /* false: the rest is not used */
    uint64_t key;
    uint32_t sample, head, threshold;
    float kept_scale;

    /* Bits of keys 4 group ... 4 group + 3 for a query: 1 = kept. */
    __device__ uint32_t kept(uint32_t query, uint32_t group) const
    {
        uint32_t words[4], bits = 0;
        tr_philox_block(key, sample, head, query, group, words);
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits |= (words[i] >= threshold ? 1u : 0u) << i;
        return bits;
    }
};

/* MODE: a tr_dropout_mode. */
template <int MODE>
__device__ inline tr_attention_mask tr_attention_mask_get(const tr_attention_launch &launch, int b,
                                                          int head)
{
    const tr_dropout &dropout = launch.args.dropout;
    tr_attention_mask mask = {};
    mask.on = MODE == TR_DROPOUT_ASKED ? dropout.probability > 0.0f : MODE == TR_DROPOUT_ON;
    if (mask.on) {
        mask.key = tr_dropout_key(dropout.key, dropout.samples[b]);
        mask.sample = (uint32_t)dropout.samples[b];
        mask.head = (uint32_t)(launch.args.head_offset + head);
        mask.threshold = launch.threshold;
        mask.kept_scale = launch.kept_scale;
    }
    return mask;
}

/* Kept bits of accumulators of a product with queries as rows, N <= 8 column tiles of keys from `key` (a multiple of 8) on: bit 4 n + e of
 * kept[half] is that of element result[n][2 half + e]. A group of four keys is shared by two lanes: each makes the group's bits of
 * one of the two rows. */
template <int N>
__device__ inline void tr_kept_by_rows(uint32_t kept[2], const tr_attention_mask &mask, int query,
                                       int key)
{
    static_assert(N <= 8, "four bits per column tile");
    int lane = tr_lane(), g = lane >> 2, t = lane & 3, odd = t & 1;
    uint32_t mine = 0;
#pragma unroll 2
    for (int n = 0; n < N; n++)
        mine |= mask.kept((uint32_t)(query + g + 8 * odd), (uint32_t)(key / 4 + 2 * n + (t >> 1)))
                << (4 * n);
    uint32_t other = __shfl_xor_sync(TR_WARP_ALL, mine, 1);
    kept[0] = (odd ? other : mine) >> (2 * odd);
    kept[1] = (odd ? mine : other) >> (2 * odd);
}

/* The same with keys as rows from `key` (a multiple of 16) on and queries as columns: bit 16 (n % 2) + 4 e of kept[n / 2] is that of element
 * result[n][e]. Four lanes share a group of four keys: each makes the bits of one of its four elements. */
template <int N>
__device__ inline void tr_kept_by_columns(uint32_t (&kept)[N / 2], const tr_attention_mask &mask,
                                          int query, int key)
{
    int lane = tr_lane(), g = lane >> 2, t = lane & 3, e = g & 3;
#pragma unroll
    for (int pair = 0; pair < N / 2; pair++) {
        uint32_t bits = 0;
#pragma unroll 1
        for (int n = 0; n < 2; n++)
            bits |= mask.kept((uint32_t)(query + 16 * pair + 8 * n + 2 * t + (e & 1)),
                              (uint32_t)(key / 4 + (g >> 2) + 2 * (e >> 1)))
                    << (16 * n + 4 * e);
        bits |= __shfl_xor_sync(TR_WARP_ALL, bits, 4);
        bits |= __shfl_xor_sync(TR_WARP_ALL, bits, 8);
        kept[pair] = bits >> e;
    }
}

/* Runs the statements with DH the smallest tile that D fits. */
#define TR_ATTENTION_DISPATCH(D, DH, ...)                                                          \
    do {                                                                                           \
        if ((D) <= 32) {                                                                           \
            enum { DH = 32 };                                                                      \
            __VA_ARGS__;                                                                           \
        } else if ((D) <= 64) {                                                                    \
            enum { DH = 64 };                                                                      \
            __VA_ARGS__;                                                                           \
        } else if ((D) <= 96) {                                                                    \
            enum { DH = 96 };                                                                      \
            __VA_ARGS__;                                                                           \
        } else if ((D) <= 128) {                                                                   \
            enum { DH = 128 };                                                                     \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            enum { DH = 256 };                                                                     \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
