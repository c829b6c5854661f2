/* In place of kernels/cuda/cuda_cudnn_library.c: the table of library functions holds the stand-ins, which are linked. */
#include "kernels/cuda/cuda_cudnn_library.h"
#include "tests/cudasim/runtime/sim_cudnn.h"

tr_status tr_cuda_library_cudnn(const tr_cudnn **dnn)
{
    static const tr_cudnn stand_in = {
#define STAND_IN(name) .name = cudnn##name,
        TR_CUDNN_FUNCTIONS(STAND_IN)
#undef STAND_IN
    };
    if (cudasim_cudnn_is_missing())
        return tr_fail(TR_ERR_MEMORY, "cannot open cuDNN: this simulated machine has none");
    *dnn = &stand_in;
    return TR_OK;
}
