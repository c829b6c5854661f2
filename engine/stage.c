#include "engine/stage.h"

#include <string.h>

#include "base/alloc.h"

/* ---- layout ---- */

static void *stream_alloc(const tr_stage *stage, tr_mem_category category)
{
    const tr_model *model = &stage->model;
    return tr_arena_alloc(&stage->arenas[category], (size_t)(model->S * model->H) * model->item);
}

static void slot_init(tr_stage *stage, const tr_chunk *chunk, tr_slot *slot)
{
    tr_arena *arena = &stage->arenas[TR_MEM_ACTIVATIONS];
    slot->x = TR_NEW_ARRAY(void *, (size_t)chunk->num_layers + 1);
    slot->blocks = TR_NEW_ARRAY(tr_block_saved, (size_t)chunk->num_layers + 1);
    for (int l = 0; l < chunk->num_layers; l++) {
        slot->x[l] = stream_alloc(stage, TR_MEM_ACTIVATIONS);
        tr_block_saved_init(&stage->model, &slot->blocks[l], arena);
    }
    if (!chunk->last)
        return;
    slot->x[chunk->num_layers] = stream_alloc(stage, TR_MEM_ACTIVATIONS);
    tr_head_saved_init(&stage->model, &slot->head, arena);
}

static void chunks_init(tr_stage *stage)
{
    const tr_config *cfg = stage->cfg;
    int num_global = (int)cfg->derived.num_chunks;
    stage->chunks = TR_NEW_ARRAY(tr_chunk, (size_t)stage->num_chunks);
    for (int c = 0; c < stage->num_chunks; c++) {
        tr_chunk *chunk = &stage->chunks[c];
        chunk->number = c * stage->mesh.pipeline_size + stage->mesh.pipeline;
        chunk->first_layer = tr_chunk_first_layer(cfg, chunk->number);
        chunk->num_layers = (int)cfg->derived.chunk_layers[chunk->number];
        chunk->first = chunk->number == 0;
        chunk->last = chunk->number == num_global - 1;
        int train_slots = stage->schedule->num_slots[chunk->number];
        int eval_slots = stage->evaluation->num_slots[chunk->number];
        chunk->num_slots = train_slots > eval_slots ? train_slots : eval_slots;
        chunk->slots = TR_NEW_ARRAY(tr_slot, (size_t)chunk->num_slots);
        for (int s = 0; s < chunk->num_slots; s++)
            slot_init(stage, chunk, &chunk->slots[s]);
    }
}

static bool has_chunk(const tr_stage *stage, int number)
{
    return number % stage->mesh.pipeline_size == stage->mesh.pipeline;
}

static void state_init(tr_stage *stage)
{
    tr_arena *arenas = stage->arenas;
    size_t state_bytes = (size_t)stage->local.num_state * sizeof(float);
    stage->weights = tr_arena_alloc(&arenas[TR_MEM_PARAMETERS],
                                    (size_t)stage->local.num_weights * stage->model.item);
    stage->master = tr_arena_alloc(&arenas[TR_MEM_OPTIMIZER], state_bytes);
    if (stage->cfg->train.optimizer == TR_OPTIMIZER_ADAMW) {
        stage->m = tr_arena_alloc(&arenas[TR_MEM_OPTIMIZER], state_bytes);
        stage->v = tr_arena_alloc(&arenas[TR_MEM_OPTIMIZER], state_bytes);
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

tr_status tr_stage_init(tr_stage *stage, const tr_config *cfg, const tr_mesh *mesh,
                        tr_device *device, tr_arena *arenas)
{
    *stage = (tr_stage){.cfg = cfg, .mesh = *mesh, .device = device, .arenas = arenas};
    stage->num_chunks = (int)cfg->parallel.virtual_;
    int num_microbatches = (int)(cfg->derived.microbatches / mesh->data_size);
    TR_TRY(tr_schedule_create(&stage->schedule, cfg->parallel.schedule, mesh->pipeline_size,
                              stage->num_chunks, num_microbatches));
    TR_TRY(tr_schedule_create(&stage->evaluation, TR_SCHEDULE_FORWARD_ONLY, mesh->pipeline_size,
                              stage->num_chunks, num_microbatches));
    tr_param_table_init(&stage->table, cfg);
    tr_local_params_init(&stage->local, &stage->table, cfg, mesh);
    tr_model_init(&stage->model, cfg, mesh, device,
                  has_chunk(stage, (int)cfg->derived.num_chunks - 1), &arenas[TR_MEM_COMMUNICATION],
                  &arenas[TR_MEM_ACTIVATIONS], &arenas[TR_MEM_WORKSPACE]);
    state_init(stage);
    tr_gradients_init(&stage->gradients, &stage->local, cfg, mesh, device,
                      &arenas[TR_MEM_GRADIENTS], &arenas[TR_MEM_COMMUNICATION],
                      &arenas[TR_MEM_WORKSPACE]);
    for (int i = 0; i < 2; i++)
        stage->stream[i] = stream_alloc(stage, TR_MEM_ACTIVATIONS);
    chunks_init(stage);
    transfers_init(stage);
    workspace_init(stage);
    for (int i = 0; i < stage->local.num_items; i++) {
        const tr_local_param *item = &stage->local.items[i];
        int row = item->param->layer < 0 ? (int)cfg->model.layers : item->param->layer;
        stage->model.weights[row][item->param->role].weight = tr_stage_weight(stage, item);
    }
    return TR_OK;
}

void tr_stage_clear(tr_stage *stage)
{
    tr_pipeline_exec_destroy(stage->train_exec);
    tr_pipeline_exec_destroy(stage->eval_exec);
    for (int c = 0; stage->chunks != NULL && c < stage->num_chunks; c++) {
        for (int s = 0; s < stage->chunks[c].num_slots; s++) {
            tr_free(stage->chunks[c].slots[s].x);
            tr_free(stage->chunks[c].slots[s].blocks);
        }
        tr_free(stage->chunks[c].slots);
    }
    tr_free(stage->chunks);
    tr_gradients_clear(&stage->gradients);
    tr_model_clear(&stage->model);
    tr_local_params_clear(&stage->local);
    tr_param_table_clear(&stage->table);
    tr_schedule_destroy(stage->schedule);
    tr_schedule_destroy(stage->evaluation);
    *stage = (tr_stage){0};
}

void *tr_stage_weight(const tr_stage *stage, const tr_local_param *item)
{
    return (void *)((uintptr_t)stage->weights + (uintptr_t)item->weight_offset * stage->model.item);
}

/* ---- stage functions of the executor ---- */

static tr_chunk *chunk_of(const tr_stage *stage, int number)
{
    return &stage->chunks[number / stage->mesh.pipeline_size];
}

static void *stage_input(void *context, int chunk, int slot)
{
    const tr_stage *stage = context;
    return chunk_of(stage, chunk)->slots[slot].x[0];
}

static tr_status stage_forward(void *context, int number, int microbatch, int slot_number,
                               void *output)
{
    tr_stage *stage = context;
    tr_model *model = &stage->model;
    const tr_chunk *chunk = chunk_of(stage, number);
    tr_slot *slot = &chunk->slots[slot_number];
    const tr_microbatch *batch = &stage->microbatches[microbatch];
    if (chunk->first)
        TR_TRY(tr_embed_run_forward(model, batch, slot->x[0]));
    for (int l = 0; l < chunk->num_layers; l++) {
        bool leaves = l == chunk->num_layers - 1 && !chunk->last;
        TR_TRY(tr_block_forward(model, chunk->first_layer + l, batch, &slot->blocks[l], slot->x[l],
                                leaves ? output : slot->x[l + 1]));
    }
    if (chunk->last)
        return tr_head_forward(model, batch, &slot->head, slot->x[chunk->num_layers], &stage->loss);
    return TR_OK;
}

/* Points the chunk's weight gradients into a flat buffer. */
static void gradients_point(tr_stage *stage, int local_chunk, float *buffer)
{
    const tr_local_params *local = &stage->local;
    int first = local->chunk_first[local_chunk];
    for (int i = first; i < first + local->chunk_items[local_chunk]; i++) {
        const tr_local_param *item = &local->items[i];
        int row = item->param->layer < 0 ? (int)stage->cfg->model.layers : item->param->layer;
        stage->model.weights[row][item->param->role].grad = buffer + item->offset;
    }
}

/* In the last microbatch, tells the gradients that the chunk's items of layers >= `layer` (and the head's) are final; layer -1: all of the chunk. */
static tr_status items_ready(tr_stage *stage, int local_chunk, int microbatch, int layer)
{
    if (microbatch != stage->gradients.num_microbatches - 1)
        return TR_OK;
    const tr_local_params *local = &stage->local;
    int end = local->chunk_first[local_chunk], last = end + local->chunk_items[local_chunk];
    while (end < last) {
        const tr_param *param = local->items[end].param;
        bool embedding = param->role == TR_ROLE_EMBED || param->role == TR_ROLE_POSITION;
        if (layer >= 0 && (embedding || (param->layer >= 0 && param->layer < layer)))
            break;
        end++;
    }
    return tr_gradients_ready(&stage->gradients, end);
}

static tr_status stage_backward(void *context, int number, int microbatch, int slot_number,
                                const void *grad_output, void *grad_input)
{
    tr_stage *stage = context;
    tr_model *model = &stage->model;
    const tr_chunk *chunk = chunk_of(stage, number);
    int local_chunk = (int)(chunk - stage->chunks);
    tr_slot *slot = &chunk->slots[slot_number];
    const tr_microbatch *batch = &stage->microbatches[microbatch];
    gradients_point(
        stage, local_chunk,
        tr_gradients_microbatch_begin(&stage->gradients, microbatch, &model->accumulate));
    const void *dy = grad_output;
    int turn = 0;
    if (chunk->last) {
        void *dx = stage->stream[turn];
        TR_TRY(tr_head_backward(model, batch, &slot->head, slot->x[chunk->num_layers],
                                stage->grad_scale, dx));
        TR_TRY(items_ready(stage, local_chunk, microbatch, chunk->first_layer + chunk->num_layers));
        dy = dx;
        turn ^= 1;
    }
    for (int l = chunk->num_layers - 1; l >= 0; l--) {
        void *dx = l == 0 && !chunk->first ? grad_input : stage->stream[turn];
        TR_TRY(tr_block_backward(model, chunk->first_layer + l, batch, &slot->blocks[l], slot->x[l],
                                 dy, dx));
        TR_TRY(items_ready(stage, local_chunk, microbatch, chunk->first_layer + l));
        dy = dx;
        turn ^= 1;
    }
    if (chunk->first)
        TR_TRY(tr_embed_run_backward(model, batch, dy));
    TR_TRY(tr_gradients_microbatch_end(&stage->gradients, local_chunk, microbatch));
    return items_ready(stage, local_chunk, microbatch, -1);
}

/* Operations that a group may have in flight at once: two buckets and their gathers; the pairs of buffers of parallel/tensor_comm.h and a sum over replicas. */
enum { DATA_OPERATIONS = 4, TENSOR_OPERATIONS = 7 };

static void sums_reserve(tr_group *group, int64_t elements_per_rank, int num_operations)
{
    if (group != NULL)
        tr_group_reserve(
            group, (size_t)elements_per_rank * (size_t)(tr_group_size(group) - 1) * sizeof(float),
            num_operations);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* So that no sum of a step takes memory. */
static void groups_reserve(const tr_stage *stage, tr_group *tensor, tr_group *kv, tr_group *data)
{
    const tr_model *model = &stage->model;
    const tr_bucket_reducer *reducer = &stage->gradients.reducer;
    int64_t size = model->tensor.size, shard = 0;
    for (int i = 0; i < reducer->num_buckets * reducer->size; i++)
        shard = most(shard, reducer->counts[i]);
    sums_reserve(data, shard, DATA_OPERATIONS);
    int64_t elements = most(model->R * model->H, 2 * model->R);
    elements = most(elements, stage->gradients.replica_elements);
    sums_reserve(tensor, (elements + size - 1) / size, TENSOR_OPERATIONS);
    sums_reserve(kv, stage->gradients.replica_elements, 1);
}

tr_status tr_stage_connect(tr_stage *stage, tr_group *tensor, tr_group *kv, tr_group *data,
                           tr_group *pipeline)
{
    groups_reserve(stage, tensor, kv, data);
    stage->model.tensor.group = tensor;
    stage->gradients.replica_groups[TR_REPLICA_ROWS] = tensor;
    stage->gradients.replica_groups[TR_REPLICA_KV] = kv;
    stage->gradients.reducer.group = data;
    const tr_stage_functions functions = {stage, stage_input, stage_forward, stage_backward};
    TR_TRY(tr_pipeline_exec_create(&stage->train_exec, stage->schedule, stage->mesh.pipeline,
                                   pipeline, transfer_bytes(stage), stage->send_memory,
                                   stage->recv_memory, &functions));
    return tr_pipeline_exec_create(&stage->eval_exec, stage->evaluation, stage->mesh.pipeline,
                                   pipeline, transfer_bytes(stage), stage->send_memory,
                                   stage->recv_memory, &functions);
}

static void loss_reset(tr_stage *stage)
{
    tr_fixed_sum_init(&stage->loss.sum);
    stage->loss.num_tokens = 0;
}

tr_status tr_stage_train(tr_stage *stage, const tr_microbatch *microbatches, int64_t step,
                         float grad_scale)
{
    stage->microbatches = microbatches;
    stage->model.step = step;
    stage->model.training = true;
    stage->grad_scale = grad_scale;
    loss_reset(stage);
    tr_gradients_step_begin(&stage->gradients);
    TR_TRY(tr_pipeline_exec_run(stage->train_exec));
    return tr_gradients_finish(&stage->gradients);
}

tr_status tr_stage_evaluate(tr_stage *stage, const tr_microbatch *microbatches)
{
    stage->microbatches = microbatches;
    stage->model.training = false;
    loss_reset(stage);
    return tr_pipeline_exec_run(stage->eval_exec);
}
