/* See stage_split.h. Layers are unit jobs and only counts matter, so that handing them out one by
 * one to the least loaded stage gives the smallest maximum, and to its least loaded chunk the
 * smallest one there. */
#include "parallel/stage_split.h"

#include "base/alloc.h"

/* One layer for each chunk is the least that a split can have. */
static tr_status check_counts(int num_layers, int num_stages, int num_virtual)
{
    if (num_layers / num_stages >= num_virtual)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS,
                   "model.layers %d is fewer than the %lld chunks of parallel.pipeline %d x "
                   "parallel.virtual %d; each chunk needs a layer: at most %d chunks fit",
                   num_layers, (long long)num_stages * num_virtual, num_stages, num_virtual,
                   num_layers);
}

/* The least loaded of `num` loads; the last one of equals. */
static int least_loaded(const double *loads, int num)
{
    int best = num - 1;
    for (int i = num - 2; i >= 0; i--)
        if (loads[i] < loads[best])
            best = i;
    return best;
}

tr_status tr_stage_split_auto(int num_layers, tr_placement placement, int num_stages,
                              int num_virtual, double embedding_cost, double head_cost,
                              int *layers_per_chunk)
{
    TR_ASSERT(num_layers >= 1 && num_stages >= 1 && num_virtual >= 1);
    TR_ASSERT(embedding_cost >= 0 && head_cost >= 0);
    TR_TRY(check_counts(num_layers, num_stages, num_virtual));

    int num_chunks = num_stages * num_virtual;
    double *chunk_loads = TR_NEW_ARRAY(double, num_chunks); /* [stage, local chunk] */
    double *stage_loads = TR_NEW_ARRAY(double, num_stages);
    for (int c = 0; c < num_chunks; c++) {
        int stage = tr_chunk_stage(placement, num_stages, c);
        double load = 1 + (c == 0 ? embedding_cost : 0) + (c == num_chunks - 1 ? head_cost : 0);
        layers_per_chunk[c] = 1;
        chunk_loads[stage * num_virtual + tr_chunk_local(num_stages, c)] = load;
        stage_loads[stage] += load;
    }
    for (int layer = num_chunks; layer < num_layers; layer++) {
        int stage = least_loaded(stage_loads, num_stages);
        int local = least_loaded(&chunk_loads[stage * num_virtual], num_virtual);
        layers_per_chunk[tr_chunk_number(placement, num_stages, stage, local)]++;
        chunk_loads[stage * num_virtual + local]++;
        stage_loads[stage]++;
    }
    tr_free(stage_loads);
    tr_free(chunk_loads);
    return TR_OK;
}

tr_status tr_stage_split_check(const int *layers_per_chunk, int num_entries, int num_layers,
                               int num_stages, int num_virtual)
{
    TR_ASSERT(num_layers >= 1 && num_stages >= 1 && num_virtual >= 1);
    TR_TRY(check_counts(num_layers, num_stages, num_virtual));
    if (num_entries != num_stages * num_virtual)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.stages has %d entries; parallel.pipeline %d x parallel.virtual %d "
                       "needs %d, one for each chunk, or auto",
                       num_entries, num_stages, num_virtual, num_stages * num_virtual);
    long long sum = 0;
    for (int c = 0; c < num_entries; c++) {
        if (layers_per_chunk[c] < 1)
            return tr_fail(TR_ERR_SETTINGS,
                           "parallel.stages gives %d layers to chunk %d; each chunk needs one at "
                           "least",
                           layers_per_chunk[c], c);
        sum += layers_per_chunk[c];
    }
    if (sum != num_layers)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.stages sums to %lld layers, but model.layers is %d; change one "
                       "of them, or say auto",
                       sum, num_layers);
    return TR_OK;
}
