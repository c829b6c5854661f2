/* The stand-in for cuBLASLt refuses what the library's documentation refuses, and ends the process where the library would read or write at wrong
 * addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cublasLt.h>

#include "tests/cudasim/runtime/sim_error.h"
#include "tests/cudasim/sim_child.h"

enum { ROWS = 16, COLUMNS = 4, BYTES = 4096 };

/* D [ROWS, COLUMNS] = A [ROWS, depth] B [depth, COLUMNS], column-major and dense. */
typedef struct product {
    cudaDataType type, result;
    cublasComputeType_t compute;
    uint32_t epilogue;
    int64_t depth;
    const void *bias, *aux; /* NULL: not set */
    int64_t aux_ld;
} product;

typedef struct setup {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t A, B, D;
    cublasLtMatmulHeuristicResult_t result;
} setup;

static void attribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name,
                      const void *value, size_t bytes)
{
    assert_int_equal(cublasLtMatmulDescSetAttribute(operation, name, value, bytes),
                     CUBLAS_STATUS_SUCCESS);
}

static void pointers_set(const setup *s, const product *p)
{
    attribute(s->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
    attribute(s->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux, sizeof p->aux);
    attribute(s->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->aux_ld, sizeof p->aux_ld);
}

/* What the heuristic says. */
static cublasStatus_t setup_make(setup *s, const product *p)
{
    cublasLtMatmulPreference_t preference;
    int num_results = 0;
    cublasLtCreate(&s->handle);
    cublasLtMatmulDescCreate(&s->operation, p->compute, CUDA_R_32F);
    attribute(s->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue);
    pointers_set(s, p);
    cublasLtMatrixLayoutCreate(&s->A, p->type, ROWS, (uint64_t)p->depth, ROWS);
    cublasLtMatrixLayoutCreate(&s->B, p->type, (uint64_t)p->depth, COLUMNS, p->depth);
    cublasLtMatrixLayoutCreate(&s->D, p->result, ROWS, COLUMNS, ROWS);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        s->handle, s->operation, s->A, s->B, s->D, s->D, preference, 1, &s->result, &num_results);
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static void setup_clear(setup *s)
{
    cublasLtMatrixLayoutDestroy(s->A);
    cublasLtMatrixLayoutDestroy(s->B);
    cublasLtMatrixLayoutDestroy(s->D);
    cublasLtMatmulDescDestroy(s->operation);
    cublasLtDestroy(s->handle);
}

#define ADDRESS ((const void *)(uintptr_t)16)

static void test_refusals(void **state)
{
    enum { GELU = 32, BIAS_GRADIENT = 512 }; /* epilogues that are not simulated */
    enum { OK = CUBLAS_STATUS_SUCCESS, VALUE = CUBLAS_STATUS_INVALID_VALUE };
    enum { NONE = CUBLAS_STATUS_NOT_SUPPORTED };
    enum { PLAIN = CUBLASLT_EPILOGUE_DEFAULT, BIAS = CUBLASLT_EPILOGUE_BIAS };
    enum { DGELU = CUBLASLT_EPILOGUE_DGELU };
    enum { F32 = CUDA_R_32F, F16 = CUDA_R_16F, BF16 = CUDA_R_16BF };
    enum { EXACT = CUBLAS_COMPUTE_32F, TF32 = CUBLAS_COMPUTE_32F_FAST_TF32 };
    static const struct {
        int status, epilogue, type, result, compute, depth, aux_ld;
        const void *vector; /* bias or auxiliary matrix */
    } rows[] = {{OK, PLAIN, BF16, BF16, EXACT, 8, 0, NULL},
                {OK, PLAIN, BF16, F32, EXACT, 8, 0, NULL},
                {OK, PLAIN, F32, F32, TF32, 8, 0, NULL},
                {NONE, PLAIN, BF16, BF16, TF32, 8, 0, NULL},
                {NONE, PLAIN, BF16, F16, EXACT, 8, 0, NULL},
                {OK, BIAS, BF16, BF16, EXACT, 8, 0, ADDRESS},
                {VALUE, BIAS, BF16, BF16, EXACT, 8, 0, NULL},
                {OK, DGELU, BF16, BF16, EXACT, 8, ROWS, ADDRESS},
                {OK, DGELU, F32, F32, TF32, 8, ROWS + 8, ADDRESS},
                {OK, DGELU, BF16, F32, EXACT, 8, ROWS, ADDRESS},
                {VALUE, DGELU, BF16, BF16, EXACT, 8, ROWS, NULL},
                {VALUE, DGELU, BF16, BF16, EXACT, 8, 0, ADDRESS},
                {VALUE, DGELU, BF16, BF16, EXACT, 8, ROWS - 8, ADDRESS},
                {VALUE, DGELU, BF16, BF16, EXACT, 8, ROWS + 4, ADDRESS},
                {NONE, DGELU, BF16, BF16, EXACT, 1, ROWS, ADDRESS},
                {NONE, GELU, BF16, BF16, EXACT, 8, ROWS, ADDRESS},
                {NONE, BIAS_GRADIENT, BF16, BF16, EXACT, 8, ROWS, ADDRESS}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        product p = {.type = (cudaDataType)rows[i].type,
                     .result = (cudaDataType)rows[i].result,
                     .compute = (cublasComputeType_t)rows[i].compute,
                     .epilogue = (uint32_t)rows[i].epilogue,
                     .depth = rows[i].depth,
                     .bias = rows[i].vector,
                     .aux = rows[i].vector,
                     .aux_ld = rows[i].aux_ld};
        setup s;
        int status = (int)setup_make(&s, &p);
        setup_clear(&s);
        if (status != rows[i].status)
            fail_msg("row %zu: status %d, expected %d", i, status, rows[i].status);
    }
}

/* ---- running ---- */

static char *device_memory(void)
{
    void *memory;
    assert_int_equal(cudaMalloc(&memory, BYTES), cudaSuccess);
    return memory;
}

/* Chosen for a 16-byte aligned matrix of rows of ROWS; run with another one. */
static cublasStatus_t run(const void *aux, int64_t aux_ld)
{
    product p = {.type = CUDA_R_16BF,
                 .result = CUDA_R_16BF,
                 .compute = CUBLAS_COMPUTE_32F,
                 .epilogue = CUBLASLT_EPILOGUE_DGELU,
                 .depth = 8,
                 .aux = ADDRESS,
                 .aux_ld = ROWS};
    setup s;
    cudaStream_t stream;
    const float one = 1.0f, zero = 0.0f;
    char *memory = device_memory();
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(setup_make(&s, &p), CUBLAS_STATUS_SUCCESS);
    p.aux = aux;
    p.aux_ld = aux_ld;
    pointers_set(&s, &p);
    cublasStatus_t status =
        cublasLtMatmul(s.handle, s.operation, &one, memory, s.A, memory + 512, s.B, &zero,
                       memory + 1024, s.D, memory + 1024, s.D, &s.result.algo, NULL, 0, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    setup_clear(&s);
    cudaFree(memory);
    return status;
}

static void aux_of_nothing(void)
{
    run((const void *)16, ROWS);
}

static void aux_beyond(void)
{
    run(device_memory() + BYTES - 2 * ROWS, ROWS);
}

static void aux_of_the_host(void)
{
    static uint64_t memory[BYTES / 8] __attribute__((aligned(256)));
    run(memory, ROWS);
}

static void aux_less_aligned(void)
{
    run(device_memory() + 8, ROWS);
}

static void test_auxiliary_matrix(void **state)
{
    (void)state;
    void *aux = device_memory();
    assert_int_equal(run(aux, ROWS), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(run(aux, ROWS + 8), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(run(aux, ROWS + 4), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(run(NULL, ROWS), CUBLAS_STATUS_INVALID_VALUE);
    cudaFree(aux);
    sim_child_expect("no allocation", aux_of_nothing, CUDASIM_EXIT, "auxiliary matrix");
    sim_child_expect("beyond its allocation", aux_beyond, CUDASIM_EXIT, "auxiliary matrix");
    sim_child_expect("host memory", aux_of_the_host, CUDASIM_EXIT, "auxiliary matrix");
    sim_child_expect("less aligned", aux_less_aligned, CUDASIM_EXIT, "less aligned than the 16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_auxiliary_matrix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
