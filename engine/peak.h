/* What this machine's processor can do at best: the denominator of model FLOP/s utilisation (SETTINGS.md, mfu). */
#ifndef TR_ENGINE_PEAK_H
#define TR_ENGINE_PEAK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "memory/dtype.h"

/* Cores that this process may run on. */
int tr_peak_num_cores(void);

/* Threads of a rank: `asked`, or (0) the cores divided by the ranks of the node, at least 1. */
int tr_peak_threads(int64_t asked, int local_ranks);

/* Best product rate in FLOP/s of all cores in a dtype, as `trine bench kernels` measured and cached it on this machine; 0 when it has not been measured. */
double tr_peak_flops(tr_dtype dtype);
/* The best rate of a product of 2048 x 2048 x 768 on `num_threads` threads, measured now in about a third of a second, not kept:
 * for where `trine bench kernels` has not run. Makes a device of its own; not while another operation runs. */
tr_status tr_peak_measure(tr_dtype dtype, int num_threads, double *flops);
/* Writes the cache entry (engine/cli/cmd_bench). False when the folder cannot be written. */
bool tr_peak_store(tr_dtype dtype, double flops);

#endif
