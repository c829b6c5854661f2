#include "tests/cudasim/simt_matrix.h"

#include <string.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/cudasim/simt_access.h"

enum { M = 16, N = 8, K = 16, ROW_BYTES = 16 };

static const uint32_t whole_warp = 0xffffffffu;

static void whole_warp_check(uint32_t lanes, const char *name)
{
    if (lanes != whole_warp)
        simt_fail("%s needs all lanes of the warp, only 0x%08x are left", name, lanes);
}

struct mma_arg {
    float *d;
    const uint32_t *a, *b;
};

static float low_bf16(uint32_t pair)
{
    return __bfloat162float(__ushort_as_bfloat16((unsigned short)pair));
}

static float low_f16(uint32_t pair)
{
    return __half2float(__ushort_as_half((unsigned short)pair));
}

template <float (*low)(uint32_t)>
static void mma_complete(void *const args[SIMT_WARP], uint32_t lanes)
{
    float a[M][K], b[K][N], d[M][N];
    whole_warp_check(lanes, "mma.m16n8k16");
    for (int lane = 0; lane < SIMT_WARP; lane++) {
        const mma_arg *arg = (const mma_arg *)args[lane];
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            float *pair = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
            pair[0] = low(arg->a[i]);
            pair[1] = low(arg->a[i] >> 16);
            d[g + i / 2 * 8][2 * t + i % 2] = arg->d[i];
        }
        for (int i = 0; i < 2; i++) {
            b[2 * t + i * 8][g] = low(arg->b[i]);
            b[2 * t + i * 8 + 1][g] = low(arg->b[i] >> 16);
        }
    }
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++)
            for (int n = 0; n < N; n++)
                d[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < SIMT_WARP; lane++) {
        const mma_arg *arg = (const mma_arg *)args[lane];
        for (int i = 0; i < 4; i++)
            arg->d[i] = d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
    }
}

void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], simt_site site)
{
    static const simt_collective mma = {mma_complete<low_bf16>};
    mma_arg arg = {d, a, b};
    simt_collect(&mma, "mma.m16n8k16 (bf16)", whole_warp, &arg, site);
}

void simt_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], simt_site site)
{
    static const simt_collective mma = {mma_complete<low_f16>};
    mma_arg arg = {d, a, b};
    simt_collect(&mma, "mma.m16n8k16 (fp16)", whole_warp, &arg, site);
}

struct ldmatrix_arg {
    uint32_t *r;
    const unsigned char *row;
    int count;
    bool transposed;
};

static void ldmatrix_complete(void *const args[SIMT_WARP], uint32_t lanes)
{
    whole_warp_check(lanes, "ldmatrix");
    for (int lane = 0; lane < SIMT_WARP; lane++) {
        const ldmatrix_arg *arg = (const ldmatrix_arg *)args[lane];
        int g = lane / 4, t = lane % 4;
        for (int matrix = 0; matrix < arg->count; matrix++) {
            uint16_t pair[2];
            for (int i = 0; i < 2; i++) {
                int row = arg->transposed ? 2 * t + i : g, column = arg->transposed ? g : 2 * t + i;
                const ldmatrix_arg *owner = (const ldmatrix_arg *)args[matrix * 8 + row];
                memcpy(&pair[i], owner->row + 2 * column, sizeof pair[i]);
            }
            memcpy(&arg->r[matrix], pair, sizeof pair);
        }
    }
}

void simt_ldmatrix(uint32_t *r, int count, const void *row, bool transposed, simt_site site)
{
    static const simt_collective ldmatrix = {ldmatrix_complete};
    if ((uintptr_t)row % ROW_BYTES != 0 || !simt_is_shared(row, ROW_BYTES))
        simt_fail("ldmatrix at %s:%d: %p is not 16 aligned bytes of the block's shared memory",
                  site.file, site.line, row);
    simt_access(SIMT_READ, row, ROW_BYTES, __builtin_return_address(0));
    ldmatrix_arg arg = {r, (const unsigned char *)row, count, transposed};
    simt_collect(&ldmatrix, transposed ? "ldmatrix.trans" : "ldmatrix", whole_warp, &arg, site);
}
