/* status.json of a run: what state it is in, for people, schedulers and supervisors. A
 * launcher's exit code is not proof; this file is.
 *
 * `{"state": running|done|stopped|failed, "code": exit code, "rank": n, "reason": text, "step":
 * n}`; rank and reason are null when there are none. Replaced atomically: a reader sees the old
 * object or the new one. No heap allocation. */
#ifndef TR_IO_STATUS_FILE_H
#define TR_IO_STATUS_FILE_H

#include <stdint.h>

#include "base/status.h"

typedef enum tr_run_state {
    TR_RUN_RUNNING,
    TR_RUN_DONE,
    TR_RUN_STOPPED,
    TR_RUN_FAILED
} tr_run_state;

typedef struct tr_status_record {
    tr_run_state state;
    int code;           /* exit code, 0 while running */
    int rank;           /* the rank at fault, -1: none */
    const char *reason; /* NULL: none; any text, cut at 2000 bytes of JSON */
    uint64_t step;      /* completed steps */
} tr_status_record;

/* Replaces `path`. Final states are flushed to the disk; `running` is only renamed into place,
 * so that it can be written every step. Safe from several threads and processes at once: the
 * last rename wins. */
tr_status tr_status_file_write(const char *path, const tr_status_record *record);

#endif
