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
        signature = signature * 1000003u + (uint64_t)tr_local_param_held(item);
        signature = signature * 1000003u + (uint64_t)(item->shard_end - item->shard_begin);
    }
    tr_local_params_clear(&local);
    return signature;
}

static void rank_fill(tr_plan_rank *rank, const tr_mesh *mesh, const tr_device *device,
                      const size_t bytes[TR_MEM_NUM], const tr_traffic *traffic)
{
    *rank = (tr_plan_rank){.data = mesh->data,
                           .tensor = mesh->tensor,
                           .pipeline = mesh->pipeline,
                           .traffic = *traffic};
    memcpy(rank->bytes, bytes, sizeof rank->bytes);
    rank->total = tr_run_device_bytes(device, bytes);
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
        rank_fill(&ranks[r], &mesh, device, bytes, &traffic);
    }
    tr_free(signatures);
    tr_param_table_clear(&table);
    return status;
}

int tr_plan_largest(const tr_plan_rank *ranks, int num_ranks)
{
    int largest = 0;
    for (int r = 1; r < num_ranks; r++)
        if (ranks[r].total > ranks[largest].total)
            largest = r;
    return largest;
}

tr_status tr_plan_order_count(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks,
                              tr_plan_order *order)
{
    tr_config natural = *cfg; /* shallow: read only, not cleared */
    natural.train.reduction_order = tr_config_natural_order(cfg);
    natural.derived.leaves = cfg->parallel.data;
    *order = (tr_plan_order){.plan = tr_config_reduce_plan(cfg)};
    order->natural = (natural.train.reduction_order == cfg->train.reduction_order ||
                      cfg->train.reduction_order == TR_REDUCTION_NATIVE) &&
                     natural.derived.leaves == cfg->derived.leaves;
    for (int p = 0; p < cfg->parallel.pipeline && !order->natural; p++) {
        tr_mesh first = tr_config_mesh(cfg, 0);
        int rank = tr_mesh_rank_at(&first, 0, 0, p);
        tr_mesh mesh = tr_config_mesh(cfg, rank);
        size_t bytes[TR_MEM_NUM];
        tr_traffic traffic;
        TR_TRY(tr_run_count(&natural, &mesh, device, bytes, &traffic));
        int64_t memory = (int64_t)ranks[rank].total - (int64_t)tr_run_device_bytes(device, bytes);
        int64_t sent = ranks[rank].traffic.gradients - traffic.gradients;
        if (p == 0 || memory > order->memory)
            order->memory = memory;
        if (p == 0 || sent > order->sent)
            order->sent = sent;
    }
    return TR_OK;
}

/* Forward FLOPs of a chunk for one microbatch: two per multiply-add. */
static double chunk_flops(const tr_config *cfg, int chunk)
{
    tr_part_costs costs = tr_config_part_costs(cfg);
    double work = (double)cfg->derived.chunk_layers[chunk] * costs.layer;
    if (chunk == 0)
        work += costs.embedding;
    if (chunk == cfg->derived.num_chunks - 1)
        work += costs.head;
    return 2 * work * (double)(cfg->train.micro_batch * cfg->train.seq_len);
}

/* The run's schedule and what its actions cost, in forward FLOPs. */
typedef struct pipeline {
    tr_schedule *schedule;
    double *flops, *backward; /* [num_chunks] */
    tr_schedule_costs costs;
} pipeline;

static tr_status pipeline_init(pipeline *pipe, const tr_config *cfg)
{
    size_t num_chunks = (size_t)cfg->derived.num_chunks;
    *pipe = (pipeline){0};
    TR_TRY(tr_schedule_create(&pipe->schedule, cfg->parallel.schedule, (int)cfg->parallel.pipeline,
                              (int)cfg->parallel.virtual_,
                              (int)(cfg->derived.microbatches / cfg->parallel.data)));
    pipe->flops = TR_NEW_ARRAY(double, num_chunks);
    pipe->backward = TR_NEW_ARRAY(double, num_chunks);
    for (size_t c = 0; c < num_chunks; c++) {
        bool again = cfg->memory.recompute == TR_RECOMPUTE_FULL;
        pipe->flops[c] = chunk_flops(cfg, (int)c);
        pipe->backward[c] = pipe->flops[c] * (again ? 2 : 1);
    }
    pipe->costs = (tr_schedule_costs){
        .forward = pipe->flops, .backward = pipe->backward, .weight = pipe->flops};
    return TR_OK;
}

static void pipeline_clear(pipeline *pipe)
{
    tr_schedule_destroy(pipe->schedule);
    tr_free(pipe->flops);
    tr_free(pipe->backward);
    *pipe = (pipeline){0};
}

tr_status tr_plan_pipeline_count(const tr_config *cfg, tr_plan_pipeline *plan)
{
    int num_chunks = (int)cfg->derived.num_chunks, num_stages = (int)cfg->parallel.pipeline;
    pipeline pipe;
    *plan = (tr_plan_pipeline){0};
    TR_TRY(pipeline_init(&pipe, cfg));
    plan->chunk_flops = TR_NEW_ARRAY(double, (size_t)num_chunks);
    plan->peak_live = TR_NEW_ARRAY(int, (size_t)num_chunks);
    double *busy = TR_NEW_ARRAY(double, (size_t)num_stages);
    for (int c = 0; c < num_chunks; c++) {
        plan->chunk_flops[c] = pipe.flops[c];
        plan->peak_live[c] = tr_schedule_live_peak(
            pipe.schedule, tr_chunk_stage(pipe.schedule->placement, num_stages, c), c);
    }
    tr_schedule_times times = {.busy = busy};
    tr_status status = tr_schedule_simulate(pipe.schedule, &pipe.costs, &times);
    double most = 0, sum = 0;
    for (int s = 0; s < num_stages; s++) {
        sum += busy[s];
        most = busy[s] > most ? busy[s] : most;
    }
    plan->idle_share = times.idle_share;
    plan->slowest_share = sum > 0 ? most * num_stages / sum : 1;
    plan->text = tr_schedule_text(pipe.schedule);
    tr_free(busy);
    pipeline_clear(&pipe);
    return status;
}

tr_status tr_plan_pipeline_draw(const tr_config *cfg, char **svg)
{
    pipeline pipe;
    TR_TRY(pipeline_init(&pipe, cfg));
    char *kind = tr_config_get(cfg, "parallel.schedule");
    tr_status status = tr_schedule_draw(pipe.schedule, &pipe.costs, kind, svg);
    tr_free(kind);
    pipeline_clear(&pipe);
    return status;
}
