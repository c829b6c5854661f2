/* The stand-in for cuDNN's backend interface, as far as attention by it goes: what tests may ask of it, and its inside.
 *
 * Descriptors take the attributes of the library's documentation, each with its type and number of elements, in any order, until they are finalized; a
 * missing, misplaced or ill-typed one is CUDNN_STATUS_BAD_PARAM or one of its kin. A graph is not recognised by its form but computed operation by operation, so
 * that it has to mean attention. As the library does, the engine that the heuristics propose for backward adds dq up in whatever order its parts come (the stand-in
 * lets some last bits follow the number of the call), unless the graph stores the gradient of the scores (compute capability 9.0) or the engine and knobs for it are
 * chosen by hand (10.0). No engine's notes say so: neither do the library's. */
#ifndef TR_TESTS_SIM_CUDNN_H
#define TR_TESTS_SIM_CUDNN_H

#include <stdbool.h>
#include <stddef.h>

#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library that a process finds. */
typedef struct cudasim_cudnn {
    bool missing;   /* there is none */
    size_t version; /* 91900 is 9.19.0 */
    bool refuses;   /* it has no engine for any graph */
    bool wrong;     /* it computes a twentieth too much */
    bool unsteady;  /* last bits differ from call to call */
    bool notes; /* the first engine that is proposed is noted as not deterministic, and is that */
    size_t extra_workspace; /* bytes that plans want more */
} cudasim_cudnn;

/* The default is none, so that tests which do not ask for it run the device's own kernels; CUDASIM_CUDNN=present: version 9.19.0 without faults. A version of 0 is
 * that one. */
void cudasim_cudnn_set(const cudasim_cudnn *library);
bool cudasim_cudnn_is_missing(void);

typedef struct cudasim_cudnn_counts {
    int64_t handles, descriptors; /* alive */
    int64_t forwards, backwards;  /* plans that were run */
} cudasim_cudnn_counts;
cudasim_cudnn_counts cudasim_cudnn_count(void);

#ifdef __cplusplus
}

#include <map>
#include <vector>

const cudasim_cudnn &sim_cudnn_library();
void sim_cudnn_executed(bool backward);

struct cudnnContext {
    cudaStream_t stream;
};

struct sim_attribute {
    int64_t count;
    std::vector<char> bytes;
};

struct sim_descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    std::map<int, sim_attribute> attributes;
    std::vector<cudnnBackendDescriptor_t>
        made; /* of engine heuristics, an engine's configuration: what it hands out */
};

/* Ends the process unless the descriptor is alive. */
sim_descriptor *sim_cudnn_get(cudnnBackendDescriptor_t descriptor);
sim_descriptor *sim_cudnn_make(cudnnBackendDescriptorType_t type);

/* The element of an attribute that is set. */
template <typename T>
T sim_value(const sim_descriptor *d, cudnnBackendAttributeName_t name, int64_t i = 0)
{
    return ((const T *)(const void *)d->attributes.at(name).bytes.data())[i];
}
static inline bool sim_has(const sim_descriptor *d, cudnnBackendAttributeName_t name)
{
    return d->attributes.count(name) != 0;
}
static inline sim_descriptor *sim_child(const sim_descriptor *d, cudnnBackendAttributeName_t name,
                                        int64_t i = 0)
{
    return sim_cudnn_get(sim_value<cudnnBackendDescriptor_t>(d, name, i));
}

/* sim_cudnn_plan.cpp: what finalizing these does beyond the table of attributes. */
cudnnStatus_t sim_cudnn_heuristics_finalize(sim_descriptor *d);
cudnnStatus_t sim_cudnn_engine_finalize(sim_descriptor *d);
cudnnStatus_t sim_cudnn_config_finalize(sim_descriptor *d);
cudnnStatus_t sim_cudnn_plan_finalize(sim_descriptor *d);

/* sim_cudnn_graph.cpp: finalizing tensors, operations and graphs. */
cudnnStatus_t sim_cudnn_tensor_finalize(sim_descriptor *d);
cudnnStatus_t sim_cudnn_operation_finalize(sim_descriptor *d);
cudnnStatus_t sim_cudnn_graph_finalize(sim_descriptor *d);

/* Tensors that an execution has to give, by id. */
std::map<int64_t, sim_descriptor *> sim_cudnn_memories(const sim_descriptor *graph);
int64_t sim_cudnn_elements(const sim_descriptor *tensor);
/* Bytes from its first element to its last. */
size_t sim_cudnn_span(const sim_descriptor *tensor);
/* Computes the graph on pointers by tensor id. call: number of the execution, 0: every call gives the same bits. factor: on what products write. */
void sim_cudnn_compute(const sim_descriptor *graph, const std::map<int64_t, void *> &pointers,
                       int64_t call, double factor);
#endif

#endif
