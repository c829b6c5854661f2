/* Time for deadlines, step times and waits. Thread-safe. */
#ifndef TR_BASE_CLOCK_H
#define TR_BASE_CLOCK_H

#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds since an arbitrary start, monotonic; comparable between processes of one machine, not across machines. */
double tr_clock_seconds(void);

/* Sleeps for at least `seconds`, also when signals arrive; returns at once when it is not positive. */
void tr_clock_sleep(double seconds);

/* The time of CLOCK_MONOTONIC in `seconds` from now (now when not positive), for waits of the system with a deadline. */
struct timespec tr_clock_deadline(double seconds);

#ifdef __cplusplus
}
#endif

#endif
