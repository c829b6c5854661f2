/* A machine that runs training schedules action by action on named values, with slots, buffers and
 * channels that hold them: what the checker should say, found by doing it. Slow and small. Written
 * without the checker's ideas: it knows no intervals and no
 * orders, only what is in each place at each moment. */
#ifndef SCHEDULE_MACHINE_H
#define SCHEDULE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/schedule.h"

enum { SCHEDULE_MACHINE_MAX = 64 }; /* buffers of one sort on a rank */

/* When transfers complete: as soon as they can, only when no rank can go on without, or by
 * chance. */
typedef enum schedule_machine_order {
    SCHEDULE_MACHINE_EAGER,
    SCHEDULE_MACHINE_LAZY,
    SCHEDULE_MACHINE_RANDOM
} schedule_machine_order;

/* True when every use finds the right value, every transfer meets its other end, all work is done
 * once, and no rank ever holds more activations than the kind's limit. */
bool schedule_machine_accepts(const tr_schedule *schedule, schedule_machine_order order,
                              uint64_t seed);

#endif
