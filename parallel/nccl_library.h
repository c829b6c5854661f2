/* NCCL, which a world whose ranks compute on GPUs opens: a table of its functions. It is not linked (kernels/cuda/cuda_library.h says
 * why), and once opened it stays until the process ends. */
#ifndef TR_PARALLEL_NCCL_LIBRARY_H
#define TR_PARALLEL_NCCL_LIBRARY_H

#include <nccl.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name of the function without its nccl; its type is that of the header. */
#define TR_NCCL_FUNCTIONS(X)                                                                       \
    X(GetVersion)                                                                                  \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(GetUniqueId)                                                                                 \
    X(CommInitRankConfig)                                                                          \
    X(CommFinalize)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommAbort)                                                                                   \
    X(CommGetAsyncError)                                                                           \
    X(GroupStart)                                                                                  \
    X(GroupEnd)                                                                                    \
    X(Send)                                                                                        \
    X(Recv)                                                                                        \
    X(AllGather)                                                                                   \
    X(Reduce)                                                                                      \
    X(ReduceScatter)

typedef struct tr_nccl {
#define TR_NCCL_MEMBER(name) __typeof__(&nccl##name) name;
    TR_NCCL_FUNCTIONS(TR_NCCL_MEMBER)
#undef TR_NCCL_MEMBER
} tr_nccl;

/* Opens the library, once per process; *nccl stays valid until the process ends. TR_ERR_MEMORY with the names that were tried and what to do. */
tr_status tr_nccl_library(const tr_nccl **nccl);

#ifdef __cplusplus
}
#endif

#endif
