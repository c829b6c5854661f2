/* Graphs of cuDNN's elementary operations and the plans that run them: what attention by cuDNN is built of (cuda_cudnn_attention.h).
 *
 * A graph is written down in the order of its operations. The first call that the library refuses is remembered with its message, and the ones
 * behind it do nothing, so that only the plan's creation answers with a status. A plan is chosen by the library's heuristics, which time nothing; engines whose
 * notes do not promise the same bits twice are passed over. All tensors have four dimensions; reductions and indices are computed in fp32. */
#ifndef TR_KERNELS_CUDA_CUDNN_GRAPH_H
#define TR_KERNELS_CUDA_CUDNN_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda_cudnn_library.h"

enum { TR_CUDNN_MOST_DESCRIPTORS = 160, TR_CUDNN_MOST_OPERATIONS = 40, TR_CUDNN_MOST_KNOBS = 4 };

typedef struct tr_cudnn_shape {
    int64_t dims[4], strides[4]; /* in elements */
} tr_cudnn_shape;

/* A graph, and all descriptors made for it. */
typedef struct tr_cudnn_graph {
    const tr_cudnn *dnn;
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t descriptors[TR_CUDNN_MOST_DESCRIPTORS];
    cudnnBackendDescriptor_t operations[TR_CUDNN_MOST_OPERATIONS];
    int num_descriptors, num_operations;
    int64_t num_virtual;
    tr_status status; /* of the first call that was refused, whose message is the thread's */
} tr_cudnn_graph;

/* A tensor of the graph, or what of it was refused. */
typedef cudnnBackendDescriptor_t tr_cudnn_tensor;

void tr_cudnn_graph_init(tr_cudnn_graph *graph, const tr_cudnn *dnn, cudnnHandle_t handle);
void tr_cudnn_graph_clear(tr_cudnn_graph *graph);

/* A tensor in device memory, 16-byte aligned; id: its own in the graph, from 1 to 99. */
tr_cudnn_tensor tr_cudnn_memory(tr_cudnn_graph *graph, int64_t id, cudnnDataType_t type,
                                const tr_cudnn_shape *shape);
/* An fp32 number that the host gives with each execution. */
tr_cudnn_tensor tr_cudnn_number(tr_cudnn_graph *graph, int64_t id);
/* A tensor between two operations, which need not exist. */
tr_cudnn_tensor tr_cudnn_between(tr_cudnn_graph *graph, cudnnDataType_t type,
                                 const tr_cudnn_shape *shape);

/* c = a b, matrices of the last two dimensions; the head of b for head h of a is h / (heads of a / heads of b). */
void tr_cudnn_product(tr_cudnn_graph *graph, tr_cudnn_tensor a, tr_cudnn_tensor b,
                      tr_cudnn_tensor c);
/* y = mode(x, b, t) elementwise; b and t NULL where the mode has fewer operands. Comparisons compute booleans. */
void tr_cudnn_elementwise(tr_cudnn_graph *graph, cudnnPointwiseMode_t mode, tr_cudnn_tensor x,
                          tr_cudnn_tensor b, tr_cudnn_tensor t, tr_cudnn_tensor y);
/* y = each element's index along `axis`; x gives the shape. */
void tr_cudnn_index(tr_cudnn_graph *graph, tr_cudnn_tensor x, int64_t axis, tr_cudnn_tensor y);
/* y = x reduced along the dimensions in which y is shorter. */
void tr_cudnn_reduce(tr_cudnn_graph *graph, cudnnReduceTensorOp_t operator, tr_cudnn_tensor x,
                     tr_cudnn_tensor y);
/* y = the same memory as x, seen with y's dimensions and strides. */
void tr_cudnn_view(tr_cudnn_graph *graph, tr_cudnn_tensor x, tr_cudnn_tensor y);

/* An engine and its knobs, where the library's heuristics do not name the one that is needed. */
typedef struct tr_cudnn_choice {
    int64_t engine;
    int num_knobs;
    cudnnBackendKnobType_t knobs[TR_CUDNN_MOST_KNOBS];
    int64_t values[TR_CUDNN_MOST_KNOBS];
} tr_cudnn_choice;

typedef struct tr_cudnn_plan {
    tr_cudnn_graph graph;
    cudnnBackendDescriptor_t descriptor;
    size_t workspace_bytes;
} tr_cudnn_plan;

/* The plan of plan->graph, which has been written down; choice NULL: by the heuristics. TR_ERR_INTERNAL with the library's words when it refuses the
 * graph or has no engine for it that gives the same bits twice. The graph is cleared with the plan, also after an error. */
tr_status tr_cudnn_plan_create(tr_cudnn_plan *plan, const tr_cudnn_choice *choice);
void tr_cudnn_plan_clear(tr_cudnn_plan *plan);

/* Enqueues the plan on `stream`. ids and pointers of every memory (device) and number (host, read before it returns); workspace: workspace_bytes of device memory, 256-byte
 * aligned. */
tr_status tr_cudnn_plan_run(const tr_cudnn_plan *plan, cudaStream_t stream, int count,
                            const int64_t *ids, void *const *pointers, void *workspace);

#endif
