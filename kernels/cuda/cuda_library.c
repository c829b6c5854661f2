/* Opens the vendor's libraries by name, as the linker would find them, then where the toolkit is usually installed. */
#include "kernels/cuda/cuda_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The folders besides the linker's own search path; the first is $CUDA_HOME/lib64. */
static const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"};

static void *open_in(const char *folder, const char *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", folder, file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_library(const char *file)
{
    char folder[4096];
    const char *home = getenv("CUDA_HOME");
    if (home != NULL && home[0] != '\0') {
        snprintf(folder, sizeof folder, "%s/lib64/", home);
        void *library = open_in(folder, file);
        if (library != NULL)
            return library;
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        void *library = open_in(folders[i], file);
        if (library != NULL)
            return library;
    }
    return NULL;
}

tr_status tr_cuda_library_open(const char *file, const char *what, void **library)
{
    *library = open_library(file);
    if (*library != NULL)
        return TR_OK;
    return tr_fail(TR_ERR_MEMORY,
                   "cannot open %s, which the CUDA device needs: tried %s in the linker's path, "
                   "$CUDA_HOME/lib64 and "
                   "/usr/local/cuda/lib64; install it, or add its folder to LD_LIBRARY_PATH",
                   what, file);
}

tr_status tr_cuda_library_find(void *library, const char *what, const char *name, void **function)
{
    *function = dlsym(library, name);
    if (*function == NULL)
        return tr_fail(TR_ERR_MEMORY,
                       "%s has no function %s: it is too old for this build of trine; install the "
                       "version of the toolkit that trine was built with",
                       what, name);
    return TR_OK;
}

/* The same major version as the header that the calls were compiled against. */
#define TR_TEXT_(number) #number
#define TR_TEXT(number) TR_TEXT_(number)

static tr_cublaslt cublaslt;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static tr_status open_cublaslt(void)
{
    void *library;
    TR_TRY(tr_cuda_library_open("libcublasLt.so." TR_TEXT(CUBLAS_VER_MAJOR), "cuBLASLt", &library));
#define TR_FIND(name)                                                                              \
    TR_TRY(tr_cuda_library_find(library, "cuBLASLt", "cublasLt" #name, (void **)&cublaslt.name));
    TR_CUBLASLT_FUNCTIONS(TR_FIND)
#undef TR_FIND
    return TR_OK;
}

tr_status tr_cuda_library_cublaslt(const tr_cublaslt **lt)
{
    static bool opened;
    tr_status status = TR_OK;
    pthread_mutex_lock(&lock);
    if (!opened)
        status = open_cublaslt();
    opened = status == TR_OK;
    pthread_mutex_unlock(&lock);
    if (status == TR_OK)
        *lt = &cublaslt;
    return status;
}
