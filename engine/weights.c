#include "engine/weights.h"

#include "base/alloc.h"

tr_weights_kind tr_weights_kind_of(const tr_config *cfg, const tr_mesh *mesh)
{
    if (mesh->shard_size == 1)
        return TR_WEIGHTS_WHOLE;
    return cfg->parallel.zero == 3 ? TR_WEIGHTS_SHARDED : TR_WEIGHTS_SPREAD;
}

static void *element_at(const tr_weights *weights, void *memory, int64_t element)
{
    return (unsigned char *)memory + (size_t)element * weights->item_bytes;
}

/* A tied head that reads the embedding of this rank: no weights of its own. */
static bool borrows(const tr_weights *weights, const tr_local_param *item)
{
    return item->param->tied_to >= 0 && weights->tied->head == NULL;
}

/* ---- layout ---- */

/* Every item has its place for good. */
static void whole_init(tr_weights *weights, tr_arena *parameters)
{
    const tr_local_params *local = weights->local;
    weights->memory = tr_arena_alloc(parameters, (size_t)local->num_weights * weights->item_bytes);
    for (int i = 0; i < local->num_items; i++)
        weights->places[i] = element_at(weights, weights->memory, local->items[i].weight_offset);
}

/* This rank's intervals without gaps, so that one operation sends those of a unit. What a tied head borrows, the embedding's, is the last item of all: the rest of
 * its unit stands behind it. */
static void intervals_place(tr_weights *weights, tr_arena *parameters)
{
    const tr_local_params *local = weights->local;
    const tr_local_param *head = tr_local_param_find(local, TR_ROLE_HEAD, -1);
    int behind = head != NULL && borrows(weights, head) ? tr_local_unit(local, TR_UNIT_HEAD) : -1;
    int64_t end = 0;
    weights->offsets = TR_NEW_ARRAY(int64_t, (size_t)local->num_items + 1);
    for (int u = 0; u <= local->num_units; u++) {
        int unit = u < local->num_units ? u : behind;
        if (unit < 0 || (u == behind && u < local->num_units))
            continue;
        for (int i = local->unit_first[unit]; i < local->unit_first[unit + 1]; i++) {
            const tr_local_param *item = &local->items[i];
            weights->offsets[i] = end;
            if (borrows(weights, item))
                weights->offsets[i] = weights->offsets[local->num_items - 1];
            else
                end += tr_local_param_held(item);
        }
    }
    weights->memory = tr_arena_alloc(parameters, (size_t)end * weights->item_bytes);
}

/* All units have their items from the same address on, one unit at a time. */
static void unit_places(tr_weights *weights, tr_arena *workspace)
{
    const tr_local_params *local = weights->local;
    size_t mark = tr_arena_mark(workspace), end = mark;
    for (int u = 0; u < local->num_units; u++) {
        tr_arena_reset(workspace, mark);
        for (int i = local->unit_first[u]; i < local->unit_first[u + 1]; i++)
            weights->places[i] =
                tr_arena_alloc(workspace, (size_t)local->items[i].count * weights->item_bytes);
        if (tr_arena_mark(workspace) > end)
            end = tr_arena_mark(workspace);
    }
    tr_arena_alloc(workspace, end - tr_arena_mark(workspace));
}

/* A piece for each unit, cut where `bucket` bytes of fp32 are exceeded; what another stage sends stands alone. */
static void gather_init(tr_weights *weights, const tr_mesh *mesh, int64_t bucket, tr_arena *comm,
                        tr_arena *workspace)
{
    const tr_local_params *local = weights->local;
    size_t room = (size_t)local->num_items + 1;
    tr_gather_tensor *tensors = TR_NEW_ARRAY(tr_gather_tensor, room);
    int *piece_first = TR_NEW_ARRAY(int, room);
    int num_tensors = 0, num_pieces = 0;
    bool shares = weights->kind == TR_WEIGHTS_SPREAD;
    weights->tensor_items = TR_NEW_ARRAY(int, room);
    weights->unit_piece = TR_NEW_ARRAY(int, (size_t)local->num_units + 1);
    for (int u = 0; u < local->num_units; u++) {
        int64_t bytes = 0;
        bool cut = true;
        weights->unit_piece[u] = num_pieces;
        for (int i = local->unit_first[u]; i < local->unit_first[u + 1]; i++) {
            const tr_local_param *item = &local->items[i];
            if (shares && borrows(weights, item))
                continue;
            int64_t item_bytes = item->count * (int64_t)sizeof(float);
            bool alone = shares && item->param->tied_to >= 0;
            if (cut || alone || item_bytes > bucket - bytes) {
                piece_first[num_pieces++] = num_tensors;
                bytes = 0;
            }
            cut = alone;
            bytes += item_bytes;
            weights->tensor_items[num_tensors] = i;
            tensors[num_tensors++] = (tr_gather_tensor){item->count, weights->places[i]};
        }
    }
    weights->unit_piece[local->num_units] = num_pieces;
    piece_first[num_pieces] = num_tensors;
    tr_param_gather_init(&weights->gather, tensors, piece_first, num_pieces, mesh->shard_size,
                         mesh->shard, weights->item_bytes, shares, weights->device, comm,
                         workspace);
    tr_free(tensors);
    tr_free(piece_first);
}

/* ---- the order of uses ---- */

static void use_add(tr_weight_uses *uses, int unit)
{
    if (uses->num == 0 || uses->units[uses->num - 1] != unit)
        uses->units[uses->num++] = unit;
}

/* Forward from the chunk's last unit, its first layer or the embedding, to its first; backward the other way, without the embedding, whose gradient needs no
 * weights. */
static void action_uses(const tr_weights *weights, const tr_action *action, int num_stages,
                        tr_weight_uses *uses)
{
    const tr_local_params *local = weights->local;
    int chunk = tr_chunk_local(num_stages, action->chunk), first = 0, end;
    while (local->items[local->unit_first[first]].chunk != chunk)
        first++;
    for (end = first; end < local->num_units; end++)
        if (local->items[local->unit_first[end]].chunk != chunk)
            break;
    if (action->kind == TR_ACTION_FORWARD)
        for (int u = end - 1; u >= first; u--)
            use_add(uses, u);
    if (action->kind == TR_ACTION_BACKWARD)
        for (int u = first; u < end; u++)
            if (u != tr_local_unit(local, TR_UNIT_EMBEDDING))
                use_add(uses, u);
}

static void uses_init(tr_weights *weights, const tr_schedule *schedule, int stage,
                      tr_weight_uses *uses)
{
    const tr_action_list *list = &schedule->ranks[stage];
    uses->units =
        TR_NEW_ARRAY(int, (size_t)list->num_actions *(size_t)weights->local->num_units + 1);
    for (int a = 0; a < list->num_actions; a++)
        action_uses(weights, &list->actions[a], schedule->num_stages, uses);
}

/* ---- sources of gathers ---- */

/* ZeRO 3: the intervals as they lie. */
static tr_status sharded_source(void *context, int piece, void *buffer, const void **source)
{
    const tr_weights *weights = context;
    (void)buffer;
    int first = weights->local->unit_first[piece];
    if (weights->local->items[first].param->tied_to >= 0)
        TR_TRY(tr_tied_weights_wait(weights->tied));
    *source = element_at(weights, weights->memory, weights->offsets[first]);
    return TR_OK;
}

/* ZeRO 1 and 2: made from the masters; a tied head's as they came from the other stage. */
static tr_status spread_source(void *context, int piece, void *buffer, const void **source)
{
    const tr_weights *weights = context;
    tr_device *device = weights->device;
    int64_t position = 0;
    for (int t = weights->gather.piece_first[piece]; t < weights->gather.piece_first[piece + 1];
         t++) {
        const tr_local_param *item = &weights->local->items[weights->tensor_items[t]];
        if (item->param->tied_to >= 0) {
            *source = weights->tied->source;
            return tr_tied_weights_wait(weights->tied);
        }
        TR_TRY(device->ops->convert(
            device, tr_local_param_held(item), TR_F32, weights->master + item->state_offset,
            weights->cfg->train.precision, element_at(weights, buffer, position)));
        position += tr_local_param_held(item);
    }
    *source = buffer;
    return TR_OK;
}

/* ---- life ---- */

void tr_weights_init(tr_weights *weights, const tr_config *cfg, const tr_mesh *mesh,
                     const tr_local_params *local, tr_device *device, const float *master,
                     tr_tied *tied, const tr_schedule *schedule, const tr_schedule *evaluation,
                     tr_arena *arenas)
{
    *weights = (tr_weights){.kind = tr_weights_kind_of(cfg, mesh),
                            .cfg = cfg,
                            .local = local,
                            .device = device,
                            .tied = tied,
                            .master = master,
                            .item_bytes = tr_dtype_size(cfg->train.precision),
                            .held = -1};
    tr_arena *comm = &arenas[TR_MEM_COMMUNICATION], *workspace = &arenas[TR_MEM_WORKSPACE];
    weights->places = TR_NEW_ARRAY(void *, (size_t)local->num_items + 1);
    switch (weights->kind) {
    case TR_WEIGHTS_WHOLE:
        whole_init(weights, &arenas[TR_MEM_PARAMETERS]);
        return;
    case TR_WEIGHTS_SPREAD:
        whole_init(weights, &arenas[TR_MEM_PARAMETERS]);
        gather_init(weights, mesh, (int64_t)(cfg->parallel.bucket_mb * 1e6), comm, workspace);
        weights->spread_order = TR_NEW_ARRAY(int, (size_t)weights->gather.num_pieces + 1);
        for (int p = 0; p < weights->gather.num_pieces; p++)
            weights->spread_order[p] = weights->gather.num_pieces - 1 - p;
        weights->gather.source = spread_source;
        break;
    case TR_WEIGHTS_SHARDED:
        intervals_place(weights, &arenas[TR_MEM_PARAMETERS]);
        unit_places(weights, workspace);
        gather_init(weights, mesh, INT64_MAX, comm, workspace);
        uses_init(weights, schedule, mesh->pipeline, &weights->uses[0]);
        uses_init(weights, evaluation, mesh->pipeline, &weights->uses[1]);
        weights->gather.source = sharded_source;
        break;
    }
    weights->gather.context = weights;
}

void tr_weights_clear(tr_weights *weights)
{
    tr_param_gather_clear(&weights->gather);
    tr_free(weights->offsets);
    tr_free(weights->places);
    tr_free(weights->tensor_items);
    tr_free(weights->unit_piece);
    tr_free(weights->spread_order);
    for (int i = 0; i < 2; i++)
        tr_free(weights->uses[i].units);
    *weights = (tr_weights){0};
}

void *tr_weights_place(const tr_weights *weights, const tr_local_param *item)
{
    return weights->places[item - weights->local->items];
}

void *tr_weights_target(const tr_weights *weights, const tr_local_param *item)
{
    switch (weights->kind) {
    case TR_WEIGHTS_SPREAD:
        return NULL;
    case TR_WEIGHTS_SHARDED:
        return element_at(weights, weights->memory, weights->offsets[item - weights->local->items]);
    case TR_WEIGHTS_WHOLE:
        break;
    }
    return element_at(weights, tr_weights_place(weights, item), item->state_begin);
}

/* ---- updated weights on their way ---- */

/* Sends, or expects, a tied head's weights. */
static tr_status tied_begin(tr_weights *weights)
{
    tr_tied *tied = weights->tied;
    size_t bytes = (size_t)tied->count * weights->item_bytes;
    void *end;
    if (tied->head != NULL) {
        end = tr_weights_target(weights, tied->head);
        if (end == NULL)
            TR_TRY(tr_tied_weights_source(tied, &end));
        return tr_tied_weights_expect(tied, end, bytes);
    }
    if (tied->embed == NULL)
        return TR_OK;
    if (weights->kind == TR_WEIGHTS_SHARDED)
        return tr_tied_weights_send(tied, tr_weights_target(weights, tied->embed), bytes);
    TR_TRY(tr_tied_weights_source(tied, &end));
    TR_TRY(weights->device->ops->convert(weights->device, tied->count, TR_F32,
                                         weights->master + tied->embed->state_offset,
                                         weights->cfg->train.precision, end));
    return tr_tied_weights_send(tied, end, bytes);
}

static tr_status change_begin(tr_weights *weights)
{
    weights->changed = false;
    TR_TRY(tied_begin(weights));
    if (weights->kind != TR_WEIGHTS_SPREAD)
        return TR_OK;
    weights->num_missing = weights->local->num_units;
    return tr_param_gather_begin(&weights->gather, weights->spread_order,
                                 weights->gather.num_pieces, true);
}

/* Takes what is missing down to `unit`. */
static tr_status spread_take(tr_weights *weights, int unit)
{
    while (weights->num_missing > unit) {
        int missing = --weights->num_missing;
        for (int p = weights->unit_piece[missing + 1] - 1; p >= weights->unit_piece[missing]; p--)
            TR_TRY(tr_param_gather_take(&weights->gather, p));
    }
    return TR_OK;
}

tr_status tr_weights_changed(tr_weights *weights)
{
    weights->changed = true;
    if (weights->cfg->parallel.overlap)
        return TR_OK;
    TR_TRY(change_begin(weights));
    TR_TRY(spread_take(weights, 0));
    TR_TRY(tr_tied_weights_wait(weights->tied));
    return tr_weights_pass_end(weights);
}

/* ---- passes ---- */

tr_status tr_weights_pass_begin(tr_weights *weights, bool training)
{
    if (weights->changed)
        TR_TRY(change_begin(weights));
    if (weights->kind != TR_WEIGHTS_SHARDED)
        return TR_OK;
    const tr_weight_uses *uses = &weights->uses[training ? 0 : 1];
    weights->held = -1;
    return tr_param_gather_begin(&weights->gather, uses->units, uses->num,
                                 weights->cfg->parallel.overlap);
}

tr_status tr_weights_acquire(tr_weights *weights, int unit)
{
    int index = tr_local_unit(weights->local, unit);
    TR_ASSERT(index >= 0);
    if (weights->kind == TR_WEIGHTS_WHOLE)
        return unit == TR_UNIT_HEAD ? tr_tied_weights_wait(weights->tied) : TR_OK;
    if (weights->kind == TR_WEIGHTS_SPREAD)
        return spread_take(weights, index);
    if (weights->held == index)
        return TR_OK;
    TR_TRY(tr_param_gather_take(&weights->gather, index));
    weights->held = index;
    return TR_OK;
}

tr_status tr_weights_pass_end(tr_weights *weights)
{
    TR_TRY(tr_tied_settle(weights->tied));
    return weights->kind == TR_WEIGHTS_WHOLE ? TR_OK : tr_param_gather_end(&weights->gather);
}

int64_t tr_weights_step_bytes(const tr_weights *weights)
{
    int64_t bytes = 0;
    if (weights->kind == TR_WEIGHTS_SPREAD)
        for (int p = 0; p < weights->gather.num_pieces; p++)
            bytes += tr_param_gather_bytes_sent(&weights->gather, p);
    for (int i = 0; i < weights->uses[0].num; i++)
        bytes += tr_param_gather_bytes_sent(&weights->gather, weights->uses[0].units[i]);
    return bytes;
}
