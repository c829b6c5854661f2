#include "base/clock.h"

#include <errno.h>
#include <time.h>

double tr_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct timespec timespec_of(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
    return time;
}

void tr_clock_sleep(double seconds)
{
    if (!(seconds > 0))
        return;
    struct timespec left = timespec_of(seconds);
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}

struct timespec tr_clock_deadline(double seconds)
{
    struct timespec now, more = timespec_of(seconds > 0 ? seconds : 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    now.tv_sec += more.tv_sec;
    now.tv_nsec += more.tv_nsec;
    if (now.tv_nsec >= 1000000000) {
        now.tv_sec++;
        now.tv_nsec -= 1000000000;
    }
    return now;
}
