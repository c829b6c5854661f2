/* Pipeline schedules as data: for each pipeline rank a list of actions; generators make lists, one
 * checker proves them, one executor (parallel/pipeline_exec.h) runs them, the planner simulates
 * them.
 *
 * Model: the layers are cut into C = num_stages * num_virtual chunks, which live on the ranks as
 * parallel/chunk_place.h says; chunk c passes activations to chunk c+1, gradients to chunk c-1. An
 * action is done by one rank for one (chunk, microbatch): F forward, B input gradient, W weight
 * gradient, and the four transfers; a transfer stands where it is posted, and the action that needs
 * it waits for it. A channel is an ordered pair of ranks: on two ranks with virtual chunks, and
 * wherever chunks go up and down, it carries activations and gradients, in one order. Where both
 * chunks of a transfer live on one rank (one stage; the turn of a V), the receive is a copy out of
 * the send buffer. Microbatches are numbered 0 ... num_microbatches-1 of one data rank.
 * Weight gradients of a chunk run in microbatch order on every schedule. Pure: no ranks, no memory
 * but tr_alloc. */
#ifndef TR_PARALLEL_SCHEDULE_H
#define TR_PARALLEL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "parallel/chunk_place.h"

/* The most chunks x microbatches. Each has three compute actions and four transfers, on every rank in memory: some hundreds of megabytes. */
enum { TR_SCHEDULE_MOST = 1 << 22 };

typedef enum tr_action_kind {
    TR_ACTION_FORWARD,
    TR_ACTION_BACKWARD,      /* input gradient */
    TR_ACTION_WEIGHT,        /* weight gradient */
    TR_ACTION_SEND_FORWARD,  /* this chunk's output to the next chunk's rank */
    TR_ACTION_RECV_FORWARD,  /* this chunk's input from the previous chunk's rank */
    TR_ACTION_SEND_BACKWARD, /* gradient of this chunk's input to the previous chunk's rank */
    TR_ACTION_RECV_BACKWARD  /* gradient of this chunk's output from the next chunk's rank */
} tr_action_kind;

typedef struct tr_action {
    tr_action_kind kind;
    int chunk; /* global chunk number */
    int microbatch;
    /* Activation slot of this rank (0 ... num_slots-1), shared by its chunks, the same for all
     * actions of one (chunk, microbatch); taken by RECV_FORWARD (chunk 0: by F), free again after W
     * (evaluation: after F). */
    int slot;
    /* SEND_*: the rank's send buffer, written by the F or B of this (chunk, microbatch), which
     * waits until the buffer's last send is complete. RECV_BACKWARD: the rank's gradient buffer,
     * free again after B. Other actions: -1. */
    int buffer;
} tr_action;

typedef struct tr_action_list {
    tr_action *actions;
    int num_actions;
} tr_action_list;

/* True when action i, an input gradient, is directly followed by the weight gradient of the same
 * chunk and microbatch: a stage makes both in one call. */
static inline bool tr_schedule_is_pair(const tr_action_list *list, int i)
{
    const tr_action *one = &list->actions[i], *next = one + 1;
    return i + 1 < list->num_actions && one->kind == TR_ACTION_BACKWARD &&
           next->kind == TR_ACTION_WEIGHT && one->chunk == next->chunk &&
           one->microbatch == next->microbatch;
}

typedef enum tr_schedule_kind {
    TR_SCHEDULE_GPIPE,
    TR_SCHEDULE_1F1B,
    TR_SCHEDULE_INTERLEAVED,
    TR_SCHEDULE_ZB_H1,
    TR_SCHEDULE_ZB_V,
    TR_SCHEDULE_FORWARD_ONLY, /* evaluation, chunks in a loop */
    TR_SCHEDULE_FORWARD_V,    /* evaluation, chunks in a V */
    TR_SCHEDULE_LISTED        /* read from text */
} tr_schedule_kind;

/* Where a kind wants its chunks. */
static inline tr_placement tr_schedule_placement(tr_schedule_kind kind)
{
    bool v = kind == TR_SCHEDULE_ZB_V || kind == TR_SCHEDULE_FORWARD_V;
    return v ? TR_PLACEMENT_V : TR_PLACEMENT_LOOP;
}

/* The kind that evaluates on the chunks of a training kind. */
static inline tr_schedule_kind tr_schedule_evaluation(tr_schedule_kind kind)
{
    return kind == TR_SCHEDULE_ZB_V ? TR_SCHEDULE_FORWARD_V : TR_SCHEDULE_FORWARD_ONLY;
}

typedef struct tr_schedule {
    tr_schedule_kind kind;
    tr_placement placement;
    bool trains; /* false: forward only */
    bool splits; /* the gradient that a B makes is sent before its W, even where that comes next */
    int num_stages, num_virtual, num_microbatches;
    tr_action_list *ranks; /* [num_stages] */
    /* [num_stages]: what `slot` and `buffer` count in. */
    int *num_slots, *num_send_buffers, *num_grad_buffers;
} tr_schedule;

/* Makes, slots and checks the schedule. TR_ERR_SETTINGS with the allowed values when the kind
 * cannot have these numbers. Not for TR_SCHEDULE_LISTED. */
tr_status tr_schedule_create(tr_schedule **schedule, tr_schedule_kind kind, int num_stages,
                             int num_virtual, int num_microbatches);
void tr_schedule_destroy(tr_schedule *schedule);
/* The same refusals without making anything (for checks of settings before any work). */
tr_status tr_schedule_supported(tr_schedule_kind kind, int num_stages, int num_virtual,
                                int num_microbatches);

/* Most activations that a kind keeps on a stage at once, in (chunk, microbatch) pairs, from F to W:
 *     gpipe        v M
 *     1f1b         min(M, p - s)                           Narayanan et al. 2021
 *     interleaved  min(v M, (v - 1) g + 2 (p - s) - 1)     with groups of p, g = p, on stage 0:
 *                                                          p v (1 + (p - 1) / (p v))
 *     zb-h1        min(M, p)                               Qi et al. 2023: 1f1b's first stage
 *     zb-v         min(2 M, 2 p)                           Qi et al. 2024: p whole stages
 * p stages, v chunks on each, M microbatches, s this stage, g the most microbatches of a group
 * (tr_schedule_group_most); evaluation 1 a chunk; listed v M. */
int tr_schedule_live_limit(tr_schedule_kind kind, int num_stages, int num_virtual,
                           int num_microbatches, int stage);
/* The most that the lists keep, counted; of one chunk, or of all chunks of the stage (-1). */
int tr_schedule_live_peak(const tr_schedule *schedule, int stage, int chunk);
/* The most microbatches that interleaved runs through one chunk before the next: num_stages where
 * that divides the number, else the next size into which the microbatches go evenly. */
int tr_schedule_group_most(int num_stages, int num_microbatches);

/* Proves a list under the channel model of DESIGN section 8: every use after its definition, sends
 * and receives matched in order per channel, no deadlock with rendezvous, every microbatch and
 * chunk once, weight gradients in microbatch order, slots not reused while live, no more
 * activations live than the kind's limit. On failure TR_ERR_INTERNAL with the two actions named. */
tr_status tr_schedule_check(const tr_schedule *schedule);

/* Costs in any one unit of time, per global chunk. */
typedef struct tr_schedule_costs {
    const double *forward, *backward, *weight; /* [num_stages * num_virtual] */
    double transfer;                           /* of one send */
} tr_schedule_costs;

typedef struct tr_schedule_times {
    double total;      /* of the step, start to the last rank's end */
    double *busy;      /* [num_stages], caller's */
    double idle_share; /* 1 - sum(busy) / (num_stages * total) */
} tr_schedule_times;

/* Simulates the lists with these costs. */
tr_status tr_schedule_simulate(const tr_schedule *schedule, const tr_schedule_costs *costs,
                               tr_schedule_times *times);

/* One line per rank, `0F0,1F0,0B0,0W0`: chunk, action, microbatch; transfers left out (they follow
 * from the list). A new string, freed with tr_free. */
char *tr_schedule_text(const tr_schedule *schedule);
/* Reads such lines, places transfers, slots and buffers, and proves the result. Spaces around
 * actions, empty lines and lines that begin with # are passed over. Stages are the lines, chunks
 * and microbatches the largest numbers; chunks must stand in a loop or a V. Without B and W it
 * evaluates. TR_ERR_SETTINGS that names line and column, or two actions. */
tr_status tr_schedule_read(tr_schedule **schedule, const char *text);

/* A drawing of the simulated lists: a row per rank, a box per F, B and W with its microbatch, wide
 * as its cost; chunks of a rank differ in shade. `title` stands above. SVG, a new string, freed
 * with tr_free. */
tr_status tr_schedule_draw(const tr_schedule *schedule, const tr_schedule_costs *costs,
                           const char *title, char **svg);

#endif
