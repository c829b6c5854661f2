/* A stage at work: the functions that the pipeline executor calls, and whole passes over a step's microbatches. */
#include "engine/stage_int.h"

static tr_chunk *chunk_of(const tr_stage *stage, int number)
{
    return &stage->chunks[tr_chunk_local(stage->mesh.pipeline_size, number)];
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

tr_stage_functions tr_stage_pass_functions(tr_stage *stage)
{
    return (tr_stage_functions){stage, stage_input, stage_forward, stage_backward};
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
