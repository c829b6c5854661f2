/* What a rank saves of the state, and the memory that is laid out for it. */
#include "engine/checkpoint_int.h"

#include "base/alloc.h"
#include "engine/trace.h"

/* Whether this rank writes elements of the item: replicas over tensor ranks are written by one of
 * them, those over data ranks by shares, a tied tensor by its owner. */
static bool writes(const tr_local_param *item)
{
    return item->counted && item->param->tied_to < 0 && item->shard_begin < item->shard_end;
}

/* Appends the parts of one item and kind. */
static void parts_add(const tr_run *run, const tr_local_param *item, tr_shard_kind kind,
                      tr_shard_part *parts, int *num_parts)
{
    const float *values = tr_checkpoint_state(run, kind);
    tr_box pieces[TR_BOX_MAX_PIECES];
    if (values == NULL)
        return;
    values += item->state_offset + (item->shard_begin - item->state_begin);
    int num_pieces = tr_checkpoint_pieces(item, item->shard_begin, item->shard_end, pieces);
    for (int p = 0; p < num_pieces; p++) {
        parts[(*num_parts)++] =
            (tr_shard_part){item->table_row, kind, pieces[p], values, item->param->name};
        values += tr_box_volume(&pieces[p]);
    }
}

tr_shard_part *tr_checkpoint_parts(const tr_run *run, int *num_parts)
{
    const tr_local_params *local = &run->stage.local;
    tr_shard_part *parts = TR_NEW_ARRAY(
        tr_shard_part, (size_t)local->num_items * TR_SHARD_NUM_KINDS * TR_BOX_MAX_PIECES + 1);
    *num_parts = 0;
    for (int i = 0; i < local->num_items; i++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS && writes(&local->items[i]); kind++)
            parts_add(run, &local->items[i], (tr_shard_kind)kind, parts, num_parts);
    return parts;
}

/* No less than all parts: what tensor ranks have in common counts on each, so that these have equal
 * plans. */
static size_t share_bytes(const tr_config *cfg, const tr_local_params *local)
{
    int64_t elements = 0;
    for (int i = 0; i < local->num_items; i++)
        if (local->items[i].param->tied_to < 0)
            elements += local->items[i].shard_end - local->items[i].shard_begin;
    int kinds = cfg->train.optimizer == TR_OPTIMIZER_ADAMW ? TR_SHARD_NUM_KINDS : 1;
    return (size_t)elements * (size_t)kinds * sizeof(float);
}

/* Events between two cuts: two for each chunk, a few for the file and the commit, of the end of one save and the beginning of the next. */
static int64_t trace_capacity(const tr_config *cfg, const tr_local_params *local)
{
    enum { SAVE_EVENTS = 16, SAVES = 2 };
    int64_t chunks = (int64_t)(share_bytes(cfg, local) / TR_SHARD_CHUNK_DEFAULT) +
                     local->num_items * TR_SHARD_NUM_KINDS * TR_BOX_MAX_PIECES;
    return SAVES * (2 * chunks + SAVE_EVENTS);
}

tr_trace_lanes *tr_saver_get_trace(tr_saver *saver)
{
    return saver->trace.halves[0].capacity > 0 ? &saver->trace : NULL;
}

void tr_saver_layout(tr_saver *saver, const tr_config *cfg, const tr_local_params *local,
                     tr_device *device, tr_arena *arenas)
{
    *saver = (tr_saver){0};
    tr_state_fetch_layout(&saver->fetch, device, tr_stage_host_arena(arenas, device));
    if (tr_trace_any(cfg)) {
        int64_t capacity = trace_capacity(cfg, local);
        size_t bytes = 2 * (size_t)capacity * sizeof(tr_trace_event);
        tr_trace_lanes_init(&saver->trace, TR_TRACE_WRITER,
                            tr_arena_alloc(tr_stage_host_arena(arenas, device), bytes), capacity);
    }
    if (!cfg->checkpoint.async_ || cfg->checkpoint.every == 0)
        return;
    size_t most = (size_t)cfg->checkpoint.snapshot_mb * 1000000, bytes = share_bytes(cfg, local);
    saver->pool_bytes = bytes < most ? bytes : most;
    saver->pool = tr_arena_alloc(&arenas[TR_MEM_SNAPSHOT], saver->pool_bytes);
}
