/* Conversions between floating dtypes, and zeros. Every element alone, over fixed pieces. */
#include "kernels/cpu/cpu_device_int.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_vec.h"

enum { PIECE = 65536 }; /* elements, or bytes of zeros */

typedef struct conversion {
    tr_dtype src_dtype, dst_dtype;
    int64_t n;
    const void *src;
    void *dst;
} conversion;

TR_VEC_INLINE void convert_vec(tr_dtype dst_dtype, tr_dtype src_dtype, const conversion *c,
                               int64_t begin, int64_t i, int count)
{
    tr_vec_store(dst_dtype, c->dst, begin + i, count,
                 tr_vec_load(src_dtype, c->src, begin + i, count));
}

TR_VEC_INLINE void convert_range(tr_dtype dst_dtype, tr_dtype src_dtype, const conversion *c,
                                 int64_t begin, int64_t n)
{
    TR_VEC_LOOP(n, convert_vec, dst_dtype, src_dtype, c, begin);
}

TR_VEC_INLINE void convert_from(tr_dtype src_dtype, const conversion *c, int64_t begin, int64_t n)
{
    TR_VEC_DTYPE_SWITCH(c->dst_dtype, convert_range, src_dtype, c, begin, n);
}

static void convert_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const conversion *c = ctx;
    int64_t begin = piece * PIECE;
    int64_t n = c->n - begin < PIECE ? c->n - begin : PIECE;
    if (c->src_dtype == c->dst_dtype) { /* the same bits, also of a signalling NaN */
        size_t size = tr_dtype_size(c->src_dtype);
        memcpy((char *)c->dst + (size_t)begin * size, (const char *)c->src + (size_t)begin * size,
               (size_t)n * size);
        return;
    }
    TR_VEC_DTYPE_SWITCH(c->src_dtype, convert_from, c, begin, n);
}

static tr_status convert(tr_device *device, int64_t n, tr_dtype src_dtype, const void *src,
                         tr_dtype dst_dtype, void *dst)
{
    conversion c = {src_dtype, dst_dtype, n, src, dst};
    tr_cpu_parallel_for(device, (n + PIECE - 1) / PIECE, convert_piece, &c);
    return TR_OK;
}

static void zero_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const conversion *c = ctx;
    int64_t begin = piece * PIECE;
    memset((char *)c->dst + begin, 0, (size_t)(c->n - begin < PIECE ? c->n - begin : PIECE));
}

static tr_status fill_zero(tr_device *device, void *dst, int64_t bytes)
{
    conversion c = {.n = bytes, .dst = dst};
    tr_cpu_parallel_for(device, (bytes + PIECE - 1) / PIECE, zero_piece, &c);
    return TR_OK;
}

static void copy_piece(void *ctx, int64_t piece, int thread)
{
    (void)thread;
    const tr_copy *copy = (const tr_copy *)ctx + piece;
    memcpy(copy->dst, copy->src, copy->bytes);
}

/* Waking the threads costs more than a few small copies. */
static tr_status copy_many(tr_device *device, int count, const tr_copy *copies)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += copies[i].bytes;
    if (bytes >= PIECE * sizeof(float)) {
        tr_cpu_parallel_for(device, count, copy_piece, (void *)(uintptr_t)copies);
        return TR_OK;
    }
    for (int i = 0; i < count; i++)
        memcpy(copies[i].dst, copies[i].src, copies[i].bytes);
    return TR_OK;
}

void TR_ISA_NAME(tr_cpu_convert_ops)(tr_ops *ops)
{
    ops->convert = convert;
    ops->fill_zero = fill_zero;
    ops->copy_many = copy_many;
}
