/* The layout of a stage: what lies in which arena, and the executors. */
#include "engine/stage_int.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/trace.h"

/* ---- layout ---- */

static void *stream_alloc(const tr_stage *stage, tr_mem_category category)
{
    const tr_model *model = &stage->model;
    return tr_arena_alloc(&stage->arenas[category], (size_t)(model->S * model->H) * model->item);
}

/* The most layers that each slot of a schedule holds. */
static void slots_measure(tr_stage *stage, const tr_schedule *schedule)
{
    const tr_action_list *list = &schedule->ranks[stage->mesh.pipeline];
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        int num_layers = (int)stage->cfg->derived.chunk_layers[action->chunk];
        tr_slot *slot = &stage->slots[action->slot];
        if (action->kind == TR_ACTION_FORWARD && num_layers > slot->num_layers)
            slot->num_layers = num_layers;
    }
}

static void slots_init(tr_stage *stage)
{
    tr_arena *arena = &stage->arenas[TR_MEM_ACTIVATIONS];
    int train = stage->schedule->num_slots[stage->mesh.pipeline];
    int evaluation = stage->evaluation->num_slots[stage->mesh.pipeline];
    stage->num_slots = train > evaluation ? train : evaluation;
    stage->slots = TR_NEW_ARRAY(tr_slot, (size_t)stage->num_slots);
    slots_measure(stage, stage->schedule);
    slots_measure(stage, stage->evaluation);
    for (int s = 0; s < stage->num_slots; s++) {
        tr_slot *slot = &stage->slots[s];
        slot->x = TR_NEW_ARRAY(void *, (size_t)slot->num_layers);
        slot->blocks = TR_NEW_ARRAY(tr_block_saved, (size_t)slot->num_layers);
        for (int l = 0; l < slot->num_layers; l++) {
            slot->x[l] = stream_alloc(stage, TR_MEM_ACTIVATIONS);
            tr_block_saved_init(&stage->model, &slot->blocks[l], arena);
        }
    }
}

/* Gives each microbatch the lowest free set of what the head keeps, from its forward to its weight gradient. */
static void heads_init(tr_stage *stage, const tr_chunk *last)
{
    const tr_action_list *list = &stage->schedule->ranks[stage->mesh.pipeline];
    int num_microbatches = stage->schedule->num_microbatches;
    bool *taken = TR_NEW_ARRAY(bool, (size_t)num_microbatches);
    stage->head_of = TR_NEW_ARRAY(int, (size_t)num_microbatches);
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        int *set = &stage->head_of[action->microbatch];
        if (action->chunk != last->number)
            continue;
        if (action->kind == TR_ACTION_FORWARD) {
            while (taken[*set])
                ++*set;
            taken[*set] = true;
            stage->num_heads = *set + 1 > stage->num_heads ? *set + 1 : stage->num_heads;
        } else if (action->kind == TR_ACTION_WEIGHT) {
            taken[*set] = false;
        }
    }
    tr_free(taken);
    stage->heads = TR_NEW_ARRAY(tr_head_slot, (size_t)stage->num_heads);
    for (int h = 0; h < stage->num_heads; h++) {
        stage->heads[h].x = stream_alloc(stage, TR_MEM_ACTIVATIONS);
        tr_head_saved_init(&stage->model, &stage->heads[h].saved,
                           &stage->arenas[TR_MEM_ACTIVATIONS]);
    }
}

static void pending_init(tr_stage *stage, const tr_chunk *chunk, tr_pending *pending)
{
    tr_arena *arena = &stage->arenas[TR_MEM_ACTIVATIONS];
    pending->dx = TR_NEW_ARRAY(void *, (size_t)chunk->num_layers + 1);
    pending->blocks = TR_NEW_ARRAY(tr_block_pending, (size_t)chunk->num_layers + 1);
    for (int l = chunk->first ? 0 : 1; l <= chunk->num_layers; l++)
        pending->dx[l] = stream_alloc(stage, TR_MEM_ACTIVATIONS);
    for (int l = 0; l < chunk->num_layers; l++)
        tr_block_pending_init(&stage->model, &pending->blocks[l], arena);
    if (chunk->last)
        tr_head_pending_init(&stage->model, &pending->head, arena);
}

/* Gives each microbatch whose weight gradients come later the lowest free set. */
static void pending_assign(const tr_stage *stage, tr_chunk *chunk)
{
    const tr_action_list *list = &stage->schedule->ranks[stage->mesh.pipeline];
    int num_microbatches = stage->schedule->num_microbatches;
    bool *taken = TR_NEW_ARRAY(bool, (size_t)num_microbatches);
    chunk->pending_of = TR_NEW_ARRAY(int, (size_t)num_microbatches);
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        if (action->chunk != chunk->number)
            continue;
        int *set = &chunk->pending_of[action->microbatch];
        if (action->kind == TR_ACTION_BACKWARD) {
            *set = tr_schedule_is_pair(list, i) ? -1 : 0;
            while (*set >= 0 && taken[*set])
                ++*set;
            if (*set >= 0)
                taken[*set] = true;
            chunk->num_pending = *set + 1 > chunk->num_pending ? *set + 1 : chunk->num_pending;
        } else if (action->kind == TR_ACTION_WEIGHT && *set >= 0) {
            taken[*set] = false;
        }
    }
    tr_free(taken);
}

static void chunks_init(tr_stage *stage)
{
    const tr_config *cfg = stage->cfg;
    int num_global = (int)cfg->derived.num_chunks;
    stage->chunks = TR_NEW_ARRAY(tr_chunk, (size_t)stage->num_chunks);
    for (int c = 0; c < stage->num_chunks; c++) {
        tr_chunk *chunk = &stage->chunks[c];
        chunk->number = tr_chunk_number(cfg->derived.placement, stage->mesh.pipeline_size,
                                        stage->mesh.pipeline, c);
        chunk->first_layer = tr_chunk_first_layer(cfg, chunk->number);
        chunk->num_layers = (int)cfg->derived.chunk_layers[chunk->number];
        chunk->first = chunk->number == 0;
        chunk->last = chunk->number == num_global - 1;
        if (chunk->last)
            heads_init(stage, chunk);
        pending_assign(stage, chunk);
        chunk->pending = TR_NEW_ARRAY(tr_pending, (size_t)chunk->num_pending + 1);
        for (int s = 0; s < chunk->num_pending; s++)
            pending_init(stage, chunk, &chunk->pending[s]);
    }
}

static void state_init(tr_stage *stage)
{
    tr_arena *arenas = stage->arenas;
    size_t state_bytes = (size_t)stage->local.num_state * sizeof(float);
    stage->master = tr_arena_alloc(&arenas[TR_MEM_OPTIMIZER], state_bytes);
    if (stage->cfg->train.optimizer == TR_OPTIMIZER_ADAMW) {
        stage->m = tr_arena_alloc(&arenas[TR_MEM_OPTIMIZER], state_bytes);
        stage->v = tr_arena_alloc(&arenas[TR_MEM_OPTIMIZER], state_bytes);
    }
}

/* Where the model finds its weights. */
static void weights_init(tr_stage *stage)
{
    const tr_config *cfg = stage->cfg;
    bool sharded = tr_weights_kind_of(cfg, &stage->mesh) == TR_WEIGHTS_SHARDED;
    tr_tied_init(&stage->tied, &stage->local, cfg, &stage->mesh, stage->device,
                 sharded ? 0 : stage->model.item, &stage->arenas[TR_MEM_COMMUNICATION],
                 &stage->arenas[TR_MEM_WORKSPACE]);
    tr_weights_init(&stage->weights, cfg, &stage->mesh, &stage->local, stage->device, stage->master,
                    &stage->tied, stage->schedule, stage->evaluation, stage->arenas);
    for (int i = 0; i < stage->local.num_items; i++) {
        const tr_local_param *item = &stage->local.items[i];
        int row = item->param->layer < 0 ? (int)cfg->model.layers : item->param->layer;
        stage->model.weights[row][item->param->role].weight =
            tr_weights_place(&stage->weights, item);
    }
}

static size_t transfer_bytes(const tr_stage *stage)
{
    return (size_t)(stage->model.S * stage->model.H) * stage->model.item;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void transfers_init(tr_stage *stage)
{
    size_t bytes = transfer_bytes(stage);
    int rank = stage->mesh.pipeline;
    size_t send = larger(tr_pipeline_exec_send_bytes(stage->schedule, rank, bytes),
                         tr_pipeline_exec_send_bytes(stage->evaluation, rank, bytes));
    size_t recv = larger(tr_pipeline_exec_recv_bytes(stage->schedule, rank, bytes),
                         tr_pipeline_exec_recv_bytes(stage->evaluation, rank, bytes));
    if (send > 0)
        stage->send_memory = tr_arena_alloc(&stage->arenas[TR_MEM_COMMUNICATION], send);
    if (recv > 0)
        stage->recv_memory = tr_arena_alloc(&stage->arenas[TR_MEM_WORKSPACE], recv);
}

static void workspace_init(tr_stage *stage)
{
    const tr_model *model = &stage->model;
    int64_t widest = model->H;
    const int64_t widths[] = {model->F, model->A * model->D, model->K * model->D, model->V};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        if (widths[i] > widest)
            widest = widths[i];
    tr_workspace_need need = {.dtype = model->dtype,
                              .B = model->B,
                              .T = model->T,
                              .H = model->H,
                              .A = model->A,
                              .K = model->K,
                              .D = model->D,
                              .max_matmul = widest};
    size_t bytes = stage->device->workspace_bytes(stage->device, &need);
    void *memory = tr_arena_alloc(&stage->arenas[TR_MEM_WORKSPACE], bytes);
    if (!stage->arenas[TR_MEM_WORKSPACE].counting)
        stage->device->workspace_set(stage->device, memory, bytes);
}

/* ---- scratch of sums ---- */

/* The most elements that a sum over the tensor ranks has, and one over the sharers of a key/value head. */
static int64_t tensor_sum(const tr_stage *stage)
{
    const tr_model *model = &stage->model;
    int64_t elements = most(model->R * model->H, model->tensor.num_statistics);
    return most(elements, stage->gradients.replica_elements);
}

static int64_t kv_sum(const tr_stage *stage)
{
    return most(stage->gradients.replica_elements, stage->model.tensor.num_shared);
}

static size_t all_reduce_scratch(int size, int64_t elements)
{
    return tr_group_scratch_bytes(size, tr_group_largest_share(size, elements));
}

/* A device with its own memory has one for each stream that sums. */
static void scratch_init(tr_stage *stage)
{
    const tr_mesh *mesh = &stage->mesh;
    if (stage->device->unified)
        return;
    size_t tensor = all_reduce_scratch(mesh->tensor_size, tensor_sum(stage));
    size_t kv = all_reduce_scratch(tr_kv_sharers(stage->cfg, mesh->tensor_size), kv_sum(stage));
    stage->scratch[0].bytes = larger(tensor, kv);
    if (stage->cfg->train.reduction_order != TR_REDUCTION_NATIVE) /* which adds on the way */
        stage->scratch[1].bytes = tr_bucket_reducer_scratch_bytes(&stage->gradients.reducer);
    for (int s = 0; s < 2; s++)
        if (stage->scratch[s].bytes > 0)
            stage->scratch[s].memory =
                tr_arena_alloc(&stage->arenas[TR_MEM_WORKSPACE], stage->scratch[s].bytes);
}

tr_status tr_stage_init(tr_stage *stage, const tr_config *cfg, const tr_mesh *mesh,
                        tr_device *device, tr_arena *arenas)
{
    *stage = (tr_stage){.cfg = cfg, .mesh = *mesh, .device = device, .arenas = arenas};
    stage->num_chunks = (int)cfg->parallel.virtual_;
    int num_microbatches = (int)(cfg->derived.microbatches / mesh->data_size);
    TR_TRY(tr_schedule_create(&stage->schedule, cfg->parallel.schedule, mesh->pipeline_size,
                              stage->num_chunks, num_microbatches));
    TR_TRY(tr_schedule_create(&stage->evaluation, tr_schedule_evaluation(cfg->parallel.schedule),
                              mesh->pipeline_size, stage->num_chunks, num_microbatches));
    tr_param_table_init(&stage->table, cfg);
    tr_local_params_init(&stage->local, &stage->table, cfg, mesh);
    TR_TRY(tr_model_init(&stage->model, cfg, mesh, device,
                         mesh->pipeline == cfg->derived.head_stage, &arenas[TR_MEM_COMMUNICATION],
                         &arenas[TR_MEM_ACTIVATIONS], &arenas[TR_MEM_WORKSPACE]));
    state_init(stage);
    weights_init(stage);
    tr_gradients_init(&stage->gradients, &stage->local, cfg, mesh, device,
                      &arenas[TR_MEM_GRADIENTS], &arenas[TR_MEM_COMMUNICATION],
                      &arenas[TR_MEM_WORKSPACE]);
    for (int i = 0; i < 2; i++)
        stage->stream[i] = stream_alloc(stage, TR_MEM_ACTIVATIONS);
    slots_init(stage);
    chunks_init(stage);
    transfers_init(stage);
    workspace_init(stage);
    scratch_init(stage);
    tr_arena *host = tr_stage_host_arena(arenas, device);
    tr_step_sums_init(&stage->sums, (int)cfg->derived.num_ranks, device,
                      &arenas[TR_MEM_COMMUNICATION], &arenas[TR_MEM_WORKSPACE], host);
    tr_decider_init(&stage->decider, cfg, device, &arenas[TR_MEM_WORKSPACE], host);
    tr_upload_init(&stage->upload, &stage->model, num_microbatches, &arenas[TR_MEM_WORKSPACE],
                   host);
    tr_trace_layout(&stage->trace, cfg, mesh, host);
    return TR_OK;
}

static void chunk_clear(tr_chunk *chunk)
{
    for (int s = 0; s < chunk->num_pending; s++) {
        tr_free(chunk->pending[s].dx);
        tr_free(chunk->pending[s].blocks);
    }
    tr_free(chunk->pending_of);
    tr_free(chunk->pending);
}

void tr_stage_clear(tr_stage *stage)
{
    tr_pipeline_exec_destroy(stage->train_exec);
    tr_pipeline_exec_destroy(stage->eval_exec);
    for (int c = 0; stage->chunks != NULL && c < stage->num_chunks; c++)
        chunk_clear(&stage->chunks[c]);
    tr_free(stage->chunks);
    for (int s = 0; s < stage->num_slots; s++) {
        tr_free(stage->slots[s].x);
        tr_free(stage->slots[s].blocks);
    }
    tr_free(stage->slots);
    tr_free(stage->heads);
    tr_free(stage->head_of);
    tr_decider_clear(&stage->decider);
    tr_step_sums_clear(&stage->sums);
    tr_upload_clear(&stage->upload);
    tr_gradients_clear(&stage->gradients);
    tr_weights_clear(&stage->weights);
    tr_model_clear(&stage->model);
    tr_local_params_clear(&stage->local);
    tr_param_table_clear(&stage->table);
    tr_schedule_destroy(stage->schedule);
    tr_schedule_destroy(stage->evaluation);
    *stage = (tr_stage){0};
}

/* Sums that a group may have in flight at once: the pairs of buffers of parallel/tensor_comm.h and a sum over replicas. */
enum { TENSOR_SUMS = 7 };

/* For sums of up to `elements` over all ranks of the group. */
static void sums_reserve(tr_group *group, int64_t elements, int num_operations)
{
    if (group != NULL)
        tr_group_reserve(group,
                         (size_t)tr_group_largest_share(tr_group_size(group), elements) *
                             (size_t)(tr_group_size(group) - 1) * sizeof(float),
                         num_operations);
}

/* So that no sum of a step takes memory. */
static void groups_reserve(const tr_stage *stage, const tr_stage_groups *groups)
{
    sums_reserve(groups->tensor, tensor_sum(stage), TENSOR_SUMS);
    sums_reserve(groups->kv, kv_sum(stage), 1);
}

/* Of groups on a device: where they receive what they add, and who adds. */
static tr_status device_sums_set(const tr_stage *stage, const tr_stage_groups *groups)
{
    tr_group *const all[] = {groups->tensor, groups->kv, groups->data.data, groups->data.shard,
                             groups->data.replica};
    for (int g = 0; g < 5; g++) {
        const tr_stage_scratch *scratch = &stage->scratch[g < 2 ? 0 : 1];
        if (all[g] != NULL && scratch->memory != NULL)
            tr_group_scratch_set(all[g], scratch->memory, scratch->bytes);
        if (all[g] != NULL && g >= 2 && stage->cfg->train.reduction_order == TR_REDUCTION_NATIVE)
            TR_TRY(tr_group_native_set(all[g]));
    }
    return TR_OK;
}

/* Opens the directions between stages that transfers of the schedules and a tied head's exchange take. */
static tr_status channels_open(const tr_stage *stage, tr_group *pipeline)
{
    if (pipeline == NULL)
        return TR_OK;
    int num_stages = stage->mesh.pipeline_size, count = 0;
    size_t num_pairs = (size_t)num_stages * (size_t)num_stages;
    bool *used = TR_NEW_ARRAY(bool, num_pairs);
    tr_channel *channels = TR_NEW_ARRAY(tr_channel, num_pairs);
    tr_pipeline_exec_channels(stage->schedule, used);
    tr_pipeline_exec_channels(stage->evaluation, used);
    int head = stage->cfg->model.tied ? (int)stage->cfg->derived.head_stage : 0;
    used[head] = used[head * num_stages] = true;
    for (int from = 0; from < num_stages; from++)
        for (int to = 0; to < num_stages; to++)
            if (from != to && used[from * num_stages + to])
                channels[count++] = (tr_channel){from, to};
    tr_status status = tr_group_channels_open(pipeline, channels, count);
    tr_free(channels);
    tr_free(used);
    return status;
}

tr_status tr_stage_connect(tr_stage *stage, const tr_stage_groups *groups)
{
    groups_reserve(stage, groups);
    TR_TRY(device_sums_set(stage, groups));
    TR_TRY(channels_open(stage, groups->pipeline));
    stage->model.tensor.group = groups->tensor;
    stage->model.tensor.sharers = groups->kv;
    stage->gradients.replica_groups[TR_REPLICA_ROWS] = groups->tensor;
    stage->gradients.replica_groups[TR_REPLICA_KV] = groups->kv;
    tr_bucket_reducer_connect(&stage->gradients.reducer, &groups->data);
    stage->weights.gather.group = groups->data.shard;
    stage->tied.pipeline = groups->pipeline;
    stage->upload.world = stage->sums.world = groups->world;
    TR_TRY(tr_upload_connect(&stage->upload));
    TR_TRY(tr_decider_connect(&stage->decider));
    const tr_stage_functions functions = tr_stage_pass_functions(stage);
    TR_TRY(tr_pipeline_exec_create(&stage->train_exec, stage->schedule, stage->mesh.pipeline,
                                   groups->pipeline, stage->device, transfer_bytes(stage),
                                   stage->send_memory, stage->recv_memory, &functions));
    tr_pipeline_exec_set_trace(stage->train_exec, &stage->trace);
    return tr_pipeline_exec_create(&stage->eval_exec, stage->evaluation, stage->mesh.pipeline,
                                   groups->pipeline, stage->device, transfer_bytes(stage),
                                   stage->send_memory, stage->recv_memory, &functions);
}
