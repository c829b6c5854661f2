/* metrics.jsonl: one JSON object per completed step, written by rank 0.
 *
 * Numbers have 17 significant digits, so that a double read back is the same double; a value
 * that is not finite is written as a string ("nan", "inf", "-inf") and never left out. Each step
 * stands once: opening for a resumed run removes the lines past its checkpoint. Each line
 * reaches the system in one write. Appending allocates no heap memory. One thread per file. */
#ifndef TR_IO_METRICS_JSONL_H
#define TR_IO_METRICS_JSONL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tr_metrics_file tr_metrics_file;

typedef struct tr_metrics_record {
    uint64_t step;    /* completed steps, from 1 */
    uint64_t samples; /* consumed by the run so far */
    uint64_t tokens;  /* consumed by the run so far */
    double loss;      /* mean over the valid tokens of the global batch */
    double grad_norm; /* before clipping */
    double lr;
    double loss_scale;
    bool skipped; /* this step's update was left out; written as 1 or 0 */
    double step_ms;
    double tokens_per_s;
    double mfu; /* fraction, 1 = the peak */
    uint64_t memory_peak_bytes;
    /* milliseconds of the slowest rank */
    struct {
        double compute, tensor, data, pipeline, idle, feed, checkpoint;
    } time;
    bool has_valid_loss; /* an evaluation step */
    double valid_loss;
} tr_metrics_record;

/* Opens `path` for appending, creating it. Lines with a step above `keep_steps` (0 for a fresh
 * run: all), and a last line that a crash cut, are removed first; a reader sees the old file or
 * the cut one. A line that is no metrics line is TR_ERR_DATA. */
tr_status tr_metrics_file_open(tr_metrics_file **out, const char *path, uint64_t keep_steps);
/* TR_ERR_IO when the line cannot be written (a full disk): then none of it is there, and a later call may succeed. */
tr_status tr_metrics_file_append(tr_metrics_file *file, const tr_metrics_record *record);
void tr_metrics_file_close(tr_metrics_file *file);

#endif
