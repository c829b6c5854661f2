/* How many layers each chunk of a pipeline holds: chosen, or checked where the user says it
 * (parallel.stages).
 *
 * Layers stay in order: chunk c holds the layers after those of chunks 0 ... c-1, and the counts
 * sum to num_layers. Pure. */
#ifndef TR_PARALLEL_STAGE_SPLIT_H
#define TR_PARALLEL_STAGE_SPLIT_H

#include "base/status.h"
#include "parallel/chunk_place.h"

/* layers_per_chunk[num_stages * num_virtual] := the split whose slowest stage, with all its chunks,
 * is as fast as can be, and inside each stage the slowest chunk; every chunk has one layer at
 * least. embedding_cost, head_cost (>= 0): what the first chunk does besides its layers (embedding)
 * and the last one (norm, head, loss), in units of one layer's time. Among equals the next layer
 * goes to the later stage and chunk (early ones hold more activations). TR_ERR_SETTINGS when there
 * are fewer layers than chunks. */
tr_status tr_stage_split_auto(int num_layers, tr_placement placement, int num_stages,
                              int num_virtual, double embedding_cost, double head_cost,
                              int *layers_per_chunk);

/* Checks an explicit list of num_entries counts. TR_ERR_SETTINGS with the numbers when the list
 * does not have one positive entry for each chunk or does not sum to num_layers. */
tr_status tr_stage_split_check(const int *layers_per_chunk, int num_entries, int num_layers,
                               int num_stages, int num_virtual);

#endif
