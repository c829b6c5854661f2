/* See pipeline_exec.h. Creation turns the rank's list into steps whose buffers and events are
 * fixed; running walks over the steps.
 *
 * A step that uses a received buffer waits for that receive's event, a step that fills a send
 * buffer waits for the event of the buffer's last send; nothing else waits before the end of the
 * list. */
#include "parallel/pipeline_exec.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/integers.h"
#include "kernels/device_range.h"
#include "memory/arena.h"
#include "parallel/schedule_int.h"

typedef struct step {
    tr_action action;
    bool with_weight; /* B: its W is part of the call */
    int peer;         /* transfers: the other stage */
    /* SEND: source; RECV_BACKWARD: destination; F, B: what the result goes to, or NULL. */
    void *buffer;
    /* B: gradient of the output, or NULL; RECV between chunks of one rank: what is copied. */
    const void *source;
    tr_event *event; /* transfers: theirs; F, B: the input's, or NULL */
    tr_event *reuse; /* F, B: the event of the last send from `buffer`, or NULL */
} step;

struct tr_pipeline_exec {
    tr_group *group;
    tr_device *device;
    size_t transfer_bytes;
    tr_stage_functions functions;
    int stage, num_stages;
    bool keeps_activations; /* false in evaluation: a forward leaves nothing behind */
    step *steps;
    int num_steps;
    tr_event *send_events; /* one for each send buffer */
    int num_send_events;
    tr_event *recv_events; /* one for each receive of the list */
    int live, peak_live;   /* forward activations */
    tr_trace_ring *trace;  /* or NULL */
};

static size_t buffer_stride(size_t transfer_bytes)
{
    return (size_t)tr_round_up((int64_t)transfer_bytes, TR_ARENA_ALIGNMENT);
}

size_t tr_pipeline_exec_send_bytes(const tr_schedule *schedule, int stage, size_t transfer_bytes)
{
    return (size_t)schedule->num_send_buffers[stage] * buffer_stride(transfer_bytes);
}

size_t tr_pipeline_exec_recv_bytes(const tr_schedule *schedule, int stage, size_t transfer_bytes)
{
    return (size_t)schedule->num_grad_buffers[stage] * buffer_stride(transfer_bytes);
}

void tr_pipeline_exec_channels(const tr_schedule *schedule, bool *used)
{
    for (int from = 0; from < schedule->num_stages; from++) {
        const tr_action_list *list = &schedule->ranks[from];
        for (int i = 0; i < list->num_actions; i++) {
            const tr_action *action = &list->actions[i];
            if (!tr_action_is_send(action->kind))
                continue;
            int to = tr_schedule_stage(schedule, tr_action_peer_chunk(action));
            used[from * schedule->num_stages + to] = true;
        }
    }
}

/* What the steps of one (chunk, microbatch) have in common. */
typedef struct pair {
    tr_event *input_event, *grad_event;
    const void *grad;
    int send_buffer, send_back_buffer; /* -1: nothing is sent */
} pair;

typedef struct buffers {
    char *send, *recv;
    size_t stride;
} buffers;

static void *buffer_at(char *memory, size_t stride, int index)
{
    return memory + (size_t)index * stride;
}

/* Finds for every (local chunk, microbatch) the events and buffers that its transfers name. */
static pair *find_pairs(tr_pipeline_exec *exec, const tr_schedule *schedule,
                        const tr_action_list *list, const buffers *memory)
{
    int num_pairs = schedule->num_virtual * schedule->num_microbatches;
    pair *pairs = TR_NEW_ARRAY(pair, num_pairs);
    for (int i = 0; i < num_pairs; i++)
        pairs[i].send_buffer = pairs[i].send_back_buffer = -1;
    tr_event *next_event = exec->recv_events;
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        pair *of = &pairs[tr_schedule_local_index(schedule, action)];
        switch (action->kind) {
        case TR_ACTION_SEND_FORWARD:
            of->send_buffer = action->buffer;
            break;
        case TR_ACTION_SEND_BACKWARD:
            of->send_back_buffer = action->buffer;
            break;
        case TR_ACTION_RECV_FORWARD:
            of->input_event = next_event++;
            break;
        case TR_ACTION_RECV_BACKWARD:
            of->grad_event = next_event++;
            of->grad = buffer_at(memory->recv, memory->stride, action->buffer);
            break;
        default:
            break;
        }
    }
    return pairs;
}

/* Where a receive within a rank copies from: the buffer that its send names. */
static const void *copy_source(const tr_schedule *schedule, const tr_action *recv,
                               const pair *pairs, const buffers *memory)
{
    tr_action send = *recv;
    send.chunk = tr_action_peer_chunk(recv);
    const pair *of = &pairs[tr_schedule_local_index(schedule, &send)];
    int buffer = recv->kind == TR_ACTION_RECV_FORWARD ? of->send_buffer : of->send_back_buffer;
    return buffer_at(memory->send, memory->stride, buffer);
}

/* The step of one action. */
static step make_step(tr_pipeline_exec *exec, const tr_schedule *schedule, const tr_action *action,
                      const pair *pairs, const buffers *memory)
{
    const pair *of = &pairs[tr_schedule_local_index(schedule, action)];
    step made = {.action = *action};
    int result = -1;
    switch (action->kind) {
    case TR_ACTION_FORWARD:
        result = of->send_buffer;
        made.event = of->input_event;
        break;
    case TR_ACTION_BACKWARD:
        result = of->send_back_buffer;
        made.event = of->grad_event;
        made.source = of->grad;
        break;
    case TR_ACTION_WEIGHT:
        break;
    case TR_ACTION_SEND_FORWARD:
    case TR_ACTION_SEND_BACKWARD:
        made.buffer = buffer_at(memory->send, memory->stride, action->buffer);
        made.event = &exec->send_events[action->buffer];
        break;
    case TR_ACTION_RECV_FORWARD:
        made.event = of->input_event;
        break;
    case TR_ACTION_RECV_BACKWARD:
        made.event = of->grad_event;
        made.buffer = buffer_at(memory->recv, memory->stride, action->buffer);
        break;
    }
    if (tr_action_is_send(action->kind) || tr_action_is_recv(action->kind))
        made.peer = tr_schedule_stage(schedule, tr_action_peer_chunk(action));
    if (tr_action_is_recv(action->kind) && made.peer == exec->stage)
        made.source = copy_source(schedule, action, pairs, memory);
    if (result >= 0) {
        made.buffer = buffer_at(memory->send, memory->stride, result);
        made.reuse = &exec->send_events[result];
    }
    return made;
}

/* B and W of one call become one step. */
static void make_steps(tr_pipeline_exec *exec, const tr_schedule *schedule,
                       const tr_action_list *list, const buffers *memory)
{
    pair *pairs = find_pairs(exec, schedule, list, memory);
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        if (i > 0 && tr_schedule_is_pair(list, i - 1)) {
            exec->steps[exec->num_steps - 1].with_weight = true;
            continue;
        }
        exec->steps[exec->num_steps++] = make_step(exec, schedule, action, pairs, memory);
    }
    for (int i = 0; i < exec->num_steps; i++)
        TR_ASSERT(exec->steps[i].action.kind != TR_ACTION_WEIGHT ||
                  exec->functions.backward_weight != NULL);
    tr_free(pairs);
}

tr_status tr_pipeline_exec_create(tr_pipeline_exec **exec, const tr_schedule *schedule, int stage,
                                  tr_group *group, tr_device *device, size_t transfer_bytes,
                                  void *send_memory, void *recv_memory,
                                  const tr_stage_functions *functions)
{
    TR_ASSERT(stage >= 0 && stage < schedule->num_stages);
    TR_ASSERT(group == NULL ||
              (tr_group_size(group) == schedule->num_stages && tr_group_rank(group) == stage));
    TR_ASSERT(send_memory != NULL ||
              tr_pipeline_exec_send_bytes(schedule, stage, transfer_bytes) == 0);
    TR_ASSERT(recv_memory != NULL ||
              tr_pipeline_exec_recv_bytes(schedule, stage, transfer_bytes) == 0);

    const tr_action_list *list = &schedule->ranks[stage];
    const buffers memory = {
        .send = send_memory, .recv = recv_memory, .stride = buffer_stride(transfer_bytes)};
    int num_receives = 0;
    for (int i = 0; i < list->num_actions; i++)
        num_receives += tr_action_is_recv(list->actions[i].kind);

    tr_pipeline_exec *made = TR_NEW(tr_pipeline_exec);
    made->group = group;
    made->device = device;
    made->transfer_bytes = transfer_bytes;
    made->functions = *functions;
    made->stage = stage;
    made->num_stages = schedule->num_stages;
    made->keeps_activations = schedule->trains;
    made->num_send_events = schedule->num_send_buffers[stage];
    made->steps = TR_NEW_ARRAY(step, list->num_actions);
    made->send_events = TR_NEW_ARRAY(tr_event, made->num_send_events + 1);
    made->recv_events = TR_NEW_ARRAY(tr_event, num_receives + 1);
    make_steps(made, schedule, list, &memory);
    *exec = made;
    return TR_OK;
}

void tr_pipeline_exec_destroy(tr_pipeline_exec *exec)
{
    if (exec == NULL)
        return;
    tr_free(exec->recv_events);
    tr_free(exec->send_events);
    tr_free(exec->steps);
    tr_free(exec);
}

void tr_pipeline_exec_set_trace(tr_pipeline_exec *exec, tr_trace_ring *trace)
{
    exec->trace = trace;
}

static const char *action_name(const tr_action *action)
{
    return action->kind == TR_ACTION_FORWARD ? "F" : action->kind == TR_ACTION_BACKWARD ? "B" : "W";
}

static void action_trace(const tr_pipeline_exec *exec, const tr_action *action, double begin)
{
    if (!tr_trace_is_on(exec->trace))
        return;
    tr_trace_event *event =
        tr_trace_add(exec->trace, TR_TRACE_COMPUTE, 0, action_name(action), begin);
    event->chunk = action->chunk;
    event->microbatch = action->microbatch;
}

static tr_status wait_for(tr_event *event)
{
    return event != NULL ? tr_event_wait(event) : TR_OK;
}

static tr_status run_receive(tr_pipeline_exec *exec, const step *one)
{
    const tr_action *action = &one->action;
    void *dst = one->buffer;
    if (action->kind == TR_ACTION_RECV_FORWARD)
        dst = exec->functions.input(exec->functions.context, action->chunk, action->slot);
    if (one->source != NULL) {
        const tr_copy copy = {dst, one->source, exec->transfer_bytes};
        return exec->device->ops->copy_many(exec->device, 1, &copy);
    }
    return tr_group_recv(exec->group, one->peer, dst, exec->transfer_bytes, action->microbatch,
                         one->event);
}

static tr_status call_stage(tr_pipeline_exec *exec, const step *one)
{
    const tr_stage_functions *functions = &exec->functions;
    const tr_action *action = &one->action;
    void *context = functions->context;
    int chunk = action->chunk, microbatch = action->microbatch, slot = action->slot;
    if (action->kind == TR_ACTION_FORWARD)
        return functions->forward(context, chunk, microbatch, slot, one->buffer);
    if (action->kind == TR_ACTION_WEIGHT)
        return functions->backward_weight(context, chunk, microbatch, slot);
    if (one->with_weight)
        return functions->backward(context, chunk, microbatch, slot, one->source, one->buffer);
    return functions->backward_input(context, chunk, microbatch, slot, one->source, one->buffer);
}

static tr_status run_compute(tr_pipeline_exec *exec, const step *one)
{
    const tr_action *action = &one->action;
    TR_TRY(wait_for(one->event));
    TR_TRY(wait_for(one->reuse));
    double begin = tr_trace_now(exec->trace);
    if (action->kind == TR_ACTION_FORWARD && ++exec->live > exec->peak_live)
        exec->peak_live = exec->live;
    tr_device_range_begin_format(exec->device, "%d%s%d", action->chunk, action_name(action),
                                 action->microbatch);
    tr_status status = call_stage(exec, one);
    tr_device_range_end(exec->device);
    TR_TRY(status);
    action_trace(exec, action, begin);
    if (!exec->keeps_activations || action->kind == TR_ACTION_WEIGHT || one->with_weight)
        exec->live--;
    return exec->group != NULL ? tr_group_progress(exec->group) : TR_OK;
}

tr_status tr_pipeline_exec_run(tr_pipeline_exec *exec)
{
    TR_ASSERT(exec->num_stages == 1 || exec->group != NULL);
    exec->live = exec->peak_live = 0;
    for (int i = 0; i < exec->num_steps; i++) {
        const step *one = &exec->steps[i];
        if (tr_action_is_recv(one->action.kind))
            TR_TRY(run_receive(exec, one));
        else if (!tr_action_is_send(one->action.kind))
            TR_TRY(run_compute(exec, one));
        else if (one->peer != exec->stage)
            TR_TRY(tr_group_send(exec->group, one->peer, one->buffer, exec->transfer_bytes,
                                 one->action.microbatch, one->event));
    }
    for (int i = 0; i < exec->num_send_events; i++)
        TR_TRY(wait_for(&exec->send_events[i]));
    return TR_OK;
}

int tr_pipeline_exec_peak_live(const tr_pipeline_exec *exec)
{
    return exec->peak_live;
}
