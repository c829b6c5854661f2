/* Opens NCCL by name. The calls are those of its version 2.14 and later, which keep their meaning; the library's own version may differ from
 * the header's. */
#include "parallel/nccl_library.h"

#include <pthread.h>

#include "kernels/cuda/cuda_library.h"

static tr_nccl table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static tr_status open_nccl(void)
{
    void *library;
    TR_TRY(tr_cuda_library_open("libnccl.so.2", "NCCL", &library));
#define TR_FIND(name)                                                                              \
    TR_TRY(tr_cuda_library_find(library, "NCCL", "nccl" #name, (void **)&table.name));
    TR_NCCL_FUNCTIONS(TR_FIND)
#undef TR_FIND
    return TR_OK;
}

tr_status tr_nccl_library(const tr_nccl **nccl)
{
    static bool opened;
    tr_status status = TR_OK;
    pthread_mutex_lock(&lock);
    if (!opened)
        status = open_nccl();
    opened = status == TR_OK;
    pthread_mutex_unlock(&lock);
    if (status == TR_OK)
        *nccl = &table;
    return status;
}
