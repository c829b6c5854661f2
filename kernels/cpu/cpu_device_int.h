/* Inside of the CPU device, read by kernels/cpu only.
 *
 * An operation runs on the threads of one pool: it cuts its work into pieces by a grid that is a function of shapes
 * only, and threads take whole pieces, so that results never depend on the number of threads. Scratch is one block that
 * belongs to whichever operation runs; the operation lays it out itself (shared part first, then a slice per thread).
 * Piece functions may be called from any thread of the pool, several at once, and never call an operation. */
#ifndef TR_KERNELS_CPU_DEVICE_INT_H
#define TR_KERNELS_CPU_DEVICE_INT_H

#include "base/thread_pool.h"
#include "kernels/device.h"

typedef struct tr_cpu_device {
    tr_device base; /* first: a tr_device of this kind is a tr_cpu_device */
    tr_ops ops;     /* base.ops: chosen for this processor */
    tr_thread_pool *pool;
    int num_threads;
    unsigned char *workspace; /* owned by the caller of workspace_set */
    size_t workspace_bytes;
    struct tr_cpu_product_cache
        *products; /* bf16 products of oneDNN; NULL where it has none on this processor */
} tr_cpu_device;

static inline tr_cpu_device *tr_cpu_device_of(tr_device *device)
{
    return (tr_cpu_device *)device;
}

/* Calls fn(ctx, piece, thread) for every piece of 0 ... num_pieces-1, thread in 0 ... num_threads-1, and returns when all
 * have finished. Which thread takes which piece is not fixed. */
void tr_cpu_parallel_for(tr_device *device, int64_t num_pieces,
                         void (*fn)(void *ctx, int64_t piece, int thread), void *ctx);
int tr_cpu_num_threads(const tr_device *device);

/* Scratch of the running operation: the first `bytes` of the workspace, contents undefined, 256-byte aligned. The workspace
 * is large enough when it was sized by workspace_bytes (a broken invariant otherwise). An operation calls it once. */
void *tr_cpu_workspace(tr_device *device, size_t bytes);

/* Rounds a size up so that slices of a workspace stay 256-byte aligned. */
static inline size_t tr_cpu_align(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* Scratch bytes of each family of operations for the sizes of `need`; the device takes the largest. */
size_t tr_cpu_matmul_workspace(const tr_workspace_need *need, int num_threads);
size_t tr_cpu_attention_workspace(const tr_workspace_need *need, int num_threads);
/* Of norms, column sums, embedding gradients and everything else that sums rows in fixed blocks. */
size_t tr_cpu_rowwise_workspace(const tr_workspace_need *need, int num_threads);

/* Entries of the operation table (kernels/ops.h) that are written for one instruction set or choose it themselves; the others are set by
 * tr_cpu_vector_ops (cpu_isa.h). */
tr_status tr_cpu_matmul(tr_device *device, const tr_matmul *args);
tr_status tr_cpu_decide(tr_device *device, const tr_decision *args);

#endif
