/* Attention by cuDNN in a build whose toolkit came without its header: there is none. */
#include "kernels/cuda/cuda_cudnn_attention.h"

tr_status tr_cuda_cudnn_create(tr_cuda_cudnn **cudnn, int capability)
{
    (void)cudnn;
    (void)capability;
    return tr_fail(TR_ERR_MEMORY,
                   "this build of trine has no attention by cuDNN: CMake found no cudnn.h; install "
                   "cuDNN 9 and configure again, or use device.attention=own");
}

void tr_cuda_cudnn_destroy(tr_cuda_cudnn *cudnn)
{
    (void)cudnn;
}

const char *tr_cuda_cudnn_version(const tr_cuda_cudnn *cudnn)
{
    (void)cudnn;
    return "";
}

/* No handle exists that the following could be called with. */

tr_status tr_cuda_cudnn_prepare(tr_cuda_cudnn *cudnn, const tr_attention *args)
{
    (void)args;
    return tr_cuda_cudnn_create(&cudnn, 0);
}

size_t tr_cuda_cudnn_bytes(const tr_cuda_cudnn *cudnn, const tr_attention *args)
{
    (void)cudnn;
    (void)args;
    return 0;
}

tr_status tr_cuda_cudnn_forward(tr_cuda_cudnn *cudnn, cudaStream_t stream, const tr_attention *args,
                                void *workspace)
{
    (void)stream;
    (void)workspace;
    return tr_cuda_cudnn_prepare(cudnn, args);
}

tr_status tr_cuda_cudnn_backward(tr_cuda_cudnn *cudnn, cudaStream_t stream,
                                 const tr_attention *args, void *workspace)
{
    return tr_cuda_cudnn_forward(cudnn, stream, args, workspace);
}
