/* Normals from Philox blocks (philox.h). Compiled without contraction of a * b + c, like the whole tree: that, and no call of
 * libm but sqrt (correctly rounded by IEEE 754), is what makes the bits portable. */
#include "base/philox.h"

#include <math.h>
#include <string.h>

/* ln u for u > 0 normal: u = 2^k m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172. */
static inline double natural_log(double u)
{
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcdu;
    uint64_t bits;
    memcpy(&bits, &u, sizeof bits);
    int64_t k = (int64_t)(bits - sqrt_half) >> 52;
    bits -= (uint64_t)k << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double series = 1.0 / 23;
    series = series * z + 1.0 / 21;
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
    return (double)k * 0x1.62e42fefa39efp-1 + log_m; /* ln 2 */
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
static inline void box_muller(uint32_t x, uint32_t y, double normals[2])
{
    double r = sqrt(-2.0 * natural_log(((double)x + 0.5) * 0x1p-32));
    uint32_t turned = y + 0x20000000u;
    uint32_t quarter = turned >> 30;
    double f = ((double)(turned & 0x3fffffffu) + 0.5) * 0x1p-30 - 0.5;
    double angle = f * 0x1.921fb54442d18p+0; /* pi/2 */
    double s = sine(angle), c = cosine(angle);
    double along = quarter & 1u ? -s : c;
    double across = quarter & 1u ? c : s;
    double sign = quarter & 2u ? -1.0 : 1.0;
    normals[0] = r * (sign * along);
    normals[1] = r * (sign * across);
}

static inline void block_normals(uint64_t key, uint64_t block, double normals[4])
{
    uint32_t lanes[4];
    tr_philox_block(key, (uint32_t)block, (uint32_t)(block >> 32), 0, 0, lanes);
    box_muller(lanes[0], lanes[1], normals);
    box_muller(lanes[2], lanes[3], normals + 2);
}

double tr_philox_normal(uint64_t key, uint64_t index)
{
    double normals[4];
    block_normals(key, index / 4, normals);
    return normals[index % 4];
}

void tr_philox_normal_fill(uint64_t key, uint64_t begin, uint64_t end, double std, float *dst)
{
    double normals[4];
    uint64_t index = begin;
    while (index < end) {
        block_normals(key, index / 4, normals);
        for (uint64_t lane = index % 4; lane < 4 && index < end; lane++, index++)
            *dst++ = (float)(std * normals[lane]);
    }
}
