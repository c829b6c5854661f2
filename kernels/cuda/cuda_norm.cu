/* RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba, Kiros, Hinton 2016), forward, alone and behind the residual addition whose sum
 * they take. The variance is taken around the mean, in a second pass over the registers that hold the row. */
#include "kernels/cuda/cuda_dropout.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_norm.cuh"

typedef struct norm_forward {
    cudaStream_t stream;
    int64_t R, H;
    float eps;
    bool layer, wide;
    const void *x, *weight, *bias; /* bias NULL: none */
    void *out;
    float *mean, *rstd; /* mean NULL: not kept */
    /* The addition: the norm's input is sum = round(x + dropout(branch + branch_bias)). branch NULL: there is none, it is x. */
    const float *branch;
    const void *branch_bias;
    void *sum;
    bool drops;
    tr_row_dropout mask;

    template <typename T, int TEAM, int ITEMS> tr_status run() const;
} norm_forward;

template <typename T> __device__ inline float group_sum(const tr_group<T> &x)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) /* zeros stand behind a row */
        sum += x.get(i);
    return sum;
}

/* Of the distances of the first `count` elements from the mean. */
template <typename T>
__device__ inline float group_squares(const tr_group<T> &x, int count, float mean)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) {
        float distance = i < count ? x.get(i) - mean : 0.0f;
        sum += distance * distance;
    }
    return sum;
}

template <typename T>
__device__ inline void group_normalize(tr_group<T> *x, const tr_group<T> &weight,
                                       const tr_group<T> &bias, bool biased, float mean, float rstd)
{
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) {
        float value = (x->get(i) - mean) * rstd * weight.get(i);
        x->set(i, biased ? value + bias.get(i) : value);
    }
}

__device__ inline float rstd_of(const norm_forward &a, float squares)
{
    return 1.0f / sqrtf(squares / (float)a.H + a.eps);
}

__device__ inline void statistics_store(const norm_forward &a, int64_t r, float mean, float rstd)
{
    if (a.mean != NULL)
        a.mean[r] = mean;
    a.rstd[r] = rstd;
}

template <typename T, bool WIDE, int TEAM, int ITEMS>
__device__ inline void row_normalize(const norm_forward &a, int64_t at, int lane, int64_t width,
                                     float mean, float rstd, tr_group<T> *x)
{
    bool biased = a.bias != NULL;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
        int count = tr_group_count(c, width);
        tr_group<T> weight = tr_group_load<T, WIDE>((const T *)a.weight + c, count);
        tr_group<T> bias = tr_group_load<T, WIDE>((const T *)a.bias + c, biased ? count : 0);
        group_normalize(&x[k], weight, bias, biased, mean, rstd);
        tr_group_store<T, WIDE>((T *)a.out + at + c, count, x[k]);
    }
}

/* Element by element what residual_add computes; `count` of the group at column c of row r. */
template <typename T, bool WIDE>
__device__ inline tr_group<T> group_add(const norm_forward &a, int64_t r, int64_t c, int count)
{
    int64_t at = r * a.H + c;
    tr_group<T> sum = tr_group_load<T, WIDE>((const T *)a.x + at, count);
    if (count == 0)
        return sum;
    tr_group<float> branch = tr_group_load<float, WIDE>(a.branch + at, count);
    float values[TR_GROUP];
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++)
        values[i] = branch.get(i);
    if (a.branch_bias != NULL) {
        tr_group<T> bias = tr_group_load<T, WIDE>((const T *)a.branch_bias + c, count);
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            values[i] += bias.get(i);
    }
    if (a.drops)
        tr_row_dropout_apply(a.mask, r, c, values);
#pragma unroll
    for (int i = 0; i < TR_GROUP; i++) /* zeros behind a row stay zeros */
        sum.set(i, sum.get(i) + values[i]);
    tr_group_store<T, WIDE>((T *)a.sum + at, count, sum);
    return sum;
}

template <typename T, bool WIDE, int TEAM, int ITEMS, int ADDS>
__device__ inline void row_take(const norm_forward &a, int64_t r, int lane, int64_t width,
                                tr_group<T> *x)
{
    if constexpr (ADDS != 0) {
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int64_t c = (int64_t)(lane + k * TEAM) * TR_GROUP;
            x[k] = group_add<T, WIDE>(a, r, c, tr_group_count(c, width));
        }
    } else {
        norm_load<T, WIDE, TEAM, ITEMS>((const T *)a.x + r * a.H, lane, width, x);
    }
}

/* Moves 2 R H sizes of T, and 4 or 8 bytes a row; with ADDS = 1, where it makes the sum, R H (4 + 3 sizes of T). */
template <typename T, int TEAM, int ITEMS, int ADDS>
__global__ void __launch_bounds__(norm_threads(TEAM), norm_blocks(TEAM, ITEMS))
    norm_forward_kernel(norm_forward a)
{
    TR_SHARED(float, shared, [2][64]);
    int lane = threadIdx.x % TEAM;
    int64_t r = (int64_t)blockIdx.x * (norm_threads(TEAM) / TEAM) + threadIdx.x / TEAM;
    int64_t width = r < a.R ? a.H : 0, at = r * a.H; /* teams without a row help their warp */
    tr_group<T> x[ITEMS];
    if (a.wide)
        row_take<T, true, TEAM, ITEMS, ADDS>(a, r, lane, width, x);
    else
        row_take<T, false, TEAM, ITEMS, ADDS>(a, r, lane, width, x);
    float mean = 0.0f, squares = 0.0f, none = 0.0f;
    if (a.layer) {
#pragma unroll
        for (int k = 0; k < ITEMS; k++)
            mean += group_sum(x[k]);
        norm_team_sum2<TEAM>(&mean, &none, shared[0]);
        mean /= (float)a.H;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++)
        squares +=
            group_squares(x[k], tr_group_count((int64_t)(lane + k * TEAM) * TR_GROUP, width), mean);
    norm_team_sum2<TEAM>(&squares, &none, shared[1]);
    float rstd = rstd_of(a, squares);
    if (a.wide)
        row_normalize<T, true, TEAM, ITEMS>(a, at, lane, width, mean, rstd, x);
    else
        row_normalize<T, false, TEAM, ITEMS>(a, at, lane, width, mean, rstd, x);
    if (lane == 0 && width > 0)
        statistics_store(a, r, mean, rstd);
}

/* A row of any length by a block, read three times. */
template <typename T>
__global__ void __launch_bounds__(NORM_LONG) norm_forward_long_kernel(norm_forward a)
{
    TR_SHARED(float, shared, [2][64]);
    int64_t r = blockIdx.x, at = r * a.H, first = (int64_t)threadIdx.x * TR_GROUP;
    const int64_t step = (int64_t)NORM_LONG * TR_GROUP;
    const T *x = (const T *)a.x + at;
    float mean = 0.0f, squares = 0.0f, none = 0.0f;
    if (a.layer) {
        for (int64_t c = first; c < a.H; c += step)
            mean += group_sum(tr_group_load<T, false>(x + c, tr_group_count(c, a.H)));
        norm_team_sum2<NORM_LONG>(&mean, &none, shared[0]);
        mean /= (float)a.H;
    }
    for (int64_t c = first; c < a.H; c += step) {
        int count = tr_group_count(c, a.H);
        squares += group_squares(tr_group_load<T, false>(x + c, count), count, mean);
    }
    norm_team_sum2<NORM_LONG>(&squares, &none, shared[1]);
    float rstd = rstd_of(a, squares);
    for (int64_t c = first; c < a.H; c += step) {
        int count = tr_group_count(c, a.H);
        tr_group<T> group = tr_group_load<T, false>(x + c, count);
        group_normalize(&group, tr_group_load<T, false>((const T *)a.weight + c, count),
                        tr_group_load<T, false>((const T *)a.bias + c, a.bias != NULL ? count : 0),
                        a.bias != NULL, mean, rstd);
        tr_group_store<T, false>((T *)a.out + at + c, count, group);
    }
    if (threadIdx.x == 0)
        statistics_store(a, r, mean, rstd);
}

template <typename T, int TEAM, int ITEMS, int ADDS>
static tr_status norm_launch(const norm_forward &a)
{
    return TR_LAUNCH((norm_forward_kernel<T, TEAM, ITEMS, ADDS>),
                     (unsigned)tr_blocks(a.R, norm_threads(TEAM) / TEAM), norm_threads(TEAM), 0,
                     a.stream, a);
}

template <typename T, int TEAM, int ITEMS> tr_status norm_forward::run() const
{
    if constexpr (ITEMS == 0)
        return TR_LAUNCH((norm_forward_long_kernel<T>), (unsigned)R, NORM_LONG, 0, stream, *this);
    else
        return branch != NULL ? norm_launch<T, TEAM, ITEMS, 1>(*this)
                              : norm_launch<T, TEAM, ITEMS, 0>(*this);
}

extern "C" tr_status tr_cuda_norm_forward(cudaStream_t stream, tr_norm_kind kind, tr_dtype dtype,
                                          int64_t R, int64_t H, float eps, const void *x,
                                          const void *weight, const void *bias, void *out,
                                          float *mean, float *rstd)
{
    norm_forward args = {};
    args.stream = stream;
    args.R = R;
    args.H = H;
    args.eps = eps;
    args.layer = kind == TR_NORM_KIND_LAYER;
    args.wide = H % TR_GROUP == 0 && tr_vec_aligned(x) && tr_vec_aligned(weight) &&
                tr_vec_aligned(bias) && tr_vec_aligned(out);
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.out = out;
    args.mean = mean;
    args.rstd = rstd;
    return norm_dispatch(dtype, H, args);
}

extern "C" tr_status tr_cuda_residual_norm(cudaStream_t stream, const tr_residual_norm *a)
{
    if (norm_is_long(a->H)) { /* its rows are read again as it is */
        TR_TRY(tr_cuda_residual_add(stream, a->dtype, a->R, a->H, a->row_begin, a->x, a->y, a->bias,
                                    &a->dropout, a->out));
        return tr_cuda_norm_forward(stream, a->kind, a->dtype, a->R, a->H, a->eps, a->out,
                                    a->weight, a->norm_bias, a->normed, a->mean, a->rstd);
    }
    norm_forward args = {};
    args.stream = stream;
    args.R = a->R;
    args.H = a->H;
    args.eps = a->eps;
    args.layer = a->kind == TR_NORM_KIND_LAYER;
    args.wide = a->H % TR_GROUP == 0 && tr_vec_aligned(a->x) && tr_vec_aligned(a->y) &&
                tr_vec_aligned(a->bias) && tr_vec_aligned(a->out) && tr_vec_aligned(a->weight) &&
                tr_vec_aligned(a->norm_bias) && tr_vec_aligned(a->normed);
    args.x = a->x;
    args.weight = a->weight;
    args.bias = a->norm_bias;
    args.out = a->normed;
    args.mean = a->mean;
    args.rstd = a->rstd;
    args.branch = a->y;
    args.branch_bias = a->bias;
    args.sum = a->out;
    args.drops = tr_dropout_is_on(&a->dropout);
    if (args.drops)
        args.mask = tr_row_dropout_of(&a->dropout, a->row_begin);
    return norm_dispatch(a->dtype, a->H, args);
}
