/* Optimizer steps over a flat shard, one pass over the state: every element alone, with the CPU device's operations in its order,
 * so that both give the same bits. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"

enum { UPDATE_THREADS = 256 };

/* The run's constants, rounded to fp32 once. */
typedef struct update_constants {
    float beta1, beta2, eps, weight_decay;
    float beta1_rest; /* 1 - beta1 */
    float beta2_rest; /* 1 - beta2 */
} update_constants;

static update_constants constants_of(const tr_adamw *args)
{
    update_constants u = {args->beta1,
                          args->beta2,
                          args->eps,
                          args->weight_decay,
                          (float)(1.0 - (double)args->beta1),
                          (float)(1.0 - (double)args->beta2)};
    return u;
}

/* Moves n (28 + size of T) bytes; a square root and three divisions an element. compute may be NULL. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(UPDATE_THREADS)
    adamw_kernel(int64_t n, update_constants u, const tr_step_state *step, const float *grads,
                 float *masters, float *ms, float *vs, T *compute)
{
    int64_t at = ((int64_t)blockIdx.x * UPDATE_THREADS + threadIdx.x) * TR_GROUP;
    int count = tr_group_count(at, n);
    if (count == 0)
        return;
    tr_group<float> grad = tr_group_load<float, WIDE>(grads + at, count);
    tr_group<float> m = tr_group_load<float, WIDE>(ms + at, count);
    tr_group<float> v = tr_group_load<float, WIDE>(vs + at, count);
    tr_group<float> master = tr_group_load<float, WIDE>(masters + at, count);
    tr_group<T> rounded;
    if (step->skipped != 0) /* known when the elements are there: none waits for it */
        return;
    const float grad_scale = step->grad_scale, lr = step->lr;
    const float bias1 = step->bias1, bias2 = step->bias2;
    const float decay = (float)(1.0 - (double)lr * (double)u.weight_decay);
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) {
        float g = grad.get(i) * grad_scale;
        float mean = u.beta1 * m.get(i) + u.beta1_rest * g;
        float square = u.beta2 * v.get(i) + u.beta2_rest * (g * g);
        float change = lr * (mean / bias1) / (sqrtf(square / bias2) + u.eps);
        float value = master.get(i) * decay - change;
        m.set(i, mean);
        v.set(i, square);
        master.set(i, value);
        rounded.set(i, value);
    }
    tr_group_store<float, WIDE>(ms + at, count, m);
    tr_group_store<float, WIDE>(vs + at, count, v);
    tr_group_store<float, WIDE>(masters + at, count, master);
    if (compute != NULL)
        tr_group_store<T, WIDE>(compute + at, count, rounded);
}

/* Moves n (12 + size of T) bytes. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(UPDATE_THREADS)
    sgd_kernel(int64_t n, update_constants u, const tr_step_state *step, const float *grads,
               float *masters, T *compute)
{
    int64_t at = ((int64_t)blockIdx.x * UPDATE_THREADS + threadIdx.x) * TR_GROUP;
    int count = tr_group_count(at, n);
    if (count == 0)
        return;
    tr_group<float> grad = tr_group_load<float, WIDE>(grads + at, count);
    tr_group<float> master = tr_group_load<float, WIDE>(masters + at, count);
    tr_group<T> rounded;
    if (step->skipped != 0)
        return;
    const float grad_scale = step->grad_scale, lr = step->lr;
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) {
        float g = grad.get(i) * grad_scale, value = master.get(i);
        value -= lr * (g + u.weight_decay * value);
        master.set(i, value);
        rounded.set(i, value);
    }
    tr_group_store<float, WIDE>(masters + at, count, master);
    if (compute != NULL)
        tr_group_store<T, WIDE>(compute + at, count, rounded);
}

/* Elements begin ... begin + n - 1. */
template <typename T, bool WIDE>
static tr_status update_launch(cudaStream_t stream, const tr_adamw *args, bool adam, int64_t begin,
                               int64_t n)
{
    update_constants u = constants_of(args);
    unsigned blocks = (unsigned)tr_blocks(n, UPDATE_THREADS * TR_GROUP);
    T *compute = args->compute != NULL ? (T *)args->compute + begin : NULL;
    if (adam)
        return TR_LAUNCH((adamw_kernel<T, WIDE>), blocks, UPDATE_THREADS, 0, stream, n, u,
                         args->step, args->grad + begin, args->master + begin, args->m + begin,
                         args->v + begin, compute);
    return TR_LAUNCH((sgd_kernel<T, WIDE>), blocks, UPDATE_THREADS, 0, stream, n, u, args->step,
                     args->grad + begin, args->master + begin, compute);
}

/* Whole groups by wide accesses where all ranges allow, the rest one by one: an element's bits do not depend on which. */
static tr_status update(cudaStream_t stream, const tr_adamw *args, bool adam)
{
    bool wide = tr_vec_aligned(args->grad) && tr_vec_aligned(args->master) &&
                tr_vec_aligned(args->compute) &&
                (!adam || (tr_vec_aligned(args->m) && tr_vec_aligned(args->v)));
    int64_t whole = wide ? args->n / TR_GROUP * TR_GROUP : 0;
    if (whole > 0)
        TR_DISPATCH(args->dtype, T, TR_TRY((update_launch<T, true>(stream, args, adam, 0, whole))));
    if (args->n > whole)
        TR_DISPATCH(args->dtype, T,
                    TR_TRY((update_launch<T, false>(stream, args, adam, whole, args->n - whole))));
    return TR_OK;
}

extern "C" tr_status tr_cuda_adamw(cudaStream_t stream, const tr_adamw *args)
{
    return update(stream, args, true);
}

extern "C" tr_status tr_cuda_sgd(cudaStream_t stream, const tr_adamw *args)
{
    return update(stream, args, false);
}
