/* What a training run says: the banner, a line per step on the console, metrics.jsonl, status.json, config.yaml and log.txt in the run's folder. Rank 0 only. */
#ifndef TR_ENGINE_CLI_TRAIN_REPORT_H
#define TR_ENGINE_CLI_TRAIN_REPORT_H

#include "engine/cli/job.h"
#include "io/metrics_jsonl.h"

typedef struct tr_train_report {
    const tr_config *cfg;
    tr_run *run;
    tr_metrics_file *metrics;
    char *status_path;
    int64_t first_step;  /* done when it was opened */
    double last_status;  /* clock of the last status.json */
    double mean_seconds; /* of recent steps, for the time left */
    uint64_t epoch;
    bool incomplete; /* something could not be written, which was told */
} tr_train_report;

/* Makes run.dir and checkpoint.dir, takes both for this job alone, and starts log.txt. TR_ERR_IO when one cannot be written, TR_ERR_SETTINGS when another job has it. */
tr_status tr_train_folder_create(const tr_config *cfg);
/* Prints the banner, writes config.yaml, opens metrics.jsonl behind the steps done. */
tr_status tr_train_report_open(tr_train_report *report, tr_run *run, const char *status_path);
void tr_train_report_close(tr_train_report *report);
/* valid_loss NULL on steps without evaluation. What cannot be written (a full disk) is missing there and told once: training goes on. */
void tr_train_report_step(tr_train_report *report, const tr_metrics *metrics,
                          const double *valid_loss);
tr_status tr_train_report_end(tr_train_report *report, bool stopped);

#endif
