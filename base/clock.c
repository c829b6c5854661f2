#include "base/clock.h"

#include <errno.h>
#include <time.h>

double tr_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tr_clock_sleep(double seconds)
{
    if (!(seconds > 0))
        return;
    struct timespec left;
    left.tv_sec = (time_t)seconds;
    left.tv_nsec = (long)(1e9 * (seconds - (double)left.tv_sec));
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}
