/* What device_group_test.c does many times: groups on simulated GPUs, and operations on them whose sources and results every rank knows. */
#ifndef TESTS_CUDASIM_DEVICE_GROUP_TASK_H
#define TESTS_CUDASIM_DEVICE_GROUP_TASK_H

#include "parallel/world.h"
#include "tests/parallel/rank_check.h"

enum {
    RANKS = 4,
    OPS = 14,           /* at once */
    PLACE = 4096,       /* floats of an operation's source, and of its result */
    MOST = 700,         /* floats of a rank's part */
    NUM_GROUPS = 4,     /* that have collectives */
    POISON = 0x7f812345 /* a NaN */
};

extern int my_rank;

typedef struct member {
    tr_group *group; /* NULL: this rank is not in it */
    int ranks[RANKS], size, rank;
    tr_stream stream;
    uint64_t bytes, operations; /* that it should have counted */
} member;

typedef struct setting {
    tr_device *device;
    tr_world *world;
    member groups[NUM_GROUPS];
    tr_group *pipeline;
    uint64_t pipeline_bytes;
    float *comm;              /* [OPS][PLACE] of the device */
    float *results, *scratch; /* [OPS][PLACE]; [2][RANKS * PLACE] */
    float *filled, *fetched;  /* [OPS][PLACE] pinned */
    float *poison;            /* [PLACE] pinned */
    tr_device_event *end;
} setting;

/* Groups: all; the two halves; rank r with r + 2 on the stream of `all`; three of them in another order. Channels around and back. */
void setting_open(setting *s, double timeout_s);
void setting_close(setting *s);
void wait_for_compute(setting *s);

typedef enum task_kind {
    REDUCE_SCATTER,
    ALL_REDUCE,
    MAXIMUM,
    ALL_GATHER,
    TRANSFER,
    NUM_KINDS
} task_kind;

typedef struct task {
    task_kind kind;
    member *on; /* NULL where this rank has no part */
    int number; /* the place of its memory */
    int64_t n, counts[RANKS];
    bool in_place;
    int from, to;
    tr_event event;
    float *src, *dst; /* of the device */
    int64_t num_filled, num_fetched;
} task;

/* A number below `below`, the same for the same state. */
uint64_t draw(uint64_t *state, uint64_t below);
/* All ranks draw the same. */
void task_draw(setting *s, task *t, int number, uint64_t *state);
/* Fills the source and posts, where this rank has a part; `storm` is what values are drawn from. */
void task_post(setting *s, task *t, uint64_t storm);
/* Waits, fetches the result, and overwrites both at once. how: which of the waits. */
void task_wait(setting *s, task *t, uint64_t how);
/* When the compute stream is done: compares what was fetched. */
void task_check(const setting *s, const task *t, uint64_t storm);

#endif
