#include "engine/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/run_int.h"
#include "parallel/shard_map.h"

/* Ranks of one pipeline stage and tensor coordinate differ only by what their shards of each tensor come to: the same sizes give the same bytes. */
static uint64_t shard_signature(const tr_config *cfg, const tr_param_table *table,
                                const tr_mesh *mesh)
{
    tr_local_params local;
    uint64_t signature = 0;
    tr_local_params_init(&local, table, cfg, mesh);
    for (int i = 0; i < local.num_items; i++) {
        const tr_local_param *item = &local.items[i];
        signature = signature * 1000003u + (uint64_t)(item->state_end - item->state_begin);
        signature = signature * 1000003u + (uint64_t)(item->shard_end - item->shard_begin);
    }
    tr_local_params_clear(&local);
    return signature;
}

static void rank_fill(tr_plan_rank *rank, const tr_mesh *mesh, const size_t bytes[TR_MEM_NUM],
                      const tr_traffic *traffic)
{
    *rank = (tr_plan_rank){.data = mesh->data,
                           .tensor = mesh->tensor,
                           .pipeline = mesh->pipeline,
                           .traffic = *traffic};
    for (int c = 0; c < TR_MEM_NUM; c++) {
        rank->bytes[c] = bytes[c];
        rank->total += bytes[c];
    }
}

tr_status tr_plan_count(const tr_config *cfg, tr_device *device, tr_plan_rank *ranks)
{
    int num_ranks = (int)cfg->derived.num_ranks;
    tr_param_table table;
    tr_param_table_init(&table, cfg);
    uint64_t *signatures = TR_NEW_ARRAY(uint64_t, (size_t)num_ranks);
    tr_status status = TR_OK;
    for (int r = 0; r < num_ranks && status == TR_OK; r++) {
        tr_mesh mesh = tr_config_mesh(cfg, r);
        signatures[r] = shard_signature(cfg, &table, &mesh);
        /* Tensor ranks cut alike except for padding, which is counted in full on each: one of them stands for all. */
        int twin = -1;
        for (int d = 0; d <= mesh.data && twin < 0; d++) {
            int other = tr_mesh_rank_at(&mesh, d, 0, mesh.pipeline);
            if (other < r && signatures[other] == signatures[r])
                twin = other;
        }
        size_t bytes[TR_MEM_NUM];
        tr_traffic traffic = {0};
        if (twin >= 0) {
            memcpy(bytes, ranks[twin].bytes, sizeof bytes);
            traffic = ranks[twin].traffic;
        } else {
            status = tr_run_count(cfg, &mesh, device, bytes, &traffic);
        }
        rank_fill(&ranks[r], &mesh, bytes, &traffic);
    }
    tr_free(signatures);
    tr_param_table_clear(&table);
    return status;
}

/* Bytes of a rank in a configuration, and what it sends of gradients. */
static tr_status order_bytes(const tr_config *cfg, int rank, tr_device *device, int64_t *memory,
                             int64_t *sent)
{
    size_t bytes[TR_MEM_NUM];
    tr_traffic traffic;
    tr_mesh mesh = tr_config_mesh(cfg, rank);
    TR_TRY(tr_run_count(cfg, &mesh, device, bytes, &traffic));
    *memory = 0;
    for (int c = 0; c < TR_MEM_NUM; c++)
        *memory += (int64_t)bytes[c];
    *sent = traffic.gradients;
    return TR_OK;
}

tr_status tr_plan_order_count(const tr_config *cfg, tr_device *device, tr_plan_order *order)
{
    tr_config natural = *cfg; /* shallow: read only, not cleared */
    natural.train.reduction_order = tr_config_natural_order(cfg);
    natural.derived.leaves = cfg->parallel.data;
    *order = (tr_plan_order){.plan = tr_config_reduce_plan(cfg)};
    order->natural = natural.train.reduction_order == cfg->train.reduction_order &&
                     natural.derived.leaves == cfg->derived.leaves;
    for (int p = 0; p < cfg->parallel.pipeline && !order->natural; p++) {
        int64_t memory, sent, natural_memory, natural_sent;
        tr_mesh first = tr_config_mesh(cfg, 0);
        int rank = tr_mesh_rank_at(&first, 0, 0, p);
        TR_TRY(order_bytes(cfg, rank, device, &memory, &sent));
        TR_TRY(order_bytes(&natural, rank, device, &natural_memory, &natural_sent));
        if (p == 0 || memory - natural_memory > order->memory)
            order->memory = memory - natural_memory;
        if (p == 0 || sent - natural_sent > order->sent)
            order->sent = sent - natural_sent;
    }
    return TR_OK;
}

/* Forward FLOPs of a chunk for one microbatch: 2 per weight and token in the products, 4 A D T per token and layer in attention. */
static double chunk_flops(const tr_config *cfg, int chunk)
{
    double hidden = (double)cfg->model.hidden, ffn = (double)cfg->model.ffn;
    double head_dim = (double)cfg->model.head_dim;
    double q = (double)cfg->model.heads * head_dim, kv = (double)cfg->model.kv_heads * head_dim;
    double tokens = (double)(cfg->train.micro_batch * cfg->train.seq_len);
    double mlp = (cfg->model.mlp == TR_MLP_SWIGLU ? 3 : 2) * hidden * ffn;
    double layer = 2 * (hidden * (2 * q + 2 * kv) + mlp) + 4 * q * (double)cfg->train.seq_len;
    double flops = (double)cfg->derived.chunk_layers[chunk] * layer;
    if (chunk == cfg->derived.num_chunks - 1)
        flops += 2 * hidden * (double)cfg->model.vocab;
    return flops * tokens;
}

tr_status tr_plan_pipeline_count(const tr_config *cfg, tr_plan_pipeline *plan)
{
    int num_chunks = (int)cfg->derived.num_chunks, num_stages = (int)cfg->parallel.pipeline;
    tr_schedule *schedule;
    *plan = (tr_plan_pipeline){0};
    TR_TRY(tr_schedule_create(&schedule, cfg->parallel.schedule, num_stages,
                              (int)cfg->parallel.virtual_,
                              (int)(cfg->derived.microbatches / cfg->parallel.data)));
    plan->chunk_flops = TR_NEW_ARRAY(double, (size_t)num_chunks);
    plan->peak_live = TR_NEW_ARRAY(int, (size_t)num_chunks);
    double *busy = TR_NEW_ARRAY(double, (size_t)num_stages);
    for (int c = 0; c < num_chunks; c++) {
        plan->chunk_flops[c] = chunk_flops(cfg, c);
        plan->peak_live[c] = schedule->num_slots[c];
    }
    tr_schedule_costs costs = {plan->chunk_flops, plan->chunk_flops, plan->chunk_flops, 0};
    tr_schedule_times times = {.busy = busy};
    tr_status status = tr_schedule_simulate(schedule, &costs, &times);
    double most = 0, sum = 0;
    for (int s = 0; s < num_stages; s++) {
        sum += busy[s];
        most = busy[s] > most ? busy[s] : most;
    }
    plan->idle_share = times.idle_share;
    plan->slowest_share = sum > 0 ? most * num_stages / sum : 1;
    plan->text = tr_schedule_text(schedule);
    tr_free(busy);
    tr_schedule_destroy(schedule);
    return status;
}
