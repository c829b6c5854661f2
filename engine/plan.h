/* What a run will need and do, counted without allocating it: bytes per rank and category, and the time lines of its pipeline. */
#ifndef TR_ENGINE_PLAN_H
#define TR_ENGINE_PLAN_H

#include "engine/config/config.h"
#include "engine/traffic.h"
#include "kernels/device.h"
#include "memory/arena.h"

typedef struct tr_plan_rank {
    int data, tensor, pipeline;
    size_t bytes[TR_MEM_NUM];
    size_t total;
    tr_traffic traffic; /* bytes sent in a step */
} tr_plan_rank;

/* A device that answers for sizes of the kind that device.kind names; no GPU is needed. auto: the kind of this machine. Destroy it with
 * tr_device_destroy. */
tr_status tr_plan_device_create(tr_device **device, const tr_config *cfg);

/* Fills ranks[0 ... cfg->derived.num_ranks - 1] from the counting pass of each rank; ranks that must have equal bytes are counted once. */
tr_status tr_plan_count(const tr_config *cfg, tr_device *device, tr_plan_rank *ranks);
/* The rank that needs most, the first of equals. */
int tr_plan_largest(const tr_plan_rank *ranks, int num_ranks);

/* What the recorded order of sums costs the rank of each stage with the largest shards, over the order that the layout follows naturally. */
typedef struct tr_plan_order {
    tr_reduce_plan plan;
    bool natural;         /* it is that order: costs nothing */
    int64_t memory, sent; /* bytes more, largest stage; sent: in a step */
} tr_plan_order;
/* ranks: from tr_plan_count of the same configuration. */
tr_status tr_plan_order_count(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks,
                              tr_plan_order *order);

/* Beside the same layout without slices. */
typedef struct tr_plan_slices {
    int64_t memory; /* bytes more on the largest rank */
    int64_t
        sent; /* bytes more that tensor rank 0 of the busiest stage sends to its peers in a step */
} tr_plan_slices;

/* What train.tensor_slices costs in bytes. ranks: from tr_plan_count. */
tr_status tr_plan_slices_count(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks,
                               tr_plan_slices *cost);

typedef struct tr_plan_pipeline {
    double idle_share;    /* of all ranks' time in a step, by the schedule's simulation */
    double slowest_share; /* busiest stage's work over the mean */
    double *
        chunk_flops; /* [num_chunks] forward FLOPs of one microbatch, all tensor ranks together; freed with tr_free */
    int *
        peak_live; /* [num_chunks] microbatches whose activations live at once; freed with tr_free */
    char *text;    /* the schedule as text, one line per stage; freed with tr_free */
} tr_plan_pipeline;

/* Costs are counted FLOPs of each chunk's products and attention: F, B and W alike, and with full recompute a second F in B. */
tr_status tr_plan_pipeline_count(const tr_config *cfg, tr_plan_pipeline *plan);
/* The schedule with these costs, drawn (tr_schedule_draw). */
tr_status tr_plan_pipeline_draw(const tr_config *cfg, char **svg);

#endif
