#include "engine/traffic.h"

#include "engine/model/row_sums.h"

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

/* ---- between tensor ranks ---- */

/* What microbatches exchange, in numbers. */
typedef struct exchanges {
    int64_t sums;    /* of partial sums [R,H] */
    int64_t gathers; /* of rows [R,H], with sequence parallel */
    int64_t logits;  /* a maximum of R floats and a sum of 2R */
    int64_t blocks;  /* whose weight gradients are summed over rows, or shared keys and values */
    int64_t heads;   /* the same of the final norm */
} exchanges;

static void forward_count(const tr_chunk *chunk, exchanges *total)
{
    total->sums += 2 * chunk->num_layers + chunk->first;
    total->gathers += 2 * chunk->num_layers + chunk->last;
    total->logits += chunk->last;
}

/* Input gradients; with `recomputed`, what full recomputation makes again. */
static void input_count(const tr_chunk *chunk, bool recomputed, exchanges *total)
{
    total->sums += 2 * chunk->num_layers + chunk->last;
    total->gathers += 2 * chunk->num_layers;
    if (!recomputed)
        return;
    total->sums += chunk->num_layers; /* of attention; the block's output is not needed again */
    total->gathers += 2 * chunk->num_layers + chunk->last;
    total->logits += chunk->last;
}

/* Weight gradients; alone, they gather the blocks' output gradients for themselves. */
static void weight_count(const tr_chunk *chunk, bool alone, exchanges *total)
{
    total->gathers += (alone ? 4 : 2) * chunk->num_layers + chunk->first + chunk->last;
    total->blocks += chunk->num_layers;
    total->heads += chunk->last;
}

static exchanges exchanges_count(const tr_stage *stage)
{
    exchanges total = {0};
    const tr_action_list *list = &stage->schedule->ranks[stage->mesh.pipeline];
    bool recomputed = stage->cfg->memory.recompute == TR_RECOMPUTE_FULL;
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        const tr_chunk *chunk = tr_stage_chunk(stage, action->chunk);
        bool split = chunk->pending_of[action->microbatch] >= 0;
        if (action->kind == TR_ACTION_FORWARD)
            forward_count(chunk, &total);
        if (action->kind == TR_ACTION_BACKWARD)
            input_count(chunk, recomputed, &total);
        if (split ? action->kind == TR_ACTION_WEIGHT : action->kind == TR_ACTION_BACKWARD)
            weight_count(chunk, split, &total);
    }
    return total;
}

static int64_t tensor_bytes(const tr_stage *stage)
{
    const tr_model *model = &stage->model;
    int size = stage->mesh.tensor_size, rank = stage->mesh.tensor,
        halves = model->tensor.num_halves;
    int sharers = tr_kv_sharers(stage->cfg, size);
    int64_t elements = model->R * model->H;
    if (size == 1)
        return 0;
    exchanges count = exchanges_count(stage);
    int64_t sum = halves * tr_group_all_reduce_bytes(size, rank, elements / halves);
    int64_t bytes = count.logits * (tr_group_all_reduce_bytes(size, rank, model->R) +
                                    tr_group_all_reduce_bytes(size, rank, 2 * model->R));
    if (model->tensor.sequence) {
        int64_t others = elements / size * (size - 1);
        sum = others * (int64_t)sizeof(float);
        bytes += count.gathers * others * (int64_t)model->item;
        if (model->sliced)
            bytes += count.blocks * tr_group_all_reduce_bytes(
                                        size, rank, tr_row_sums_of(model).count * model->H) +
                     count.heads *
                         tr_group_all_reduce_bytes(size, rank, tr_row_sums_norm(model) * model->H);
    }
    if (sharers > 1)
        bytes +=
            count.blocks * tr_group_all_reduce_bytes(sharers, rank % sharers, model->num_shared);
    bytes += tr_gradients_replica_bytes(&stage->gradients, TR_REPLICA_ROWS, size, rank);
    bytes += tr_gradients_replica_bytes(&stage->gradients, TR_REPLICA_KV, sharers, rank % sharers);
    return bytes + count.sums * sum;
}

tr_traffic tr_stage_traffic(const tr_stage *stage)
{
    const tr_model *model = &stage->model;
    const tr_tied *tied = &stage->tied;
    tr_traffic traffic = {
        .gradients = tr_bucket_reducer_step_bytes(&stage->gradients.reducer,
                                                  tr_reduce_num_exchanges(&stage->gradients.plan)),
        .weights = tr_weights_step_bytes(&stage->weights),
        .tensor = tensor_bytes(stage),
        .stages = num_sends(stage) * model->S * model->H * (int64_t)model->item};
    if (tied->head != NULL)
        traffic.stages += tied->count * (int64_t)sizeof(float);
    if (tied->embed != NULL)
        traffic.stages += tied->count * (int64_t)model->item;
    return traffic;
}
