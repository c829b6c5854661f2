/* One rank's share of the model: its chunks of layers with weights, activations and gradients, as stage functions of the pipeline executor.
 *
 * Built twice by the same code (DESIGN section 6): on counting arenas, where it is the byte plan, and on real ones. Activation slots are as many as the
 * schedule's peak of live activations; the chunks of a rank share them. One thread. */
#ifndef TR_ENGINE_STAGE_H
#define TR_ENGINE_STAGE_H

#include "base/trace_ring.h"
#include "engine/decider.h"
#include "engine/gradients.h"
#include "engine/model/model.h"
#include "engine/step_sums.h"
#include "engine/upload.h"
#include "engine/weights.h"
#include "parallel/pipeline_exec.h"

/* Activations of one microbatch in any chunk of the rank. */
typedef struct tr_slot {
    int num_layers;         /* the most of the chunks that use it */
    void **x;               /* [num_layers] block inputs [S,H] */
    tr_block_saved *blocks; /* [num_layers] */
} tr_slot;

/* What one microbatch keeps of the head. */
typedef struct tr_head_slot {
    void *x; /* input [S,H] */
    tr_head_saved saved;
} tr_head_slot;

/* What the input gradients of one microbatch leave for weight gradients that come later. */
typedef struct tr_pending {
    void **
        dx; /* [layers + 1] gradient of the stream, [S,H]: of a block's input, last of the chunk's output; the first one only for the embedding */
    tr_block_pending *blocks; /* [layers] */
    tr_head_pending head;     /* last chunk */
} tr_pending;

typedef struct tr_chunk {
    int number; /* global */
    int first_layer, num_layers;
    bool first, last; /* of the model: embedding, head */
    int *pending_of; /* [M of this rank] a microbatch's set; -1 where both gradients are one call */
    int num_pending; /* as many as the schedule's peak of microbatches between their input and weight gradients */
    tr_pending *pending;
} tr_chunk;

/* Where sums of one stream receive what they add (tr_group_scratch_set); of devices with their own memory. */
typedef struct tr_stage_scratch {
    void *memory;
    size_t bytes;
} tr_stage_scratch;

typedef struct tr_stage {
    const tr_config *cfg;
    tr_mesh mesh;
    tr_device *device;
    tr_arena *arenas; /* [TR_MEM_NUM], the builder's */
    tr_param_table table;
    tr_local_params local;
    tr_model model;
    tr_gradients gradients;
    tr_tied tied;
    tr_weights weights;
    float *master, *m, *v; /* local.num_state each; m and v NULL under sgd */
    int num_chunks;
    tr_chunk *chunks;
    int num_slots, num_heads;
    tr_slot *slots;
    tr_head_slot *heads; /* of the last chunk */
    int *head_of;    /* [M of this rank] a microbatch's in training; evaluation uses the first */
    void *stream[2]; /* [S,H] gradient of the stream inside a chunk, in turn */
    tr_schedule *schedule, *evaluation;
    void *send_memory, *recv_memory;
    tr_stage_scratch scratch[2];              /* of the tensor and the data stream */
    tr_pipeline_exec *train_exec, *eval_exec; /* after tr_stage_connect */
    tr_group *
        progress; /* any group: between units of work, what was posted on all is moved on; NULL with one rank */
    tr_upload upload;
    tr_step_sums sums; /* losses and squares of gradients since their reset */
    tr_decider decider;
    tr_trace_ring trace;
    /* of the current pass */
    const tr_microbatch *microbatches;    /* [M of this rank] */
    int written_unit, written_microbatch; /* whose weight gradients are being written */
} tr_stage;

/* As in the mesh, NULL for axes of size 1. */
typedef struct tr_stage_groups {
    struct tr_world *world; /* of the groups: whose deadline waits for the device keep */
    tr_group *tensor, *kv;  /* kv: tensor ranks that share a key/value head */
    tr_data_groups data;
    tr_group *pipeline;
} tr_stage_groups;

/* Where a rank lays out what the host reads and writes: pinned memory where the device's own is not the host's. */
static inline tr_arena *tr_stage_host_arena(tr_arena *arenas, const tr_device *device)
{
    return &arenas[device->unified ? TR_MEM_WORKSPACE : TR_MEM_SNAPSHOT];
}

/* Lays everything out in the arenas. `device` answers for workspace sizes. Refuses schedules that the numbers do not allow. */
tr_status tr_stage_init(tr_stage *stage, const tr_config *cfg, const tr_mesh *mesh,
                        tr_device *device, tr_arena *arenas);
/* Makes the executors. After init on real arenas. */
tr_status tr_stage_connect(tr_stage *stage, const tr_stage_groups *groups);
void tr_stage_clear(tr_stage *stage);

/* One of this stage's chunks by its global number. */
static inline tr_chunk *tr_stage_chunk(const tr_stage *stage, int number)
{
    return &stage->chunks[tr_chunk_local(stage->mesh.pipeline_size, number)];
}

/* Forward and backward of a step's microbatches; leaves gradients finished (tr_gradients_finish) and adds the losses of this rank to stage->sums. */
tr_status tr_stage_train(tr_stage *stage, const tr_microbatch *microbatches, int64_t step);
/* Forward only, dropout off; adds to stage->sums. */
tr_status tr_stage_evaluate(tr_stage *stage, const tr_microbatch *microbatches);

#endif
