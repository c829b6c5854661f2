/* Which pipeline stage holds which chunk of layers.
 *
 * C = num_stages * num_virtual chunks in model order; a stage holds num_virtual of them, its local chunk v being one of chunks v * num_stages ... + num_stages - 1.
 * LOOP: the stages in turn (Narayanan et al. 2021). V: up and down the stages (Qi et al. 2024), so that with two
 * chunks a stage the first and the last chunk share a stage. Pure arithmetic. */
#ifndef TR_PARALLEL_CHUNK_PLACE_H
#define TR_PARALLEL_CHUNK_PLACE_H

#include <stdbool.h>

typedef enum tr_placement { TR_PLACEMENT_LOOP, TR_PLACEMENT_V } tr_placement;

/* The chunk's place among its stage's chunks. */
static inline int tr_chunk_local(int num_stages, int chunk)
{
    return chunk / num_stages;
}

static inline int tr_chunk_stage(tr_placement placement, int num_stages, int chunk)
{
    int place = chunk % num_stages;
    bool down = placement == TR_PLACEMENT_V && tr_chunk_local(num_stages, chunk) % 2 == 1;
    return down ? num_stages - 1 - place : place;
}

/* The inverse: global number of a stage's local chunk. */
static inline int tr_chunk_number(tr_placement placement, int num_stages, int stage, int local)
{
    bool down = placement == TR_PLACEMENT_V && local % 2 == 1;
    return local * num_stages + (down ? num_stages - 1 - stage : stage);
}

#endif
