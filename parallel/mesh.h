/* The mesh: a rank's place on the axes data, tensor, pipeline, and who its peers are on each axis.
 *
 * Tensor ranks are adjacent, then data, then pipeline: rank = (pipeline * data_size + data) * tensor_size + tensor. The data axis is cut once more:
 * neighbouring data ranks form a sharding group, which divides state among its ranks; groups are replicas of each other:
 * data = replica * shard_size + shard. Pure arithmetic: valid for any rank of any world, so that plans need no ranks. */
#ifndef TR_PARALLEL_MESH_H
#define TR_PARALLEL_MESH_H

#include "base/status.h"

typedef struct tr_mesh {
    int data_size, tensor_size, pipeline_size;
    int shard_size, replica_size;     /* data_size = replica_size * shard_size */
    int rank, data, tensor, pipeline; /* this rank and its coordinates */
    int shard, replica;
} tr_mesh;

static inline int tr_mesh_rank_at(const tr_mesh *mesh, int data, int tensor, int pipeline)
{
    return (pipeline * mesh->data_size + data) * mesh->tensor_size + tensor;
}

/* shard_size divides data_size; 1: nothing is sharded. */
static inline tr_mesh tr_mesh_make(int data_size, int tensor_size, int pipeline_size,
                                   int shard_size, int rank)
{
    tr_mesh mesh = {.data_size = data_size,
                    .tensor_size = tensor_size,
                    .pipeline_size = pipeline_size,
                    .shard_size = shard_size,
                    .replica_size = data_size / shard_size,
                    .rank = rank};
    TR_ASSERT(shard_size * mesh.replica_size == data_size);
    mesh.tensor = rank % tensor_size;
    mesh.data = rank / tensor_size % data_size;
    mesh.pipeline = rank / tensor_size / data_size;
    mesh.shard = mesh.data % shard_size;
    mesh.replica = mesh.data / shard_size;
    return mesh;
}

#endif
