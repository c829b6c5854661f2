/* What this machine's processor can do at best: the denominator of model FLOP/s utilisation (mfu). */
#ifndef TR_ENGINE_PEAK_H
#define TR_ENGINE_PEAK_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

/* Cores that this process may run on. */
int tr_peak_num_cores(void);

/* Threads of a rank: `asked`, or (0) the cores divided by the ranks of the node, at least 1. */
int tr_peak_threads(int64_t asked, int local_ranks);

/* Best product rate in FLOP/s of all cores in a dtype, as `trine bench kernels` measured and cached it on this machine; 0 when it has not been measured. */
double tr_peak_flops(tr_dtype dtype);
/* Writes the cache entry (engine/cli/cmd_bench). False when the folder cannot be written. */
bool tr_peak_store(tr_dtype dtype, double flops);

#endif
