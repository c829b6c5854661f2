/* The collectives of tensor parallelism, with their buffers: partial sums reduced over the tensor group, and rows gathered under sequence parallel.
 *
 * Rows are those of a microbatch, R = B*T; under sequence parallel rank i of t holds rows [i R/t, (i+1) R/t). Partial sums are fp32 and are added in the fixed tree
 * order (parallel/group.h). Buffers come in pairs that are used in turn, so that peers may still read the one while the next is filled. With
 * one tensor rank nothing is sent and results are the inputs. One thread. */
#ifndef TR_PARALLEL_TENSOR_COMM_H
#define TR_PARALLEL_TENSOR_COMM_H

#include "memory/arena.h"
#include "memory/dtype.h"
#include "parallel/group.h"

enum { TR_TENSOR_COMM_BUFFERS = 2 };

typedef struct tr_tensor_comm {
    tr_group *group; /* NULL with one tensor rank, and in the counting pass */
    int size, rank;
    bool sequence;      /* sequence parallel, never with one rank */
    int64_t rows;       /* R */
    int64_t local_rows; /* R/t under sequence parallel, else R */
    int64_t row_begin;  /* first of this rank's rows */
    int64_t width;      /* H */
    tr_dtype dtype;
    int64_t *counts; /* [size] elements of a rank's rows */
    float *partial[TR_TENSOR_COMM_BUFFERS];
    tr_event partial_event[TR_TENSOR_COMM_BUFFERS];
    void *rows_source[TR_TENSOR_COMM_BUFFERS];
    tr_event rows_event[TR_TENSOR_COMM_BUFFERS];
    float *statistics[TR_TENSOR_COMM_BUFFERS]; /* [2 R] */
    tr_event statistics_event[TR_TENSOR_COMM_BUFFERS];
    float *reduced; /* [local_rows, H] */
    int next_partial, next_rows, next_statistics;
} tr_tensor_comm;

/* Lays the buffers out: sources in `comm`, results in `workspace`. */
void tr_tensor_comm_init(tr_tensor_comm *tensor, int size, int rank, bool sequence, int64_t rows,
                         int64_t width, tr_dtype dtype, tr_arena *comm, tr_arena *workspace);
void tr_tensor_comm_clear(tr_tensor_comm *tensor);

/* The buffer for the next partial sum, fp32 [R, H]; free to write. */
tr_status tr_tensor_comm_partial(tr_tensor_comm *tensor, float **partial);
/* Adds the ranks' partials (the buffer of the last tr_tensor_comm_partial). *result: fp32 [local_rows, H], valid until the next reduce. All ranks of the group call it. */
tr_status tr_tensor_comm_reduce(tr_tensor_comm *tensor, float *partial, float **result);

/* Under sequence parallel: the buffer for the rows that the next gather sends, [local_rows, H]; free to write. */
tr_status tr_tensor_comm_rows(tr_tensor_comm *tensor, void **rows);
/* Gathers all ranks' rows (the buffer of the last tr_tensor_comm_rows) into full [R, H]. */
tr_status tr_tensor_comm_gather(tr_tensor_comm *tensor, const void *rows, void *full);

/* Per-row statistics of the vocabulary-parallel loss: a buffer of up to 2 R floats to fill (free to write), then its maximum or tree sum over the
 * tensor group in dst [n]. Only with more than one tensor rank. */
tr_status tr_tensor_comm_statistics(tr_tensor_comm *tensor, float **buffer);
tr_status tr_tensor_comm_max(tr_tensor_comm *tensor, const float *buffer, float *dst, int64_t n);
tr_status tr_tensor_comm_sum(tr_tensor_comm *tensor, const float *buffer, float *dst, int64_t n);

#endif
