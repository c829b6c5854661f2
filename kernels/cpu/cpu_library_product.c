/* One whole product by oneDNN on OpenMP threads of its own: the yardstick of `trine bench kernels`, never used by an operation. */
#include <omp.h>

#include "base/alloc.h"
#include "kernels/cpu/cpu_matmul_int.h"

struct tr_cpu_library_product {
    tr_matmul args;
    int num_threads;
    struct tr_cpu_product_cache *cache; /* bf16 */
    tr_cpu_product *product;
};

tr_status tr_cpu_library_product_create(tr_cpu_library_product **out, const tr_matmul *args,
                                        int num_threads)
{
    *out = NULL;
    if (args->dtype != TR_F32 &&
        (args->dtype != TR_BF16 || tr_cpu_product_implementation()[0] == '\0'))
        return TR_OK;
    tr_cpu_library_product *product = TR_NEW(tr_cpu_library_product);
    product->args = *args;
    product->num_threads = num_threads;
    if (args->dtype == TR_BF16) {
        /* The primitive is made for as many threads as OpenMP would use now. */
        omp_set_num_threads(num_threads);
        tr_status status = tr_cpu_product_cache_create(&product->cache, 1);
        if (status == TR_OK)
            status =
                tr_cpu_product_prepare(product->cache, args, args->M, args->N, &product->product);
        omp_set_num_threads(1);
        if (status != TR_OK) {
            tr_cpu_library_product_destroy(product);
            return status;
        }
    }
    *out = product;
    return TR_OK;
}

tr_status tr_cpu_library_product_run(tr_cpu_library_product *product)
{
    const tr_cpu_piece whole = {0, 0, product->args.M, product->args.N};
    omp_set_num_threads(product->num_threads);
    tr_status status = product->product != NULL
                           ? tr_cpu_product_run(product->product, &product->args, &whole, 0)
                           : tr_cpu_sgemm_piece(&product->args, &whole);
    omp_set_num_threads(1);
    return status;
}

void tr_cpu_library_product_destroy(tr_cpu_library_product *product)
{
    if (product == NULL)
        return;
    tr_cpu_product_cache_destroy(product->cache);
    tr_free(product);
}
