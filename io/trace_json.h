/* trace.json: what ranks did and when, for Perfetto (ui.perfetto.dev) and chrome://tracing.
 *
 * The format is Chrome's "Trace Event Format", a JSON object with the array traceEvents. A process stands for a rank, a thread for a track of
 * it; slices of one thread lie apart or inside one another. Times are microseconds from a start that the writer chooses. After each flush the file is
 * whole JSON, and more may follow. Only creation allocates. One thread per file. */
#ifndef TR_IO_TRACE_JSON_H
#define TR_IO_TRACE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { TR_TRACE_FILE_ARGS = 8 };

typedef struct tr_trace_file tr_trace_file;

typedef struct tr_trace_arg {
    const char *name;
    int64_t value;
} tr_trace_arg;

typedef struct tr_trace_slice {
    int process, thread;
    const char *name;
    double begin, end; /* microseconds */
    int num_args;
    tr_trace_arg args[TR_TRACE_FILE_ARGS]; /* shown when the slice is selected */
} tr_trace_slice;

/* Replaces `path`. */
tr_status tr_trace_file_create(tr_trace_file **out, const char *path);
/* After a flush that failed the file is again what the last flush that succeeded made it; without one it is removed. */
void tr_trace_file_close(tr_trace_file *file);

/* Names; a process or thread named again keeps the last one. Threads stand in the order of their numbers. */
void tr_trace_file_process(tr_trace_file *file, int process, const char *name);
void tr_trace_file_thread(tr_trace_file *file, int process, int thread, const char *name);
void tr_trace_file_slice(tr_trace_file *file, const tr_trace_slice *slice);
/* One end of an arrow between the slices that lie there; both ends have the same id, unique in the file. */
void tr_trace_file_arrow(tr_trace_file *file, bool is_start, int process, int thread, double time,
                         uint64_t id);
/* TR_ERR_IO when something since the last flush could not be written (a full disk). */
tr_status tr_trace_file_flush(tr_trace_file *file);

#endif
