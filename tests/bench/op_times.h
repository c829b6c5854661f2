/* Where a rank's time goes, operation by operation: wraps a device's operation table with timers.
 *
 * One table per process (the entries of an operation table have no context), filled by the thread that owns the wrapped device. Matrix products are
 * kept apart by form and sizes, everything else by name. Times are wall seconds from call to return (on the CPU device an operation has
 * finished then) and, beside them, processor seconds of all threads of the process, which neighbours on the machine disturb less. */
#ifndef TR_TESTS_BENCH_OP_TIMES_H
#define TR_TESTS_BENCH_OP_TIMES_H

#include <stdio.h>

#include "kernels/device.h"

/* Replaces the device's operations by timed ones; for the `device` callback of tr_run_callbacks. One device per process. */
void op_times_wrap(void *context, tr_device *device);
/* Forgets what was measured so far. */
void op_times_reset(void);
/* Seconds in all operations since the last reset. */
double op_times_total(void);
/* The table, most expensive first; milliseconds and calls divided by `steps`, shares of `step_seconds`. */
void op_times_print(FILE *file, int steps, double step_seconds);

#endif
