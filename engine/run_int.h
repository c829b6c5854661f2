/* The inside of a run, for the files of engine/ that make it up (run.c, step.c, tensors.c, checkpoint.c). */
#ifndef TR_ENGINE_RUN_INT_H
#define TR_ENGINE_RUN_INT_H

#include <signal.h>

#include "engine/feed.h"
#include "engine/optimizer.h"
#include "engine/saver.h"
#include "engine/trace.h"
#include "engine/traffic.h"
#include "engine/trine.h"
#include "parallel/world.h"

/* What resuming read from files. Stored bytes are those of chunks; tables and manifests are not counted. */
typedef struct tr_load_counts {
    int64_t needed;  /* stored bytes of the chunks that any rank needs, each once */
    int64_t checked; /* stored bytes that all ranks read to check hashes, before anything changed */
    int64_t read;    /* stored bytes that all ranks read for their values */
    int64_t values;  /* raw bytes of the needed ones */
    double check_seconds, read_seconds;
} tr_load_counts;

struct tr_run {
    tr_config cfg;
    tr_run_callbacks callbacks;
    tr_mesh mesh;
    tr_world *world;
    tr_group *all, *tensor, *kv, *data,
        *pipeline;             /* NULL for axes of size 1 (all: NULL with one rank) */
    tr_group *shard, *replica; /* of the data axis: may be `data`, NULL for size 1 */
    tr_group *decision;        /* all ranks, of a device with its own memory; else NULL */
    tr_group *node; /* ranks that share memory: may be `all`, NULL when this one is alone */
    tr_device *device;
    tr_arena arenas[TR_MEM_NUM];
    void *memory
        [TR_MEM_NUM]; /* the device's backing; NULL for communication (with ZeRO 3 also parameters), which is the world's */
    size_t bytes[TR_MEM_NUM];
    tr_stage stage;
    tr_optimizer optimizer;
    tr_tracer tracer;
    tr_feed *train_feed, *valid_feed;
    tr_microbatch *microbatches; /* [M of this rank] */
    int *microbatch_numbers;     /* [M] in the global batch */
    int num_microbatches;        /* M */
    /* Position: what a checkpoint holds. */
    int64_t step;        /* completed */
    uint64_t samples;    /* data position */
    double grad_divisor; /* of the last step: tokens x scale */
    volatile sig_atomic_t stop_requested, save_requested;
    double flops_per_token, peak_flops;
    char *numerics; /* tr_run_device_numerics */
    tr_saver saver;
    bool loss_known; /* last_loss is that of step `step` */
    double last_loss;
    tr_load_counts loaded; /* by the last tr_run_resume that loaded something */
};

/* Integer reductions over all ranks; with one rank nothing happens. */
tr_status tr_run_sum(tr_run *run, int64_t *values, int count);
tr_status tr_run_min(tr_run *run, int64_t *values, int count);
tr_status tr_run_max(tr_run *run, int64_t *values, int count);

/* Collective (run_compare.c). TR_ERR_SETTINGS, naming the first setting that is not the same on all ranks; what a rank may have for itself
 * (threads, folders of data and logs) is not compared. */
tr_status tr_run_compare_settings(tr_run *run);
/* TR_ERR_DATA when the open token files do not have the same number of tokens everywhere. */
tr_status tr_run_compare_data(tr_run *run);
/* A warning on rank 0 when processors or libraries differ. */
tr_status tr_run_compare_numerics(tr_run *run);

/* A warning on rank 0 when a tensor group spans nodes (run_placement.c). */
void tr_run_placement_tell(const tr_run *run);

/* Collective (run_decide.c): what follows the backward pass of a step, with its numbers in *metrics. TR_ERR_NUMERICS after train.max_skips skipped steps in a row. */
tr_status tr_run_decide(tr_run *run, tr_metrics *metrics);

/* Opens data.train at the run's data position (a second call closes the first). */
tr_status tr_run_feed_open(tr_run *run);

/* Collective (device_choice.c): makes the device that device.kind asks for, and sets peak_flops; all ranks compute on one kind. */
tr_status tr_run_device_create(tr_run *run);
/* Of the device, once the world has it. */
void tr_run_numerics_set(tr_run *run);
/* Whether the user lets ranks share GPUs: the environment variable TRINE_SHARE_GPU is 1. */
bool tr_run_shares_device(void);

/* Collective (attention_choice.c): decides whose attention the CUDA device computes with. An error where device.attention=cudnn cannot be had. */
tr_status tr_run_attention_choose(tr_run *run);
/* Whether it could be cuDNN's on a CUDA device, as far as the settings say: then plans have scratch for it. */
bool tr_attention_may_be_cudnns(const tr_config *cfg);

/* All that a rank takes of the device's memory; the snapshot pool of a device that has its own is the host's. */
size_t tr_run_device_bytes(const tr_device *device, const size_t bytes[TR_MEM_NUM]);

/* Fills the planned bytes of a rank by building its stage on counting arenas, and what it will send in a step (traffic may be NULL). Pure. */
tr_status tr_run_count(const tr_config *cfg, const tr_mesh *mesh, tr_device *device,
                       size_t bytes[TR_MEM_NUM], tr_traffic *traffic);

#endif
