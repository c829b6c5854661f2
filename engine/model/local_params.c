#include "engine/model/local_params.h"

#include <string.h>

#include "base/alloc.h"
#include "memory/arena.h"
#include "parallel/shard_map.h"

/* Elements to which offsets are rounded, so that fp32 and 16-bit views are both 256-byte aligned. */
enum { OFFSET_MULTIPLE = TR_ARENA_ALIGNMENT / 2 };

int tr_chunk_first_layer(const tr_config *cfg, int chunk)
{
    int64_t first = 0;
    for (int c = 0; c < chunk; c++)
        first += cfg->derived.chunk_layers[c];
    return (int)first;
}

int64_t tr_vocab_rows(const tr_config *cfg, int64_t tensor_size)
{
    int64_t parts = cfg->derived.tensor_slices > 0 ? cfg->derived.tensor_slices : tensor_size;
    return (cfg->model.vocab + parts - 1) / parts * (parts / tensor_size);
}

int tr_kv_sharers(const tr_config *cfg, int tensor_size)
{
    int64_t heads = cfg->model.kv_heads;
    return tensor_size > heads ? (int)(tensor_size / heads) : 1;
}

/* Fills rows, cols and the place in the global tensor for one tensor rank. */
static void cut_apply(tr_local_param *item, const tr_config *cfg, const tr_mesh *mesh)
{
    const tr_param *param = item->param;
    int64_t size = mesh->tensor_size, rank = mesh->tensor;
    item->rows = param->shape[0];
    item->cols = param->shape[1];
    item->num_replicas = 1;
    item->counted = true;
    switch (param->cut) {
    case TR_CUT_REPLICATED:
        item->num_replicas = (int)size;
        item->counted = rank == 0;
        break;
    case TR_CUT_ROWS:
    case TR_CUT_HEADS:
        item->rows /= size;
        item->row_begin = rank * item->rows;
        break;
    case TR_CUT_COLUMNS:
        item->cols /= size;
        item->col_begin = rank * item->cols;
        break;
    case TR_CUT_KV_HEADS: {
        int64_t heads = cfg->model.kv_heads, unit = param->shape[0] / heads;
        int64_t replicas = tr_kv_sharers(cfg, mesh->tensor_size);
        int64_t local_heads = size > heads ? 1 : heads / size;
        item->rows = local_heads * unit;
        item->row_begin = rank / replicas * item->rows;
        item->num_replicas = (int)replicas;
        item->counted = rank % replicas == 0;
        break;
    }
    case TR_CUT_VOCAB:
        item->rows = tr_vocab_rows(cfg, size);
        item->row_begin = rank * item->rows;
        break;
    }
    item->valid_rows = param->shape[0] - item->row_begin;
    if (item->valid_rows < 0)
        item->valid_rows = 0;
    if (item->valid_rows > item->rows)
        item->valid_rows = item->rows;
    if (item->row_begin > param->shape[0])
        item->row_begin = param->shape[0];
    item->count = item->rows * item->cols;
}

/* Whether a row of the table lives in a global chunk. */
static bool row_in_chunk(const tr_param *row, int first_layer, int num_layers, bool first,
                         bool last)
{
    if (row->layer >= 0)
        return row->layer >= first_layer && row->layer < first_layer + num_layers;
    if (row->role == TR_ROLE_EMBED || row->role == TR_ROLE_POSITION)
        return first;
    return last;
}

int tr_param_unit(const tr_param *param)
{
    if (param->layer >= 0)
        return param->layer;
    bool embedding = param->role == TR_ROLE_EMBED || param->role == TR_ROLE_POSITION;
    return embedding ? TR_UNIT_EMBEDDING : TR_UNIT_HEAD;
}

/* The items of a unit follow one another. */
static void units_find(tr_local_params *local)
{
    local->unit_first = TR_NEW_ARRAY(int, (size_t)local->num_items + 1);
    for (int i = 0; i < local->num_items; i++) {
        if (i == 0 ||
            tr_param_unit(local->items[i].param) != tr_param_unit(local->items[i - 1].param))
            local->unit_first[local->num_units++] = i;
        local->items[i].unit = local->num_units - 1;
    }
    local->unit_first[local->num_units] = local->num_items;
}

int tr_local_unit(const tr_local_params *local, int unit)
{
    for (int u = 0; u < local->num_units; u++)
        if (tr_param_unit(local->items[local->unit_first[u]].param) == unit)
            return u;
    return -1;
}

static void item_add(tr_local_params *local, const tr_param_table *table, int row, int chunk,
                     const tr_config *cfg, const tr_mesh *mesh)
{
    tr_local_param *item = &local->items[local->num_items++];
    item->param = &table->rows[row];
    item->table_row = row;
    item->chunk = chunk;
    cut_apply(item, cfg, mesh);
    int64_t padded = tr_round_up(item->count, OFFSET_MULTIPLE);
    item->offset = local->num_elements;
    local->num_elements += padded;
    if (item->param->tied_to < 0 || cfg->derived.head_stage > 0) {
        item->weight_offset = local->num_weights;
        local->num_weights += padded;
    }
    tr_shard_interval(item->count, mesh->shard_size, mesh->shard, &item->state_begin,
                      &item->state_end);
    tr_work_interval(item->count, mesh->shard_size, mesh->shard, mesh->replica_size, mesh->replica,
                     &item->shard_begin, &item->shard_end);
    item->state_offset = -1;
    if (item->param->tied_to < 0) {
        item->state_offset = local->num_state;
        local->num_state += tr_round_up(tr_local_param_held(item), TR_SHARD_MULTIPLE);
    }
}

void tr_local_params_init(tr_local_params *local, const tr_param_table *table, const tr_config *cfg,
                          const tr_mesh *mesh)
{
    *local = (tr_local_params){.num_chunks = (int)cfg->parallel.virtual_};
    int num_chunks = (int)cfg->derived.num_chunks;
    local->items = TR_NEW_ARRAY(tr_local_param, (size_t)table->num_rows);
    local->chunk_first = TR_NEW_ARRAY(int, (size_t)local->num_chunks);
    local->chunk_items = TR_NEW_ARRAY(int, (size_t)local->num_chunks);
    for (int c = local->num_chunks - 1; c >= 0; c--) {
        int chunk = tr_chunk_number(cfg->derived.placement, mesh->pipeline_size, mesh->pipeline, c);
        int first_layer = tr_chunk_first_layer(cfg, chunk);
        local->chunk_first[c] = local->num_items;
        for (int row = table->num_rows - 1; row >= 0; row--)
            if (row_in_chunk(&table->rows[row], first_layer, (int)cfg->derived.chunk_layers[chunk],
                             chunk == 0, chunk == num_chunks - 1))
                item_add(local, table, row, c, cfg, mesh);
        local->chunk_items[c] = local->num_items - local->chunk_first[c];
    }
    units_find(local);
    if (cfg->derived.head_stage == 0)
        for (int i = 0; i < local->num_items; i++)
            if (local->items[i].param->tied_to >= 0)
                local->items[i].weight_offset =
                    tr_local_param_find(local, TR_ROLE_EMBED, -1)->weight_offset;
}

void tr_local_params_clear(tr_local_params *local)
{
    tr_free(local->items);
    tr_free(local->chunk_first);
    tr_free(local->chunk_items);
    tr_free(local->unit_first);
    *local = (tr_local_params){0};
}

const tr_local_param *tr_local_param_find(const tr_local_params *local, tr_param_role role,
                                          int layer)
{
    for (int i = 0; i < local->num_items; i++)
        if (local->items[i].param->role == role && local->items[i].param->layer == layer)
            return &local->items[i];
    return NULL;
}
