/* Handles, descriptors and attributes of the stand-in for cuDNN (sim_cudnn.h). */
#include <mutex>
#include <set>

#include <stdlib.h>
#include <string.h>

#include "tests/cudasim/runtime/sim_cudnn.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_stream.h"

enum { VERSION = 91900, MANY = 64 };

static std::set<sim_descriptor *> descriptors;
static cudasim_cudnn_counts counts;

/* ---- the library that is found ---- */

static cudasim_cudnn library_at_start()
{
    const char *found = getenv("CUDASIM_CUDNN");
    cudasim_cudnn library = {};
    library.version = VERSION;
    library.missing = found == NULL || strcmp(found, "present") != 0;
    return library;
}

static cudasim_cudnn &library()
{
    static cudasim_cudnn library = library_at_start();
    return library;
}

const cudasim_cudnn &sim_cudnn_library()
{
    return library();
}

void cudasim_cudnn_set(const cudasim_cudnn *wanted)
{
    library() = *wanted;
    if (wanted->version == 0)
        library().version = VERSION;
}

bool cudasim_cudnn_is_missing(void)
{
    return library().missing;
}

void sim_cudnn_executed(bool backward)
{
    counts.forwards += !backward;
    counts.backwards += backward;
}

cudasim_cudnn_counts cudasim_cudnn_count(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    counts.descriptors = (int64_t)descriptors.size();
    return counts;
}

size_t cudnnGetVersion(void)
{
    return library().version;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED:
        return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
        return status < CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_BAD_PARAM"
                                                   : "CUDNN_STATUS_EXECUTION_FAILED";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    if (max_size > 0)
        message[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    if (sim_lost() != cudaSuccess)
        return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = new cudnnContext();
    counts.handles++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    delete handle;
    counts.handles--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

sim_descriptor *sim_cudnn_make(cudnnBackendDescriptorType_t type)
{
    sim_descriptor *descriptor = new sim_descriptor{type, false, {}, {}};
    descriptors.insert(descriptor);
    return descriptor;
}

sim_descriptor *sim_cudnn_get(cudnnBackendDescriptor_t descriptor)
{
    sim_descriptor *found = (sim_descriptor *)descriptor;
    if (descriptors.count(found) == 0)
        cudasim_fail("cuDNN is given %p, which is no descriptor that is alive", descriptor);
    return found;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    *descriptor = sim_cudnn_make(type);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_descriptor *d = sim_cudnn_get(descriptor);
    for (cudnnBackendDescriptor_t made : d->made)
        cudnnBackendDestroyDescriptor(made);
    descriptors.erase(d);
    delete d;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- attributes ---- */

/* One attribute of a descriptor: type and number of its elements; holds: the type of descriptor that they are (-1: any). */
struct attribute_rule {
    cudnnBackendDescriptorType_t descriptor;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least, most;
    bool required;
    int holds;
};

static const attribute_rule rules[] = {
#define ONE(descriptor, name, type)                                                                \
    {                                                                                              \
        CUDNN_BACKEND_##descriptor##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, 1, 1, true, \
            -1                                                                                     \
    }
#define HELD(descriptor, name, least, most, held)                                                  \
    {                                                                                              \
        CUDNN_BACKEND_##descriptor##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, \
            least, most, (least) > 0, held                                                         \
    }
    ONE(TENSOR, TENSOR_UNIQUE_ID, INT64),
    ONE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE),
    ONE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64),
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4, true,
     -1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4, true, -1},
    ONE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN),
    ONE(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN),
    ONE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE),
    ONE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE),
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, false,
     -1},
    ONE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE),
    ONE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE),
    ONE(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE),
    HELD(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, 1, 1,
         CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
    HELD(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, 0, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, 0, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_MATMUL, OPERATION_MATMUL_DESC, 1, 1, CUDNN_BACKEND_MATMUL_DESCRIPTOR),
    HELD(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, 1, 1, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
    HELD(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    HELD(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, 1, 1, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    ONE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE),
    HELD(OPERATIONGRAPH, OPERATIONGRAPH_OPS, 1, MANY, -1),
    ONE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE),
    HELD(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, 1, 1, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
    HELD(ENGINE, ENGINE_OPERATION_GRAPH, 1, 1, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
    ONE(ENGINE, ENGINE_GLOBAL_INDEX, INT64),
    ONE(KNOB_CHOICE, KNOB_CHOICE_KNOB_TYPE, KNOB_TYPE),
    ONE(KNOB_CHOICE, KNOB_CHOICE_KNOB_VALUE, INT64),
    HELD(ENGINECFG, ENGINECFG_ENGINE, 1, 1, CUDNN_BACKEND_ENGINE_DESCRIPTOR),
    HELD(ENGINECFG, ENGINECFG_KNOB_CHOICES, 0, MANY, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR),
    ONE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE),
    HELD(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, 1, 1, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1,
     MANY, true, -1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, 1, MANY, true, -1},
    ONE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR),
#undef ONE
#undef HELD
};

static const attribute_rule *rule_of(cudnnBackendDescriptorType_t type,
                                     cudnnBackendAttributeName_t name)
{
    for (const attribute_rule &rule : rules)
        if (rule.descriptor == type && rule.name == name)
            return &rule;
    return NULL;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return sizeof(int);
    }
}

static cudnnStatus_t check_held(const attribute_rule *rule, int64_t count, const void *values)
{
    for (int64_t i = 0; i < count; i++) {
        const sim_descriptor *held = sim_cudnn_get(((const cudnnBackendDescriptor_t *)values)[i]);
        if (rule->holds >= 0 && (int)held->type != rule->holds)
            return CUDNN_STATUS_BAD_PARAM;
        if (!held->finalized)
            return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_descriptor *d = sim_cudnn_get(descriptor);
    const attribute_rule *rule = rule_of(d->type, name);
    if (d->finalized || rule == NULL)
        return CUDNN_STATUS_BAD_PARAM;
    if (values == NULL)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (type != rule->type)
        return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (count < rule->least || count > rule->most)
        return CUDNN_STATUS_BAD_PARAM;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        cudnnStatus_t status = check_held(rule, count, values);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
    }
    const char *bytes = (const char *)values;
    d->attributes[name] = {count, {bytes, bytes + (size_t)count * size_of(type)}};
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t pack_finalize(sim_descriptor *d)
{
    std::set<int64_t> ids;
    int64_t count = d->attributes[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].count;
    if (count != d->attributes[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].count)
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; i < count; i++)
        if (!ids.insert(sim_value<int64_t>(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i)).second)
            return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize(sim_descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return sim_cudnn_tensor_finalize(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return sim_cudnn_operation_finalize(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return sim_cudnn_graph_finalize(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return sim_cudnn_heuristics_finalize(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return sim_cudnn_engine_finalize(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return sim_cudnn_config_finalize(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return sim_cudnn_plan_finalize(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return pack_finalize(d);
    default:
        return CUDNN_STATUS_SUCCESS;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    sim_descriptor *d = sim_cudnn_get(descriptor);
    if (d->finalized)
        return CUDNN_STATUS_BAD_PARAM;
    for (const attribute_rule &rule : rules)
        if (rule.descriptor == d->type && rule.required && !sim_has(d, rule.name))
            return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t status = finalize(d);
    d->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}
