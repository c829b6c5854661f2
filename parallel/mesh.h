/* The mesh: a rank's place on the axes data, tensor, pipeline, and who its peers are on each axis.
 *
 * Tensor ranks are adjacent, then data, then pipeline: rank = (pipeline * data_size + data) * tensor_size + tensor. Pure arithmetic: valid for any
 * rank of any world, so that plans need no ranks. */
#ifndef TR_PARALLEL_MESH_H
#define TR_PARALLEL_MESH_H

typedef struct tr_mesh {
    int data_size, tensor_size, pipeline_size;
    int rank, data, tensor, pipeline; /* this rank and its coordinates */
} tr_mesh;

static inline int tr_mesh_rank_at(const tr_mesh *mesh, int data, int tensor, int pipeline)
{
    return (pipeline * mesh->data_size + data) * mesh->tensor_size + tensor;
}

static inline tr_mesh tr_mesh_make(int data_size, int tensor_size, int pipeline_size, int rank)
{
    tr_mesh mesh = {.data_size = data_size,
                    .tensor_size = tensor_size,
                    .pipeline_size = pipeline_size,
                    .rank = rank};
    mesh.tensor = rank % tensor_size;
    mesh.data = rank / tensor_size % data_size;
    mesh.pipeline = rank / tensor_size / data_size;
    return mesh;
}

#endif
