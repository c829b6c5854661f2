#include "engine/tied.h"

void tr_tied_init(tr_tied *tied, const tr_local_params *local, const tr_config *cfg,
                  const tr_mesh *mesh, tr_device *device, size_t source_bytes, tr_arena *comm,
                  tr_arena *workspace)
{
    *tied = (tr_tied){.device = device};
    int head_stage = cfg->derived.head_stage;
    if (!cfg->model.tied || head_stage == 0)
        return;
    const tr_local_param *item = NULL;
    if (mesh->pipeline == 0)
        tied->embed = item = tr_local_param_find(local, TR_ROLE_EMBED, -1);
    else if (mesh->pipeline == head_stage)
        tied->head = item = tr_local_param_find(local, TR_ROLE_HEAD, -1);
    if (item == NULL)
        return;
    tied->peer = tied->head != NULL ? 0 : head_stage;
    tied->count = tr_local_param_held(item);
    if (tied->head != NULL)
        source_bytes = sizeof(float);
    if (source_bytes > 0)
        tied->source = tr_arena_alloc(comm, (size_t)tied->count * source_bytes);
    if (tied->embed != NULL)
        tied->received = tr_arena_alloc(workspace, (size_t)tied->count * sizeof(float));
}

tr_status tr_tied_gradient_send(tr_tied *tied, const float *grad)
{
    size_t bytes = (size_t)tied->count * sizeof(float);
    TR_TRY(tr_event_wait(&tied->sent));
    const tr_copy copy = {tied->source, grad, bytes};
    TR_TRY(tied->device->ops->copy_many(tied->device, 1, &copy));
    return tr_group_send(tied->pipeline, tied->peer, tied->source, bytes, 0, &tied->sent);
}

tr_status tr_tied_gradient_receive(tr_tied *tied, const float **grad)
{
    tr_event event = {0};
    TR_TRY(tr_group_recv(tied->pipeline, tied->peer, tied->received,
                         (size_t)tied->count * sizeof(float), 0, &event));
    *grad = tied->received;
    return tr_event_wait(&event);
}

tr_status tr_tied_weights_source(tr_tied *tied, void **source)
{
    TR_TRY(tr_event_wait(&tied->sent));
    *source = tied->source;
    return TR_OK;
}

tr_status tr_tied_weights_send(tr_tied *tied, const void *weights, size_t bytes)
{
    TR_TRY(tr_event_wait(&tied->sent));
    return tr_group_send(tied->pipeline, tied->peer, weights, bytes, 0, &tied->sent);
}

tr_status tr_tied_weights_expect(tr_tied *tied, void *dst, size_t bytes)
{
    TR_TRY(tr_event_wait(&tied->weights_received));
    return tr_group_recv(tied->pipeline, tied->peer, dst, bytes, 0, &tied->weights_received);
}

tr_status tr_tied_weights_wait(tr_tied *tied)
{
    return tr_event_wait(&tied->weights_received);
}

tr_status tr_tied_settle(tr_tied *tied)
{
    return tr_event_wait(&tied->sent);
}
