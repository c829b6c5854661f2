/* What train.tensor_slices costs a layout, beside the same layout without it. */
#include "base/alloc.h"
#include "engine/model/row_sums.h"
#include "engine/plan.h"
#include "parallel/mesh.h"

/* Bytes that a rank sends in a sum of n floats over s ranks (parallel/group.h). */
static double all_reduce_bytes(double n, double s)
{
    return 4 * n * 2 * (s - 1) / s;
}

/* Bytes more that a rank of a stage sends to its tensor peers in a step: sums over rows, and of shared keys and values, are made in each microbatch and not once, but
 * once they are made of what the rank holds only. */
static double stage_bytes(const tr_config *cfg, const tr_mesh *mesh, const tr_model *model)
{
    double layers = 0, size = (double)mesh->tensor_size, hidden = (double)cfg->model.hidden;
    double held = cfg->parallel.zero == 0 ? 1 : 1 / (double)mesh->shard_size;
    double times = (double)(cfg->derived.microbatches / mesh->data_size);
    int num_chunks = (int)cfg->derived.num_chunks, norm = tr_row_sums_norm(model);
    for (int c = 0; c < num_chunks; c++)
        if (tr_chunk_stage(cfg->derived.placement, mesh->pipeline_size, c) == mesh->pipeline)
            layers += (double)cfg->derived.chunk_layers[c];
    double vectors = layers * tr_row_sums_of(model).count;
    if (tr_chunk_stage(cfg->derived.placement, mesh->pipeline_size, num_chunks - 1) ==
        mesh->pipeline)
        vectors += norm;
    double bytes = 0;
    if (model->tensor.sequence)
        bytes += all_reduce_bytes(vectors * hidden, size) * (times - held);
    double heads = (double)cfg->model.kv_heads;
    if (size > heads)
        bytes +=
            all_reduce_bytes(layers * (double)model->num_shared, size / heads) * (times - held);
    return bytes;
}

tr_status tr_plan_slices_count(const tr_config *cfg, tr_device *device, const tr_plan_rank *ranks,
                               tr_plan_slices *cost)
{
    int num_ranks = (int)cfg->derived.num_ranks;
    tr_plan_rank *plain_ranks = TR_NEW_ARRAY(tr_plan_rank, (size_t)num_ranks);
    tr_config plain;
    *cost = (tr_plan_slices){0};
    tr_config_copy(&plain, cfg);
    plain.train.tensor_slices = plain.derived.tensor_slices = 0;
    tr_status status = tr_plan_count(&plain, device, plain_ranks);
    cost->memory = (int64_t)ranks[tr_plan_largest(ranks, num_ranks)].total -
                   (int64_t)plain_ranks[tr_plan_largest(plain_ranks, num_ranks)].total;
    tr_config_clear(&plain);
    tr_free(plain_ranks);
    TR_TRY(status);
    for (int r = 0; r < num_ranks; r++) {
        tr_arena arenas[3];
        tr_model model;
        tr_mesh mesh = tr_config_mesh(cfg, r);
        if (mesh.data > 0 || mesh.tensor > 0)
            continue;
        for (int i = 0; i < 3; i++)
            tr_arena_init_counting(&arenas[i], TR_MEM_WORKSPACE);
        tr_model_init(&model, cfg, &mesh, device, false, &arenas[0], &arenas[1], &arenas[2]);
        double bytes = stage_bytes(cfg, &mesh, &model);
        cost->sent = bytes > cost->sent ? bytes : cost->sent;
        tr_model_clear(&model);
    }
    return TR_OK;
}
