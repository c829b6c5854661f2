/* The collectives of tensor parallelism, with their buffers: partial sums reduced over the tensor group, and rows gathered under sequence parallel.
 *
 * Rows are those of a microbatch, R = B*T; under sequence parallel rank i of t holds rows [i R/t, (i+1) R/t). Partial sums are fp32 and are added in the fixed tree
 * order (parallel/group.h). Sums and gathers go by halves of the rows, so that the first half is on its way while the second is computed, and the first half of what is gathered is used
 * while the second is on its way; without `overlap` each half is waited for where it is posted. Buffers come in pairs that are used in turn, so that peers may still read the one while the next is filled. With
 * one tensor rank nothing is sent and results are the inputs. One thread. */
#ifndef TR_PARALLEL_TENSOR_COMM_H
#define TR_PARALLEL_TENSOR_COMM_H

#include "memory/arena.h"
#include "memory/dtype.h"
#include "parallel/group.h"

enum { TR_TENSOR_COMM_BUFFERS = 2, TR_TENSOR_COMM_HALVES = 2 };

typedef struct tr_tensor_comm {
    tr_group *group;   /* NULL with one tensor rank, and in the counting pass */
    tr_group *sharers; /* of a key/value head; NULL with one, and in the counting pass */
    int size, rank;
    bool sequence;      /* sequence parallel, never with one rank */
    bool overlap;       /* what is posted is waited for where it is used */
    int num_halves;     /* 2; 1 where the rows cannot be halved */
    int64_t rows;       /* R */
    int64_t local_rows; /* R/t under sequence parallel, else R */
    int64_t row_begin;  /* first of this rank's rows */
    int64_t width;      /* H */
    tr_dtype dtype;
    int64_t *counts[TR_TENSOR_COMM_HALVES]; /* [size] elements of a rank's rows in a half */
    float *partial[TR_TENSOR_COMM_BUFFERS];
    tr_event partial_event[TR_TENSOR_COMM_BUFFERS][TR_TENSOR_COMM_HALVES];
    void *rows_source[TR_TENSOR_COMM_BUFFERS];
    tr_event rows_event[TR_TENSOR_COMM_BUFFERS][TR_TENSOR_COMM_HALVES];
    const void *gathered; /* where the last gather goes */
    int64_t num_statistics;
    float *statistics[TR_TENSOR_COMM_BUFFERS]; /* [num_statistics] */
    tr_event statistics_event[TR_TENSOR_COMM_BUFFERS];
    float *reduced; /* [local_rows, H] */
    int64_t num_shared;
    float *shared_source, *shared_sum; /* [num_shared]; one buffer where nobody shares */
    tr_event shared_event;
    int next_partial, next_rows, next_statistics;
} tr_tensor_comm;

typedef struct tr_tensor_comm_sizes {
    int64_t rows, width; /* R, H */
    int64_t statistics;  /* floats of the largest sum or maximum of statistics, at least 2 R */
    int64_t shared; /* floats of a sum over the sharers of a key/value head, 0 when none is made */
    int sharers;    /* how many they are */
    bool halves;    /* with one tensor rank, too: rows go by halves where their number is even */
    tr_dtype dtype;
} tr_tensor_comm_sizes;

/* Lays the buffers out: sources in `comm`, results in `workspace`. */
void tr_tensor_comm_init(tr_tensor_comm *tensor, int size, int rank, bool sequence, bool overlap,
                         const tr_tensor_comm_sizes *sizes, tr_arena *comm, tr_arena *workspace);
void tr_tensor_comm_clear(tr_tensor_comm *tensor);

/* The buffer for the next partial sum, fp32 [R, H]; free to write. */
tr_status tr_tensor_comm_partial(tr_tensor_comm *tensor, float **partial);
/* Rows of a half. */
int64_t tr_tensor_comm_half_rows(const tr_tensor_comm *tensor);
/* A half (0, then 1) of the buffer of the last tr_tensor_comm_partial is written: posts the sum of the ranks' partials. All ranks of the group call it. */
tr_status tr_tensor_comm_reduce_post(tr_tensor_comm *tensor, float *partial, int half);
/* After the last half's post. *result: fp32 [local_rows, H], valid until the next post. */
tr_status tr_tensor_comm_reduce_finish(tr_tensor_comm *tensor, float *partial, float **result);

/* Under sequence parallel: the buffer for the rows that the next gather sends, [local_rows, H]; free to write. */
tr_status tr_tensor_comm_rows(tr_tensor_comm *tensor, void **rows);
/* Posts the gather of all ranks' rows (the buffer of the last tr_tensor_comm_rows) into full [R, H]. */
tr_status tr_tensor_comm_gather_post(tr_tensor_comm *tensor, const void *rows, void *full);
/* Waits until rows of a half (-1: all) may be read from `full`; nothing where it is not what the last gather goes to. Each gather is waited for whole before the next. */
tr_status tr_tensor_comm_gather_wait(tr_tensor_comm *tensor, const void *full, int half);

/* Small things, as the per-row statistics of the vocabulary-parallel loss: a buffer to fill (free to write), then its maximum or tree sum over the
 * tensor group in dst [n]. Only with more than one tensor rank. */
tr_status tr_tensor_comm_statistics(tr_tensor_comm *tensor, float **buffer);
tr_status tr_tensor_comm_max(tr_tensor_comm *tensor, const float *buffer, float *dst, int64_t n);
tr_status tr_tensor_comm_sum(tr_tensor_comm *tensor, const float *buffer, float *dst, int64_t n);

/* The buffer for a sum over the sharers of a key/value head (free to write), then that sum, valid until the next one. */
tr_status tr_tensor_comm_shared(tr_tensor_comm *tensor, float **buffer);
tr_status tr_tensor_comm_shared_sum(tr_tensor_comm *tensor, float *buffer, float **sum);

#endif
