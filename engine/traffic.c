#include "engine/traffic.h"

/* Sends to other stages in one pass. */
static int64_t num_sends(const tr_stage *stage)
{
    const tr_schedule *schedule = stage->schedule;
    const tr_action_list *list = &schedule->ranks[stage->mesh.pipeline];
    tr_placement placement = stage->cfg->derived.placement;
    int64_t count = 0;
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        int peer = action->kind == TR_ACTION_SEND_FORWARD    ? action->chunk + 1
                   : action->kind == TR_ACTION_SEND_BACKWARD ? action->chunk - 1
                                                             : -1;
        count += peer >= 0 &&
                 tr_chunk_stage(placement, schedule->num_stages, peer) != stage->mesh.pipeline;
    }
    return count;
}

tr_traffic tr_stage_traffic(const tr_stage *stage)
{
    const tr_model *model = &stage->model;
    const tr_tied *tied = &stage->tied;
    tr_traffic traffic = {
        .gradients = tr_bucket_reducer_step_bytes(&stage->gradients.reducer,
                                                  tr_reduce_num_exchanges(&stage->gradients.plan)),
        .weights = tr_weights_step_bytes(&stage->weights),
        .stages = num_sends(stage) * model->S * model->H * (int64_t)model->item};
    if (tied->head != NULL)
        traffic.stages += tied->count * (int64_t)sizeof(float);
    if (tied->embed != NULL)
        traffic.stages += tied->count * (int64_t)model->item;
    return traffic;
}
