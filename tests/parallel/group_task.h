/* What the test of groups is made of: numbers that every rank can make for every other, a world with the groups of a mesh, and one operation
 * as data, with the results that each rank should hold. */
#ifndef TR_TESTS_GROUP_TASK_H
#define TR_TESTS_GROUP_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/world.h"
#include "tests/parallel/rank_check.h"

enum { COMM_BYTES = 48 << 20, MAX_RANKS = 16 };

/* This process, and the transport under test: set by main. */
extern int my_rank, num_ranks;
extern tr_transport transport;

typedef struct random_stream {
    uint64_t key;
    uint32_t counter;
} random_stream;

uint32_t random_bits(random_stream *stream);
int random_below(random_stream *stream, int n);

enum { MAX_GROUPS = 8 };

typedef struct member {
    tr_group *group;
    int ranks[MAX_RANKS], size, rank;
} member;

typedef struct setting {
    tr_world *world;
    float *memory;
    member groups[MAX_GROUPS];
    int num_groups;
} setting;

/* A world of all ranks with communication memory and one group of all. */
void setting_open(setting *s, double timeout_s);
/* Also the rows and columns of a mesh; and all ranks backwards, so that ranks in a group and in the world differ. */
void setting_open_mesh(setting *s);
void setting_close(setting *s);
/* After a failure, messages under way must not meet those of a later world, whose communicator may get the same number: what MPI
 * holds stays. In shared memory all can go. */
void setting_abandon(setting *s);

enum { REDUCE_SCATTER, ALL_REDUCE, ALL_REDUCE_MAX, ALL_GATHER, TRANSFER, NUM_KINDS };

typedef struct task {
    int kind;
    const member *m;
    uint64_t id;
    int64_t n, counts[MAX_RANKS]; /* n: elements of the source (all_gather: of the result) */
    int from, to;
    bool in_place;
    float *src, *dst;
    int64_t src_n, dst_n;
    tr_event event;
} task;

/* Draws an operation on a group, the same on all its ranks given the same stream; max_n: largest count. */
void task_draw(task *t, const member *m, random_stream *shared, int max_n);
/* Fills the source (src: communication memory for n elements) and posts. */
void task_post(task *t, float *src, float *dst);
/* Compares the result: all of it when short, else about a thousand places, both ends among them. */
void task_check(const task *t);

#endif
