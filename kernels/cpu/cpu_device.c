/* The CPU device: its threads, its memory, and the table of its operations, put together for this processor at creation. */
#include "kernels/cpu/cpu_device_int.h"

#include <gnu/libc-version.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <oneapi/dnnl/dnnl.h>

#include "base/alloc.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_matmul_int.h"

enum { HUGE_PAGE = 2 << 20 };

typedef struct indexed_job {
    void (*fn)(void *ctx, int64_t piece, int thread);
    void *ctx;
} indexed_job;

static void run_indexed(void *context, int piece, int thread)
{
    const indexed_job *job = context;
    job->fn(job->ctx, piece, thread);
}

void tr_cpu_parallel_for(tr_device *device, int64_t num_pieces,
                         void (*fn)(void *ctx, int64_t piece, int thread), void *ctx)
{
    indexed_job job = {fn, ctx};
    TR_ASSERT(num_pieces >= 0 && num_pieces <= INT_MAX);
    if (num_pieces > 0)
        tr_thread_pool_run(tr_cpu_device_of(device)->pool, (int)num_pieces, run_indexed, &job);
}

int tr_cpu_num_threads(const tr_device *device)
{
    return ((const tr_cpu_device *)device)->num_threads;
}

void *tr_cpu_workspace(tr_device *base, size_t bytes)
{
    tr_cpu_device *device = tr_cpu_device_of(base);
    TR_ASSERT(bytes <= device->workspace_bytes);
    return device->workspace;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t workspace_bytes(const tr_device *device, const tr_workspace_need *need)
{
    int threads = tr_cpu_num_threads(device);
    size_t bytes =
        larger(tr_cpu_matmul_workspace(need, threads), tr_cpu_attention_workspace(need, threads));
    return tr_cpu_align(larger(bytes, tr_cpu_rowwise_workspace(need, threads)));
}

static void workspace_set(tr_device *base, void *workspace, size_t bytes)
{
    tr_cpu_device *device = tr_cpu_device_of(base);
    TR_ASSERT((uintptr_t)workspace % 256 == 0);
    device->workspace = workspace;
    device->workspace_bytes = bytes;
}

/* Bytes mapped for a block: whole large pages from one large page up. */
static size_t mapped_bytes(size_t bytes)
{
    size_t unit = bytes >= HUGE_PAGE ? (size_t)HUGE_PAGE : 4096;
    return bytes == 0 ? unit : (bytes + unit - 1) / unit * unit;
}

static tr_status memory_create(tr_device *device, tr_memory_kind kind, size_t bytes, void **memory)
{
    (void)device;
    (void)kind; /* all memory is the host's */
    size_t size = mapped_bytes(bytes);
    size_t slack =
        size >= HUGE_PAGE ? (size_t)HUGE_PAGE : 0; /* to align within, given back below */
    unsigned char *start = mmap(NULL, size + slack, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return tr_fail_errno(TR_ERR_MEMORY, errno, "cannot map %zu bytes of memory", bytes);
    if (slack > 0) {
        size_t head = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
        if (head > 0)
            munmap(start, head);
        if (slack > head)
            munmap(start + head + size, slack - head);
        start += head;
        madvise(start, size, MADV_HUGEPAGE); /* a wish: where it is refused, small pages do */
    }
    *memory = start;
    return TR_OK;
}

static void memory_destroy(tr_device *device, tr_memory_kind kind, void *memory, size_t bytes)
{
    (void)device;
    (void)kind;
    if (memory != NULL)
        munmap(memory, mapped_bytes(bytes));
}

/* ---- streams and events: everything has happened when its call returns ---- */

struct tr_device_event {
    char unused; /* events have an address and no state */
};

static tr_device_event the_event;

static tr_status copy(tr_device *device, tr_stream stream, void *dst, const void *src, size_t bytes)
{
    (void)device;
    (void)stream;
    if (bytes > 0)
        memcpy(dst, src, bytes);
    return TR_OK;
}

static tr_status event_create(tr_device *device, tr_device_event **event)
{
    (void)device;
    *event = &the_event;
    return TR_OK;
}

static void event_destroy(tr_device *device, tr_device_event *event)
{
    (void)device;
    (void)event;
}

static tr_status event_record(tr_device *device, tr_device_event *event, tr_stream stream)
{
    (void)device;
    (void)event;
    (void)stream;
    return TR_OK;
}

static tr_status event_wait(tr_device *device, tr_stream stream, tr_device_event *event)
{
    return event_record(device, event, stream);
}

static tr_status event_query(tr_device *device, tr_device_event *event, bool *done)
{
    (void)device;
    (void)event;
    *done = true;
    return TR_OK;
}

static tr_status event_synchronize(tr_device *device, tr_device_event *event)
{
    (void)device;
    (void)event;
    return TR_OK;
}

static tr_status synchronize(tr_device *device, tr_stream stream)
{
    (void)device;
    (void)stream;
    return TR_OK;
}

static void destroy(tr_device *base)
{
    tr_cpu_device *device = tr_cpu_device_of(base);
    tr_cpu_product_cache_destroy(device->products);
    tr_thread_pool_destroy(device->pool);
    tr_free(device);
}

tr_status tr_cpu_device_create(tr_device **out, int num_threads)
{
    tr_cpu_device *device = TR_NEW(tr_cpu_device);
    device->base = (tr_device){.kind = TR_DEVICE_CPU,
                               .unified = true,
                               .numerics = tr_cpu_device_numerics(),
                               .ops = &device->ops,
                               .workspace_bytes = workspace_bytes,
                               .workspace_set = workspace_set,
                               .memory_create = memory_create,
                               .memory_destroy = memory_destroy,
                               .copy = copy,
                               .event_create = event_create,
                               .event_destroy = event_destroy,
                               .event_record = event_record,
                               .event_wait = event_wait,
                               .event_query = event_query,
                               .event_synchronize = event_synchronize,
                               .synchronize = synchronize,
                               .destroy = destroy};
    device->num_threads = num_threads;
    device->ops.name = "cpu";
    device->ops.matmul = tr_cpu_matmul;
    device->ops.decide = tr_cpu_decide;
    tr_cpu_vector_ops(&device->ops, tr_cpu_isa_best());
    tr_status status;
    TR_TRY_GOTO(status, tr_thread_pool_create(num_threads, &device->pool), destroy);
    TR_TRY_GOTO(status, tr_cpu_product_cache_create(&device->products, num_threads), destroy);
    *out = &device->base;
    return TR_OK;
destroy:
    destroy(&device->base);
    return status;
}

void tr_device_destroy(tr_device *device)
{
    if (device != NULL)
        device->destroy(device);
}

static char numerics[160];

static void write_numerics(void)
{
    const dnnl_version_t *version = dnnl_version();
    const char *products = tr_cpu_product_implementation();
    snprintf(numerics, sizeof numerics, "cpu %s oneDNN %d.%d.%d isa 0x%x glibc %s%s%s",
             tr_cpu_isa_name(tr_cpu_isa_best()), version->major, version->minor, version->patch,
             (unsigned)dnnl_get_effective_cpu_isa(), gnu_get_libc_version(),
             products[0] == '\0' ? "" : " bf16 ", products);
}

const char *tr_cpu_device_numerics(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_numerics);
    return numerics;
}
