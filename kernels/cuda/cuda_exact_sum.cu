/* The sums of base/exact_sum.h on the device: integers inside, so that no order matters, and the same limbs to the bit.
 *
 * square_sum. A thread keeps the squares of exponents 72 ... 135 (2^-55 to 2^9), four neighbouring exponents to a 64-bit sum, in
 * shared memory of its own: a square below 2^48, shifted by at most 6, fits 1024 times, and a thread takes 256 values. Other values,
 * rare in gradients, go to the block's bins by atomic additions: 2^16 values of a block, below 2^48 each, fit 64 bits. Blocks
 * add their sums to the limbs as 32-bit digits without carries; the carries are one thread's work at the end. */
#include "base/exact_sum.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"

typedef unsigned long long word;

enum {
    SQUARE_THREADS = 256,
    SQUARE_TURNS = 64, /* a thread takes four values a turn */
    SQUARE_AHEAD = 4,  /* turns whose values are on their way at once */
    SQUARE_BLOCK = SQUARE_THREADS * SQUARE_TURNS * 4,
    WINDOW_BEGIN = 72,
    WINDOW_SUMS = 16, /* of four exponents each */
    BINS = 256,
    NOT_FINITE = 255
};

/* limbs += value 2^bit, digit by digit. value < 2^64, limbs in shared memory. */
__device__ inline void limbs_add(word *limbs, word value, int bit)
{
    int digit = bit / 32, shift = bit % 32;
    word low = value << shift, high = shift == 0 ? 0 : value >> (64 - shift);
    if ((uint32_t)low != 0)
        atomicAdd(&limbs[digit], low & 0xffffffffu);
    if (low >> 32 != 0)
        atomicAdd(&limbs[digit + 1], low >> 32);
    if (high != 0)
        atomicAdd(&limbs[digit + 2], high);
}

/* The bit of limbs at which squares of this exponent stand. */
__device__ inline int square_bit(int exponent)
{
    return exponent > 1 ? 2 * (exponent - 1) : 0;
}

__device__ inline void square_add(float value, word (*window)[SQUARE_THREADS], word *bins)
{
    uint32_t bits = __float_as_uint(value);
    int exponent = (int)(bits >> 23 & 0xff), place = exponent - WINDOW_BEGIN;
    uint32_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
    word square = (word)mantissa * mantissa;
    if (place >= 0 && place < 4 * WINDOW_SUMS)
        window[place / 4][threadIdx.x] += square << 2 * (place % 4);
    else if (exponent == NOT_FINITE) /* infinity's mantissa counts too */
        atomicAdd(&bins[exponent], 1);
    else if (square != 0)
        atomicAdd(&bins[exponent], square);
}

/* The threads' sums of the window, and the bins, to the block's limbs. */
__device__ inline void square_collect(word (*window)[SQUARE_THREADS], const word *bins, word *limbs)
{
    /* Warp w adds sums w and w + 8 of all threads, low and high halves apart. */
    int warp = threadIdx.x / TR_WARP, lane = threadIdx.x % TR_WARP;
    for (int sum = warp; sum < WINDOW_SUMS; sum += SQUARE_THREADS / TR_WARP) {
        word low = 0, high = 0;
        for (int t = lane; t < SQUARE_THREADS; t += TR_WARP) {
            low += window[sum][t] & 0xffffffffu;
            high += window[sum][t] >> 32;
        }
        for (int offset = TR_WARP / 2; offset > 0; offset /= 2) {
            low += __shfl_xor_sync(TR_WARP_ALL, low, offset);
            high += __shfl_xor_sync(TR_WARP_ALL, high, offset);
        }
        int bit = square_bit(WINDOW_BEGIN + 4 * sum);
        if (lane == 0) {
            limbs_add(limbs, low, bit);
            limbs_add(limbs, high, bit + 32);
        }
    }
    int exponent = threadIdx.x;
    if (exponent == NOT_FINITE) {
        if (bins[exponent] != 0)
            atomicAdd(&limbs[TR_SQUARE_SUM_DIGITS], 1);
    } else if (bins[exponent] != 0) {
        limbs_add(limbs, bins[exponent], square_bit(exponent));
    }
}

/* Elements at ... at + 3 of n, zeros behind them. */
template <bool WIDE> __device__ inline float4 square_load(const float *x, int64_t at, int64_t n)
{
    if (WIDE && at + 4 <= n)
        return *reinterpret_cast<const float4 *>(x + at);
    return make_float4(at < n ? x[at] : 0.0f, at + 1 < n ? x[at + 1] : 0.0f,
                       at + 2 < n ? x[at + 2] : 0.0f, at + 3 < n ? x[at + 3] : 0.0f);
}

/* Moves 4 n bytes; some 15 integer operations an element. */
template <bool WIDE>
__global__ void __launch_bounds__(SQUARE_THREADS)
    square_sum_kernel(int64_t n, const float *x, word *total)
{
    TR_SHARED(word, window, [WINDOW_SUMS][SQUARE_THREADS]);
    TR_SHARED(word, bins, [BINS]);
    TR_SHARED(word, limbs, [TR_SQUARE_SUM_LIMBS]);
    for (int i = 0; i < WINDOW_SUMS; i++)
        window[i][threadIdx.x] = 0;
    bins[threadIdx.x] = 0;
    if (threadIdx.x < TR_SQUARE_SUM_LIMBS)
        limbs[threadIdx.x] = 0;
    __syncthreads();
    int64_t at = (int64_t)blockIdx.x * SQUARE_BLOCK + threadIdx.x * 4;
    for (int turn = 0; turn < SQUARE_TURNS; turn += SQUARE_AHEAD) {
        float4 values[SQUARE_AHEAD];
#pragma unroll
        for (int k = 0; k < SQUARE_AHEAD; k++, at += SQUARE_THREADS * 4)
            values[k] = square_load<WIDE>(x, at, n);
#pragma unroll
        for (int k = 0; k < SQUARE_AHEAD; k++) {
            square_add(values[k].x, window, bins);
            square_add(values[k].y, window, bins);
            square_add(values[k].z, window, bins);
            square_add(values[k].w, window, bins);
        }
    }
    __syncthreads();
    square_collect(window, bins, limbs);
    __syncthreads();
    if (threadIdx.x < TR_SQUARE_SUM_LIMBS && limbs[threadIdx.x] != 0)
        atomicAdd(&total[threadIdx.x], limbs[threadIdx.x]);
}

/* Carries: digits below 2^32 but for the last, and the flag 0 or 1. */
__global__ void square_carry_kernel(int64_t *limbs)
{
    for (int i = 0; i + 1 < TR_SQUARE_SUM_DIGITS; i++) {
        limbs[i + 1] += limbs[i] >> 32;
        limbs[i] &= 0xffffffff;
    }
    limbs[TR_SQUARE_SUM_DIGITS] = limbs[TR_SQUARE_SUM_DIGITS] != 0;
}

extern "C" tr_status tr_cuda_square_sum(cudaStream_t stream, int64_t n, const float *x,
                                        int64_t *limbs)
{
    unsigned blocks = (unsigned)tr_blocks(n, SQUARE_BLOCK);
    word *total = (word *)limbs;
    if (tr_vec_aligned(x))
        TR_TRY(
            TR_LAUNCH((square_sum_kernel<true>), blocks, SQUARE_THREADS, 0, stream, n, x, total));
    else
        TR_TRY(
            TR_LAUNCH((square_sum_kernel<false>), blocks, SQUARE_THREADS, 0, stream, n, x, total));
    return TR_LAUNCH(square_carry_kernel, 1, 1, 0, stream, limbs);
}

/* ---- the loss ---- */

enum { LOSS_THREADS = 128 };

/* The digits of a term, as tr_fixed_sum_add rounds it: multiples of 2^-64, the last digit with the sign; then 1 when it is not
 * below 2^32 in size. */
__device__ inline void loss_digits(double term, word digits[TR_FIXED_SUM_LIMBS])
{
    if (!(fabs(term) < 4294967296.0)) {
        digits[TR_FIXED_SUM_LIMBS - 1] = 1;
        return;
    }
    /* Units of 2^-20 exactly, and the rest rounded to units of 2^-64. */
    double upper = trunc(term * 1048576.0);
    int64_t rest = (int64_t)rint((term - upper * (1.0 / 1048576.0)) * 18446744073709551616.0);
    int64_t units = (int64_t)upper;
    /* units 2^44 + rest as a number of two 64-bit words. */
    word low = (word)units << 44, sum = low + (word)rest;
    int64_t high = (units >> 20) + (rest >> 63) + (sum < low ? 1 : 0);
    digits[0] = sum & 0xffffffffu;
    digits[1] = sum >> 32;
    digits[2] = (word)high & 0xffffffffu;
    digits[3] = (word)(high >> 32);
}

/* Moves 16 R bytes; a logarithm in double a row. */
__global__ void loss_sum_kernel(int64_t R, const int32_t *labels, const float *max,
                                const float *sum_target, word *limbs)
{
    int64_t r = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x;
    word digits[TR_LOSS_SUM_LIMBS] = {0};
    if (r < R && labels[r] >= 0) {
        double sum = (double)sum_target[2 * r], target = (double)sum_target[2 * r + 1];
        loss_digits(log(sum) + (double)max[r] - target, digits);
        digits[TR_LOSS_SUM_TOKENS] = 1;
    }
#pragma unroll
    for (int i = 0; i < TR_LOSS_SUM_LIMBS; i++) {
        word sum = digits[i];
#pragma unroll
        for (int offset = TR_WARP / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(TR_WARP_ALL, sum, offset);
        if (threadIdx.x % TR_WARP == 0 && sum != 0)
            atomicAdd(&limbs[i], sum);
    }
}

/* As tr_fixed_sum_limbs_carry. */
__global__ void loss_carry_kernel(int64_t *limbs)
{
    const int top = TR_FIXED_SUM_LIMBS - 2, flag = TR_FIXED_SUM_LIMBS - 1;
    for (int i = 0; i < top; i++) {
        limbs[i + 1] +=
            limbs[i] >> 32; /* rounds down: the digit is what is left, also of a negative limb */
        limbs[i] &= 0xffffffff;
    }
    limbs[flag] = limbs[flag] != 0 || limbs[top] < INT32_MIN || limbs[top] > INT32_MAX;
}

extern "C" tr_status tr_cuda_loss_sum(cudaStream_t stream, int64_t R, const int32_t *labels,
                                      const float *max, const float *sum_target, int64_t *limbs)
{
    TR_TRY(TR_LAUNCH(loss_sum_kernel, (unsigned)tr_blocks(R, LOSS_THREADS), LOSS_THREADS, 0, stream,
                     R, labels, max, sum_target, (word *)limbs));
    return TR_LAUNCH(loss_carry_kernel, 1, 1, 0, stream, limbs);
}
