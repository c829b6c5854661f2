/* What this processor's matrix products reach at the moment: the denominator of a speed share.
 *
 * Products of the measured model's sizes, by oneDNN alone and by the device's own product, on threads and memory of their own. Measured between steps, so
 * that both meet the same neighbours and the same clock rate. One thread. */
#ifndef TR_TESTS_BENCH_YARDSTICK_H
#define TR_TESTS_BENCH_YARDSTICK_H

#include "kernels/device.h"

typedef struct yardstick yardstick;

/* rows: of a microbatch; hidden, ffn, vocab: of the model. */
tr_status yardstick_create(yardstick **out, tr_dtype dtype, int num_threads, int64_t rows,
                           int64_t hidden, int64_t ffn, int64_t vocab);
void yardstick_destroy(yardstick *y);
/* Every product once. */
tr_status yardstick_run(yardstick *y);
/* Rate of the fastest product seen so far in FLOP/s: of oneDNN in the dtype (0 where it has none on this processor), of oneDNN in fp32, of ours in the dtype. */
typedef struct yardstick_rates {
    double onednn, onednn_f32, ours;
} yardstick_rates;
yardstick_rates yardstick_best(const yardstick *y);

#endif
