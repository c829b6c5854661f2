/* The vendor's libraries that the CUDA device opens when it is made: a table of their functions.
 *
 * They are not linked: loading them takes seconds and hundreds of megabytes, which processes that compute on the CPU would pay
 * too, and the program has to run where they are missing. A library that has been opened stays until the process ends. */
#ifndef TR_KERNELS_CUDA_LIBRARY_H
#define TR_KERNELS_CUDA_LIBRARY_H

#include <stddef.h>

#include <cublasLt.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name of the function without its cublasLt; its type is that of the header. */
#define TR_CUBLASLT_FUNCTIONS(X)                                                                   \
    X(GetVersion)                                                                                  \
    X(GetStatusString)                                                                             \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(Matmul)                                                                                      \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)

typedef struct tr_cublaslt {
#define TR_CUBLASLT_MEMBER(name) __typeof__(&cublasLt##name) name;
    TR_CUBLASLT_FUNCTIONS(TR_CUBLASLT_MEMBER)
#undef TR_CUBLASLT_MEMBER
} tr_cublaslt;

/* Opens the file of the library called `what`: in $CUDA_HOME/lib64, in the linker's path, where the toolkit is usually installed.
 * TR_ERR_MEMORY with the names that were tried and what to do. */
tr_status tr_cuda_library_open(const char *file, const char *what, void **library);
/* The function `name` of an opened library; TR_ERR_MEMORY where it is too old to have it. */
tr_status tr_cuda_library_find(void *library, const char *what, const char *name, void **function);

/* Opens the library, once per process; *lt stays valid until the process ends. TR_ERR_MEMORY with the names that were tried and what to do. */
tr_status tr_cuda_library_cublaslt(const tr_cublaslt **lt);

#ifdef __cplusplus
}
#endif

#endif
