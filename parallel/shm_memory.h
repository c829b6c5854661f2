/* Memory that the ranks of a node share: each rank makes a piece of its own, and maps the pieces of all others.
 *
 * Pieces are anonymous files (memfd) that peers open through /proc/PID/fd; not files in /dev/shm, which containers limit to 64 MB.
 * Pages are touched lazily: untouched parts cost address space only. Linux only. */
#ifndef TR_PARALLEL_SHM_MEMORY_H
#define TR_PARALLEL_SHM_MEMORY_H

#include <stddef.h>

#include "base/status.h"
#include "parallel/world.h"

typedef struct tr_shm_segment {
    int num_pieces, own;
    char **base;   /* [num_pieces] where each rank's piece is mapped here; zeroed at first */
    size_t *bytes; /* [num_pieces] */
} tr_shm_segment;

/* Collective over the node; `bytes` may differ by rank. All ranks of the node succeed or fail together: TR_ERR_MEMORY when a rank
 * could not have its piece, TR_ERR_TRANSPORT when a peer's could not be mapped. */
tr_status tr_shm_segment_create(tr_shm_segment *segment, tr_world *world, size_t bytes);
/* Private memory in the same form, one piece: for ranks that share nothing. */
tr_status tr_shm_segment_create_private(tr_shm_segment *segment, size_t bytes);
/* One or the other: pieces of all ranks of the node, in the order of tr_world_node_group_create, where they exchange through shared
 * memory; private elsewhere. Collective over the node. */
tr_status tr_shm_segment_create_node(tr_shm_segment *segment, tr_world *world, size_t bytes);
/* A zeroed segment is fine. Peers keep their mappings. */
void tr_shm_segment_clear(tr_shm_segment *segment);

#endif
