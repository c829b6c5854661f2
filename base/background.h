/* Work on a thread of its own, beside the thread that started it.
 *
 * Whoever makes a background owns it, and has one work after the other done there: starts it, looks whether it has ended or sleeps until it has, and finishes it, which
 * takes status and message over. The worker blocks all signals, and may be told to step back behind threads that compute (its nice value is its own). Nobody spins; after the making
 * only a work that fails allocates. */
#ifndef TR_BASE_BACKGROUND_H
#define TR_BASE_BACKGROUND_H

#include "base/status.h"

typedef struct tr_background tr_background;

tr_background *tr_background_create(void);
/* Waits for a work that is under way. NULL is fine. */
void tr_background_destroy(tr_background *background);

/* Calls work(context) on a new thread whose nice value is higher by `nice` (0 to 19). What context points to belongs to the work until it has ended. The
 * work before, if any, was finished. TR_ERR_MEMORY when the system has no more threads. */
tr_status tr_background_start(tr_background *background, tr_status (*work)(void *context),
                              void *context, int nice);
/* Waits for the end for at most `seconds` (0: only looks). True when no work is under way; what it wrote is visible then. */
bool tr_background_wait(tr_background *background, double seconds);
/* What the last work returned; after its end. TR_OK before the first. */
tr_status tr_background_get_status(const tr_background *background);
/* Waits for the end however long it takes, and returns what the work returned; its message becomes this thread's. TR_OK where none was started since the last one was finished. */
tr_status tr_background_finish(tr_background *background);

#endif
