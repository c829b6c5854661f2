/* One piece of work on a thread of its own, beside the thread that started it.
 *
 * The thread that starts a work owns it: it looks whether the work has ended, or sleeps until it has, and finishes it, which takes status and message over. The
 * worker blocks all signals, and may be told to step back behind threads that compute (its nice value is its own). Nobody spins. */
#ifndef TR_BASE_BACKGROUND_H
#define TR_BASE_BACKGROUND_H

#include "base/status.h"

typedef struct tr_background tr_background;

/* Calls work(context) on a new thread whose nice value is higher by `nice` (0 to 19). What context points to belongs to the work
 * until it has ended. TR_ERR_MEMORY when the system has no more threads. */
tr_status tr_background_start(tr_background **background, tr_status (*work)(void *context),
                              void *context, int nice);
/* Waits for the end for at most `seconds` (0: only looks). True when the work has ended; what it wrote is visible then. */
bool tr_background_wait(tr_background *background, double seconds);
/* What the work returned; after its end. */
tr_status tr_background_get_status(const tr_background *background);
/* Waits for the end however long it takes, frees, and returns what the work returned; its message becomes this thread's. NULL: TR_OK. */
tr_status tr_background_finish(tr_background *background);

#endif
