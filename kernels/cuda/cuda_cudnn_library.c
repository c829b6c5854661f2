/* Opens cuDNN and finds its functions; its sub-libraries it loads itself. */
#include "kernels/cuda/cuda_cudnn_library.h"

#include <pthread.h>

#include "kernels/cuda/cuda_library.h"

/* The same major version as the header that the calls were compiled against. */
#define TR_TEXT_(number) #number
#define TR_TEXT(number) TR_TEXT_(number)

static tr_cudnn cudnn;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static tr_status open_cudnn(void)
{
    void *library;
    TR_TRY(tr_cuda_library_open("libcudnn.so." TR_TEXT(CUDNN_MAJOR), "cuDNN", &library));
#define TR_FIND(name)                                                                              \
    TR_TRY(tr_cuda_library_find(library, "cuDNN", "cudnn" #name, (void **)&cudnn.name));
    TR_CUDNN_FUNCTIONS(TR_FIND)
#undef TR_FIND
    return TR_OK;
}

tr_status tr_cuda_library_cudnn(const tr_cudnn **dnn)
{
    static bool opened;
    tr_status status = TR_OK;
    pthread_mutex_lock(&lock);
    if (!opened)
        status = open_cudnn();
    opened = status == TR_OK;
    pthread_mutex_unlock(&lock);
    if (status == TR_OK)
        *dnn = &cudnn;
    return status;
}
