/* A run's life: groups, byte count, memory, initial weights, and the way back. */
#include "engine/run_int.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/philox.h"
#include "engine/memory_fit.h"
#include "engine/peak.h"
#include "kernels/device_host.h"

static tr_status int_reduce(tr_run *run, int64_t *values, int count, tr_int_op op)
{
    return run->all != NULL ? tr_group_all_reduce_i64(run->all, values, count, op) : TR_OK;
}

tr_status tr_run_sum(tr_run *run, int64_t *values, int count)
{
    return int_reduce(run, values, count, TR_INT_SUM);
}

tr_status tr_run_min(tr_run *run, int64_t *values, int count)
{
    return int_reduce(run, values, count, TR_INT_MIN);
}

tr_status tr_run_max(tr_run *run, int64_t *values, int count)
{
    return int_reduce(run, values, count, TR_INT_MAX);
}

/* ---- groups ---- */

/* Makes the groups along one axis for all ranks of the world in the same order, and keeps this rank's. `key` tells which group a rank is in; its members stand in rank order.
 * stream: of the device, for groups that exchange tensors; NULL for what the host exchanges. */
static tr_status axis_groups_create(tr_run *run, const char *name, int group_size,
                                    int (*key)(const tr_mesh *mesh, const tr_config *cfg),
                                    const tr_stream *stream, tr_group **mine)
{
    if (group_size == 1)
        return TR_OK;
    int num_ranks = tr_world_size(run->world);
    int *members = TR_NEW_ARRAY(int, (size_t)group_size);
    tr_status status = TR_OK;
    for (int k = 0; k < num_ranks / group_size && status == TR_OK; k++) {
        int count = 0;
        for (int r = 0; r < num_ranks; r++) {
            tr_mesh mesh = tr_config_mesh(&run->cfg, r);
            if (key(&mesh, &run->cfg) == k)
                members[count++] = r;
        }
        TR_ASSERT(count == group_size);
        tr_group *group = NULL;
        status = stream != NULL ? tr_world_device_group_create(run->world, members, count, name,
                                                               *stream, &group)
                                : tr_world_group_create(run->world, members, count, name, &group);
        if (group != NULL)
            *mine = group;
    }
    tr_free(members);
    return status;
}

static int key_all(const tr_mesh *mesh, const tr_config *cfg)
{
    (void)mesh;
    (void)cfg;
    return 0;
}

static int key_tensor(const tr_mesh *mesh, const tr_config *cfg)
{
    (void)cfg;
    return mesh->pipeline * mesh->data_size + mesh->data;
}

static int key_kv(const tr_mesh *mesh, const tr_config *cfg)
{
    int sharers = tr_kv_sharers(cfg, mesh->tensor_size);
    return key_tensor(mesh, cfg) * (mesh->tensor_size / sharers) + mesh->tensor / sharers;
}

static int key_data(const tr_mesh *mesh, const tr_config *cfg)
{
    (void)cfg;
    return mesh->pipeline * mesh->tensor_size + mesh->tensor;
}

static int key_shard(const tr_mesh *mesh, const tr_config *cfg)
{
    return key_data(mesh, cfg) * mesh->replica_size + mesh->replica;
}

static int key_replica(const tr_mesh *mesh, const tr_config *cfg)
{
    return key_data(mesh, cfg) * mesh->shard_size + mesh->shard;
}

static int key_pipeline(const tr_mesh *mesh, const tr_config *cfg)
{
    (void)cfg;
    return mesh->data * mesh->tensor_size + mesh->tensor;
}

/* The sharding group and the group of its replicas are the data group where that is the same. */
static tr_status data_groups_create(tr_run *run)
{
    const tr_mesh *mesh = &run->mesh;
    const tr_stream on = TR_STREAM_DATA;
    TR_TRY(axis_groups_create(run, "data", mesh->data_size, key_data, &on, &run->data));
    if (mesh->shard_size == mesh->data_size)
        run->shard = run->data;
    else
        TR_TRY(axis_groups_create(run, "shard", mesh->shard_size, key_shard, &on, &run->shard));
    if (mesh->replica_size == mesh->data_size)
        run->replica = run->data;
    else
        TR_TRY(axis_groups_create(run, "replica", mesh->replica_size, key_replica, &on,
                                  &run->replica));
    return TR_OK;
}

static tr_status node_group_create(tr_run *run)
{
    if (!tr_world_is_one_node(run->world))
        return tr_world_node_group_create(run->world, &run->node);
    run->node = run->all;
    return TR_OK;
}

/* What ranks agree with, before there is a device. */
static tr_status host_groups_create(tr_run *run)
{
    TR_TRY(axis_groups_create(run, "all", tr_world_size(run->world), key_all, NULL, &run->all));
    return node_group_create(run);
}

/* Of all ranks, whose sums of a step it gathers. */
static tr_status decision_group_create(tr_run *run)
{
    int num_ranks = tr_world_size(run->world);
    if (num_ranks == 1)
        return TR_OK;
    int *members = TR_NEW_ARRAY(int, (size_t)num_ranks);
    for (int r = 0; r < num_ranks; r++)
        members[r] = r;
    tr_status status = tr_world_device_gather_group_create(
        run->world, members, num_ranks, "decision", TR_STREAM_DATA, &run->decision);
    tr_free(members);
    return status;
}

/* What exchanges tensors. */
static tr_status tensor_groups_create(tr_run *run)
{
    const tr_mesh *mesh = &run->mesh;
    const tr_stream tensor = TR_STREAM_TENSOR, pipeline = TR_STREAM_PIPELINE;
    TR_TRY(axis_groups_create(run, "tensor", mesh->tensor_size, key_tensor, &tensor, &run->tensor));
    TR_TRY(axis_groups_create(run, "kv", tr_kv_sharers(&run->cfg, mesh->tensor_size), key_kv,
                              &tensor, &run->kv));
    TR_TRY(data_groups_create(run));
    TR_TRY(axis_groups_create(run, "pipeline", mesh->pipeline_size, key_pipeline, &pipeline,
                              &run->pipeline));
    if (run->device->unified)
        return TR_OK;
    return decision_group_create(run);
}

/* ---- memory ---- */

tr_status tr_run_count(const tr_config *cfg, const tr_mesh *mesh, tr_device *device,
                       size_t bytes[TR_MEM_NUM], tr_traffic *traffic)
{
    tr_arena arenas[TR_MEM_NUM];
    tr_stage stage;
    tr_optimizer optimizer;
    tr_saver saver;
    for (int c = 0; c < TR_MEM_NUM; c++)
        tr_arena_init_counting(&arenas[c], (tr_mem_category)c);
    tr_status status;
    TR_TRY_GOTO(status, tr_stage_init(&stage, cfg, mesh, device, arenas), clear);
    tr_optimizer_init(&optimizer, &stage);
    tr_saver_layout(&saver, cfg, &stage.local, device, arenas);
    for (int c = 0; c < TR_MEM_NUM; c++)
        bytes[c] = arenas[c].peak;
    if (traffic != NULL)
        *traffic = tr_stage_traffic(&stage);
clear:
    tr_stage_clear(&stage);
    return status;
}

/* The pool of snapshots is where the host reads state that it writes to disk; tensors are the device's. */
static tr_memory_kind memory_kind(int category)
{
    return category == TR_MEM_SNAPSHOT ? TR_MEMORY_HOST : TR_MEMORY_DEVICE;
}

static tr_status arena_create(tr_run *run, int category)
{
    if (run->bytes[category] > 0)
        TR_TRY(run->device->memory_create(run->device, memory_kind(category), run->bytes[category],
                                          &run->memory[category]));
    tr_arena_init(&run->arenas[category], (tr_mem_category)category, run->memory[category],
                  run->bytes[category]);
    return TR_OK;
}

/* What peers read lies in memory of the world's: sources of groups, and with ZeRO 3 the parameters, behind them. */
static tr_status shared_create(tr_run *run)
{
    size_t bytes = run->bytes[TR_MEM_COMMUNICATION];
    bool sharded = tr_weights_kind_of(&run->cfg, &run->mesh) == TR_WEIGHTS_SHARDED;
    void *shared;
    TR_TRY(tr_world_comm_memory(run->world, bytes + (sharded ? run->bytes[TR_MEM_PARAMETERS] : 0),
                                &shared));
    tr_arena_init(&run->arenas[TR_MEM_COMMUNICATION], TR_MEM_COMMUNICATION, shared, bytes);
    if (sharded)
        tr_arena_init(&run->arenas[TR_MEM_PARAMETERS], TR_MEM_PARAMETERS,
                      (unsigned char *)shared + bytes, run->bytes[TR_MEM_PARAMETERS]);
    return TR_OK;
}

static tr_status memory_create(tr_run *run)
{
    TR_TRY(shared_create(run));
    for (int c = 0; c < TR_MEM_NUM; c++)
        if (run->arenas[c].base == NULL)
            TR_TRY(arena_create(run, c));
    return TR_OK;
}

/* ---- initial weights ---- */

/* Fills this rank's interval of an item's master, row by row; values: room for a row. Element e of the local cut is element (row_begin + e / cols, col_begin + e % cols) of the global tensor, whose number is
 * the random counter; rows of padding are zero. */
static tr_status master_init(const tr_run *run, const tr_local_param *item,
                             tr_device_writer *writer, float *values)
{
    const tr_param *param = item->param;
    float *master = run->stage.master + item->state_offset;
    uint64_t key = tr_hash_key(run->cfg.train.seed, "init", param->name);
    for (int64_t e = item->state_begin; e < item->state_end;) {
        int64_t row = e / item->cols, col = e % item->cols;
        int64_t count = item->cols - col;
        if (count > item->state_end - e)
            count = item->state_end - e;
        uint64_t first =
            (uint64_t)((item->row_begin + row) * param->shape[1] + item->col_begin + col);
        if (row < item->valid_rows && param->init == TR_INIT_NORMAL)
            tr_philox_normal_fill(key, first, first + (uint64_t)count, param->init_std, values);
        else
            for (int64_t i = 0; i < count; i++)
                values[i] = row < item->valid_rows && param->init == TR_INIT_ONES ? 1.0f : 0.0f;
        TR_TRY(tr_device_writer_add(writer, master + (e - item->state_begin), values,
                                    (size_t)count * sizeof(float)));
        e += count;
    }
    return TR_OK;
}

static tr_status masters_init(tr_run *run)
{
    const tr_local_params *local = &run->stage.local;
    tr_device_writer writer;
    int64_t widest = 1;
    for (int i = 0; i < local->num_items; i++)
        widest = local->items[i].cols > widest ? local->items[i].cols : widest;
    float *values = TR_NEW_ARRAY(float, (size_t)widest);
    tr_status status = tr_device_writer_begin(&writer, run->device);
    for (int i = 0; i < local->num_items && status == TR_OK; i++)
        if (local->items[i].param->tied_to < 0)
            status = master_init(run, &local->items[i], &writer, values);
    tr_status end = tr_device_writer_end(&writer);
    tr_free(values);
    return status != TR_OK ? status : end;
}

tr_status tr_run_params_changed(tr_run *run)
{
    return tr_optimizer_spread(&run->optimizer);
}

/* ---- data ---- */

static tr_feed_options feed_options(const tr_run *run, const char *path)
{
    return (tr_feed_options){.path = path,
                             .seq_len = (int)run->cfg.train.seq_len,
                             .micro_batch = (int)run->cfg.train.micro_batch,
                             .global_batch = (int)run->cfg.train.global_batch,
                             .microbatches = run->microbatch_numbers,
                             .num_microbatches = run->num_microbatches,
                             .vocab = (int32_t)run->cfg.model.vocab,
                             .prefetch = 2};
}

tr_status tr_run_feed_open(tr_run *run)
{
    if (run->callbacks.batch != NULL || run->cfg.data.train == NULL)
        return TR_OK;
    tr_feed_close(run->train_feed);
    run->train_feed = NULL;
    tr_feed_options options = feed_options(run, run->cfg.data.train);
    options.shuffle = true;
    options.seed = run->cfg.train.seed;
    options.first_sample = run->samples;
    return tr_feed_open(&run->train_feed, &options);
}

static tr_status feeds_open(tr_run *run)
{
    tr_reduce_plan plan = tr_config_reduce_plan(&run->cfg);
    run->num_microbatches = (int)(run->cfg.derived.microbatches / run->mesh.data_size);
    run->microbatch_numbers = TR_NEW_ARRAY(int, (size_t)run->num_microbatches);
    for (int m = 0; m < run->num_microbatches; m++)
        run->microbatch_numbers[m] = tr_reduce_microbatch(&plan, run->mesh.data, m);
    run->microbatches = TR_NEW_ARRAY(tr_microbatch, (size_t)run->num_microbatches);
    TR_TRY(tr_run_feed_open(run));
    if (run->callbacks.batch != NULL || run->cfg.data.valid == NULL)
        return TR_OK;
    tr_feed_options options = feed_options(run, run->cfg.data.valid);
    options.pass_steps = (uint64_t)run->cfg.train.eval_batches;
    return tr_feed_open(&run->valid_feed, &options);
}

/* ---- life ---- */

static tr_status world_create(tr_run *run, MPI_Comm comm)
{
    tr_config_transport inside = run->cfg.parallel.inside; /* nccl: of tensors; the host is free */
    tr_world_options options = {.inside = inside == TR_CONFIG_TRANSPORT_NCCL ? TR_TRANSPORT_AUTO
                                                                             : (tr_transport)inside,
                                .timeout_s = run->cfg.parallel.timeout_s,
                                .share_device = tr_run_shares_device()};
    TR_TRY(tr_world_create(&run->world, comm, &options));
    int size = tr_world_size(run->world);
    if (size != run->cfg.derived.num_ranks)
        return tr_fail(TR_ERR_SETTINGS, "the run has %d ranks, its settings were resolved for %lld",
                       size, (long long)run->cfg.derived.num_ranks);
    run->mesh = tr_config_mesh(&run->cfg, tr_world_rank(run->world));
    return host_groups_create(run);
}

static tr_status device_create(tr_run *run)
{
    TR_TRY(tr_run_device_create(run));
    TR_TRY(tr_world_set_device(run->world, run->device));
    tr_run_numerics_set(run);
    if (run->callbacks.device != NULL)
        run->callbacks.device(run->callbacks.context, run->device);
    run->flops_per_token = tr_model_flops_per_token(&run->cfg);
    return TR_OK;
}

static tr_status stage_create(tr_run *run)
{
    TR_TRY(tr_run_count(&run->cfg, &run->mesh, run->device, run->bytes, NULL));
    TR_TRY(tr_memory_fit_check(run));
    TR_TRY(memory_create(run));
    TR_TRY(tr_stage_init(&run->stage, &run->cfg, &run->mesh, run->device, run->arenas));
    tr_optimizer_init(&run->optimizer, &run->stage);
    tr_saver_layout(&run->saver, &run->cfg, &run->stage.local, run->device, run->arenas);
    if (run->saver.pool_bytes > 0) /* else the first update beside a save would pay for new pages */
        memset(run->saver.pool, 0, run->saver.pool_bytes);
    const tr_stage_groups groups = {.world = run->world,
                                    .tensor = run->tensor,
                                    .kv = run->kv,
                                    .data = {run->data, run->shard, run->replica},
                                    .pipeline = run->pipeline};
    TR_TRY(tr_stage_connect(&run->stage, &groups));
    run->stage.progress = run->all;
    if (run->stage.trace.capacity > 0)
        tr_world_set_trace(run->world, &run->stage.trace);
    TR_TRY(masters_init(run));
    return tr_optimizer_spread(&run->optimizer);
}

tr_status tr_run_open(tr_run **out, const tr_config *cfg, MPI_Comm comm,
                      const tr_run_callbacks *callbacks)
{
    TR_ASSERT(cfg->derived.resolved);
    tr_run *run = TR_NEW(tr_run);
    tr_status status;
    tr_config_copy(&run->cfg, cfg);
    if (callbacks != NULL)
        run->callbacks = *callbacks;
    TR_TRY_GOTO(status, world_create(run, comm), fail);
    TR_TRY_GOTO(status, tr_run_compare_settings(run), fail);
    tr_run_placement_tell(run);
    TR_TRY_GOTO(status, feeds_open(run), fail);
    TR_TRY_GOTO(status, tr_run_compare_data(run), fail);
    TR_TRY_GOTO(status, device_create(run), fail);
    TR_TRY_GOTO(status, tr_run_compare_numerics(run), fail);
    TR_TRY_GOTO(status, tensor_groups_create(run), fail);
    TR_TRY_GOTO(status, stage_create(run), fail);
    *out = run;
    return TR_OK;
fail:
    tr_run_close(run);
    return status;
}

void tr_run_close(tr_run *run)
{
    if (run == NULL)
        return;
    tr_run_save_wait(run);
    tr_saver_clear(&run->saver);
    tr_feed_close(run->train_feed);
    tr_feed_close(run->valid_feed);
    tr_trace_close(&run->tracer);
    tr_stage_clear(&run->stage);
    tr_group_destroy(run->decision);
    tr_group_destroy(run->pipeline);
    if (run->shard != run->data)
        tr_group_destroy(run->shard);
    if (run->replica != run->data)
        tr_group_destroy(run->replica);
    tr_group_destroy(run->data);
    tr_group_destroy(run->kv);
    tr_group_destroy(run->tensor);
    if (run->node != run->all)
        tr_group_destroy(run->node);
    tr_group_destroy(run->all);
    for (int s = 0; run->device != NULL && s < TR_STREAM_NUM; s++)
        (void)run->device->synchronize(run->device, (tr_stream)s);
    tr_world_destroy(run->world);
    for (int c = 0; c < TR_MEM_NUM;
         c++) /* after the groups: messages may still have been on their way into it */
        if (run->memory[c] != NULL)
            run->device->memory_destroy(run->device, memory_kind(c), run->memory[c], run->bytes[c]);
    tr_device_destroy(run->device);
    tr_free(run->numerics);
    tr_free(run->microbatches);
    tr_free(run->microbatch_numbers);
    tr_config_clear(&run->cfg);
    tr_free(run);
}

void tr_run_request(tr_run *run, tr_request request)
{
    if (request == TR_REQUEST_STOP)
        run->stop_requested = 1;
    else
        run->save_requested = 1;
}

int64_t tr_run_steps_done(const tr_run *run)
{
    return run->step;
}

const tr_config *tr_run_config(const tr_run *run)
{
    return &run->cfg;
}

const size_t *tr_run_memory(const tr_run *run)
{
    return run->bytes;
}

size_t tr_run_memory_total(const tr_run *run)
{
    return tr_run_device_bytes(run->device, run->bytes);
}
