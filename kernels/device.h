/* A device: where tensors live, where arithmetic happens, and in what order.
 *
 * Work is enqueued on streams and done in order within one; between streams only events order it. The CPU device has one stream
 * and does everything at once, so that its events have nothing to wait for. Operations (kernels/ops.h) run on
 * TR_STREAM_COMPUTE, copies on the stream that they name. A call that enqueues never waits for the device; what failed on the
 * device after it was enqueued is the error of a later call.
 *
 * One thread owns a device and calls it, except that copy and synchronize on TR_STREAM_COPY may come from other threads, one at a time; the device's own threads
 * never outlive a call. */
#ifndef TR_KERNELS_DEVICE_H
#define TR_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tr_device_kind { TR_DEVICE_CPU, TR_DEVICE_CUDA } tr_device_kind;

typedef enum tr_stream {
    TR_STREAM_COMPUTE,
    TR_STREAM_TENSOR,   /* communication of tensor ranks */
    TR_STREAM_DATA,     /* communication of data ranks */
    TR_STREAM_PIPELINE, /* sends and receives between stages */
    TR_STREAM_COPY,     /* between host and device: the feed, snapshots, numbers for the host */
    TR_STREAM_NUM,
    TR_STREAM_MOST = TR_STREAM_NUM + 16 /* with those that stream_add makes */
} tr_stream;

typedef enum tr_memory_kind {
    TR_MEMORY_DEVICE,
    TR_MEMORY_HOST /* pinned: read and written by the host, copied to and from while the host goes on */
} tr_memory_kind;

/* A point in a stream's work. One that was never recorded has been reached. */
typedef struct tr_device_event tr_device_event;

/* How the ranks' parts of a sum become one. Part k of `count` (<= TR_REDUCE_MAX) is `own` for k = own_index; the others lie one behind the
 * other in the order of k, `stride` elements apart. */
typedef enum tr_combine_kind {
    TR_COMBINE_TREE_SUM, /* the tree of tree_sum (kernels/ops.h) over parts 0, 1, ... */
    TR_COMBINE_MAXIMUM   /* the largest, in the order of the parts; a NaN wins */
} tr_combine_kind;

typedef struct tr_combine {
    tr_combine_kind kind;
    int count, own_index;
    int64_t n; /* elements of a part */
    const float *own, *others;
    int64_t stride;
    float *dst; /* [n]; may be own */
} tr_combine;

/* The head of every device; a backend's own struct starts with it. */
struct tr_device {
    tr_device_kind kind;
    bool unified; /* the host may read and write TR_MEMORY_DEVICE (the CPU) */
    /* Text that names what fixes the device's bits: its kind, instruction set or architecture, libraries and their versions. Lives as long as the device. */
    const char *numerics;
    const tr_ops *ops;
    /* Scratch bytes that operations up to these sizes need (pure; counts, allocates nothing). */
    size_t (*workspace_bytes)(const tr_device *device, const tr_workspace_need *need);
    /* Hands the scratch in: 256-byte aligned device memory, owned by the caller, valid until the device is destroyed or it is set again. */
    void (*workspace_set)(tr_device *device, void *workspace, size_t bytes);

    /* Memory for an arena's backing: 256-byte aligned (large pages asked for where it pays), zeroed. TR_ERR_MEMORY with the size. */
    tr_status (*memory_create)(tr_device *device, tr_memory_kind kind, size_t bytes, void **memory);
    /* Bytes of TR_MEMORY_DEVICE that can still be had; NULL where it is the host's memory, whose limits hold. */
    size_t (*memory_free)(tr_device *device);
    /* Kind and size as it was created; no work that uses the memory may be pending. memory may be NULL. */
    void (*memory_destroy)(tr_device *device, tr_memory_kind kind, void *memory, size_t bytes);

    /* Enqueues on `stream`: dst[0 ... bytes - 1] = src; each of them device memory or TR_MEMORY_HOST memory of this device, and the two do
     * not overlap. Host memory is read and written when the copy's turn comes: it stays untouched until an event behind the copy. */
    tr_status (*copy)(tr_device *device, tr_stream stream, void *dst, const void *src,
                      size_t bytes);

    /* A further stream, for communication; it lives as long as the device. TR_ERR_MEMORY when there are TR_STREAM_MOST. NULL where there is one stream only. */
    tr_status (*stream_add)(tr_device *device, tr_stream *stream);
    /* Enqueues on `stream`, beside operations of the compute stream, with which it shares no scratch. All device memory. NULL on unified devices. */
    tr_status (*combine)(tr_device *device, tr_stream stream, const tr_combine *args);

    tr_status (*event_create)(tr_device *device, tr_device_event **event);
    /* NULL is fine. Work that already waits for the event still does. */
    void (*event_destroy)(tr_device *device, tr_device_event *event);
    /* The event is now the point behind all work that `stream` has so far; earlier waits for it keep the point that they saw. */
    tr_status (*event_record)(tr_device *device, tr_device_event *event, tr_stream stream);
    /* Later work of `stream` begins after the point that the event has now. Enqueues; the host goes on. */
    tr_status (*event_wait)(tr_device *device, tr_stream stream, tr_device_event *event);
    /* *done: the point has been reached. */
    tr_status (*event_query)(tr_device *device, tr_device_event *event, bool *done);
    /* The host waits for the point, asleep. */
    tr_status (*event_synchronize)(tr_device *device, tr_device_event *event);
    /* The host waits, asleep, until `stream` has done all its work. */
    tr_status (*synchronize)(tr_device *device, tr_stream stream);

    /* Names what the owning thread enqueues from here to the end, for profilers of the device; ranges lie inside one another or apart. NULL: there is none to be told. */
    void (*range_begin)(tr_device *device, const char *name);
    void (*range_end)(tr_device *device);

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

static inline void tr_device_range_begin(tr_device *device, const char *name)
{
    if (device->range_begin != NULL)
        device->range_begin(device, name);
}

static inline void tr_device_range_end(tr_device *device)
{
    if (device->range_end != NULL)
        device->range_end(device);
}

#ifdef __cplusplus
}
#endif

#endif
