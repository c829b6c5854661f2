/* The operations of a graph of cuDNN as descriptors of its backend interface (cuda_cudnn_graph.h). */
#include "kernels/cuda/cuda_cudnn_graph.h"

#include <string.h>

enum { ALIGNMENT = 16, FIRST_VIRTUAL_ID = 100 };

void tr_cudnn_graph_init(tr_cudnn_graph *graph, const tr_cudnn *dnn, cudnnHandle_t handle)
{
    *graph = (tr_cudnn_graph){.dnn = dnn, .handle = handle, .status = TR_OK};
}

void tr_cudnn_graph_clear(tr_cudnn_graph *graph)
{
    for (int i = graph->num_descriptors - 1; i >= 0; i--)
        graph->dnn->BackendDestroyDescriptor(graph->descriptors[i]);
    graph->num_descriptors = graph->num_operations = 0;
}

/* ---- descriptors ---- */

static void check(tr_cudnn_graph *graph, cudnnStatus_t status, const char *what)
{
    char words[512] = "";
    if (graph->status != TR_OK || status == CUDNN_STATUS_SUCCESS)
        return;
    graph->dnn->GetLastErrorString(words, sizeof words);
    graph->status =
        tr_fail(TR_ERR_INTERNAL, "cuDNN refused %s: %s%s%s", what,
                graph->dnn->GetErrorString(status), words[0] != '\0' ? ": " : "", words);
}

static cudnnBackendDescriptor_t create(tr_cudnn_graph *graph, cudnnBackendDescriptorType_t type,
                                       const char *what)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (graph->status != TR_OK)
        return NULL;
    TR_ASSERT(graph->num_descriptors < TR_CUDNN_MOST_DESCRIPTORS);
    check(graph, graph->dnn->BackendCreateDescriptor(type, &descriptor), what);
    if (descriptor != NULL)
        graph->descriptors[graph->num_descriptors++] = descriptor;
    return descriptor;
}

static void set(tr_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values, const char *what)
{
    if (graph->status == TR_OK)
        check(graph, graph->dnn->BackendSetAttribute(descriptor, name, type, count, values), what);
}

static void set_descriptor(tr_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value,
                           const char *what)
{
    set(graph, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void set_type(tr_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                     cudnnBackendAttributeName_t name, cudnnDataType_t type, const char *what)
{
    set(graph, descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
}

static void finalize(tr_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (graph->status == TR_OK)
        check(graph, graph->dnn->BackendFinalize(descriptor), what);
}

/* Finalizes an operation and puts it behind the others. */
static void operation_add(tr_cudnn_graph *graph, cudnnBackendDescriptor_t operation,
                          const char *what)
{
    finalize(graph, operation, what);
    if (graph->status != TR_OK)
        return;
    TR_ASSERT(graph->num_operations < TR_CUDNN_MOST_OPERATIONS);
    graph->operations[graph->num_operations++] = operation;
}

/* ---- tensors ---- */

typedef struct tensor_kind {
    bool is_virtual, by_value;
} tensor_kind;

static tr_cudnn_tensor tensor_add(tr_cudnn_graph *graph, int64_t id, cudnnDataType_t type,
                                  const tr_cudnn_shape *shape, tensor_kind kind)
{
    static const char what[] = "a tensor";
    const int64_t alignment = ALIGNMENT;
    tr_cudnn_tensor tensor = create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id, what);
    set_type(graph, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, type, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->dims, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->strides, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &kind.is_virtual, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &kind.by_value, what);
    finalize(graph, tensor, what);
    return tensor;
}

tr_cudnn_tensor tr_cudnn_memory(tr_cudnn_graph *graph, int64_t id, cudnnDataType_t type,
                                const tr_cudnn_shape *shape)
{
    TR_ASSERT(id >= 1 && id < FIRST_VIRTUAL_ID);
    return tensor_add(graph, id, type, shape, (tensor_kind){.is_virtual = false});
}

tr_cudnn_tensor tr_cudnn_number(tr_cudnn_graph *graph, int64_t id)
{
    static const tr_cudnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    TR_ASSERT(id >= 1 && id < FIRST_VIRTUAL_ID);
    return tensor_add(graph, id, CUDNN_DATA_FLOAT, &one, (tensor_kind){.by_value = true});
}

tr_cudnn_tensor tr_cudnn_between(tr_cudnn_graph *graph, cudnnDataType_t type,
                                 const tr_cudnn_shape *shape)
{
    return tensor_add(graph, FIRST_VIRTUAL_ID + graph->num_virtual++, type, shape,
                      (tensor_kind){.is_virtual = true});
}

/* ---- operations ---- */

void tr_cudnn_product(tr_cudnn_graph *graph, tr_cudnn_tensor a, tr_cudnn_tensor b,
                      tr_cudnn_tensor c)
{
    static const char what[] = "a matrix product";
    cudnnBackendDescriptor_t product = create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set_type(graph, product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT, what);
    finalize(graph, product, what);
    cudnnBackendDescriptor_t operation =
        create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product, what);
    operation_add(graph, operation, what);
}

/* axis < 0: the mode has none. */
static void pointwise_add(tr_cudnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                          int64_t axis, const tr_cudnn_tensor operands[3], tr_cudnn_tensor y)
{
    static const char what[] = "an elementwise operation";
    static const cudnnBackendAttributeName_t names[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                        CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                        CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    cudnnBackendDescriptor_t pointwise = create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(graph, pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set_type(graph, pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, type, what);
    if (axis >= 0)
        set(graph, pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    finalize(graph, pointwise, what);
    cudnnBackendDescriptor_t operation =
        create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise, what);
    for (int i = 0; i < 3; i++)
        if (operands[i] != NULL)
            set_descriptor(graph, operation, names[i], operands[i], what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    operation_add(graph, operation, what);
}

void tr_cudnn_elementwise(tr_cudnn_graph *graph, cudnnPointwiseMode_t mode, tr_cudnn_tensor x,
                          tr_cudnn_tensor b, tr_cudnn_tensor t, tr_cudnn_tensor y)
{
    bool compares = mode >= CUDNN_POINTWISE_CMP_EQ && mode <= CUDNN_POINTWISE_CMP_LE;
    pointwise_add(graph, mode, compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, -1,
                  (const tr_cudnn_tensor[3]){x, b, t}, y);
}

void tr_cudnn_index(tr_cudnn_graph *graph, tr_cudnn_tensor x, int64_t axis, tr_cudnn_tensor y)
{
    pointwise_add(graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis,
                  (const tr_cudnn_tensor[3]){x, NULL, NULL}, y);
}

void tr_cudnn_reduce(tr_cudnn_graph *graph, cudnnReduceTensorOp_t operator, tr_cudnn_tensor x,
                     tr_cudnn_tensor y)
{
    static const char what[] = "a reduction";
    cudnnBackendDescriptor_t reduction = create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(graph, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
        &operator, what);
    set_type(graph, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT, what);
    finalize(graph, reduction, what);
    cudnnBackendDescriptor_t operation =
        create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction, what);
    operation_add(graph, operation, what);
}

void tr_cudnn_view(tr_cudnn_graph *graph, tr_cudnn_tensor x, tr_cudnn_tensor y)
{
    static const char what[] = "a view";
    cudnnBackendDescriptor_t operation =
        create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
    set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
    operation_add(graph, operation, what);
}
