/* The saving of a run's state beside its steps (engine/checkpoint.h says what users see).
 *
 * State is immutable between updates. A save collects this rank's parts, and a thread of its own writes them while the run goes on. In front of the first update the
 * step thread has everything that was not read yet copied into the pool; what the pool has no room for is waited for. No rank waits in silence for another's writer: how far the writers
 * are goes with the one reduction at each step's end, and where a rank has to wait for its own, all ranks wait together, turn by turn, so that a slow disk is never taken for a hung
 * rank; whom they wait for is told again and again. When every file is written, rank 0 commits the folder, on a thread again.
 *
 * At most one save is under way. One thread makes all calls, on all ranks alike; the threads behind them make no MPI call. */
#ifndef TR_ENGINE_SAVER_H
#define TR_ENGINE_SAVER_H

#include "base/trace_lanes.h"
#include "engine/model/local_params.h"
#include "engine/state_fetch.h"
#include "memory/arena.h"

struct tr_run;

typedef struct tr_save tr_save; /* one that is under way */

enum { TR_SAVER_STEPS = 8 }; /* whose mean a save's steps are compared with */

typedef struct tr_saver {
    void *pool; /* snapshot memory: copies of chunks that an update came before */
    size_t pool_bytes;
    tr_state_fetch fetch; /* used where the host cannot read the device's memory */
    tr_save *save;        /* NULL: none is under way */
    bool failed;          /* the last one that ended saved nothing */
    char *failure;        /* why, on rank 0; else NULL */
    double blocked; /* seconds since the last step's end that the step thread gave to saving */
    double group_seconds; /* of all steps so far, spent in the group of all ranks while saving */
    bool warm;            /* the first step is over, which is like no other */
    double steps[TR_SAVER_STEPS]; /* seconds of the latest steps beside no save */
    int64_t num_steps;            /* of them so far */
    tr_trace_lanes trace; /* what writers do, in traced steps; of zeros: no step is traced */
} tr_saver;

/* Lays the pool out: checkpoint.snapshot_mb, but no more than this rank's share of the state, where saves come by themselves and in the background. Also room for what
 * writers do in traced steps, as workspace. arenas: [TR_MEM_NUM]; counting ones too. */
void tr_saver_layout(tr_saver *saver, const tr_config *cfg, const tr_local_params *local,
                     tr_device *device, tr_arena *arenas);
/* Of writers, or NULL where no step is traced. */
tr_trace_lanes *tr_saver_get_trace(tr_saver *saver);
/* Ends what is under way, whatever becomes of it. Not collective. */
void tr_saver_clear(tr_saver *saver);

/* ---- in a step; nothing happens where no save is under way ---- */

/* Collective, before an update: until masters and moments may change on all ranks. */
tr_status tr_save_preserve_all(struct tr_run *run);
/* The same for this rank alone, however long it takes. */
void tr_save_preserve_here(struct tr_run *run);

/* What ranks tell one another at a step's end; reduced by the maximum over all ranks. RUNNING: 0, or the number of a rank whose work goes on and 1. */
enum {
    TR_SAVE_RUNNING,
    TR_SAVE_FAILED,
    TR_SAVE_BLOCKED,
    TR_SAVE_WRITING,
    TR_SAVE_DISK,
    TR_SAVE_NOTES
};
/* Fills the notes. */
void tr_save_note(struct tr_run *run, int64_t notes[TR_SAVE_NOTES]);
/* A step of so many seconds, without those of saving, has ended; before its notes are acted upon. */
void tr_save_note_step(struct tr_run *run, double seconds);
/* Collective: goes on as the reduced notes say. Waits for no disk. */
tr_status tr_save_advance(struct tr_run *run, const int64_t notes[TR_SAVE_NOTES]);

#endif
