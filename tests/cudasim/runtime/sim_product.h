/* The arithmetic of the stand-in for cuBLASLt: a column-major product in fp32. */
#ifndef TR_TESTS_SIM_PRODUCT_H
#define TR_TESTS_SIM_PRODUCT_H

#include <stdint.h>

#include <cublasLt.h>

/* D[m,n] = round(gelu'(gelu_input[m,n]) (beta C[m,n] + bias[m] + sum over k of op(A)[m,k] op(B)[k,n])), column-major; gelu' of the tanh form. The sum is made in
 * `splits` equal ranges of k, each in order of k in fp32, which are then added in order. Memory has been checked: it is read and written without AddressSanitizer. */
typedef struct sim_product {
    int64_t m, n, k;
    bool transpose_a, transpose_b, tf32;
    int splits;
    cudaDataType ab_type, d_type; /* C, bias and gelu_input are d_type */
    const void *A, *B, *C;
    const void *bias, *gelu_input; /* may be NULL: without it */
    void *D;
    int64_t lda, ldb, ldc, ldd, ld_gelu;
    float alpha, beta;
} sim_product;

void sim_product_run(const sim_product *product);

#endif
