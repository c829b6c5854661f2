/* The trace of chosen steps (log.trace): what every rank computes, sends and waits for, on one clock, in run.dir/trace.json.
 *
 * Each rank records into a ring that was laid out with the rest of its memory; after a traced step, and outside its time, the events of
 * all ranks go to rank 0, which writes them. The clocks are compared just before a traced step. A trace that cannot be written is
 * given up with a warning; training goes on. Tracks of a rank: the parts of the step; what is computed, actions of the schedule with what they
 * are made of inside; what writes checkpoints; and of each group its waits, and its operations from post to completion. */
#ifndef TR_ENGINE_TRACE_H
#define TR_ENGINE_TRACE_H

#include "base/trace_ring.h"
#include "engine/config/config.h"
#include "memory/arena.h"
#include "parallel/mesh.h"

struct tr_run;
struct tr_trace_file;

/* The writing side, in the run. */
typedef struct tr_tracer {
    bool is_traced;                   /* the step that is being made */
    double clock_offset, clock_error; /* of this rank's clock, against rank 0's */
    /* rank 0: */
    struct tr_trace_file *file; /* NULL until the first traced step ends */
    double origin;              /* when the first traced step began */
    bool failed;
} tr_tracer;

/* Whether any step is to be traced. */
bool tr_trace_any(const tr_config *cfg);
/* Lays the ring out, if any step is to be traced; else *ring records nothing. Counting arenas too. */
void tr_trace_layout(tr_trace_ring *ring, const tr_config *cfg, const tr_mesh *mesh,
                     tr_arena *arena);

/* Around each step; nothing happens where the step is not traced. *written (rank 0): the file has the step. Collective. */
tr_status tr_trace_step_begin(struct tr_run *run);
tr_status tr_trace_step_end(struct tr_run *run, bool *written);
void tr_trace_close(tr_tracer *tracer);

#endif
