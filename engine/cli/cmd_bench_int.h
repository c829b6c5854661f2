/* Inside of `trine bench`: its verbs, and what the two tables of `bench kernels` share. */
#ifndef TR_ENGINE_CMD_BENCH_INT_H
#define TR_ENGINE_CMD_BENCH_INT_H

#include "kernels/device.h"

/* A Llama-like model of 134 million parameters: 4 sequences of 512 positions. */
enum {
    BENCH_B = 4,
    BENCH_T = 512,
    BENCH_ROWS = BENCH_B * BENCH_T,
    BENCH_H = 768,
    BENCH_HEADS = 12,
    BENCH_D = 64,
    BENCH_F = 2048,
    BENCH_V = 32000,
    BENCH_RUNS_MAX = 15
};

typedef struct bench {
    tr_device *device;
    int num_threads;
    int runs; /* of each measurement; odd */
} bench;

/* trine bench checkpoint; argv[1] is "checkpoint". */
tr_status bench_checkpoint(int argc, char **argv);

/* Median seconds of several measurements. Sorts them. */
double bench_median(double *seconds, int count);

/* Attention, norms, element-wise operations, loss and optimizer in `dtype`, one line each. */
tr_status bench_operations(const bench *b, tr_dtype dtype);

#endif
