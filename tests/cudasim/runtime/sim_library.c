/* In place of kernels/cuda/cuda_library.c and parallel/nccl_library.c: the tables of library functions hold the stand-ins, which are linked. */
#include "kernels/cuda/cuda_library.h"
#include "parallel/nccl_library.h"

tr_status tr_cuda_library_cublaslt(const tr_cublaslt **lt)
{
    static const tr_cublaslt stand_in = {
#define STAND_IN(name) .name = cublasLt##name,
        TR_CUBLASLT_FUNCTIONS(STAND_IN)
#undef STAND_IN
    };
    *lt = &stand_in;
    return TR_OK;
}

tr_status tr_nccl_library(const tr_nccl **nccl)
{
    static const tr_nccl stand_in = {
#define STAND_IN(name) .name = nccl##name,
        TR_NCCL_FUNCTIONS(STAND_IN)
#undef STAND_IN
    };
    *nccl = &stand_in;
    return TR_OK;
}
