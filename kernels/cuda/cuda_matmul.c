/* Products by cuBLASLt: descriptors and the heuristic's choice in a table by shape (cuda_matmul.h).
 *
 * The library's matrices are column-major, ours row-major: C = A op B is computed as its transpose, so that the library's first operand is
 * our B, its rows are our columns N and its columns our rows M. */
#include "kernels/cuda/cuda_matmul.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_library.h"

enum { MOST_ALIGNMENT = 16, FIRST_SLOTS = 64 };

/* Rows of the matrix that the library's GELU epilogue reads are a multiple of so many elements. */
enum { GELU_ROW = 8 };

/* What a choice depends on, and the strides that its layouts describe. No padding: compared as bytes. */
typedef struct product_key {
    int64_t M, N, K, lda, ldb, ldc;
    int32_t form, dtype, c_dtype, parts, epilogue;
    int32_t align_a, align_b, align_c, align_bias, align_gelu; /* bytes; 0: not in the epilogue */
} product_key;

typedef struct product_plan {
    product_key key; /* M = 0: the slot is free */
    cublasLtEpilogue_t
        epilogue; /* the key's, or the default where the library has no algorithm with it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} product_plan;

struct tr_cuda_products {
    const tr_cublaslt *lt;
    cublasLtHandle_t handle;
    bool tf32;
    product_plan *slots; /* open addressing by the hash of the key, at most half full */
    size_t num_slots, num_plans;
};

static tr_status lt_check(const tr_cuda_products *products, cublasStatus_t status, const char *what,
                          const tr_matmul *args)
{
    static const char *const forms[] = {"NT", "NN", "TN"};
    if (status == CUBLAS_STATUS_SUCCESS)
        return TR_OK;
    if (args == NULL)
        return tr_fail(TR_ERR_INTERNAL, "cuBLASLt refused %s: %s", what,
                       products->lt->GetStatusString(status));
    return tr_fail(TR_ERR_INTERNAL,
                   "cuBLASLt refused %s for a product %s of %lld x %lld x %lld (%s, result %s, "
                   "strides %lld, %lld, "
                   "%lld): %s",
                   what, forms[args->form], (long long)args->M, (long long)args->N,
                   (long long)args->K, tr_dtype_name(args->dtype), tr_dtype_name(args->c_dtype),
                   (long long)args->lda, (long long)args->ldb, (long long)args->ldc,
                   products->lt->GetStatusString(status));
}

#define LT_TRY(products, args, name, ...)                                                          \
    TR_TRY(lt_check(products, (products)->lt->name(__VA_ARGS__), "cublasLt" #name, args))

static cudaDataType type_of(tr_dtype dtype)
{
    return dtype == TR_BF16 ? CUDA_R_16BF : dtype == TR_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* What the library can do with the sums, by its rules for the operands: it takes a bias of the result's type only. A part's width tells of every part of the
 * tensor whether its rows are long enough. */
static cublasLtEpilogue_t epilogue_of(const tr_matmul *args)
{
    int64_t row = args->parts ? args->N : args->ldc;
    if (args->bias != NULL && args->c_dtype == args->dtype)
        return CUBLASLT_EPILOGUE_BIAS;
    if (args->gelu_input != NULL && row % GELU_ROW == 0)
        return CUBLASLT_EPILOGUE_DGELU;
    return CUBLASLT_EPILOGUE_DEFAULT;
}

/* ---- keys ---- */

/* The largest power of two up to MOST_ALIGNMENT that divides both. */
static int32_t common_alignment(uint64_t a, uint64_t b)
{
    int32_t alignment = MOST_ALIGNMENT;
    while (((a | b) & (uint64_t)(alignment - 1)) != 0)
        alignment /= 2;
    return alignment;
}

/* Of an operand that begins at `base` with rows of `ld` elements, of which its part has `width`. A part begins at a multiple of its width in
 * rows of so many such parts, so that its width tells what every part of the tensor has. */
static int32_t operand_alignment(const tr_matmul *args, const void *base, int64_t ld, int64_t width,
                                 tr_dtype dtype)
{
    uint64_t size = tr_dtype_size(dtype);
    int32_t actual = common_alignment((uintptr_t)base, (uint64_t)ld * size);
    if (!args->parts)
        return actual;
    int32_t of_width = common_alignment((uint64_t)width * size, 0);
    TR_ASSERT(of_width <= actual);
    return of_width;
}

/* Elements of a row of an operand's part. */
static int64_t width_a(const tr_matmul *args)
{
    return args->form == TR_MATMUL_TN ? args->M : args->K;
}

static int64_t width_b(const tr_matmul *args)
{
    return args->form == TR_MATMUL_NT ? args->K : args->N;
}

static product_key key_of(const tr_matmul *args)
{
    product_key key = {.M = args->M,
                       .N = args->N,
                       .K = args->K,
                       .lda = args->lda,
                       .ldb = args->ldb,
                       .ldc = args->ldc,
                       .form = (int32_t)args->form,
                       .dtype = (int32_t)args->dtype,
                       .c_dtype = (int32_t)args->c_dtype,
                       .parts = args->parts,
                       .epilogue = (int32_t)epilogue_of(args)};
    key.align_a = operand_alignment(args, args->A, args->lda, width_a(args), args->dtype);
    key.align_b = operand_alignment(args, args->B, args->ldb, width_b(args), args->dtype);
    key.align_c = operand_alignment(args, args->C, args->ldc, args->N, args->c_dtype);
    if (key.epilogue == CUBLASLT_EPILOGUE_BIAS)
        key.align_bias = operand_alignment(args, args->bias, args->N, args->N, args->dtype);
    if (key.epilogue == CUBLASLT_EPILOGUE_DGELU)
        key.align_gelu = operand_alignment(args, args->gelu_input, args->ldc, args->N, args->dtype);
    return key;
}

/* The slot of the key, or the free one where it belongs. */
static product_plan *slot_of(product_plan *slots, size_t num_slots, const product_key *key)
{
    size_t at = (size_t)tr_hash64(key, sizeof *key, 0) & (num_slots - 1);
    while (slots[at].key.M != 0 && memcmp(&slots[at].key, key, sizeof *key) != 0)
        at = (at + 1) & (num_slots - 1);
    return &slots[at];
}

static void grow(tr_cuda_products *products)
{
    size_t num_slots = 2 * products->num_slots;
    product_plan *slots = TR_NEW_ARRAY(product_plan, num_slots);
    for (size_t i = 0; i < products->num_slots; i++)
        if (products->slots[i].key.M != 0)
            *slot_of(slots, num_slots, &products->slots[i].key) = products->slots[i];
    tr_free(products->slots);
    products->slots = slots;
    products->num_slots = num_slots;
}

/* ---- choosing ---- */

/* The epilogue's attributes, with addresses of the alignment that is promised and `gelu_ld` elements between rows of gelu_input. */
static tr_status epilogue_set(const tr_cuda_products *products, const tr_matmul *args,
                              const product_key *key, const product_plan *plan, int64_t gelu_ld)
{
    const uint32_t epilogue = plan->epilogue;
    const void *bias = (const void *)(uintptr_t)key->align_bias;
    const void *gelu_input = (const void *)(uintptr_t)key->align_gelu;
    LT_TRY(products, args, MatmulDescSetAttribute, plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
           &epilogue, sizeof epilogue);
    if (epilogue == CUBLASLT_EPILOGUE_BIAS)
        LT_TRY(products, args, MatmulDescSetAttribute, plan->operation,
               CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (epilogue != CUBLASLT_EPILOGUE_DGELU)
        return TR_OK;
    LT_TRY(products, args, MatmulDescSetAttribute, plan->operation,
           CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &gelu_input, sizeof gelu_input);
    LT_TRY(products, args, MatmulDescSetAttribute, plan->operation,
           CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &gelu_ld, sizeof gelu_ld);
    return TR_OK;
}

static tr_status operation_create(const tr_cuda_products *products, const tr_matmul *args,
                                  product_plan *plan)
{
    bool tf32 = products->tf32 && args->dtype == TR_F32;
    LT_TRY(products, args, MatmulDescCreate, &plan->operation,
           tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const int32_t transpose_b = args->form == TR_MATMUL_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t transpose_a = args->form == TR_MATMUL_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT_TRY(products, args, MatmulDescSetAttribute, plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
           &transpose_b, sizeof transpose_b);
    LT_TRY(products, args, MatmulDescSetAttribute, plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
           &transpose_a, sizeof transpose_a);
    return TR_OK;
}

/* `strides`: between the rows of A, B and C. */
static tr_status layouts_create(const tr_cuda_products *products, const tr_matmul *args,
                                const int64_t strides[3], cublasLtMatrixLayout_t layouts[3])
{
    const uint64_t M = (uint64_t)args->M, N = (uint64_t)args->N, K = (uint64_t)args->K;
    bool a_by_k = args->form != TR_MATMUL_TN, b_by_k = args->form == TR_MATMUL_NT;
    cudaDataType type = type_of(args->dtype);
    LT_TRY(products, args, MatrixLayoutCreate, &layouts[0], type, a_by_k ? K : M, a_by_k ? M : K,
           strides[0]);
    LT_TRY(products, args, MatrixLayoutCreate, &layouts[1], type, b_by_k ? K : N, b_by_k ? N : K,
           strides[1]);
    LT_TRY(products, args, MatrixLayoutCreate, &layouts[2], type_of(args->c_dtype), N, M,
           strides[2]);
    return TR_OK;
}

static void layouts_destroy(const tr_cuda_products *products, cublasLtMatrixLayout_t layouts[3])
{
    for (int i = 0; i < 3; i++)
        if (layouts[i] != NULL)
            products->lt->MatrixLayoutDestroy(layouts[i]);
}

static tr_status preference_set(const tr_cuda_products *products, const tr_matmul *args,
                                const product_key *key, cublasLtMatmulPreference_t preference)
{
    const uint64_t workspace = TR_CUDA_MATMUL_WORKSPACE;
    const uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    /* Kernels read what the epilogue takes as they write the result. */
    int32_t align_d = key->align_c, align_vector = key->align_bias + key->align_gelu;
    if (align_vector > 0 && align_vector < align_d)
        align_d = align_vector;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t alignment;
    } rows[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)align_d}};
    LT_TRY(products, args, MatmulPreferenceSetAttribute, preference,
           CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    LT_TRY(products, args, MatmulPreferenceSetAttribute, preference,
           CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        LT_TRY(products, args, MatmulPreferenceSetAttribute, preference, rows[i].attribute,
               &rows[i].alignment, sizeof rows[i].alignment);
    return TR_OK;
}

/* *found: whether the library has an algorithm. */
static tr_status ask_heuristic(const tr_cuda_products *products, const tr_matmul *args,
                               product_plan *plan, cublasLtMatmulPreference_t preference,
                               cublasLtMatrixLayout_t layouts[3], bool *found)
{
    cublasLtMatmulHeuristicResult_t result;
    int num_results = 0;
    cublasStatus_t status = products->lt->MatmulAlgoGetHeuristic(
        products->handle, plan->operation, layouts[1], layouts[0], layouts[2], layouts[2],
        preference, 1, &result, &num_results);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = num_results == 1 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
    *found = status == CUBLAS_STATUS_SUCCESS;
    if (*found)
        plan->algo = result.algo;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED && plan->epilogue == CUBLASLT_EPILOGUE_DGELU)
        return TR_OK;
    return lt_check(products, status, "the search for an algorithm", args);
}

/* The choice for dense operands as wide as the parts, or for those that are given. */
static tr_status choose(const tr_cuda_products *products, const tr_matmul *args,
                        const product_key *key, product_plan *plan, bool *found)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatrixLayout_t layouts[3] = {0};
    const int64_t given[3] = {args->lda, args->ldb, args->ldc};
    const int64_t dense[3] = {width_a(args), width_b(args), args->N};
    tr_status status;
    TR_TRY_GOTO(status,
                lt_check(products, products->lt->MatmulPreferenceCreate(&preference),
                         "cublasLtMatmulPreferenceCreate", args),
                done);
    TR_TRY_GOTO(status, preference_set(products, args, key, preference), done);
    TR_TRY_GOTO(status, layouts_create(products, args, args->parts ? dense : given, layouts), done);
    TR_TRY_GOTO(status, epilogue_set(products, args, key, plan, args->parts ? dense[2] : given[2]),
                done);
    status = ask_heuristic(products, args, plan, preference, layouts, found);
done:
    layouts_destroy(products, layouts);
    if (preference != NULL)
        products->lt->MatmulPreferenceDestroy(preference);
    return status;
}

static void plan_clear(const tr_cuda_products *products, product_plan *plan)
{
    cublasLtMatrixLayout_t layouts[3] = {plan->a, plan->b, plan->c};
    layouts_destroy(products, layouts);
    if (plan->operation != NULL)
        products->lt->MatmulDescDestroy(plan->operation);
    *plan = (product_plan){0};
}

static tr_status plan_init(const tr_cuda_products *products, const tr_matmul *args,
                           const product_key *key, product_plan *plan)
{
    const int64_t strides[3] = {args->lda, args->ldb, args->ldc};
    cublasLtMatrixLayout_t layouts[3] = {0};
    bool found = false;
    plan->epilogue = (cublasLtEpilogue_t)key->epilogue;
    tr_status status = operation_create(products, args, plan);
    if (status == TR_OK)
        status = choose(products, args, key, plan, &found);
    if (status == TR_OK && !found) {
        plan->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        status = choose(products, args, key, plan, &found);
    }
    if (status == TR_OK)
        status = epilogue_set(products, args, key, plan, args->ldc);
    if (status == TR_OK)
        status = layouts_create(products, args, strides, layouts);
    plan->a = layouts[0];
    plan->b = layouts[1];
    plan->c = layouts[2];
    plan->key = *key;
    if (status != TR_OK)
        plan_clear(products, plan);
    return status;
}

static tr_status plan_find(tr_cuda_products *products, const tr_matmul *args, product_plan **plan)
{
    product_key key = key_of(args);
    *plan = slot_of(products->slots, products->num_slots, &key);
    if ((*plan)->key.M != 0)
        return TR_OK;
    if (2 * (products->num_plans + 1) > products->num_slots) {
        grow(products);
        *plan = slot_of(products->slots, products->num_slots, &key);
    }
    TR_TRY(plan_init(products, args, &key, *plan));
    products->num_plans++;
    return TR_OK;
}

/* ---- the interface ---- */

tr_status tr_cuda_products_create(tr_cuda_products **out, bool tf32)
{
    tr_cuda_products *products = TR_NEW(tr_cuda_products);
    tr_status status;
    products->tf32 = tf32;
    TR_TRY_GOTO(status, tr_cuda_library_cublaslt(&products->lt), release);
    TR_TRY_GOTO(status,
                lt_check(products, products->lt->Create(&products->handle), "cublasLtCreate", NULL),
                release);
    products->num_slots = FIRST_SLOTS;
    products->slots = TR_NEW_ARRAY(product_plan, products->num_slots);
    *out = products;
    return TR_OK;
release:
    tr_free(products);
    return status;
}

void tr_cuda_products_destroy(tr_cuda_products *products)
{
    if (products == NULL)
        return;
    for (size_t i = 0; i < products->num_slots; i++)
        if (products->slots[i].key.M != 0)
            plan_clear(products, &products->slots[i]);
    products->lt->Destroy(products->handle);
    tr_free(products->slots);
    tr_free(products);
}

tr_status tr_cuda_products_multiply(tr_cuda_products *products, cudaStream_t stream,
                                    void *workspace, const tr_matmul *args)
{
    product_plan *plan;
    TR_TRY(plan_find(products, args, &plan));
    bool bias = plan->epilogue == CUBLASLT_EPILOGUE_BIAS;
    bool gelu = plan->epilogue == CUBLASLT_EPILOGUE_DGELU;
    if (bias)
        LT_TRY(products, args, MatmulDescSetAttribute, plan->operation,
               CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args->bias, sizeof args->bias);
    if (gelu)
        LT_TRY(products, args, MatmulDescSetAttribute, plan->operation,
               CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &args->gelu_input,
               sizeof args->gelu_input);
    const float one = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    LT_TRY(products, args, Matmul, products->handle, plan->operation, &one, args->B, plan->b,
           args->A, plan->a, &beta, args->C, plan->c, args->C, plan->c, &plan->algo, workspace,
           TR_CUDA_MATMUL_WORKSPACE, stream);
    if (args->bias != NULL && !bias)
        TR_TRY(tr_cuda_bias_add(stream, args->dtype, args->M, args->N, args->bias, args->C,
                                args->ldc));
    if (args->gelu_input != NULL && !gelu)
        TR_TRY(tr_cuda_gelu_backward_rows(stream, args->dtype, args->M, args->N, args->ldc,
                                          args->gelu_input, args->C, args->C));
    return TR_OK;
}
