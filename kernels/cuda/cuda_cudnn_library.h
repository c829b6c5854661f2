/* The functions of cuDNN, which is opened when attention by it is asked for (cuda_library.h says why it is not linked). */
#ifndef TR_KERNELS_CUDA_CUDNN_LIBRARY_H
#define TR_KERNELS_CUDA_CUDNN_LIBRARY_H

#include <stddef.h>

#include <cudnn.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name of the function without its cudnn; its type is that of the header. */
#define TR_CUDNN_FUNCTIONS(X)                                                                      \
    X(GetVersion)                                                                                  \
    X(GetErrorString)                                                                              \
    X(GetLastErrorString)                                                                          \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(SetStream)                                                                                   \
    X(BackendCreateDescriptor)                                                                     \
    X(BackendDestroyDescriptor)                                                                    \
    X(BackendSetAttribute)                                                                         \
    X(BackendGetAttribute)                                                                         \
    X(BackendFinalize)                                                                             \
    X(BackendExecute)

typedef struct tr_cudnn {
#define TR_CUDNN_MEMBER(name) __typeof__(&cudnn##name) name;
    TR_CUDNN_FUNCTIONS(TR_CUDNN_MEMBER)
#undef TR_CUDNN_MEMBER
} tr_cudnn;

/* Opens the library, once per process; *dnn stays valid until the process ends. TR_ERR_MEMORY with what was tried and what to do. */
tr_status tr_cuda_library_cudnn(const tr_cudnn **dnn);

#ifdef __cplusplus
}
#endif

#endif
