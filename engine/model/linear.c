#include "engine/model/linear.h"

#include "parallel/reduce_tree.h"

/* A product as this rank has it. */
typedef struct linear {
    tr_weight weight, bias;
    int64_t out, in;   /* local */
    bool row_parallel; /* W is cut by columns */
    int num_parts;     /* of the axis that is cut */
} linear;

static linear linear_of(const tr_model *model, int layer, tr_param_role role)
{
    const tr_weight *w = model->weights[layer];
    linear l = {.weight = w[role], .in = model->H, .num_parts = model->slices};
    if (role != TR_ROLE_HEAD)
        l.bias = w[role + 1];
    switch (role) {
    case TR_ROLE_Q_WEIGHT:
        l.out = model->A * model->D;
        break;
    case TR_ROLE_K_WEIGHT:
    case TR_ROLE_V_WEIGHT:
        l.out = model->K * model->D;
        l.num_parts = model->slices / model->kv_parts;
        break;
    case TR_ROLE_GATE_WEIGHT:
    case TR_ROLE_UP_WEIGHT:
        l.out = model->F;
        break;
    case TR_ROLE_HEAD:
        l.out = model->V;
        break;
    default:
        TR_ASSERT(role == TR_ROLE_O_WEIGHT || role == TR_ROLE_DOWN_WEIGHT);
        l.row_parallel = true;
        l.out = model->H;
        l.in = role == TR_ROLE_O_WEIGHT ? model->A * model->D : model->F;
    }
    return l;
}

/* Elements [begin ...] of a tensor in the compute dtype. */
static const void *at(const tr_model *model, const void *base, int64_t begin)
{
    return base == NULL ? NULL : (const char *)base + begin * (int64_t)model->item;
}

static void *at_mut(const tr_model *model, void *base, int64_t begin)
{
    return (char *)base + begin * (int64_t)model->item;
}

/* Runs a product of compute-dtype operands; parts of wider tensors when the rank has several slices. */
static tr_status multiply(const tr_model *model, tr_matmul *args)
{
    args->dtype = model->dtype;
    args->parts = model->sliced;
    TR_TRY(model->device->ops->matmul(model->device, args));
    return model->hooks.product != NULL ? model->hooks.product(model->hooks.context) : TR_OK;
}

tr_status tr_linear_forward(tr_model *model, int layer, tr_param_role role, const void *x, void *y)
{
    linear l = linear_of(model, layer, role);
    int64_t cols = l.out / l.num_parts, rows = tr_tensor_comm_half_rows(&model->tensor);
    for (int h = 0; h < model->tensor.num_halves; h++) {
        TR_TRY(tr_tensor_comm_gather_wait(&model->tensor, x, h));
        for (int p = 0; p < l.num_parts; p++) {
            tr_matmul args = {.form = TR_MATMUL_NT,
                              .M = rows,
                              .N = cols,
                              .K = l.in,
                              .c_dtype = model->dtype,
                              .A = at(model, x, h * rows * l.in),
                              .lda = l.in,
                              .B = at(model, l.weight.weight, p * cols * l.in),
                              .ldb = l.in,
                              .bias = at(model, l.bias.weight, p * cols),
                              .C = at_mut(model, y, h * rows * l.out + p * cols),
                              .ldc = l.out};
            TR_TRY(multiply(model, &args));
        }
    }
    return TR_OK;
}

/* ---- partial sums of slices ---- */

/* The sums that a tree over slices is made in, n elements each (parallel/reduce_tree.h); the first one becomes the tree. */
typedef struct slice_sums {
    int64_t n;
    float *slots[TR_MODEL_SLOTS + 1];
} slice_sums;

static slice_sums slice_sums_make(int64_t n, float *tree, float *const scratch[TR_MODEL_SLOTS])
{
    slice_sums sums = {.n = n, .slots = {tree}};
    for (int i = 0; i < TR_MODEL_SLOTS; i++)
        sums.slots[i + 1] = scratch[i];
    return sums;
}

/* What a slice's sum is combined with once it is there. */
static tr_status slots_merge(const tr_model *model, const slice_sums *sums, tr_leaf_step step)
{
    for (int k = 0; k < step.num_merges; k++) {
        float *left = sums->slots[step.slot - k - 1];
        const float *pair[2] = {left, sums->slots[step.slot - k]};
        TR_TRY(model->device->ops->tree_sum(model->device, sums->n, 2, pair, left));
    }
    return TR_OK;
}

static slice_sums half_sums(const tr_model *model, float *partial, int half)
{
    int64_t elements = tr_tensor_comm_half_rows(&model->tensor) * model->H;
    return slice_sums_make(elements, partial + half * elements, model->scratch.slice_sums);
}

tr_status tr_linear_forward_partial(tr_model *model, int layer, tr_param_role role, const void *x,
                                    float *partial)
{
    linear l = linear_of(model, layer, role);
    int64_t depth = l.in / l.num_parts, rows = tr_tensor_comm_half_rows(&model->tensor);
    TR_ASSERT(l.row_parallel);
    for (int h = 0; h < model->tensor.num_halves; h++) {
        slice_sums sums = half_sums(model, partial, h);
        for (int p = 0; p < l.num_parts; p++) {
            tr_leaf_step step = tr_leaf_step_make(p, l.num_parts);
            tr_matmul args = {.form = TR_MATMUL_NT,
                              .M = rows,
                              .N = l.out,
                              .K = depth,
                              .c_dtype = TR_F32,
                              .A = at(model, x, h * rows * l.in + p * depth),
                              .lda = l.in,
                              .B = at(model, l.weight.weight, p * depth),
                              .ldb = l.in,
                              .C = sums.slots[step.slot],
                              .ldc = l.out};
            TR_TRY(multiply(model, &args));
            TR_TRY(slots_merge(model, &sums, step));
        }
        TR_TRY(tr_tensor_comm_reduce_post(&model->tensor, partial, h));
    }
    return TR_OK;
}

/* Slice p of a half: the products of all terms, added in order. */
static tr_status terms_multiply(tr_model *model, int layer, const tr_linear_term *terms,
                                int num_terms, int64_t first_row, int p, float *sum)
{
    for (int i = 0; i < num_terms; i++) {
        linear l = linear_of(model, layer, terms[i].role);
        int64_t depth = l.out / l.num_parts; /* of dy's columns, as many a slice */
        int64_t ld = model->slices * depth, weight_part = p / (model->slices / l.num_parts);
        tr_matmul args = {.form = TR_MATMUL_NN,
                          .M = tr_tensor_comm_half_rows(&model->tensor),
                          .N = l.in,
                          .K = depth,
                          .c_dtype = TR_F32,
                          .A = at(model, terms[i].dy, first_row * ld + p * depth),
                          .lda = ld,
                          .B = at(model, l.weight.weight, weight_part * depth * l.in),
                          .ldb = l.in,
                          .C = sum,
                          .ldc = l.in,
                          .accumulate = i > 0};
        TR_TRY(multiply(model, &args));
    }
    return TR_OK;
}

tr_status tr_linear_input_partial(tr_model *model, int layer, const tr_linear_term *terms,
                                  int num_terms, float *partial)
{
    int64_t rows = tr_tensor_comm_half_rows(&model->tensor);
    for (int h = 0; h < model->tensor.num_halves; h++) {
        slice_sums sums = half_sums(model, partial, h);
        for (int p = 0; p < model->slices; p++) {
            tr_leaf_step step = tr_leaf_step_make(p, model->slices);
            TR_TRY(
                terms_multiply(model, layer, terms, num_terms, h * rows, p, sums.slots[step.slot]));
            TR_TRY(slots_merge(model, &sums, step));
        }
        TR_TRY(tr_tensor_comm_reduce_post(&model->tensor, partial, h));
    }
    return TR_OK;
}

/* ---- gradients ---- */

tr_status tr_linear_input(tr_model *model, int layer, tr_param_role role, const void *dy,
                          const void *gelu_input, void *dx)
{
    linear l = linear_of(model, layer, role);
    int64_t cols = l.in / l.num_parts, rows = tr_tensor_comm_half_rows(&model->tensor);
    TR_ASSERT(l.row_parallel);
    for (int h = 0; h < model->tensor.num_halves; h++) {
        TR_TRY(tr_tensor_comm_gather_wait(&model->tensor, dy, h));
        for (int p = 0; p < l.num_parts; p++) {
            int64_t begin = h * rows * l.in + p * cols; /* of this part of dx */
            tr_matmul args = {.form = TR_MATMUL_NN,
                              .M = rows,
                              .N = cols,
                              .K = l.out,
                              .c_dtype = model->dtype,
                              .A = at(model, dy, h * rows * l.out),
                              .lda = l.out,
                              .B = at(model, l.weight.weight, p * cols),
                              .ldb = l.in,
                              .gelu_input = at(model, gelu_input, begin),
                              .C = at_mut(model, dx, begin),
                              .ldc = l.in};
            TR_TRY(multiply(model, &args));
        }
    }
    return TR_OK;
}

tr_status tr_linear_weight(tr_model *model, int layer, tr_param_role role, const void *dy,
                           const void *x)
{
    linear l = linear_of(model, layer, role);
    int64_t rows = l.row_parallel ? l.out : l.out / l.num_parts;
    int64_t cols = l.row_parallel ? l.in / l.num_parts : l.in;
    TR_TRY(tr_tensor_comm_gather_wait(&model->tensor, l.row_parallel ? dy : x, -1));
    for (int p = 0; p < l.num_parts; p++) {
        int64_t row = l.row_parallel ? 0 : p * rows, col = l.row_parallel ? p * cols : 0;
        tr_matmul args = {.form = TR_MATMUL_TN,
                          .M = rows,
                          .N = cols,
                          .K = model->R,
                          .c_dtype = TR_F32,
                          .A = at(model, dy, row),
                          .lda = l.out,
                          .B = at(model, x, col),
                          .ldb = l.in,
                          .C = l.weight.grad + row * l.in + col,
                          .ldc = l.in,
                          .accumulate = model->accumulate};
        TR_TRY(multiply(model, &args));
    }
    TR_TRY(tr_model_written(model, role));
    if (l.row_parallel || l.bias.grad == NULL)
        return TR_OK;
    TR_TRY(model->device->ops->column_sum(model->device, model->dtype, model->R, l.out, dy,
                                          l.bias.grad, model->accumulate));
    return tr_model_written(model, role + 1);
}

/* ---- keys and values that slices share ---- */

/* sum [D,H] = the tree over this rank's sharers of dy^T x, for one head. dy: the first sharer's columns. */
static tr_status shared_head(tr_model *model, const void *dy, const void *x, float *sum)
{
    int64_t ld = model->K * model->kv_parts * model->D;
    slice_sums sums = slice_sums_make(model->D * model->H, sum, model->scratch.shared_slots);
    for (int p = 0; p < model->kv_parts; p++) {
        tr_leaf_step step = tr_leaf_step_make(p, model->kv_parts);
        tr_matmul args = {.form = TR_MATMUL_TN,
                          .M = model->D,
                          .N = model->H,
                          .K = model->R,
                          .c_dtype = TR_F32,
                          .A = at(model, dy, p * model->D),
                          .lda = ld,
                          .B = x,
                          .ldb = model->H,
                          .C = sums.slots[step.slot],
                          .ldc = model->H};
        TR_TRY(multiply(model, &args));
        TR_TRY(slots_merge(model, &sums, step));
    }
    return TR_OK;
}

/* sums [K,D,H]; bias_sums [K,D], or NULL where there is no bias. */
static tr_status shared_sums(tr_model *model, const void *dy, const void *x, float *sums,
                             float *bias_sums)
{
    const tr_ops *ops = model->device->ops;
    int64_t head = model->kv_parts * model->D;
    for (int64_t k = 0; k < model->K; k++)
        TR_TRY(shared_head(model, at(model, dy, k * head), x, sums + k * model->D * model->H));
    if (bias_sums == NULL)
        return TR_OK;
    float *columns = model->scratch.shared_columns;
    TR_TRY(ops->column_sum(model->device, model->dtype, model->R, model->K * head, dy, columns,
                           false));
    for (int64_t k = 0; k < model->K; k++) {
        const float *parts[TR_MODEL_SLICES];
        for (int p = 0; p < model->kv_parts; p++)
            parts[p] = columns + k * head + p * model->D;
        TR_TRY(ops->tree_sum(model->device, model->D, model->kv_parts, parts,
                             bias_sums + k * model->D));
    }
    return TR_OK;
}

/* Both matrices lie before both biases: a matrix begins at a multiple of its rows, as parts of products must (tr_matmul). */
tr_status tr_linear_weight_kv(tr_model *model, int layer, const void *dk, const void *dv,
                              const void *x)
{
    if (model->num_shared == 0) {
        TR_TRY(tr_linear_weight(model, layer, TR_ROLE_K_WEIGHT, dk, x));
        return tr_linear_weight(model, layer, TR_ROLE_V_WEIGHT, dv, x);
    }
    const tr_weight *w = model->weights[layer];
    int64_t num_bias = model->K * model->D, elements = num_bias * model->H;
    bool bias = w[TR_ROLE_K_BIAS].grad != NULL;
    float *buffer, *sum;
    TR_TRY(tr_tensor_comm_gather_wait(&model->tensor, x, -1));
    TR_TRY(tr_tensor_comm_shared(&model->tensor, &buffer));
    float *k_bias = bias ? buffer + 2 * elements : NULL;
    float *v_bias = bias ? k_bias + num_bias : NULL;
    TR_TRY(shared_sums(model, dk, x, buffer, k_bias));
    TR_TRY(shared_sums(model, dv, x, buffer + elements, v_bias));
    TR_TRY(tr_tensor_comm_shared_sum(&model->tensor, buffer, &sum));
    TR_TRY(tr_model_add(model, elements, sum, w[TR_ROLE_K_WEIGHT].grad));
    TR_TRY(tr_model_add(model, elements, sum + elements, w[TR_ROLE_V_WEIGHT].grad));
    if (!bias)
        return TR_OK;
    TR_TRY(tr_model_add(model, num_bias, sum + 2 * elements, w[TR_ROLE_K_BIAS].grad));
    return tr_model_add(model, num_bias, sum + 2 * elements + num_bias, w[TR_ROLE_V_BIAS].grad);
}

void tr_linear_init(tr_model *model, tr_arena *workspace)
{
    tr_model_scratch *scratch = &model->scratch;
    size_t sum_bytes =
        (size_t)(tr_tensor_comm_half_rows(&model->tensor) * model->H) * sizeof(float);
    size_t head_bytes = (size_t)(model->D * model->H) * sizeof(float);
    for (int i = 0; i < tr_leaf_num_slots(model->slices) - 1; i++)
        scratch->slice_sums[i] = tr_arena_alloc(workspace, sum_bytes);
    if (model->num_shared == 0)
        return;
    for (int i = 0; i < tr_leaf_num_slots(model->kv_parts) - 1; i++)
        scratch->shared_slots[i] = tr_arena_alloc(workspace, head_bytes);
    if (model->cfg->model.qkv_bias)
        scratch->shared_columns = tr_arena_alloc(
            workspace, (size_t)(model->K * model->kv_parts * model->D) * sizeof(float));
}
