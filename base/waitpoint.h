/* Wait points: every wait has a name, so that a run that hangs says for what (DESIGN sections 8 and 10).
 *
 * Who waits fills a wait point before and clears it after; a watchdog thread, a signal handler, or the waiter itself reads it at
 * any time. One writer per wait point; any number of readers, which never block and allocate nothing. */
#ifndef TR_BASE_WAITPOINT_H
#define TR_BASE_WAITPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_waitpoint {
    _Atomic uint32_t version;        /* odd while the writer is at it */
    _Atomic(const char *) operation; /* "reduce_scatter"; NULL when nothing waits */
    _Atomic(const char *) group;     /* "data", or NULL */
    atomic_int peer;                 /* rank, or -1 */
    atomic_int microbatch;           /* or -1 */
    _Atomic double start;            /* tr_clock_seconds */
} tr_waitpoint;

/* What a reader takes out: all fields of one wait. */
typedef struct tr_wait {
    const char *operation, *group;
    int peer, microbatch;
    double seconds; /* so far */
} tr_wait;

enum { TR_WAIT_TEXT = 256 }; /* bytes that hold any line below */

/* A zeroed wait point is initialised; this clears one that is not. */
void tr_waitpoint_init(tr_waitpoint *waitpoint);

/* `operation` and `group` (NULL: none) must live as long as the wait point is read; peer and microbatch -1: none. Begin while
 * another wait is on replaces it. */
void tr_waitpoint_begin(tr_waitpoint *waitpoint, const char *operation, const char *group, int peer,
                        int microbatch);
void tr_waitpoint_end(tr_waitpoint *waitpoint);

/* False when nothing waits. Safe in a signal handler, also in one that interrupted the writer (then false as well). */
bool tr_waitpoint_get(const tr_waitpoint *waitpoint, tr_wait *wait);

/* "waiting 12.3 s in reduce_scatter, group data, for rank 3, microbatch 2"; what is NULL or -1 is left out. Returns the length
 * (cut to fit). Safe in a signal handler. */
size_t tr_wait_format(const tr_wait *wait, char *text, size_t bytes);

/* Writes `prefix`, the line and a newline to `fd` in one write(2); nothing when nothing waits. Safe in a signal handler. */
void tr_waitpoint_print(const tr_waitpoint *waitpoint, int fd, const char *prefix);

#endif
