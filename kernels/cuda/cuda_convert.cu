/* Conversions between floating types, copies and zeros: every element alone, each byte read and written once. */
#include "kernels/cuda/cuda_image.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_rows.cuh"

enum { CONVERT_THREADS = 256 };

/* Moves n (size of Src + size of Dst) bytes. */
template <typename Src, typename Dst, bool WIDE>
__global__ void convert_kernel(int64_t n, const Src *src, Dst *dst)
{
    int64_t at = ((int64_t)blockIdx.x * CONVERT_THREADS + threadIdx.x) * TR_GROUP;
    int count = tr_group_count(at, n);
    if (WIDE && count == TR_GROUP) {
        tr_group<Src> in = tr_group_load<Src, true>(src + at, TR_GROUP);
        tr_group<Dst> out;
#pragma unroll
        for (int i = 0; i < TR_GROUP; i++)
            out.set(i, in.get(i));
        tr_group_store<Dst, true>(dst + at, TR_GROUP, out);
    } else {
        for (int i = 0; i < count; i++)
            tr_store(dst + at + i, tr_load(src + at + i));
    }
}

template <typename Src, typename Dst>
static tr_status convert_launch(cudaStream_t stream, int64_t n, const Src *src, Dst *dst)
{
    dim3 grid((unsigned)tr_blocks(n, CONVERT_THREADS * TR_GROUP));
    if (tr_vec_aligned(src) && tr_vec_aligned(dst))
        return TR_LAUNCH((convert_kernel<Src, Dst, true>), grid, CONVERT_THREADS, 0, stream, n, src,
                         dst);
    return TR_LAUNCH((convert_kernel<Src, Dst, false>), grid, CONVERT_THREADS, 0, stream, n, src,
                     dst);
}

/* ---- copies ---- */

enum { COPY_BATCH = 128, COPY_UNROLL = 4, COPY_MOST_BLOCKS = 2048 };

/* The copies of one launch, in the kernel's parameters. */
typedef struct copy_batch {
    tr_copy copies[COPY_BATCH];
} copy_batch;

/* A word at p; with `odd`, where p is at an odd address, a word of two bytes from them. */
template <typename Word> __device__ inline Word copy_load(const char *p, bool odd)
{
    if constexpr (sizeof(Word) == 2) {
        if (odd)
            return (Word)((unsigned char)p[0] | (unsigned char)p[1] << 8);
    }
    return *(const Word *)(const void *)p;
}

/* The block's share of one copy by whole words; the bytes before and after them by two threads of the first block. dst and src are
 * apart by a multiple of a word, or `odd`. */
template <typename Word> __device__ inline void copy_words(const tr_copy &copy, bool odd)
{
    int64_t head = (int64_t)((0 - (uintptr_t)copy.dst) % sizeof(Word)), bytes = (int64_t)copy.bytes;
    head = head < bytes ? head : bytes;
    const char *src = (const char *)copy.src;
    char *dst = (char *)copy.dst;
    int64_t n = (bytes - head) / (int64_t)sizeof(Word);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (int64_t i = 0; i < head; i++)
            dst[i] = src[i];
    }
    if (blockIdx.x == 0 && threadIdx.x == TR_WARP) {
        for (int64_t i = head + n * (int64_t)sizeof(Word); i < bytes; i++)
            dst[i] = src[i];
    }
    const char *from = src + head;
    Word *to = (Word *)(void *)(dst + head);
    const int64_t step = CONVERT_THREADS * COPY_UNROLL;
    for (int64_t at = blockIdx.x * step + threadIdx.x; at < n; at += gridDim.x * step) {
        Word words[COPY_UNROLL];
#pragma unroll
        for (int k = 0; k < COPY_UNROLL; k++) {
            int64_t i = at + k * CONVERT_THREADS < n ? at + k * CONVERT_THREADS : at;
            words[k] = copy_load<Word>(from + i * (int64_t)sizeof(Word), odd);
        }
#pragma unroll
        for (int k = 0; k < COPY_UNROLL; k++) {
            if (at + k * CONVERT_THREADS < n)
                to[at + k * CONVERT_THREADS] = words[k];
        }
    }
}

/* Moves twice the bytes of the copies, which blockIdx.y numbers. */
__global__ void __launch_bounds__(CONVERT_THREADS) copy_kernel(copy_batch batch)
{
    const tr_copy &copy = batch.copies[blockIdx.y];
    uintptr_t apart = (uintptr_t)copy.dst - (uintptr_t)copy.src;
    if (apart % 16 == 0)
        copy_words<uint4>(copy, false);
    else if (apart % 4 == 0)
        copy_words<uint32_t>(copy, false);
    else
        copy_words<uint16_t>(copy, apart % 2 != 0);
}

extern "C" tr_status tr_cuda_copy_many(cudaStream_t stream, int count, const tr_copy *copies)
{
    for (int first = 0; first < count; first += COPY_BATCH) {
        copy_batch batch = {};
        int n = count - first < COPY_BATCH ? count - first : COPY_BATCH;
        size_t most = 0;
        for (int i = 0; i < n; i++) {
            batch.copies[i] = copies[first + i];
            most = copies[first + i].bytes > most ? copies[first + i].bytes : most;
        }
        int64_t blocks = tr_blocks((int64_t)most, CONVERT_THREADS * COPY_UNROLL * 16);
        blocks = blocks < COPY_MOST_BLOCKS ? blocks : (int64_t)COPY_MOST_BLOCKS;
        TR_TRY(TR_LAUNCH(copy_kernel, dim3((unsigned)blocks, (unsigned)n), CONVERT_THREADS, 0,
                         stream, batch));
    }
    return TR_OK;
}

extern "C" tr_status tr_cuda_convert(cudaStream_t stream, int64_t n, tr_dtype src_dtype,
                                     const void *src, tr_dtype dst_dtype, void *dst)
{
    if (src_dtype == dst_dtype) { /* the same bits, also of a signalling NaN */
        tr_copy copy = {dst, src, (size_t)n * tr_dtype_size(src_dtype)};
        return tr_cuda_copy_many(stream, 1, &copy);
    }
    TR_DISPATCH(src_dtype, Src,
                TR_DISPATCH(dst_dtype, Dst,
                            return convert_launch(stream, n, (const Src *)src, (Dst *)dst)));
}

/* Writes n 16-byte words of zeros. */
__global__ void zero_kernel(int64_t n, uint4 *dst)
{
    int64_t at = (int64_t)blockIdx.x * CONVERT_THREADS * 4 + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (at + k * CONVERT_THREADS < n)
            dst[at + k * CONVERT_THREADS] = make_uint4(0, 0, 0, 0);
    }
}

/* The bytes before and after those words, fewer than 16 each, by a thread each. */
__global__ void zero_ends_kernel(int head, int tail, int64_t bytes, unsigned char *dst)
{
    int64_t begin = threadIdx.x == 0 ? 0 : bytes - tail, end = threadIdx.x == 0 ? head : bytes;
    for (int64_t i = begin; i < end; i++)
        dst[i] = 0;
}

extern "C" tr_status tr_cuda_fill_zero(cudaStream_t stream, void *dst, int64_t bytes)
{
    int64_t head = (int64_t)(-(uintptr_t)dst % 16);
    if (head > bytes)
        head = bytes;
    int64_t words = (bytes - head) / 16, tail = bytes - head - words * 16;
    unsigned char *start = (unsigned char *)dst;
    if (head + tail > 0)
        TR_TRY(TR_LAUNCH(zero_ends_kernel, 1, 2, 0, stream, (int)head, (int)tail, bytes, start));
    return TR_LAUNCH(zero_kernel, (unsigned)tr_blocks(words, 4 * CONVERT_THREADS), CONVERT_THREADS,
                     0, stream, words, (uint4 *)(start + head));
}

extern "C" cudaError_t tr_cuda_image_there(void)
{
    cudaFuncAttributes attributes;
    cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(zero_kernel));
    if (error != cudaSuccess)
        cudaGetLastError(); /* the caller tells */
    return error;
}
