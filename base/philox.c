/* Normals from Philox blocks (philox.h). Compiled without contraction of a * b + c, like the whole tree: that, and no call of
 * libm but sqrt (correctly rounded by IEEE 754), is what makes the bits portable. */
#include "base/philox.h"

#include <math.h>
#include <string.h>

/* Vector width is the only difference: without contraction every version computes the same bits. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

enum {
    BATCH = 64
}; /* blocks at a time; loops over them become vector code, with the same bits as one by one */

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ln u for u in (0, 1]: u = 2^k m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172. */
static inline double natural_log(double u)
{
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcdu, two_to_52 = 0x4330000000000000u, shift = 1024;
    uint64_t k_shifted = (bits_of(u) - sqrt_half + (shift << 52)) >> 52;
    double k = double_of(two_to_52 | k_shifted) - (0x1p52 + (double)shift);
    double m = double_of(bits_of(u) - ((k_shifted - shift) << 52));
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double series = 1.0 / 21;
    series = series * z + 1.0 / 19;
    series = series * z + 1.0 / 17;
    series = series * z + 1.0 / 15;
    series = series * z + 1.0 / 13;
    series = series * z + 1.0 / 11;
    series = series * z + 1.0 / 9;
    series = series * z + 1.0 / 7;
    series = series * z + 1.0 / 5;
    series = series * z + 1.0 / 3;
    double log_m = 2.0 * s + 2.0 * s * (z * series);
    return k * 0x1.62e42fefa39efp-1 + log_m; /* ln 2 */
}

/* Taylor series for |x| <= pi/4; the first term left out is below 5e-17 of the value. */
static inline double sine(double x)
{
    double z = x * x;
    double series = -1.0 / 1307674368000.0;
    series = series * z + 1.0 / 6227020800.0;
    series = series * z - 1.0 / 39916800.0;
    series = series * z + 1.0 / 362880.0;
    series = series * z - 1.0 / 5040.0;
    series = series * z + 1.0 / 120.0;
    series = series * z - 1.0 / 6.0;
    return x + x * (z * series);
}

static inline double cosine(double x)
{
    double z = x * x;
    double series = 1.0 / 20922789888000.0;
    series = series * z - 1.0 / 87178291200.0;
    series = series * z + 1.0 / 479001600.0;
    series = series * z - 1.0 / 3628800.0;
    series = series * z + 1.0 / 40320.0;
    series = series * z - 1.0 / 720.0;
    series = series * z + 1.0 / 24.0;
    return (1.0 - 0.5 * z) + z * z * series;
}

/* The two normals of two lanes. The angle is cut into quarter turns centred on the axes: 2 pi (y + 1/2) / 2^32 =
 * pi/2 (quarter + f) with |f| < 1/2, exact in integers. */
static inline void box_muller(uint32_t x, uint32_t y, double *even, double *odd)
{
    /* x + 1/2 through int32: exact, and one vector instruction where uint32 needs several. */
    double u = ((double)(int32_t)(x ^ 0x80000000u) + (0x1p31 + 0.5)) * 0x1p-32;
    double r = sqrt(-2.0 * natural_log(u));
    uint32_t turned = y + 0x20000000u;
    double f = ((double)(int32_t)(turned & 0x3fffffffu) + 0.5) * 0x1p-30 - 0.5;
    double angle = f * 0x1.921fb54442d18p+0; /* pi/2 */
    double s = sine(angle), c = cosine(angle);
    /* After q quarter turns (cos, sin) is (c, s), (-s, c), (-c, -s), (s, -c): swap and flip by masks. */
    uint64_t swap = 0 - (uint64_t)(turned >> 30 & 1u);
    uint64_t half_turn = (uint64_t)(turned >> 31) << 63;
    uint64_t c_bits = bits_of(c), s_bits = bits_of(s);
    uint64_t differing = (c_bits ^ s_bits) & swap;
    *even = r * double_of(c_bits ^ differing ^ half_turn ^ (swap & (uint64_t)1 << 63));
    *odd = r * double_of(s_bits ^ differing ^ half_turn);
}

/* Normals of `count` blocks from `block` on, 4 each. */
static inline void blocks_normals(uint64_t key, uint64_t block, int count, double *normals)
{
    uint32_t lanes[4][BATCH];
    for (int i = 0; i < count; i++) {
        uint32_t out[4];
        tr_philox_block(key, (uint32_t)(block + (uint64_t)i),
                        (uint32_t)((block + (uint64_t)i) >> 32), 0, 0, out);
        for (int lane = 0; lane < 4; lane++)
            lanes[lane][i] = out[lane];
    }
    for (int i = 0; i < count; i++) {
        box_muller(lanes[0][i], lanes[1][i], &normals[4 * i], &normals[4 * i + 1]);
        box_muller(lanes[2][i], lanes[3][i], &normals[4 * i + 2], &normals[4 * i + 3]);
    }
}

double tr_philox_normal(uint64_t key, uint64_t index)
{
    double normals[4];
    blocks_normals(key, index / 4, 1, normals);
    return normals[index % 4];
}

CLONES void tr_philox_normal_fill(uint64_t key, uint64_t begin, uint64_t end, double std,
                                  float *dst)
{
    double normals[4 * BATCH];
    uint64_t index = begin;
    while (index < end) {
        uint64_t block = index / 4, skip = index % 4;
        uint64_t blocks_left = (end - 1) / 4 - block + 1;
        int count = blocks_left < BATCH ? (int)blocks_left : BATCH;
        blocks_normals(key, block, count, normals);
        uint64_t fill = 4 * (uint64_t)count - skip;
        if (fill > end - index)
            fill = end - index;
        for (uint64_t i = 0; i < fill; i++)
            dst[i] = (float)(std * normals[skip + i]);
        dst += fill;
        index += fill;
    }
}
