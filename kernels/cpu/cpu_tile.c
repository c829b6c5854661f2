/* Register tiles: 6 x 16 with AVX2 and FMA (12 accumulators of the 16 vector registers), 4 x 8 in plain C elsewhere. */
#include "kernels/cpu/cpu_tile.h"

#include <string.h>

#include "kernels/cpu/cpu_widen.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TILE_ROW(i)                                                                                \
    do {                                                                                           \
        __m256 a_ = _mm256_broadcast_ss(a_panel + (i));                                            \
        c##i##0 = _mm256_fmadd_ps(a_, b0, c##i##0);                                                \
        c##i##1 = _mm256_fmadd_ps(a_, b1, c##i##1);                                                \
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
    /* One k at a time: unrolled, GCC 12 runs out of registers and spills a sum. */
    for (int64_t k = 0; k < K; k++, a_panel += 6, b_panel += 16) {
        __m256 b0 = _mm256_loadu_ps(b_panel), b1 = _mm256_loadu_ps(b_panel + 8);
        TILE_ROW(0);
        TILE_ROW(1);
        TILE_ROW(2);
        TILE_ROW(3);
        TILE_ROW(4);
        TILE_ROW(5);
    }
    TILE_STORE(0);
    TILE_STORE(1);
    TILE_STORE(2);
    TILE_STORE(3);
    TILE_STORE(4);
    TILE_STORE(5);
}

/* Eight vectors of eight floats become their columns, stored `step` floats apart. */
__attribute__((target("avx2,fma,f16c"), always_inline)) static inline void
transpose_8x8(__m256 r[8], float *out, int64_t step)
{
    __m256 t[8];
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
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
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
/* Packing with vectors. Every function is compiled once per dtype, which is then a constant. */
#define PACK_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) static inline

PACK_INLINE __m256 load_8(tr_dtype dtype, const char *src)
{
    if (dtype == TR_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)src)), 16));
    if (dtype == TR_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
    return _mm256_loadu_ps((const float *)(const void *)src);
}

/* Panels of six or sixteen indices that are contiguous in memory, two or four panels in one walk over k, so that a cache line
 * that is read serves several. Reads whole eights. With six, stores run over into the next k, which is written after; the last k
 * of a panel would run over into the panel behind, whose first k has been written, and so comes as four and two. */
PACK_INLINE void copy_panels(tr_dtype dtype, const char *src, int64_t stride, int64_t num_k,
                             int width, int panels, float *dst)
{
    int size = dtype == TR_F32 ? 4 : 2;
    int64_t free_k = width == 6 ? num_k - 1 : num_k;
    for (int64_t k = 0; k < free_k; k++, src += stride, dst += width)
        for (int p = 0; p < panels; p++)
            for (int i = 0; i < width; i += 8)
                _mm256_storeu_ps(dst + p * num_k * width + i,
                                 load_8(dtype, src + (p * width + i) * size));
    for (int p = 0; width == 6 && p < panels; p++) {
        __m256 last = load_8(dtype, src + p * 6 * size);
        _mm_storeu_ps(dst + p * num_k * 6, _mm256_castps256_ps128(last));
        _mm_storel_pi((__m64 *)(void *)(dst + p * num_k * 6 + 4), _mm256_extractf128_ps(last, 1));
    }
}

/* Six rows, k contiguous: four of each k in one store, the other two in another. */
PACK_INLINE void turn_rows_6(tr_dtype dtype, const char *src, int64_t stride, int64_t num_k,
                             float *dst)
{
    int size = dtype == TR_F32 ? 4 : 2;
    for (int64_t k = 0; k + 8 <= num_k; k += 8, src += 8 * size, dst += 48) {
        __m256 r0 = load_8(dtype, src), r1 = load_8(dtype, src + stride);
        __m256 r2 = load_8(dtype, src + 2 * stride), r3 = load_8(dtype, src + 3 * stride);
        __m256 r4 = load_8(dtype, src + 4 * stride), r5 = load_8(dtype, src + 5 * stride);
        __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
        __m256 c = _mm256_unpacklo_ps(r2, r3), d = _mm256_unpackhi_ps(r2, r3);
        __m256 pair[2] = {_mm256_unpacklo_ps(r4, r5), _mm256_unpackhi_ps(r4, r5)};
        __m256 quad[4] = {_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee),
                          _mm256_shuffle_ps(b, d, 0x44), _mm256_shuffle_ps(b, d, 0xee)};
        for (int i = 0; i < 4; i++) {
            _mm_storeu_ps(dst + i * 6, _mm256_castps256_ps128(quad[i]));
            _mm_storeu_ps(dst + (i + 4) * 6, _mm256_extractf128_ps(quad[i], 1));
        }
        for (int i = 0; i < 2; i++) {
            __m128 low = _mm256_castps256_ps128(pair[i]), high = _mm256_extractf128_ps(pair[i], 1);
            _mm_storel_pi((__m64 *)(void *)(dst + i * 12 + 4), low);
            _mm_storeh_pi((__m64 *)(void *)(dst + i * 12 + 10), low);
            _mm_storel_pi((__m64 *)(void *)(dst + i * 12 + 28), high);
            _mm_storeh_pi((__m64 *)(void *)(dst + i * 12 + 34), high);
        }
    }
}

/* Eight rows, k contiguous, to eight of each `width`. */
PACK_INLINE void turn_rows_8(tr_dtype dtype, const char *src, int64_t stride, int64_t num_k,
                             int width, float *dst)
{
    int size = dtype == TR_F32 ? 4 : 2;
    for (int64_t k = 0; k + 8 <= num_k; k += 8, src += 8 * size, dst += 8 * width) {
        __m256 r[8];
        for (int i = 0; i < 8; i++)
            r[i] = load_8(dtype, src + i * stride);
        transpose_8x8(r, dst, width);
    }
}

PACK_INLINE void pack_panels(tr_dtype dtype, bool k_outer, const char *src, int64_t stride,
                             int64_t num_k, int width, int panels, float *dst)
{
    int size = dtype == TR_F32 ? 4 : 2;
    if (k_outer && width == 6) {
        if (panels == 4)
            copy_panels(dtype, src, stride, num_k, 6, 4, dst);
        else
            copy_panels(dtype, src, stride, num_k, 6, 1, dst);
    } else if (k_outer) {
        if (panels == 2)
            copy_panels(dtype, src, stride, num_k, 16, 2, dst);
        else
            copy_panels(dtype, src, stride, num_k, 16, 1, dst);
    } else if (width == 6) {
        turn_rows_6(dtype, src, stride, num_k, dst);
    } else {
        turn_rows_8(dtype, src, stride, num_k, 16, dst);
        turn_rows_8(dtype, src + 8 * stride, stride, num_k, 16, dst + 8);
    }
    if (k_outer)
        return;
    for (int64_t k = num_k / 8 * 8; k < num_k; k++)
        for (int i = 0; i < width; i++)
            tr_cpu_widen(dtype, src + i * stride + k * size, 1, dst + k * width + i);
}

__attribute__((target("avx2,fma,f16c"))) static void
pack_panels_avx2(tr_dtype dtype, bool k_outer, const char *src, int64_t stride, int64_t num_k,
                 int width, int panels, float *dst)
{
    if (dtype == TR_BF16)
        pack_panels(TR_BF16, k_outer, src, stride, num_k, width, panels, dst);
    else if (dtype == TR_F16)
        pack_panels(TR_F16, k_outer, src, stride, num_k, width, panels, dst);
    else
        pack_panels(TR_F32, k_outer, src, stride, num_k, width, panels, dst);
}
#endif

/* How many whole panels can be packed at once from here, with `left` indices of the operand left; 0: none. */
static int whole_panels(bool k_outer, int width, int64_t left)
{
#if defined(__x86_64__)
    if (!have_avx2())
        return 0;
    if (!k_outer)
        return left >= width;
    int at_once = width == 6 ? 4 : 2, read_over = width == 6 ? 2 : 0;
    return left >= at_once * width + read_over ? at_once : left >= width + read_over;
#else
    (void)k_outer;
    (void)width;
    (void)left;
    return 0;
#endif
}

/* A panel of num_i <= width indices, element by element in runs. */
static void pack_edge(const tr_cpu_operand *operand, int64_t i0, int num_i, int64_t k0,
                      int64_t num_k, int width, float *dst)
{
    float run[TR_TILE_COLUMNS_MAX];
    for (int64_t k = 0; k < num_k; k++) {
        if (operand->k_outer)
            tr_cpu_widen(operand->dtype,
                         tr_cpu_element(operand->dtype, operand->data, (k0 + k) * operand->ld + i0),
                         num_i, run);
        else
            for (int i = 0; i < num_i; i++)
                tr_cpu_widen(
                    operand->dtype,
                    tr_cpu_element(operand->dtype, operand->data, (i0 + i) * operand->ld + k0 + k),
                    1, run + i);
        for (int i = 0; i < width; i++)
            dst[k * width + i] = i < num_i ? run[i] : 0.0f;
    }
}

void tr_cpu_pack(const tr_cpu_operand *operand, int64_t i0, int64_t num_i, int64_t k0,
                 int64_t num_k, int width, float *dst)
{
    int64_t stride = operand->ld * (int64_t)tr_dtype_size(operand->dtype);
    for (int64_t p = 0; p < num_i;) {
        int panels = whole_panels(operand->k_outer, width, num_i - p);
        int64_t first = operand->k_outer ? k0 * operand->ld + i0 + p : (i0 + p) * operand->ld + k0;
        if (panels > 0) {
#if defined(__x86_64__)
            pack_panels_avx2(operand->dtype, operand->k_outer,
                             tr_cpu_element(operand->dtype, operand->data, first), stride, num_k,
                             width, panels, dst);
#endif
        } else {
            int count = (int)(num_i - p < width ? num_i - p : width);
            pack_edge(operand, i0 + p, count, k0, num_k, width, dst);
            panels = 1;
        }
        p += panels * width;
        dst += panels * width * num_k;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma,f16c"))) static void turn_8x8(const float *src, int64_t ld_src,
                                                              float *dst, int64_t ld_dst)
{
    __m256 r[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(src + i * ld_src);
    transpose_8x8(r, dst, ld_dst);
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
