/* Plain loops over operands that were widened and laid out for them (sim_product.h). Compiled without AddressSanitizer, for speed. */
#include "tests/cudasim/runtime/sim_product.h"

#include <algorithm>
#include <vector>

#include <math.h>
#include <string.h>

#include "memory/dtype.h"

enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 4 };

static float element(const void *base, cudaDataType type, int64_t i)
{
    if (type == CUDA_R_16BF)
        return tr_f32_from_bf16(((const uint16_t *)base)[i]);
    if (type == CUDA_R_16F)
        return tr_f32_from_f16(((const uint16_t *)base)[i]);
    return ((const float *)base)[i];
}

/* TF32 keeps 10 bits of the mantissa: rounded to nearest, halves away from zero. */
static float round_tf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* op(matrix) as dst[k][r], r fastest: rows of A, columns of B. transposed: element (r, k) of op lies at r * ld + k, else at k * ld + r. */
static std::vector<float> widen(const void *base, cudaDataType type, bool by_k, int64_t rows,
                                int64_t k, int64_t ld, bool tf32)
{
    std::vector<float> dst((size_t)(rows * k));
    for (int64_t i = 0; i < k; i++)
        for (int64_t r = 0; r < rows; r++) {
            float value = element(base, type, by_k ? r * ld + i : i * ld + r);
            dst[(size_t)(i * rows + r)] = tf32 ? round_tf32(value) : value;
        }
    return dst;
}

/* d/dx of 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
static float gelu_slope(float x)
{
    const double scale = 0.79788456080286535588, cubic = 0.044715;
    double t = tanh(scale * x * (1.0 + cubic * x * x));
    return (float)(0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * scale * (1.0 + 3.0 * cubic * x * x));
}

static void store(const sim_product *p, int64_t row, int64_t column, float sum)
{
    float value = p->alpha * sum;
    if (p->bias != NULL)
        value += element(p->bias, p->d_type, row);
    if (p->beta != 0.0f) /* else C may hold anything */
        value += p->beta * element(p->C, p->d_type, column * p->ldc + row);
    if (p->gelu_input != NULL)
        value *= gelu_slope(element(p->gelu_input, p->d_type, column * p->ld_gelu + row));
    int64_t at = column * p->ldd + row;
    if (p->d_type == CUDA_R_16BF)
        ((uint16_t *)p->D)[at] = tr_bf16_from_f32(value);
    else if (p->d_type == CUDA_R_16F)
        ((uint16_t *)p->D)[at] = tr_f16_from_f32(value);
    else
        ((float *)p->D)[at] = value;
}

/* sums[c][r] over k in [first, last). */
static void sum_block(const sim_product *p, const float *a, const float *b, int64_t first,
                      int64_t last, float sums[BLOCK_COLUMNS][BLOCK_ROWS])
{
    memset(sums, 0, sizeof(float) * BLOCK_COLUMNS * BLOCK_ROWS);
    for (int64_t i = first; i < last; i++)
        for (int c = 0; c < BLOCK_COLUMNS; c++) {
            float factor = b[i * p->n + c];
            for (int r = 0; r < BLOCK_ROWS; r++)
                sums[c][r] += a[i * p->m + r] * factor;
        }
}

/* The same where the block is cut by the matrix's edge. */
static void sum_edge(const sim_product *p, const float *a, const float *b, int64_t first,
                     int64_t last, int rows, int columns, float sums[BLOCK_COLUMNS][BLOCK_ROWS])
{
    memset(sums, 0, sizeof(float) * BLOCK_COLUMNS * BLOCK_ROWS);
    for (int64_t i = first; i < last; i++)
        for (int c = 0; c < columns; c++)
            for (int r = 0; r < rows; r++)
                sums[c][r] += a[i * p->m + r] * b[i * p->n + c];
}

static void run_block(const sim_product *p, const float *a, const float *b, int64_t row,
                      int64_t column)
{
    int rows = (int)std::min<int64_t>(BLOCK_ROWS, p->m - row);
    int columns = (int)std::min<int64_t>(BLOCK_COLUMNS, p->n - column);
    float total[BLOCK_COLUMNS][BLOCK_ROWS] = {}, part[BLOCK_COLUMNS][BLOCK_ROWS];
    for (int s = 0; s < p->splits; s++) {
        int64_t first = p->k * s / p->splits, last = p->k * (s + 1) / p->splits;
        if (rows == BLOCK_ROWS && columns == BLOCK_COLUMNS)
            sum_block(p, a + row, b + column, first, last, part);
        else
            sum_edge(p, a + row, b + column, first, last, rows, columns, part);
        for (int c = 0; c < columns; c++)
            for (int r = 0; r < rows; r++)
                total[c][r] = s == 0 ? part[c][r] : total[c][r] + part[c][r];
    }
    for (int c = 0; c < columns; c++)
        for (int r = 0; r < rows; r++)
            store(p, row + r, column + c, total[c][r]);
}

void sim_product_run(const sim_product *p)
{
    std::vector<float> a = widen(p->A, p->ab_type, p->transpose_a, p->m, p->k, p->lda, p->tf32);
    std::vector<float> b = widen(p->B, p->ab_type, !p->transpose_b, p->n, p->k, p->ldb, p->tf32);
    for (int64_t column = 0; column < p->n; column += BLOCK_COLUMNS)
        for (int64_t row = 0; row < p->m; row += BLOCK_ROWS)
            run_block(p, a.data(), b.data(), row, column);
}
