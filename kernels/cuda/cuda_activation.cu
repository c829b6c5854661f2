/* SwiGLU and GELU, forward and backward: element by element, with the logistic function s(x) = 1 / (1 + e^-x), as on the CPU:
 * silu(x) = x s(x), and GELU's tanh form is x s(2u) because 1 + tanh(u) = 2 s(2u).
 *
 * Each kernel reads every input and writes every output once: of n elements of E bytes, 3 n E for SwiGLU forward, 5 n E backward, 2 n E
 * for GELU forward, 3 n E backward; about 20 to 40 operations per element, one of them an exponential and one a division, so that memory
 * is what bounds them. */
#include "kernels/cuda/cuda_kernel.cuh"

#include "kernels/cuda/cuda_kernels.h"

enum {
    BLOCK = 256,
    VECTORS = 2, /* of 16 bytes, that a thread loads from each input before it computes */
    MAX_IN = 3,
    MAX_OUT = 2
};

/* The operands, in the order of the operation's in[] and out[]. Outputs may be inputs. */
template <typename T> struct activation_operands {
    const T *in[MAX_IN];
    T *out[MAX_OUT];
};

/* The quotient within 2 units in the last place: the rounded one would cost more instructions than the rest of the kernel and
 * make it slower than its memory traffic. Denominators above 2^126 give 0, as near as fp32 tells. */
__device__ static inline float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + expf(-x));
}

/* gate, up -> silu(gate) up */
struct swiglu_forward {
    enum { IN = 2, OUT = 1 };
    __device__ static void apply(const float *in, float *out)
    {
        float gate = in[0], up = in[1];
        out[0] = gate * sigmoid(gate) * up;
    }
};

/* gate, up, dout -> dgate, dup; silu'(x) = s + x s (1 - s) */
struct swiglu_backward {
    enum { IN = 3, OUT = 2 };
    __device__ static void apply(const float *in, float *out)
    {
        float gate = in[0], up = in[1], dout = in[2];
        float s = sigmoid(gate), silu = gate * s;
        out[0] = dout * up * (s + silu * (1.0f - s));
        out[1] = dout * silu;
    }
};

/* 2u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_SCALE 1.59576912160573071f
#define GELU_CUBIC 0.044715f

/* x -> gelu(x) */
struct gelu_forward {
    enum { IN = 1, OUT = 1 };
    __device__ static void apply(const float *in, float *out)
    {
        float x = in[0];
        out[0] = x * sigmoid(GELU_SCALE * x * (1.0f + GELU_CUBIC * (x * x)));
    }
};

/* x, dout -> dx; gelu'(x) = s + x s (1 - s) d2u/dx. The slope is taken at |x| <= 16: beyond, s (1 - s) is 0 in fp32 and the square of x
 * could overflow. */
struct gelu_backward {
    enum { IN = 2, OUT = 1 };
    __device__ static void apply(const float *in, float *out)
    {
        float x = fminf(16.0f, fmaxf(-16.0f, in[0])), square = x * x;
        float s = sigmoid(GELU_SCALE * x * (1.0f + GELU_CUBIC * square));
        float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * square);
        out[0] = in[1] * (s + x * s * (1.0f - s) * slope);
    }
};

/* One element, which the tail of the vectors and operands that are not aligned go by. */
template <typename Op, typename T>
__device__ static inline void apply_element(const activation_operands<T> &operands, int64_t i)
{
    float in[Op::IN], out[Op::OUT];
#pragma unroll
    for (int k = 0; k < Op::IN; k++)
        in[k] = tr_load(operands.in[k] + i);
    Op::apply(in, out);
#pragma unroll
    for (int k = 0; k < Op::OUT; k++)
        tr_store(operands.out[k] + i, out[k]);
}

template <typename Op, typename T>
__global__ static void __launch_bounds__(BLOCK)
    element_kernel(int64_t n, activation_operands<T> operands)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n)
        apply_element<Op>(operands, i);
}

/* Vector v of the operands: element i of each input makes element i of each output. */
template <typename Op, typename T>
__device__ static inline void apply_vector(const activation_operands<T> &operands, int64_t v,
                                           const tr_vec<T> *loaded)
{
    const int N = tr_vec<T>::N;
    tr_vec<T> result[Op::OUT];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float in[Op::IN], out[Op::OUT];
#pragma unroll
        for (int k = 0; k < Op::IN; k++)
            in[k] = loaded[k].get(i);
        Op::apply(in, out);
#pragma unroll
        for (int k = 0; k < Op::OUT; k++)
            result[k].set(i, out[k]);
    }
#pragma unroll
    for (int k = 0; k < Op::OUT; k++)
        tr_vec_store(operands.out[k] + v * N, result[k]);
}

/* A block takes VECTORS * BLOCK neighbouring vectors; the block that comes after the last whole one also takes the tail. */
template <typename Op, typename T>
__global__ static void __launch_bounds__(BLOCK)
    vector_kernel(int64_t n, activation_operands<T> operands)
{
    const int N = tr_vec<T>::N;
    int64_t num_vectors = n / N, first = (int64_t)blockIdx.x * (VECTORS * BLOCK) + threadIdx.x;
    tr_vec<T> loaded[VECTORS][Op::IN];
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        if (first + j * BLOCK < num_vectors)
#pragma unroll
            for (int k = 0; k < Op::IN; k++)
                loaded[j][k] = tr_vec_load(operands.in[k] + (first + j * BLOCK) * N);
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        if (first + j * BLOCK < num_vectors)
            apply_vector<Op>(operands, first + j * BLOCK, loaded[j]);
    int64_t tail = num_vectors * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && tail < n)
        apply_element<Op>(operands, tail);
}

/* A block takes BLOCK neighbouring columns of a row of `columns`, `ld` elements after the row before. */
template <typename Op, typename T>
__global__ static void __launch_bounds__(BLOCK)
    rows_kernel(int64_t columns, int64_t ld, activation_operands<T> operands)
{
    int64_t column = (int64_t)blockIdx.y * BLOCK + threadIdx.x;
    if (column < columns)
        apply_element<Op>(operands, (int64_t)blockIdx.x * ld + column);
}

template <typename Op, typename T>
static tr_status launch(cudaStream_t stream, int64_t n, const void *const *in, void *const *out)
{
    activation_operands<T> operands = {};
    bool aligned = true;
    for (int k = 0; k < Op::IN; k++) {
        operands.in[k] = static_cast<const T *>(in[k]);
        aligned = aligned && tr_vec_aligned(in[k]);
    }
    for (int k = 0; k < Op::OUT; k++) {
        operands.out[k] = static_cast<T *>(out[k]);
        aligned = aligned && tr_vec_aligned(out[k]);
    }
    unsigned int vector_grid = (unsigned int)tr_blocks(n, VECTORS * BLOCK * tr_vec<T>::N);
    if (aligned)
        return TR_LAUNCH((vector_kernel<Op, T>), vector_grid, BLOCK, 0, stream, n, operands);
    return TR_LAUNCH((element_kernel<Op, T>), (unsigned int)tr_blocks(n, BLOCK), BLOCK, 0, stream,
                     n, operands);
}

tr_status tr_cuda_swiglu_forward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *gate,
                                 const void *up, void *out)
{
    const void *in[] = {gate, up};
    TR_DISPATCH(dtype, T, return (launch<swiglu_forward, T>(stream, n, in, &out)));
}

tr_status tr_cuda_swiglu_backward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *gate,
                                  const void *up, const void *dout, void *dgate, void *dup)
{
    const void *in[] = {gate, up, dout};
    void *out[] = {dgate, dup};
    TR_DISPATCH(dtype, T, return (launch<swiglu_backward, T>(stream, n, in, out)));
}

tr_status tr_cuda_gelu_forward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *x,
                               void *out)
{
    TR_DISPATCH(dtype, T, return (launch<gelu_forward, T>(stream, n, &x, &out)));
}

tr_status tr_cuda_gelu_backward(cudaStream_t stream, tr_dtype dtype, int64_t n, const void *x,
                                const void *dout, void *dx)
{
    const void *in[] = {x, dout};
    TR_DISPATCH(dtype, T, return (launch<gelu_backward, T>(stream, n, in, &dx)));
}

template <typename T>
static tr_status launch_gelu_rows(cudaStream_t stream, int64_t M, int64_t N, int64_t ld,
                                  const void *x, const void *dout, void *dx)
{
    activation_operands<T> operands = {};
    operands.in[0] = static_cast<const T *>(x);
    operands.in[1] = static_cast<const T *>(dout);
    operands.out[0] = static_cast<T *>(dx);
    dim3 grid((unsigned int)M, (unsigned int)tr_blocks(N, BLOCK));
    return TR_LAUNCH((rows_kernel<gelu_backward, T>), grid, BLOCK, 0, stream, N, ld, operands);
}

tr_status tr_cuda_gelu_backward_rows(cudaStream_t stream, tr_dtype dtype, int64_t M, int64_t N,
                                     int64_t ld, const void *x, const void *dout, void *dx)
{
    if (ld == N)
        return tr_cuda_gelu_backward(stream, dtype, M * N, x, dout, dx);
    TR_DISPATCH(dtype, T, return (launch_gelu_rows<T>(stream, M, N, ld, x, dout, dx)));
}
