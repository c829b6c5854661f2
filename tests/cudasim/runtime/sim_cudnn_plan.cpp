/* Engines, plans and their execution in the stand-in for cuDNN (sim_cudnn.h). */
#include <algorithm>
#include <mutex>

#include <string.h>

#include "tests/cudasim/runtime/sim_cudnn.h"
#include "tests/cudasim/runtime/sim_device.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_memory.h"
#include "tests/cudasim/runtime/sim_stream.h"

/* Engines by number: of the heuristics, and the one of compute capability 10 that can be told to add in order. */
enum { ENGINE_FORWARD = 2, ENGINE_BACKWARD = 6, ENGINE_NOTED = 7, ENGINE_ORDERED = 5 };

/* What a graph is as a whole. */
struct problem {
    bool backward;
    bool parts; /* dq is added up from parts in fp32 memory */
    int64_t B, T, A, K, D;
};

static sim_descriptor *tensor_of(const sim_descriptor *operation, cudnnBackendAttributeName_t name)
{
    return sim_child(operation, name);
}

static int64_t dim(const sim_descriptor *t, int i)
{
    return sim_value<int64_t>(t, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
}

static problem problem_of(const sim_descriptor *graph)
{
    problem p = {};
    int64_t count = graph->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).count;
    int products = 0;
    for (int64_t i = 0; i < count; i++) {
        const sim_descriptor *o = sim_child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
        if (o->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            continue;
        const sim_descriptor *c = tensor_of(o, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        if (products++ == 0) {
            const sim_descriptor *q = tensor_of(o, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
            p.B = dim(q, 0);
            p.A = dim(q, 1);
            p.T = dim(q, 2);
            p.D = dim(q, 3);
            p.K = dim(tensor_of(o, CUDNN_ATTR_OPERATION_MATMUL_BDESC), 1);
        }
        p.parts = p.parts || (!sim_value<bool>(c, CUDNN_ATTR_TENSOR_IS_VIRTUAL) &&
                              sim_value<int>(c, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_FLOAT);
    }
    p.backward = products == 5;
    return p;
}

/* The library's limits on shapes. */
static bool is_served(const problem &p)
{
    int64_t most = p.backward && sim_machine().capability != 90 ? 128 : 256;
    return !sim_cudnn_library().refuses && p.D % 8 == 0 && p.D <= most && (!p.backward || p.T > 1);
}

/* ---- engines ---- */

static sim_descriptor *config_make(const sim_descriptor *graph, int64_t index)
{
    sim_descriptor *engine = sim_cudnn_make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    sim_descriptor *config = sim_cudnn_make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    const char *bytes = (const char *)&graph, *number = (const char *)&index;
    engine->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = {1, {bytes, bytes + sizeof graph}};
    engine->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = {1, {number, number + sizeof index}};
    engine->finalized = config->finalized = true;
    bytes = (const char *)&engine;
    config->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {1, {bytes, bytes + sizeof engine}};
    config->made.push_back(engine);
    return config;
}

cudnnStatus_t sim_cudnn_heuristics_finalize(sim_descriptor *d)
{
    const sim_descriptor *graph = sim_child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    problem p = problem_of(graph);
    if (!is_served(p) || sim_value<int>(d, CUDNN_ATTR_ENGINEHEUR_MODE) != CUDNN_HEUR_MODE_A)
        return CUDNN_STATUS_SUCCESS; /* and there are no results */
    if (sim_cudnn_library().notes)
        d->made.push_back(config_make(graph, ENGINE_NOTED));
    d->made.push_back(config_make(graph, p.backward ? ENGINE_BACKWARD : ENGINE_FORWARD));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t sim_cudnn_engine_finalize(sim_descriptor *d)
{
    int64_t index = sim_value<int64_t>(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    problem p = problem_of(sim_child(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
    bool exists = index == ENGINE_ORDERED && p.backward && sim_machine().capability >= 100;
    return exists && is_served(p) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

static bool has_knob(const sim_descriptor *config, cudnnBackendKnobType_t type, int64_t value)
{
    int64_t count = sim_has(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)
                        ? config->attributes.at(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).count
                        : 0;
    for (int64_t i = 0; i < count; i++) {
        const sim_descriptor *choice = sim_child(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, i);
        if (sim_value<int>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) == (int)type)
            return sim_value<int64_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) == value;
    }
    return false;
}

cudnnStatus_t sim_cudnn_config_finalize(sim_descriptor *d)
{
    return has_knob(d, CUDNN_KNOB_TYPE_KERNEL_CFG, 31) ? CUDNN_STATUS_SUCCESS
                                                       : CUDNN_STATUS_NOT_SUPPORTED;
}

static int64_t engine_index(const sim_descriptor *config)
{
    return sim_value<int64_t>(sim_child(config, CUDNN_ATTR_ENGINECFG_ENGINE),
                              CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
}

/* Whether an engine gives the same bits twice. */
static bool is_steady(const sim_descriptor *config, const problem &p)
{
    if (sim_cudnn_library().unsteady || engine_index(config) == ENGINE_NOTED)
        return false;
    if (!p.backward)
        return true;
    if (sim_machine().capability >= 100)
        return engine_index(config) == ENGINE_ORDERED && !p.parts &&
               has_knob(config, CUDNN_KNOB_TYPE_STAGES, 2);
    return !p.parts;
}

/* ---- what descriptors tell ---- */

static cudnnStatus_t results_get(const sim_descriptor *d, int64_t requested, int64_t *count,
                                 void *values)
{
    cudnnBackendDescriptor_t *into = (cudnnBackendDescriptor_t *)values;
    *count = (int64_t)d->made.size();
    for (int64_t i = 0; i < std::min(*count, requested); i++) {
        sim_descriptor *to = sim_cudnn_get(into[i]);
        if (to->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return CUDNN_STATUS_BAD_PARAM;
        to->attributes = sim_cudnn_get(d->made[(size_t)i])->attributes;
        to->finalized = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t engine_get(const sim_descriptor *d, int64_t *count, void *values)
{
    sim_descriptor *to = sim_cudnn_get(*(cudnnBackendDescriptor_t *)values);
    if (to->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM;
    to->attributes = sim_child(d, CUDNN_ATTR_ENGINECFG_ENGINE)->attributes;
    to->finalized = true;
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t notes_get(const sim_descriptor *d, int64_t requested, int64_t *count,
                               void *values)
{
    cudnnBackendNumericalNote_t notes[2] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                            CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
    bool noted = sim_value<int64_t>(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == ENGINE_NOTED;
    *count = noted ? 2 : 1;
    memcpy(values, notes, (size_t)std::min(requested, *count) * sizeof notes[0]);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *values)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    const sim_descriptor *d = sim_cudnn_get(descriptor);
    if (!d->finalized)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    if (requested < 1)
        return CUDNN_STATUS_BAD_PARAM;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return results_get(d, requested, count, values);
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return engine_get(d, count, values);
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE)
        return notes_get(d, requested, count, values);
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *(int64_t *)values = sim_value<int64_t>(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_BAD_PARAM;
}

/* ---- plans ---- */

static int64_t padded(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* What version 9.19 asks for. */
static int64_t workspace_of(const problem &p)
{
    int64_t extra = (int64_t)sim_cudnn_library().extra_workspace;
    bool grouped = p.A != p.K, hopper = sim_machine().capability < 100;
    if (!p.backward)
        return (hopper ? 256 : 0) + extra;
    int64_t heads = grouped ? 2 * p.B * p.A * p.T * p.D * (hopper ? 2 : 4) : 0;
    int64_t scores = 2 * p.B * p.A * padded(p.T, 64) * padded(p.T, 128);
    return heads + (hopper ? scores + 256 : 0) + extra;
}

cudnnStatus_t sim_cudnn_plan_finalize(sim_descriptor *d)
{
    const sim_descriptor *config = sim_child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const sim_descriptor *engine = sim_child(config, CUDNN_ATTR_ENGINECFG_ENGINE);
    int64_t bytes = workspace_of(problem_of(sim_child(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH)));
    const char *begin = (const char *)&bytes;
    d->attributes[CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE] = {1, {begin, begin + sizeof bytes}};
    return CUDNN_STATUS_SUCCESS;
}

/* Pointers by id; *numbers: room for those that the host gives. */
static cudnnStatus_t operands_take(const sim_descriptor *graph, const sim_descriptor *pack,
                                   std::map<int64_t, void *> &pointers,
                                   std::map<int64_t, float> &numbers,
                                   std::vector<sim_range> &ranges)
{
    std::map<int64_t, void *> given;
    int64_t count = pack->attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count;
    for (int64_t i = 0; i < count; i++)
        given[sim_value<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i)] =
            sim_value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    for (const auto &[id, tensor] : sim_cudnn_memories(graph)) {
        if (given.count(id) == 0 || given[id] == NULL)
            return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        if (sim_value<bool>(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {
            numbers[id] = *(const float *)given[id];
            continue;
        }
        int64_t alignment = sim_value<int64_t>(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
        if ((uintptr_t)given[id] % (uintptr_t)alignment != 0)
            return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
        cudasim_check_device("cudnnBackendExecute's tensor", given[id], sim_cudnn_span(tensor));
        ranges.push_back({given[id], sim_cudnn_span(tensor)});
        pointers[id] = given[id];
    }
    return CUDNN_STATUS_SUCCESS;
}

/* A plan that shares its workspace with an operand loses that, or reads what it has not written. */
static void workspace_check(const void *workspace, size_t bytes,
                            const std::vector<sim_range> &operands)
{
    cudasim_check_device("cudnnBackendExecute's workspace", workspace, bytes);
    const char *begin = (const char *)workspace, *end = begin + bytes;
    for (const sim_range &operand : operands)
        if ((const char *)operand.begin < end &&
            (const char *)operand.begin + operand.bytes > begin)
            cudasim_fail("cudnnBackendExecute: the workspace [%p, %p) overlaps an operand at %p",
                         (const void *)begin, (const void *)end, operand.begin);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack_descriptor)
{
    static int64_t calls;
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    const sim_descriptor *d = sim_cudnn_get(plan), *pack = sim_cudnn_get(pack_descriptor);
    if (!d->finalized || !pack->finalized)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    const sim_descriptor *config = sim_child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const sim_descriptor *graph = sim_child(sim_child(config, CUDNN_ATTR_ENGINECFG_ENGINE),
                                            CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    std::map<int64_t, void *> pointers;
    std::map<int64_t, float> numbers;
    std::vector<sim_range> ranges;
    cudnnStatus_t status = operands_take(graph, pack, pointers, numbers, ranges);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    size_t bytes = (size_t)sim_value<int64_t>(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    void *workspace = sim_value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (bytes > 0) {
        workspace_check(workspace, bytes, ranges);
        ranges.push_back({workspace, bytes});
    }
    const problem p = problem_of(graph);
    int64_t call = is_steady(config, p) ? 0 : ++calls;
    double factor = sim_cudnn_library().wrong ? 1.05 : 1.0;
    cudaError_t error =
        sim_enqueue(handle->stream, "cudnnBackendExecute", ranges.data(), (int)ranges.size(), [=] {
            std::map<int64_t, void *> all = pointers;
            std::map<int64_t, float> kept = numbers;
            for (auto &[id, number] : kept)
                all[id] = &number;
            if (bytes > 0) /* nothing is kept in it from one call to the next */
                memset(workspace, 0xff, bytes);
            sim_cudnn_compute(graph, all, call, factor);
            return true;
        });
    sim_cudnn_executed(p.backward);
    return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
