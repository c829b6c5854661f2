/* A device: where tensors live and arithmetic happens. The CPU device runs an operation at once on its threads.
 *
 * One thread owns a device and calls it; the device's own threads never outlive a call. */
#ifndef TR_KERNELS_DEVICE_H
#define TR_KERNELS_DEVICE_H

#include <stddef.h>

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The head of every device; a backend's own struct starts with it. */
struct tr_device {
    const tr_ops *ops;
    /* Scratch bytes that operations up to these sizes need (pure; counts, allocates nothing). */
    size_t (*workspace_bytes)(const tr_device *device, const tr_workspace_need *need);
    /* Hands the scratch in: 256-byte aligned, owned by the caller, valid until the device is destroyed or it is set again. */
    void (*workspace_set)(tr_device *device, void *workspace, size_t bytes);
    /* Memory of the device for an arena's backing: 256-byte aligned (large pages asked for where it pays), zeroed. TR_ERR_MEMORY with the size. */
    tr_status (*memory_create)(tr_device *device, size_t bytes, void **memory);
    void (*memory_destroy)(tr_device *device, void *memory, size_t bytes);
    void (*destroy)(tr_device *device);
};

/* CPU device with `num_threads` threads (including the caller's). */
tr_status tr_cpu_device_create(tr_device **device, int num_threads);
/* Text that names what fixes the device's bits: kind, instruction set, library and version ("cpu avx2 oneDNN 2.6.3"). */
const char *tr_cpu_device_numerics(void);

/* A product as the vendor's library alone would do it, in one call on its own `num_threads` threads: what the device's products
 * are measured against. *product = NULL when the library has no product of this dtype on this processor. The operands of `args`
 * stay the caller's and are read and written by run. */
typedef struct tr_cpu_library_product tr_cpu_library_product;
tr_status tr_cpu_library_product_create(tr_cpu_library_product **product, const tr_matmul *args,
                                        int num_threads);
tr_status tr_cpu_library_product_run(tr_cpu_library_product *product);
void tr_cpu_library_product_destroy(tr_cpu_library_product *product);

void tr_device_destroy(tr_device *device);

#ifdef __cplusplus
}
#endif

#endif
