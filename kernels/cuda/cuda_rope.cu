/* Rotary positions (Su et al. 2021), half rotation, in place: a thread takes eight neighbouring pairs of up to four heads, which
 * share their angles. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"

enum { ROPE_HEADS = 4, ROPE_THREADS = 128 };

/* Moves 2 R heads D sizes of T; 4 D R bytes of angles, of the cache after the first sequence. Work items are numbered
 * (row, four heads, eight pairs). */
template <typename T, bool WIDE>
__global__ void rope_kernel(int64_t items, uint32_t seq_len, int heads, int half, int chunks,
                            const float *cos_sin, float sign, T *x)
{
    int64_t item = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x;
    if (item >= items)
        return;
    int64_t rest = item / chunks;
    int head_groups = (heads + ROPE_HEADS - 1) / ROPE_HEADS;
    int pair = (int)(item - rest * chunks) * TR_GROUP;
    int64_t row = rest / head_groups;
    int first = (int)(rest - row * head_groups) * ROPE_HEADS;
    int count = tr_group_count(pair, half);
    const float *angles = cos_sin + ((int64_t)((uint32_t)row % seq_len) * half + pair) * 2;
    float cosine[TR_GROUP], sine[TR_GROUP];
#pragma unroll
    for (int i = 0; i < TR_GROUP; i += 4) { /* eight numbers: four pairs */
        tr_group<float> four = tr_group_load<float, WIDE>(
            angles + 2 * i, WIDE ? TR_GROUP : tr_group_count(2 * i, 2 * count));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            cosine[i + j] = four.get(2 * j);
            sine[i + j] = sign * four.get(2 * j + 1);
        }
    }
    T *low = x + (row * heads + first) * 2 * half + pair;
    tr_group<T> a[ROPE_HEADS], b[ROPE_HEADS];
#pragma unroll
    for (int h = 0; h < ROPE_HEADS; h++) {
        int there = first + h < heads ? count : 0;
        a[h] = tr_group_load<T, WIDE>(low + (int64_t)h * 2 * half, there);
        b[h] = tr_group_load<T, WIDE>(low + (int64_t)h * 2 * half + half, there);
    }
#pragma unroll
    for (int h = 0; h < ROPE_HEADS; h++) {
        int there = first + h < heads ? count : 0;
        tr_group<T> turned_a, turned_b;
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++) {
            turned_a.set(i, a[h].get(i) * cosine[i] - b[h].get(i) * sine[i]);
            turned_b.set(i, b[h].get(i) * cosine[i] + a[h].get(i) * sine[i]);
        }
        tr_group_store<T, WIDE>(low + (int64_t)h * 2 * half, there, turned_a);
        tr_group_store<T, WIDE>(low + (int64_t)h * 2 * half + half, there, turned_b);
    }
}

extern "C" tr_status tr_cuda_rope(cudaStream_t stream, tr_dtype dtype, int64_t B, int64_t T,
                                  int64_t heads, int64_t D, const float *cos_sin, bool backward,
                                  void *x)
{
    int64_t half = D / 2, chunks = tr_blocks(half, TR_GROUP);
    int64_t items = B * T * tr_blocks(heads, ROPE_HEADS) * chunks;
    bool wide = half % TR_GROUP == 0 && tr_vec_aligned(x) && tr_vec_aligned(cos_sin);
    TR_DISPATCH_WIDE(dtype, wide, Element,
                     return TR_LAUNCH((rope_kernel<Element, WIDE>),
                                      (unsigned)tr_blocks(items, ROPE_THREADS), ROPE_THREADS, 0,
                                      stream, items, (uint32_t)T, (int)heads, (int)half,
                                      (int)chunks, cos_sin, backward ? -1.0f : 1.0f, (Element *)x));
}
