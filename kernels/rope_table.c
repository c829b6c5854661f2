#include "kernels/rope_table.h"

#include <math.h>
#include <stddef.h>

void tr_rope_table_fill(double theta, int64_t D, int64_t T, const int64_t *positions,
                        float *cos_sin)
{
    const int64_t half = D / 2;
    for (int64_t j = 0; j < half; j++) {
        double frequency = pow(theta, -2.0 * (double)j / (double)D);
        for (int64_t t = 0; t < T; t++) {
            double angle = (double)(positions != NULL ? positions[t] : t) * frequency;
            cos_sin[(t * half + j) * 2] = (float)cos(angle);
            cos_sin[(t * half + j) * 2 + 1] = (float)sin(angle);
        }
    }
}
