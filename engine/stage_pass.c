/* A stage at work: the functions that the pipeline executor calls, and whole passes over a step's microbatches. */
#include "engine/stage_int.h"

static void *stage_input(void *context, int chunk, int slot)
{
    const tr_stage *stage = context;
    (void)chunk;
    return stage->slots[slot].x[0];
}

static tr_head_slot *head_of(const tr_stage *stage, int microbatch)
{
    return &stage->heads[stage->model.training ? stage->head_of[microbatch] : 0];
}

/* After a product or a unit: what was posted is moved on. */
static tr_status move_on(void *context)
{
    const tr_stage *stage = context;
    return stage->progress != NULL ? tr_group_progress(stage->progress) : TR_OK;
}

/* After a unit (the embedding, a layer, the head). */
static tr_status unit_done(tr_stage *stage, const char *name, int layer, double begin)
{
    if (tr_trace_is_on(&stage->trace))
        tr_trace_add(&stage->trace, TR_TRACE_COMPUTE, 0, name, begin)->number = layer;
    return move_on(stage);
}

static tr_status stage_forward(void *context, int number, int microbatch, int slot_number,
                               void *output)
{
    tr_stage *stage = context;
    tr_model *model = &stage->model;
    const tr_chunk *chunk = tr_stage_chunk(stage, number);
    tr_slot *slot = &stage->slots[slot_number];
    tr_head_slot *head = chunk->last ? head_of(stage, microbatch) : NULL;
    const tr_microbatch *batch = &stage->microbatches[microbatch];
    double begin;
    if (chunk->first) {
        TR_TRY(tr_weights_acquire(&stage->weights, TR_UNIT_EMBEDDING));
        begin = tr_trace_now(&stage->trace);
        TR_TRY(tr_embed_run_forward(model, batch, slot->x[0]));
        TR_TRY(unit_done(stage, "embedding", -1, begin));
    }
    for (int l = 0; l < chunk->num_layers; l++) {
        void *end = chunk->last ? head->x : output;
        TR_TRY(tr_weights_acquire(&stage->weights, chunk->first_layer + l));
        begin = tr_trace_now(&stage->trace);
        TR_TRY(tr_block_forward(model, chunk->first_layer + l, batch, &slot->blocks[l], slot->x[l],
                                l == chunk->num_layers - 1 ? end : slot->x[l + 1]));
        TR_TRY(unit_done(stage, "layer", chunk->first_layer + l, begin));
    }
    if (!chunk->last)
        return TR_OK;
    TR_TRY(tr_weights_acquire(&stage->weights, TR_UNIT_HEAD));
    begin = tr_trace_now(&stage->trace);
    int64_t *loss = stage->mesh.tensor == 0 ? stage->sums.loss : NULL; /* it is the same on all */
    TR_TRY(tr_head_forward(model, batch, &head->saved, head->x, loss));
    return unit_done(stage, "head", -1, begin);
}

/* Points the chunk's weight gradients to where a microbatch writes them. */
static void gradients_point(tr_stage *stage, int local_chunk, int microbatch)
{
    const tr_local_params *local = &stage->local;
    int first = local->chunk_first[local_chunk];
    stage->model.accumulate = tr_gradients_accumulates(&stage->gradients, microbatch);
    for (int i = first; i < first + local->chunk_items[local_chunk]; i++) {
        const tr_local_param *item = &local->items[i];
        int row = item->param->layer < 0 ? (int)stage->cfg->model.layers : item->param->layer;
        stage->model.weights[row][item->param->role].grad =
            tr_gradients_place(&stage->gradients, microbatch, item);
    }
}

/* One microbatch's backward through a chunk: both parts, or one of them. */
typedef struct backward_pass {
    tr_stage *stage;
    const tr_chunk *chunk;
    int local_chunk, microbatch;
    const tr_slot *slot;
    const tr_pending *pending; /* NULL: both parts in one call */
    const void *grad_output;   /* NULL for the last chunk, and in the weight part */
    void *grad_input;          /* NULL for chunk 0, and in the weight part */
} backward_pass;

static void unit_begin(const backward_pass *pass, int unit)
{
    pass->stage->written_unit = tr_local_unit(&pass->stage->local, unit);
    pass->stage->written_microbatch = pass->microbatch;
}

/* One of the unit's weight gradients of the microbatch is written. */
static tr_status item_end(void *context, tr_param_role role)
{
    tr_stage *stage = context;
    const tr_local_params *local = &stage->local;
    const int *first = &local->unit_first[stage->written_unit];
    for (int i = first[0]; i < first[1]; i++)
        if (local->items[i].param->role == role)
            return tr_gradients_item_end(&stage->gradients, i, stage->written_microbatch);
    return TR_OK;
}

/* All of them are. */
static tr_status unit_end(const backward_pass *pass, int unit)
{
    tr_stage *stage = pass->stage;
    return tr_gradients_unit_end(&stage->gradients, tr_local_unit(&stage->local, unit),
                                 pass->microbatch);
}

/* Where the gradient of the stream before block l lies (l = num_layers: after the last block). */
static void *stream_gradient(const backward_pass *pass, int l)
{
    if (l == 0 && !pass->chunk->first)
        return pass->grad_input;
    return pass->pending != NULL ? pass->pending->dx[l]
                                 : pass->stage->stream[(pass->chunk->num_layers - l) % 2];
}

/* Input gradients read a unit's weights; weight gradients do not. */
static tr_status weights_read(tr_stage *stage, int unit)
{
    bool read = (stage->model.parts & TR_BACKWARD_INPUT) != 0;
    return read ? tr_weights_acquire(&stage->weights, unit) : TR_OK;
}

/* The head, or what was received: makes the gradient of the chunk's last block's output. */
static tr_status backward_top(const backward_pass *pass, const void **dy)
{
    tr_stage *stage = pass->stage;
    tr_model *model = &stage->model;
    const tr_chunk *chunk = pass->chunk;
    void *dx = stream_gradient(pass, chunk->num_layers);
    *dy = dx;
    if (chunk->last) {
        TR_TRY(weights_read(stage, TR_UNIT_HEAD));
        unit_begin(pass, TR_UNIT_HEAD);
        double begin = tr_trace_now(&stage->trace);
        tr_head_slot *head = head_of(stage, pass->microbatch);
        TR_TRY(tr_head_backward(model, &stage->microbatches[pass->microbatch], &head->saved,
                                pass->pending != NULL ? &pass->pending->head : NULL, head->x,
                                &stage->decider.state->backward_scale, dx));
        return unit_done(stage, "head", -1, begin);
    }
    if (pass->pending == NULL)
        *dy = pass->grad_output;
    else if (model->parts & TR_BACKWARD_INPUT) /* grad_output does not last */
        return model->device->ops->convert(model->device, model->S * model->H, model->dtype,
                                           pass->grad_output, model->dtype, dx);
    return TR_OK;
}

static tr_status backward_run(const backward_pass *pass, unsigned parts)
{
    tr_stage *stage = pass->stage;
    tr_model *model = &stage->model;
    const tr_chunk *chunk = pass->chunk;
    const tr_microbatch *batch = &stage->microbatches[pass->microbatch];
    bool weights = (parts & TR_BACKWARD_WEIGHT) != 0;
    const void *dy;
    model->parts = parts;
    if (weights)
        gradients_point(stage, pass->local_chunk, pass->microbatch);
    TR_TRY(backward_top(pass, &dy));
    if (weights && chunk->last)
        TR_TRY(unit_end(pass, TR_UNIT_HEAD));
    for (int l = chunk->num_layers - 1; l >= 0; l--) {
        void *dx = stream_gradient(pass, l);
        TR_TRY(weights_read(stage, chunk->first_layer + l));
        unit_begin(pass, chunk->first_layer + l);
        double begin = tr_trace_now(&stage->trace);
        TR_TRY(tr_block_backward(model, chunk->first_layer + l, batch, &pass->slot->blocks[l],
                                 pass->pending != NULL ? &pass->pending->blocks[l] : NULL,
                                 pass->slot->x[l], dy, dx));
        TR_TRY(unit_done(stage, "layer", chunk->first_layer + l, begin));
        if (weights)
            TR_TRY(unit_end(pass, chunk->first_layer + l));
        dy = dx;
    }
    if (!weights || !chunk->first)
        return TR_OK;
    double begin = tr_trace_now(&stage->trace);
    TR_TRY(tr_embed_run_backward(model, batch, dy));
    TR_TRY(unit_done(stage, "embedding", -1, begin));
    return unit_end(pass, TR_UNIT_EMBEDDING);
}

static backward_pass backward_make(tr_stage *stage, int number, int microbatch, int slot)
{
    const tr_chunk *chunk = tr_stage_chunk(stage, number);
    return (backward_pass){.stage = stage,
                           .chunk = chunk,
                           .local_chunk = (int)(chunk - stage->chunks),
                           .microbatch = microbatch,
                           .slot = &stage->slots[slot]};
}

static tr_status stage_backward(void *context, int number, int microbatch, int slot,
                                const void *grad_output, void *grad_input)
{
    backward_pass pass = backward_make(context, number, microbatch, slot);
    pass.grad_output = grad_output;
    pass.grad_input = grad_input;
    return backward_run(&pass, TR_BACKWARD_BOTH);
}

static const tr_pending *pending_of(const tr_chunk *chunk, int microbatch)
{
    TR_ASSERT(chunk->pending_of[microbatch] >= 0);
    return &chunk->pending[chunk->pending_of[microbatch]];
}

static tr_status stage_backward_input(void *context, int number, int microbatch, int slot,
                                      const void *grad_output, void *grad_input)
{
    backward_pass pass = backward_make(context, number, microbatch, slot);
    pass.pending = pending_of(pass.chunk, microbatch);
    pass.grad_output = grad_output;
    pass.grad_input = grad_input;
    return backward_run(&pass, TR_BACKWARD_INPUT);
}

static tr_status stage_backward_weight(void *context, int number, int microbatch, int slot)
{
    backward_pass pass = backward_make(context, number, microbatch, slot);
    pass.pending = pending_of(pass.chunk, microbatch);
    return backward_run(&pass, TR_BACKWARD_WEIGHT);
}

tr_stage_functions tr_stage_pass_functions(tr_stage *stage)
{
    stage->model.hooks =
        (tr_model_hooks){.context = stage, .product = move_on, .written = item_end};
    return (tr_stage_functions){.context = stage,
                                .input = stage_input,
                                .forward = stage_forward,
                                .backward = stage_backward,
                                .backward_input = stage_backward_input,
                                .backward_weight = stage_backward_weight};
}

tr_status tr_stage_train(tr_stage *stage, const tr_microbatch *microbatches, int64_t step)
{
    stage->microbatches = microbatches;
    stage->model.step = step;
    stage->model.training = true;
    double begin = tr_trace_now(&stage->trace);
    TR_TRY(tr_weights_pass_begin(&stage->weights, true));
    tr_trace_part(&stage->trace, "begin weights", begin);
    begin = tr_trace_now(&stage->trace);
    TR_TRY(tr_pipeline_exec_run(stage->train_exec));
    tr_trace_part(&stage->trace, "microbatches", begin);
    begin = tr_trace_now(&stage->trace);
    TR_TRY(tr_gradients_finish(&stage->gradients));
    tr_trace_part(&stage->trace, "reduce", begin);
    return tr_weights_pass_end(&stage->weights);
}

tr_status tr_stage_evaluate(tr_stage *stage, const tr_microbatch *microbatches)
{
    stage->microbatches = microbatches;
    stage->model.training = false;
    TR_TRY(tr_weights_pass_begin(&stage->weights, false));
    TR_TRY(tr_pipeline_exec_run(stage->eval_exec));
    return tr_weights_pass_end(&stage->weights);
}
