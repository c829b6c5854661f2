/* Register tiles: 6 x 16 with AVX2 and FMA (12 accumulators of the 16 vector registers), 4 x 8 in plain C elsewhere. */
#include "kernels/cpu/cpu_tile.h"

#include <string.h>

#include "kernels/cpu/cpu_widen.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TILE_ROW(i)                                                                                \
    do {                                                                                           \
        __m256 a_ = _mm256_broadcast_ss(a + (i));                                                  \
        c##i##0 = _mm256_fmadd_ps(a_, b0, c##i##0);                                                \
        c##i##1 = _mm256_fmadd_ps(a_, b1, c##i##1);                                                \
    } while (0)
#define TILE_STEP(a_offset, b_offset)                                                              \
    do {                                                                                           \
        const float *a = a_panel + (a_offset);                                                     \
        __m256 b0 = _mm256_loadu_ps(b_panel + (b_offset));                                         \
        __m256 b1 = _mm256_loadu_ps(b_panel + (b_offset) + 8);                                     \
        TILE_ROW(0);                                                                               \
        TILE_ROW(1);                                                                               \
        TILE_ROW(2);                                                                               \
        TILE_ROW(3);                                                                               \
        TILE_ROW(4);                                                                               \
        TILE_ROW(5);                                                                               \
    } while (0)
#define TILE_ZERO(i) __m256 c##i##0 = _mm256_setzero_ps(), c##i##1 = _mm256_setzero_ps()
#define TILE_STORE(i)                                                                              \
    do {                                                                                           \
        float *row_ = C + (i)*ldc;                                                                 \
        if (accumulate) {                                                                          \
            c##i##0 = _mm256_add_ps(c##i##0, _mm256_loadu_ps(row_));                               \
            c##i##1 = _mm256_add_ps(c##i##1, _mm256_loadu_ps(row_ + 8));                           \
        }                                                                                          \
        _mm256_storeu_ps(row_, c##i##0);                                                           \
        _mm256_storeu_ps(row_ + 8, c##i##1);                                                       \
    } while (0)

__attribute__((target("avx2,fma"))) static void multiply_avx2(int64_t K, const float *a_panel,
                                                              const float *b_panel, float *C,
                                                              int64_t ldc, bool accumulate)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_ZERO(4);
    TILE_ZERO(5);
    for (int i = 0; i < 6; i++)
        _mm_prefetch((const char *)(C + i * ldc), _MM_HINT_T0);
    int64_t k = 0;
    for (; k + 4 <= K; k += 4) {
        TILE_STEP(0, 0);
        TILE_STEP(6, 16);
        TILE_STEP(12, 32);
        TILE_STEP(18, 48);
        a_panel += 24;
        b_panel += 64;
    }
    for (; k < K; k++) {
        TILE_STEP(0, 0);
        a_panel += 6;
        b_panel += 16;
    }
    TILE_STORE(0);
    TILE_STORE(1);
    TILE_STORE(2);
    TILE_STORE(3);
    TILE_STORE(4);
    TILE_STORE(5);
}

/* Eight vectors of eight floats, rows[r][k], become columns: out[k] = (rows[0][k] ... rows[7][k]), stored `step` floats apart in
 * ascending order, so that steps below eight leave only the first `step` of each. */
__attribute__((target("avx2"))) static void transpose_8x8(const float *const rows[8],
                                                          float *restrict out, int64_t step)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(rows[i]);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(out + i * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(out + (i + 4) * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

static void multiply_plain(int64_t K, const float *a_panel, const float *b_panel, float *C,
                           int64_t ldc, bool accumulate)
{
    float sum[4][8] = {{0}};
    for (int64_t k = 0; k < K; k++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 8; j++)
                sum[i][j] += a_panel[k * 4 + i] * b_panel[k * 8 + j];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 8; j++)
            C[i * ldc + j] = accumulate ? C[i * ldc + j] + sum[i][j] : sum[i][j];
}

static const tr_cpu_tile tile_plain = {"generic", 4, 8, multiply_plain};
#if defined(__x86_64__)
static const tr_cpu_tile tile_avx2 = {"avx2", 6, 16, multiply_avx2};
#endif

const tr_cpu_tile *tr_cpu_tile_get(void)
{
#if defined(__x86_64__)
    if (have_avx2())
        return &tile_avx2;
#endif
    return &tile_plain;
}

#if defined(__x86_64__)
/* Eight elements at src widened to dst. */
__attribute__((target("avx2,f16c"), always_inline)) static inline void
widen_8(tr_dtype dtype, const void *src, float *dst)
{
    __m256 value;
    if (dtype == TR_BF16)
        value = _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)src)), 16));
    else if (dtype == TR_F16)
        value = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src));
    else
        value = _mm256_loadu_ps((const float *)src);
    _mm256_storeu_ps(dst, value);
}

__attribute__((target("avx2,f16c"), always_inline)) static inline void
copy_panel_avx2(tr_dtype dtype, const char *src, int64_t stride, int64_t num_k, int width,
                float *dst)
{
    for (int64_t k = 0; k < num_k; k++, src += stride, dst += width)
        for (int i = 0; i < width; i += 8)
            widen_8(dtype, src + i * (dtype == TR_F32 ? 4 : 2), dst + i);
}

/* A panel of which at least the width rounded up to eight can be read; stores run over into the next k. */
__attribute__((target("avx2,f16c"))) static void
copy_panel(tr_dtype dtype, const char *src, int64_t stride, int64_t num_k, int width, float *dst)
{
    if (dtype == TR_BF16)
        copy_panel_avx2(TR_BF16, src, stride, num_k, width, dst);
    else if (dtype == TR_F16)
        copy_panel_avx2(TR_F16, src, stride, num_k, width, dst);
    else
        copy_panel_avx2(TR_F32, src, stride, num_k, width, dst);
}
#endif

/* One panel whose indices i are contiguous in memory; `readable` of them belong to the operand, `num_i` to the panel. */
static void pack_panel_k_outer(const tr_cpu_operand *operand, int64_t i0, int64_t readable,
                               int num_i, int64_t k0, int64_t num_k, int width, float *dst)
{
    tr_dtype dtype = operand->dtype;
    const char *src = tr_cpu_element(dtype, operand->data, k0 * operand->ld + i0);
    int64_t stride = operand->ld * (int64_t)tr_dtype_size(dtype);
#if defined(__x86_64__)
    if (num_i == width && readable >= (width + 7) / 8 * 8 && have_avx2()) {
        copy_panel(dtype, src, stride, num_k, width, dst);
        return;
    }
#endif
    (void)readable;
    for (int64_t k = 0; k < num_k; k++, src += stride, dst += width) {
        tr_cpu_widen(dtype, src, num_i, dst);
        for (int i = num_i; i < width; i++)
            dst[i] = 0.0f;
    }
}

enum { PACK_RUN = 256 }; /* k indices widened at a time, small enough for the first-level cache */

static void interleave(const float (*rows)[PACK_RUN], int num_i, int64_t num_k, int width,
                       float *dst)
{
    int64_t k = 0;
#if defined(__x86_64__)
    if (num_i <= 8 && width >= num_i && have_avx2()) {
        for (; k + 8 <= num_k; k += 8) {
            const float *starts[8];
            for (int i = 0; i < 8; i++)
                starts[i] = rows[i] + k;
            transpose_8x8(starts, dst + k * width, width);
        }
    }
#endif
    for (; k < num_k; k++)
        for (int i = 0; i < num_i; i++)
            dst[k * width + i] = rows[i][k];
}

/* Up to eight indices i of a panel whose k are contiguous in memory. Stores of a group may run over into the next k (written
 * after) and past the panel's end (the next panel, written after, or the slack). */
static void pack_group(const tr_cpu_operand *operand, int64_t i0, int num_i, int64_t k0,
                       int64_t num_k, int width, float *dst)
{
    float rows[8][PACK_RUN];
    memset(rows, 0, sizeof rows);
    for (int64_t k = 0; k < num_k; k += PACK_RUN) {
        int64_t run = num_k - k < PACK_RUN ? num_k - k : PACK_RUN;
        for (int i = 0; i < num_i; i++)
            tr_cpu_widen(
                operand->dtype,
                tr_cpu_element(operand->dtype, operand->data, (i0 + i) * operand->ld + k0 + k), run,
                rows[i]);
        interleave((const float(*)[PACK_RUN])rows, width < 8 ? width : 8, run, width,
                   dst + k * width);
    }
}

void tr_cpu_pack(const tr_cpu_operand *operand, int64_t i0, int64_t num_i, int64_t k0,
                 int64_t num_k, int width, float *dst)
{
    for (int64_t p = 0; p < num_i; p += width, dst += width * num_k) {
        int count = (int)(num_i - p < width ? num_i - p : width);
        if (operand->k_outer) {
            pack_panel_k_outer(operand, i0 + p, num_i - p, count, k0, num_k, width, dst);
            continue;
        }
        for (int i = 0; i < width; i += 8) {
            int group = count - i < 8 ? count - i : 8;
            pack_group(operand, i0 + p + i, group < 0 ? 0 : group, k0, num_k, width, dst + i);
        }
    }
}

#if defined(__x86_64__)
static void turn_8x8(const float *src, int64_t ld_src, float *dst, int64_t ld_dst)
{
    const float *starts[8];
    for (int i = 0; i < 8; i++)
        starts[i] = src + i * ld_src;
    transpose_8x8(starts, dst, ld_dst);
}
#endif

void tr_cpu_turn(const float *src, int64_t ld_src, int64_t rows, int64_t columns, float *dst,
                 int64_t ld_dst)
{
    int64_t whole_rows = 0, whole_columns = 0;
#if defined(__x86_64__)
    if (have_avx2()) {
        whole_rows = rows / 8 * 8;
        whole_columns = columns / 8 * 8;
        for (int64_t r = 0; r < whole_rows; r += 8)
            for (int64_t c = 0; c < whole_columns; c += 8)
                turn_8x8(src + r * ld_src + c, ld_src, dst + c * ld_dst + r, ld_dst);
    }
#endif
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; c++)
            dst[c * ld_dst + r] = src[r * ld_src + c];
}

/* A tile at the edge of C goes through a whole tile of scratch. */
static void multiply_edge(const tr_cpu_tile *tile, int64_t K, const float *a_panel,
                          const float *b_panel, int rows, int columns, float *C, int64_t ldc,
                          bool accumulate)
{
    float whole[TR_TILE_ROWS_MAX * TR_TILE_COLUMNS_MAX];
    tile->multiply(K, a_panel, b_panel, whole, tile->columns, false);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = whole[i * tile->columns + j];
            C[i * ldc + j] = accumulate ? C[i * ldc + j] + sum : sum;
        }
}

void tr_cpu_multiply_panels(const tr_cpu_tile *tile, int64_t M, int64_t N, int64_t K,
                            const float *a_panels, const float *b_panels, float *C, int64_t ldc,
                            bool accumulate)
{
    for (int64_t n = 0; n < N; n += tile->columns) {
        const float *b_panel = b_panels + n * K;
        int columns = (int)(N - n < tile->columns ? N - n : tile->columns);
        for (int64_t m = 0; m < M; m += tile->rows) {
            const float *a_panel = a_panels + m * K;
            int rows = (int)(M - m < tile->rows ? M - m : tile->rows);
            float *corner = C + m * ldc + n;
            if (rows == tile->rows && columns == tile->columns)
                tile->multiply(K, a_panel, b_panel, corner, ldc, accumulate);
            else
                multiply_edge(tile, K, a_panel, b_panel, rows, columns, corner, ldc, accumulate);
        }
    }
}
