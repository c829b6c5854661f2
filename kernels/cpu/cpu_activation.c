/* SwiGLU and GELU, forward and backward: element by element, over fixed pieces. Both are written with the logistic function
 * s(x) = 1 / (1 + e^-x): silu(x) = x s(x), and GELU's tanh form is x s(2u) because 1 + tanh(u) = 2 s(2u). */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_vec.h"

enum { PIECE = 16384 }; /* elements */

typedef struct activation {
    tr_dtype dtype;
    int64_t n;
    const void *x, *up, *dout; /* x: gate of SwiGLU, input of GELU */
    void *out, *dup;           /* out: forward's output, or dgate or dx */
} activation;

static int64_t piece_count(int64_t n)
{
    return (n + PIECE - 1) / PIECE;
}

static int64_t piece_end(int64_t piece, int64_t n)
{
    return (piece + 1) * PIECE < n ? (piece + 1) * PIECE : n;
}

TR_VEC_INLINE void swiglu_forward_vec(tr_dtype dtype, const activation *a, int64_t begin, int64_t i,
                                      int count)
{
    tr_vec gate = tr_vec_load(dtype, a->x, begin + i, count);
    tr_vec up = tr_vec_load(dtype, a->up, begin + i, count);
    tr_vec_store(dtype, a->out, begin + i, count, gate * tr_vec_sigmoid(gate) * up);
}

TR_VEC_INLINE void swiglu_forward_range(tr_dtype dtype, const activation *a, int64_t begin,
                                        int64_t n)
{
    TR_VEC_LOOP(n, swiglu_forward_vec, dtype, a, begin);
}

static void swiglu_forward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const activation *a = ctx;
    int64_t begin = piece * PIECE;
    TR_VEC_DTYPE_SWITCH(a->dtype, swiglu_forward_range, a, begin, piece_end(piece, a->n) - begin);
}

static tr_status swiglu_forward(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                const void *up, void *out)
{
    activation a = {.dtype = dtype, .n = n, .x = gate, .up = up, .out = out};
    tr_cpu_parallel_for(device, piece_count(n), swiglu_forward_piece, &a);
    return TR_OK;
}

/* silu'(x) = s + x s (1 - s) */
TR_VEC_INLINE void swiglu_backward_vec(tr_dtype dtype, const activation *a, int64_t begin,
                                       int64_t i, int count)
{
    tr_vec gate = tr_vec_load(dtype, a->x, begin + i, count);
    tr_vec up = tr_vec_load(dtype, a->up, begin + i, count);
    tr_vec dout = tr_vec_load(dtype, a->dout, begin + i, count);
    tr_vec s = tr_vec_sigmoid(gate);
    tr_vec silu = gate * s;
    tr_vec slope = s + silu * (1.0f - s);
    tr_vec_store(dtype, a->out, begin + i, count, dout * up * slope);
    tr_vec_store(dtype, a->dup, begin + i, count, dout * silu);
}

TR_VEC_INLINE void swiglu_backward_range(tr_dtype dtype, const activation *a, int64_t begin,
                                         int64_t n)
{
    TR_VEC_LOOP(n, swiglu_backward_vec, dtype, a, begin);
}

static void swiglu_backward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const activation *a = ctx;
    int64_t begin = piece * PIECE;
    TR_VEC_DTYPE_SWITCH(a->dtype, swiglu_backward_range, a, begin, piece_end(piece, a->n) - begin);
}

static tr_status swiglu_backward(tr_device *device, tr_dtype dtype, int64_t n, const void *gate,
                                 const void *up, const void *dout, void *dgate, void *dup)
{
    activation a = {
        .dtype = dtype, .n = n, .x = gate, .up = up, .dout = dout, .out = dgate, .dup = dup};
    tr_cpu_parallel_for(device, piece_count(n), swiglu_backward_piece, &a);
    return TR_OK;
}

/* 2u = 2 sqrt(2/pi) (x + 0.044715 x^3); *slope = d 2u / dx */
TR_VEC_INLINE tr_vec gelu_argument(tr_vec x, tr_vec *slope)
{
    const float c = 1.59576912160573071f, cubic = 0.044715f;
    tr_vec square = x * x;
    *slope = c * (1.0f + 3.0f * cubic * square);
    return c * x * (1.0f + cubic * square);
}

TR_VEC_INLINE void gelu_forward_vec(tr_dtype dtype, const activation *a, int64_t begin, int64_t i,
                                    int count)
{
    tr_vec slope, x = tr_vec_load(dtype, a->x, begin + i, count);
    tr_vec_store(dtype, a->out, begin + i, count, x * tr_vec_sigmoid(gelu_argument(x, &slope)));
}

TR_VEC_INLINE void gelu_forward_range(tr_dtype dtype, const activation *a, int64_t begin, int64_t n)
{
    TR_VEC_LOOP(n, gelu_forward_vec, dtype, a, begin);
}

static void gelu_forward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const activation *a = ctx;
    int64_t begin = piece * PIECE;
    TR_VEC_DTYPE_SWITCH(a->dtype, gelu_forward_range, a, begin, piece_end(piece, a->n) - begin);
}

static tr_status gelu_forward(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                              void *out)
{
    activation a = {.dtype = dtype, .n = n, .x = x, .out = out};
    tr_cpu_parallel_for(device, piece_count(n), gelu_forward_piece, &a);
    return TR_OK;
}

/* gelu'(x) = s + x s (1 - s) d2u/dx. The slope is taken at |x| <= 16: beyond, s (1 - s) is 0 in fp32 and the square of x could
 * overflow. */
TR_VEC_INLINE void gelu_backward_vec(tr_dtype dtype, const activation *a, int64_t begin, int64_t i,
                                     int count)
{
    tr_vec x = tr_vec_load(dtype, a->x, begin + i, count);
    tr_vec dout = tr_vec_load(dtype, a->dout, begin + i, count);
    tr_vec near = tr_vec_min(tr_vec_set(16.0f), tr_vec_max(tr_vec_set(-16.0f), x));
    tr_vec slope, s = tr_vec_sigmoid(gelu_argument(near, &slope));
    tr_vec_store(dtype, a->out, begin + i, count, dout * (s + near * s * (1.0f - s) * slope));
}

TR_VEC_INLINE void gelu_backward_range(tr_dtype dtype, const activation *a, int64_t begin,
                                       int64_t n)
{
    TR_VEC_LOOP(n, gelu_backward_vec, dtype, a, begin);
}

static void gelu_backward_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const activation *a = ctx;
    int64_t begin = piece * PIECE;
    TR_VEC_DTYPE_SWITCH(a->dtype, gelu_backward_range, a, begin, piece_end(piece, a->n) - begin);
}

static tr_status gelu_backward(tr_device *device, tr_dtype dtype, int64_t n, const void *x,
                               const void *dout, void *dx)
{
    activation a = {.dtype = dtype, .n = n, .x = x, .dout = dout, .out = dx};
    tr_cpu_parallel_for(device, piece_count(n), gelu_backward_piece, &a);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_activation_ops)(tr_ops *ops)
{
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_backward = swiglu_backward;
    ops->gelu_forward = gelu_forward;
    ops->gelu_backward = gelu_backward;
}
