/* The stand-in for cuBLASLt: descriptors, a heuristic and products on the simulated streams.
 *
 * As in the library, the heuristic's choice depends on sizes, strides, types and the alignment that it is promised, and so do the bits: for some
 * shapes the sum is split over k, with partial sums in the workspace. A product is refused, or ends the process where a real one
 * would read or write at wrong addresses, when it does not keep what its algorithm was chosen for: types, sizes, alignment, workspace. Epilogues keep the
 * rules of the documentation; where that does not name the status of a refusal, it is INVALID_VALUE. */
#include <algorithm>
#include <utility>

#include <stdint.h>
#include <string.h>

#include <cublasLt.h>

#include "base/hash.h"
#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/runtime/sim_memory.h"
#include "tests/cudasim/runtime/sim_product.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/cudasim/runtime/sim_stream.h"

struct cublasLtContext {
    int unused;
};

struct cudasim_matmul_desc {
    cublasComputeType_t compute;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    const void *bias;
    const void *
        aux; /* of DGELU: the input of GELU, of D's type and shape, aux_ld elements between columns */
    int64_t aux_ld;
};

struct cudasim_matrix_layout {
    cudaDataType type;
    int64_t rows, cols, ld;
};

struct cudasim_matmul_preference {
    uint64_t workspace;
    uint32_t schemes, align_a, align_b, align_c, align_d;
};

/* What an algorithm was chosen for. Fills cublasLtMatmulAlgo_t. */
struct sim_algo {
    uint64_t problem; /* hash of sizes, types, transposes and epilogue */
    uint64_t workspace;
    uint32_t splits, align_a, align_b, align_c, align_d, align_bias, align_aux, unused;
    uint64_t reserved;
};
static_assert(sizeof(sim_algo) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm is plain bytes");

enum { MOST_ALIGNMENT = 256, SPLIT_K = 64 };

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the requested functionality is not supported";
    default:
        return "unknown status";
    }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *desc = new cudasim_matmul_desc{
        compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *member, size_t size, const void *value, size_t bytes)
{
    if (value == NULL || bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->transpose_a, sizeof desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->transpose_b, sizeof desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, sizeof desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&desc->aux, sizeof desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&desc->aux_ld, sizeof desc->aux_ld, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *layout = new cudasim_matrix_layout{type, (int64_t)rows, (int64_t)cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new cudasim_matmul_preference{
        0, 7, MOST_ALIGNMENT, MOST_ALIGNMENT, MOST_ALIGNMENT, MOST_ALIGNMENT};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    uint32_t *member = NULL;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&preference->workspace, sizeof preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        member = &preference->schemes;
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        member = &preference->align_a;
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        member = &preference->align_b;
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        member = &preference->align_c;
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        member = &preference->align_d;
        break;
    }
    return member == NULL ? CUBLAS_STATUS_INVALID_VALUE : set(member, sizeof *member, value, bytes);
}

/* ---- what a product is ---- */

struct sim_problem {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t A, B, C, D;
};

static int64_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static bool fits(const cudasim_matrix_layout *layout, int64_t rows, int64_t cols, bool transpose)
{
    if (transpose)
        std::swap(rows, cols);
    return layout->rows == rows && layout->cols == cols && layout->ld >= rows && rows > 0 &&
           cols > 0;
}

static int64_t depth_of(const sim_problem *p)
{
    return p->desc->transpose_a == CUBLAS_OP_T ? p->A->rows : p->A->cols;
}

/* The rows of the matrix that DGELU reads are a multiple of 8 elements, and products of depth 1 have no such epilogue. */
static cublasStatus_t check_epilogue(const sim_problem *p)
{
    switch (p->desc->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_EPILOGUE_BIAS:
        return p->desc->bias != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    case CUBLASLT_EPILOGUE_DGELU:
        if (p->desc->aux == NULL || p->desc->aux_ld < p->D->rows || p->desc->aux_ld % 8 != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
        return depth_of(p) > 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* The library's table of types for COMPUTE_32F, as far as we use it; TF32 is for fp32 operands. */
static cublasStatus_t check_problem(const sim_problem *p)
{
    int64_t m = p->D->rows, n = p->D->cols, k = depth_of(p);
    if (!fits(p->A, m, k, p->desc->transpose_a == CUBLAS_OP_T) ||
        !fits(p->B, k, n, p->desc->transpose_b == CUBLAS_OP_T) || !fits(p->C, m, n, false) ||
        !fits(p->D, m, n, false))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->C->ld != p->D->ld || p->C->type != p->D->type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    bool types = p->A->type == p->B->type && (p->D->type == CUDA_R_32F || p->D->type == p->A->type);
    bool compute = p->desc->compute == CUBLAS_COMPUTE_32F ||
                   (p->desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p->A->type == CUDA_R_32F);
    return types && compute ? check_epilogue(p) : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Without strides: an algorithm serves any of them that are as aligned. */
static uint64_t hash_problem(const sim_problem *p)
{
    const int64_t values[] = {p->desc->compute,  p->desc->transpose_a, p->desc->transpose_b,
                              p->desc->epilogue, p->A->type,           p->D->type,
                              p->D->rows,        p->D->cols,           depth_of(p)};
    return tr_hash64(values, sizeof values, 0);
}

/* The largest power of two up to `limit` that divides the stride. */
static uint32_t stride_alignment(const cudasim_matrix_layout *layout, uint32_t limit)
{
    uint64_t bytes = (uint64_t)(layout->ld * size_of(layout->type));
    while (bytes % limit != 0)
        limit /= 2;
    return limit;
}

static uint32_t address_alignment(const void *pointer, uint32_t limit)
{
    while ((uintptr_t)pointer % limit != 0)
        limit /= 2;
    return limit;
}

/* An algorithm loads 16, 8, 4 or 2 bytes at a time, as much as what it is promised allows, and splits k by something like chance. */
static sim_algo choose(const sim_problem *p, const cudasim_matmul_preference *preference)
{
    sim_algo algo = {};
    algo.problem = hash_problem(p);
    algo.align_a = stride_alignment(p->A, std::min(preference->align_a, 16u));
    algo.align_b = stride_alignment(p->B, std::min(preference->align_b, 16u));
    algo.align_c = stride_alignment(p->C, std::min(preference->align_c, 16u));
    algo.align_d = stride_alignment(p->D, std::min(preference->align_d, 16u));
    algo.align_bias = p->desc->epilogue == CUBLASLT_EPILOGUE_BIAS
                          ? address_alignment(p->desc->bias, algo.align_d)
                          : 1;
    algo.align_aux = p->desc->epilogue == CUBLASLT_EPILOGUE_DGELU
                         ? address_alignment(p->desc->aux, algo.align_d)
                         : 1;
    const uint64_t chance[] = {algo.problem,       (uint64_t)p->A->ld, (uint64_t)p->B->ld,
                               (uint64_t)p->D->ld, algo.align_a,       algo.align_b,
                               algo.align_c,       algo.align_d,       algo.align_aux};
    uint64_t splits = 1 + tr_hash64(chance, sizeof chance, 1) % 3;
    uint64_t partial = splits * (uint64_t)(p->D->rows * p->D->cols) * sizeof(float);
    bool split = splits > 1 && depth_of(p) >= SPLIT_K && partial <= preference->workspace &&
                 (preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
    algo.splits = split ? (uint32_t)splits : 1;
    algo.workspace = split ? partial : 0;
    return algo;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *num_results)
{
    const sim_problem problem = {desc, A, B, C, D};
    if (requested < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = check_problem(&problem);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    sim_algo algo = choose(&problem, preference);
    results[0] = {};
    memcpy(&results[0].algo, &algo, sizeof algo);
    results[0].workspaceSize = algo.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *num_results = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running ---- */

/* The bytes of a matrix from its first element to its last. */
static sim_range range_of(const void *base, const cudasim_matrix_layout *layout)
{
    int64_t elements = (layout->cols - 1) * layout->ld + layout->rows;
    return {base, (size_t)(elements * size_of(layout->type))};
}

static void check_operand(const char *name, const void *base, const cudasim_matrix_layout *layout,
                          uint32_t alignment)
{
    sim_range range = range_of(base, layout);
    cudasim_check_device(name, base, range.bytes);
    if ((uintptr_t)base % alignment != 0 ||
        layout->ld * size_of(layout->type) % (int64_t)alignment != 0)
        cudasim_fail("%s at %p with a stride of %lld elements is less aligned than the %u bytes "
                     "that its algorithm was "
                     "chosen for",
                     name, base, (long long)layout->ld, alignment);
}

static sim_product product_of(const sim_problem *p, const sim_algo *algo)
{
    sim_product product = {};
    product.m = p->D->rows;
    product.n = p->D->cols;
    product.k = depth_of(p);
    product.transpose_a = p->desc->transpose_a == CUBLAS_OP_T;
    product.transpose_b = p->desc->transpose_b == CUBLAS_OP_T;
    product.tf32 = p->desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    product.splits = (int)algo->splits;
    product.ab_type = p->A->type;
    product.d_type = p->D->type;
    product.lda = p->A->ld;
    product.ldb = p->B->ld;
    product.ldc = p->C->ld;
    product.ldd = p->D->ld;
    if (p->desc->epilogue == CUBLASLT_EPILOGUE_BIAS)
        product.bias = p->desc->bias;
    if (p->desc->epilogue == CUBLASLT_EPILOGUE_DGELU)
        product.gelu_input = p->desc->aux;
    product.ld_gelu = p->desc->aux_ld;
    return product;
}

static cublasStatus_t check_algo(const sim_problem *p, const sim_algo *algo, const void *workspace,
                                 size_t workspace_bytes)
{
    if (algo->problem != hash_problem(p) || algo->workspace > workspace_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->workspace > 0) {
        cudasim_check_device("cublasLtMatmul's workspace", workspace, workspace_bytes);
        if ((uintptr_t)workspace % 256 != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static void check_bias(const sim_product *product, uint32_t alignment)
{
    if (product->bias == NULL)
        return;
    cudasim_check_device("cublasLtMatmul's bias", product->bias,
                         (size_t)(product->m * size_of(product->d_type)));
    if ((uintptr_t)product->bias % alignment != 0)
        cudasim_fail("cublasLtMatmul's bias at %p is less aligned than the %u bytes that its "
                     "algorithm was chosen for",
                     product->bias, alignment);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t A_layout, const void *B,
                              cublasLtMatrixLayout_t B_layout, const void *beta, const void *C,
                              cublasLtMatrixLayout_t C_layout, void *D,
                              cublasLtMatrixLayout_t D_layout, const cublasLtMatmulAlgo_t *chosen,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(sim_lock);
    const sim_problem problem = {desc, A_layout, B_layout, C_layout, D_layout};
    cublasStatus_t status = check_problem(&problem);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (chosen == NULL)
        cudasim_fail("cublasLtMatmul without an algorithm is not simulated");
    sim_algo algo;
    memcpy(&algo, chosen, sizeof algo);
    status = check_algo(&problem, &algo, workspace, workspace_bytes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    check_operand("cublasLtMatmul's A", A, A_layout, algo.align_a);
    check_operand("cublasLtMatmul's B", B, B_layout, algo.align_b);
    check_operand("cublasLtMatmul's D", D, D_layout, algo.align_d);
    sim_product product = product_of(&problem, &algo);
    memcpy(&product.alpha, alpha, sizeof product.alpha);
    memcpy(&product.beta, beta, sizeof product.beta);
    product.A = A;
    product.B = B;
    product.C = C;
    product.D = D;
    if (product.beta != 0.0f)
        check_operand("cublasLtMatmul's C", C, C_layout, algo.align_c);
    check_bias(&product, algo.align_bias);
    const cudasim_matrix_layout aux_layout = {D_layout->type, D_layout->rows, D_layout->cols,
                                              desc->aux_ld};
    if (product.gelu_input != NULL)
        check_operand("cublasLtMatmul's auxiliary matrix", product.gelu_input, &aux_layout,
                      algo.align_aux);
    const sim_range ranges[] = {range_of(A, A_layout),
                                range_of(B, B_layout),
                                range_of(C, C_layout),
                                range_of(D, D_layout),
                                {workspace, workspace_bytes},
                                {product.bias, (size_t)(product.m * size_of(product.d_type))},
                                range_of(product.gelu_input, &aux_layout)};
    uint64_t scratch = algo.workspace;
    cudaError_t error = sim_enqueue(stream, "cublasLtMatmul", ranges, 7, [=] {
        sim_product_run(&product);
        if (scratch > 0) /* where the partial sums were */
            memset(workspace, 0xff, scratch);
        return true;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
