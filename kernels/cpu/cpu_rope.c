/* Rotary positions (Su et al. 2021), half rotation: every (sequence, position) alone. */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_vec.h"

enum { PIECE_ROWS = 16, PAIRS = 256 };

typedef struct rotation {
    tr_dtype dtype;
    int64_t R, T, heads, D;
    const float *cos_sin;
    bool backward;
    void *x;
} rotation;

/* low, high: indices in x of the two halves' first pair. */
TR_VEC_INLINE void rotate_vec(tr_dtype dtype, void *x, int64_t low, int64_t high,
                              const float *cosine, const float *sine, int64_t i, int count)
{
    tr_vec a = tr_vec_load(dtype, x, low + i, count);
    tr_vec b = tr_vec_load(dtype, x, high + i, count);
    tr_vec c = tr_vec_load(TR_F32, cosine, i, count);
    tr_vec s = tr_vec_load(TR_F32, sine, i, count);
    tr_vec_store(dtype, x, low + i, count, a * c - b * s);
    tr_vec_store(dtype, x, high + i, count, b * c + a * s);
}

TR_VEC_INLINE void rotate_rows(tr_dtype dtype, const rotation *a, int64_t begin, int64_t end)
{
    float cosine[PAIRS], sine[PAIRS];
    const int64_t half = a->D / 2;
    const float sign = a->backward ? -1.0f : 1.0f;
    for (int64_t r = begin; r < end; r++) {
        const float *row = a->cos_sin + (r % a->T) * half * 2;
        for (int64_t pair = 0; pair < half; pair += PAIRS) {
            int64_t n = half - pair < PAIRS ? half - pair : PAIRS;
            for (int64_t j = 0; j < n; j++) {
                cosine[j] = row[2 * (pair + j)];
                sine[j] = sign * row[2 * (pair + j) + 1];
            }
            for (int64_t head = 0; head < a->heads; head++) {
                int64_t low = (r * a->heads + head) * a->D + pair;
                TR_VEC_LOOP(n, rotate_vec, dtype, a->x, low, low + half, cosine, sine);
            }
        }
    }
}

static void rotate_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const rotation *a = ctx;
    int64_t begin = piece * PIECE_ROWS;
    int64_t end = begin + PIECE_ROWS < a->R ? begin + PIECE_ROWS : a->R;
    TR_VEC_DTYPE_SWITCH(a->dtype, rotate_rows, a, begin, end);
}

static tr_status rope(tr_device *device, tr_dtype dtype, int64_t B, int64_t T, int64_t heads,
                      int64_t D, const float *cos_sin, bool backward, void *x)
{
    rotation a = {dtype, B * T, T, heads, D, cos_sin, backward, x};
    tr_cpu_parallel_for(device, (a.R + PIECE_ROWS - 1) / PIECE_ROWS, rotate_piece, &a);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_rope_ops)(tr_ops *ops)
{
    ops->rope = rope;
}
