/* Pipeline schedules as data: for each pipeline rank a list of actions; generators make lists, one
 * checker proves them, one executor (parallel/pipeline_exec.h) runs them, the planner simulates
 * them.
 *
 * Model: the layers are cut into C = num_stages * num_virtual chunks; chunk c lives on rank c mod
 * num_stages (its local number is c / num_stages) and passes activations to chunk c+1, gradients to
 * chunk c-1. An action is done by one rank for one (chunk, microbatch): F forward, B input
 * gradient, W weight gradient, and the four transfers; a transfer stands where it is posted, and
 * the action that needs it waits for it. A channel is an ordered pair of ranks: on two ranks with
 * virtual chunks it carries activations and gradients, in one order. Where both chunks of a
 * transfer live on one rank (one stage), the receive directly follows the send. Microbatches are
 * numbered 0 ... num_microbatches-1 of one data rank. Weight gradients of a chunk run in microbatch
 * order on every schedule. Pure: no ranks, no memory but tr_alloc. */
#ifndef TR_PARALLEL_SCHEDULE_H
#define TR_PARALLEL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "parallel/chunk_place.h"

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
    /* Activation slot of this chunk on this rank (0 ... num_slots-1), the same for all actions of
     * one (chunk, microbatch); taken by RECV_FORWARD (chunk 0: by F), free again after W
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
    TR_SCHEDULE_FORWARD_ONLY /* evaluation */
} tr_schedule_kind;

/* Where a kind wants its chunks. */
static inline tr_placement tr_schedule_placement(tr_schedule_kind kind)
{
    (void)kind;
    return TR_PLACEMENT_LOOP;
}

typedef struct tr_schedule {
    tr_schedule_kind kind;
    int num_stages, num_virtual, num_microbatches;
    tr_action_list *ranks; /* [num_stages] */
    int *num_slots; /* [num_stages * num_virtual]: peak of live activations of each global chunk */
    int *num_send_buffers, *num_grad_buffers; /* [num_stages]: what `buffer` counts in */
} tr_schedule;

/* Makes, slots and checks the schedule. TR_ERR_SETTINGS with the allowed values when the kind
 * cannot have these numbers. */
tr_status tr_schedule_create(tr_schedule **schedule, tr_schedule_kind kind, int num_stages,
                             int num_virtual, int num_microbatches);
void tr_schedule_destroy(tr_schedule *schedule);
/* The same refusals without making anything (for checks of settings before any work). */
tr_status tr_schedule_supported(tr_schedule_kind kind, int num_stages, int num_virtual,
                                int num_microbatches);

/* Proves a list under the channel model of DESIGN section 8: every use after its definition, sends
 * and receives matched in order per channel, no deadlock with rendezvous, every microbatch and
 * chunk once, weight gradients in microbatch order, slots not reused while live. On failure
 * TR_ERR_INTERNAL with the two actions named. */
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

#endif
