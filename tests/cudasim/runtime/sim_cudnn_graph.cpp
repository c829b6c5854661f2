/* Graphs of the stand-in for cuDNN (sim_cudnn.h): whether they make sense, and what they compute, operation by operation over whole tensors.
 *
 * Values are doubles, rounded to the type of each tensor that they are written to, between operations too. Memory was checked before: it is read and
 * written without AddressSanitizer. */
#include <algorithm>
#include <set>

#include <math.h>
#include <string.h>

#include "memory/dtype.h"
#include "tests/cudasim/runtime/sim_cudnn.h"

/* ---- tensors ---- */

static int64_t dim(const sim_descriptor *t, int i)
{
    return sim_value<int64_t>(t, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
}

static int64_t stride(const sim_descriptor *t, int i)
{
    return sim_value<int64_t>(t, CUDNN_ATTR_TENSOR_STRIDES, i);
}

static cudnnDataType_t type_of(const sim_descriptor *t)
{
    return sim_value<cudnnDataType_t>(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
}

static int64_t id_of(const sim_descriptor *t)
{
    return sim_value<int64_t>(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

static bool is_virtual(const sim_descriptor *t)
{
    return sim_value<bool>(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

int64_t sim_cudnn_elements(const sim_descriptor *t)
{
    return dim(t, 0) * dim(t, 1) * dim(t, 2) * dim(t, 3);
}

static size_t size_of(cudnnDataType_t type)
{
    return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2
           : type == CUDNN_DATA_BOOLEAN                           ? 1
                                                                  : 4;
}

static int64_t last_offset(const sim_descriptor *t)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (dim(t, i) - 1) * stride(t, i);
    return last;
}

size_t sim_cudnn_span(const sim_descriptor *t)
{
    return (size_t)(last_offset(t) + 1) * size_of(type_of(t));
}

cudnnStatus_t sim_cudnn_tensor_finalize(sim_descriptor *d)
{
    int64_t alignment = sim_value<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    bool by_value = sim_value<bool>(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (int i = 0; i < 4; i++)
        if (dim(d, i) < 1 || stride(d, i) < 1)
            return CUDNN_STATUS_BAD_PARAM;
    if (alignment < 1 || (alignment & (alignment - 1)) != 0 || (by_value && is_virtual(d)) ||
        (by_value && sim_cudnn_elements(d) != 1))
        return CUDNN_STATUS_BAD_PARAM;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- operations ---- */

struct operation {
    const sim_descriptor *kind; /* of the pointwise operation, the reduction */
    sim_descriptor *inputs[3];
    sim_descriptor *output;
};

static sim_descriptor *input(const sim_descriptor *d, cudnnBackendAttributeName_t name)
{
    return sim_has(d, name) ? sim_child(d, name) : NULL;
}

static operation operation_of(const sim_descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return {sim_child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                {input(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                 input(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                 input(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC)},
                sim_child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)};
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return {NULL,
                {input(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                 input(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC), NULL},
                sim_child(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC)};
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return {sim_child(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                {input(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC), NULL, NULL},
                sim_child(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC)};
    default:
        return {NULL,
                {input(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC), NULL, NULL},
                sim_child(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC)};
    }
}

static int num_operands(cudnnPointwiseMode_t mode)
{
    if (mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG ||
        mode == CUDNN_POINTWISE_GEN_INDEX)
        return 1;
    return mode == CUDNN_POINTWISE_BINARY_SELECT ? 3 : 2;
}

static bool pointwise_fits(const operation &o)
{
    cudnnPointwiseMode_t mode = sim_value<cudnnPointwiseMode_t>(o.kind, CUDNN_ATTR_POINTWISE_MODE);
    if ((mode == CUDNN_POINTWISE_GEN_INDEX) != sim_has(o.kind, CUDNN_ATTR_POINTWISE_AXIS))
        return false;
    for (int i = 0; i < 3; i++) {
        if ((o.inputs[i] != NULL) != (i < num_operands(mode)))
            return false;
        for (int k = 0; k < 4 && o.inputs[i] != NULL; k++)
            if (dim(o.inputs[i], k) != dim(o.output, k) && dim(o.inputs[i], k) != 1)
                return false;
    }
    return true;
}

static bool product_fits(const operation &o)
{
    const sim_descriptor *a = o.inputs[0], *b = o.inputs[1], *c = o.output;
    return dim(a, 0) == dim(c, 0) && dim(b, 0) == dim(c, 0) && dim(a, 1) == dim(c, 1) &&
           dim(a, 1) % dim(b, 1) == 0 && dim(a, 2) == dim(c, 2) && dim(a, 3) == dim(b, 2) &&
           dim(b, 3) == dim(c, 3);
}

static bool reduction_fits(const operation &o)
{
    for (int i = 0; i < 4; i++)
        if (dim(o.inputs[0], i) % dim(o.output, i) != 0)
            return false;
    return true;
}

cudnnStatus_t sim_cudnn_operation_finalize(sim_descriptor *d)
{
    operation o = operation_of(d);
    bool fits = d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ? pointwise_fits(o)
                : d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR  ? product_fits(o)
                : d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
                    ? reduction_fits(o)
                    : sim_cudnn_elements(o.inputs[0]) == sim_cudnn_elements(o.output);
    return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
}

/* ---- graphs ---- */

static int64_t num_operations(const sim_descriptor *graph)
{
    return graph->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).count;
}

static operation operation_at(const sim_descriptor *graph, int64_t i)
{
    return operation_of(sim_child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i));
}

/* What lies between operations is made by one of them before it is used, and each id is one tensor's. */
cudnnStatus_t sim_cudnn_graph_finalize(sim_descriptor *d)
{
    std::map<int64_t, sim_descriptor *> tensors;
    std::set<int64_t> made;
    for (int64_t i = 0; i < num_operations(d); i++) {
        operation o = operation_at(d, i);
        for (sim_descriptor *t : {o.inputs[0], o.inputs[1], o.inputs[2], o.output})
            if (t != NULL && tensors.emplace(id_of(t), t).first->second != t)
                return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
        for (const sim_descriptor *t : o.inputs)
            if (t != NULL && is_virtual(t) && made.count(id_of(t)) == 0)
                return CUDNN_STATUS_BAD_PARAM;
        if (!made.insert(id_of(o.output)).second)
            return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
    }
    return CUDNN_STATUS_SUCCESS;
}

std::map<int64_t, sim_descriptor *> sim_cudnn_memories(const sim_descriptor *graph)
{
    std::map<int64_t, sim_descriptor *> tensors;
    for (int64_t i = 0; i < num_operations(graph); i++) {
        operation o = operation_at(graph, i);
        for (sim_descriptor *t : {o.inputs[0], o.inputs[1], o.inputs[2], o.output})
            if (t != NULL && !is_virtual(t))
                tensors.emplace(id_of(t), t);
    }
    return tensors;
}

/* ---- computing ---- */

/* Values of a tensor in the order of its dimensions. */
typedef std::vector<double> values;

static double rounded(cudnnDataType_t type, double value)
{
    switch (type) {
    case CUDNN_DATA_BFLOAT16:
        return tr_f32_from_bf16(tr_bf16_from_f32((float)value));
    case CUDNN_DATA_HALF:
        return tr_f32_from_f16(tr_f16_from_f32((float)value));
    case CUDNN_DATA_FLOAT:
        return (float)value;
    default:
        return value;
    }
}

template <typename F> static void each(const sim_descriptor *t, F visit)
{
    int64_t at = 0, index[4];
    for (index[0] = 0; index[0] < dim(t, 0); index[0]++)
        for (index[1] = 0; index[1] < dim(t, 1); index[1]++)
            for (index[2] = 0; index[2] < dim(t, 2); index[2]++)
                for (index[3] = 0; index[3] < dim(t, 3); index[3]++)
                    visit(at++, index);
}

static int64_t offset(const sim_descriptor *t, const int64_t index[4])
{
    int64_t at = 0;
    for (int i = 0; i < 4; i++)
        at += index[i] * stride(t, i);
    return at;
}

/* Place among the values of t of an index of a tensor that it is broadcast to, or reduced from. */
static int64_t place(const sim_descriptor *t, const sim_descriptor *wide, const int64_t index[4])
{
    int64_t at = 0;
    for (int i = 0; i < 4; i++)
        at = at * dim(t, i) + index[i] / (dim(wide, i) / dim(t, i));
    return at;
}

static values load(const sim_descriptor *t, const void *memory)
{
    values v((size_t)sim_cudnn_elements(t));
    cudnnDataType_t type = type_of(t);
    each(t, [&](int64_t i, const int64_t index[4]) {
        int64_t at = offset(t, index);
        v[(size_t)i] = type == CUDNN_DATA_FLOAT  ? ((const float *)memory)[at]
                       : type == CUDNN_DATA_HALF ? tr_f32_from_f16(((const uint16_t *)memory)[at])
                                                 : tr_f32_from_bf16(((const uint16_t *)memory)[at]);
    });
    return v;
}

static void store(const sim_descriptor *t, const values &v, void *memory)
{
    cudnnDataType_t type = type_of(t);
    each(t, [&](int64_t i, const int64_t index[4]) {
        int64_t at = offset(t, index);
        float value = (float)v[(size_t)i];
        if (type == CUDNN_DATA_FLOAT)
            ((float *)memory)[at] = value;
        else
            ((uint16_t *)memory)[at] =
                type == CUDNN_DATA_HALF ? tr_f16_from_f32(value) : tr_bf16_from_f32(value);
    });
}

static double apply(cudnnPointwiseMode_t mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        return NAN;
    }
}

static values pointwise(const operation &o, const values *const in[3])
{
    cudnnPointwiseMode_t mode = sim_value<cudnnPointwiseMode_t>(o.kind, CUDNN_ATTR_POINTWISE_MODE);
    values y((size_t)sim_cudnn_elements(o.output));
    each(o.output, [&](int64_t i, const int64_t index[4]) {
        double operands[3] = {0, 0, 0};
        if (mode == CUDNN_POINTWISE_GEN_INDEX) {
            y[(size_t)i] = (double)index[sim_value<int64_t>(o.kind, CUDNN_ATTR_POINTWISE_AXIS)];
            return;
        }
        for (int k = 0; k < 3 && o.inputs[k] != NULL; k++)
            operands[k] = (*in[k])[(size_t)place(o.inputs[k], o.output, index)];
        y[(size_t)i] = apply(mode, operands[0], operands[1], operands[2]);
    });
    return y;
}

static values product(const operation &o, const values *const in[3])
{
    const sim_descriptor *a = o.inputs[0], *b = o.inputs[1], *c = o.output;
    int64_t M = dim(c, 2), N = dim(c, 3), depth = dim(a, 3), group = dim(a, 1) / dim(b, 1);
    values y((size_t)sim_cudnn_elements(c), 0.0);
    for (int64_t matrix = 0; matrix < dim(c, 0) * dim(c, 1); matrix++) {
        const double *left = in[0]->data() + matrix * M * depth;
        const double *right = in[1]->data() + matrix / group * depth * N;
        double *result = y.data() + matrix * M * N;
        for (int64_t m = 0; m < M; m++)
            for (int64_t k = 0; k < depth; k++)
                for (int64_t n = 0; n < N; n++)
                    result[m * N + n] += left[m * depth + k] * right[k * N + n];
    }
    return y;
}

static values reduction(const operation &o, const values *const in[3])
{
    bool max = sim_value<cudnnReduceTensorOp_t>(o.kind, CUDNN_ATTR_REDUCTION_OPERATOR) ==
               CUDNN_REDUCE_TENSOR_MAX;
    values y((size_t)sim_cudnn_elements(o.output), max ? -HUGE_VAL : 0.0);
    each(o.inputs[0], [&](int64_t i, const int64_t index[4]) {
        double &sum = y[(size_t)place(o.output, o.inputs[0], index)], x = (*in[0])[(size_t)i];
        sum = max ? std::max(sum, x) : sum + x;
    });
    return y;
}

/* The same memory seen with other strides. */
static values view(const operation &o, const values *const in[3])
{
    values memory((size_t)last_offset(o.inputs[0]) + 1), y((size_t)sim_cudnn_elements(o.output));
    each(o.inputs[0], [&](int64_t i, const int64_t index[4]) {
        memory[(size_t)offset(o.inputs[0], index)] = (*in[0])[(size_t)i];
    });
    each(o.output, [&](int64_t i, const int64_t index[4]) {
        y[(size_t)i] = memory[(size_t)offset(o.output, index)];
    });
    return y;
}

static values compute(const sim_descriptor *d, const operation &o, const values *const in[3])
{
    switch (d->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return pointwise(o, in);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return product(o, in);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return reduction(o, in);
    default:
        return view(o, in);
    }
}

/* A bit more or less here and there, otherwise in each call. */
static void disturb(values &v, int64_t call)
{
    for (size_t i = (size_t)(call % 7); i < v.size(); i += 7)
        v[i] *= 1.0 + 1.0 / 128;
}

void sim_cudnn_compute(const sim_descriptor *graph, const std::map<int64_t, void *> &pointers,
                       int64_t call, double factor)
{
    std::map<int64_t, values> known;
    for (int64_t i = 0; i < num_operations(graph); i++) {
        const sim_descriptor *d = sim_child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
        operation o = operation_of(d);
        const values *in[3] = {NULL, NULL, NULL};
        for (int k = 0; k < 3 && o.inputs[k] != NULL; k++) {
            int64_t id = id_of(o.inputs[k]);
            if (known.count(id) == 0)
                known[id] = load(o.inputs[k], pointers.at(id));
            in[k] = &known[id];
        }
        values y = compute(d, o, in);
        bool result = !is_virtual(o.output) && d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
        if (result && call != 0)
            disturb(y, call);
        for (double &value : y)
            value = rounded(type_of(o.output), result ? value * factor : value);
        if (!is_virtual(o.output))
            store(o.output, y, pointers.at(id_of(o.output)));
        known[id_of(o.output)] = std::move(y);
    }
}
