/* The CUDA device: which GPU a process takes, its streams, events, memory and copies.
 *
 * One thread creates the device and calls it; the GPU is that thread's current one. Others that copy make it theirs (thread_bind). The host
 * sleeps while it waits (ranks may share cores). */
#include "kernels/cuda/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/cuda_device_int.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_image.h"
#include "kernels/cuda/cuda_kernels.h"

enum { LEAST_CAPABILITY = 80, LEAST_ALLOCATION = 256 };

static cudaStream_t stream_of(tr_device *device, tr_stream stream)
{
    return tr_cuda_device_of(device)->streams[stream];
}

/* ---- memory ---- */

static void workspace_set(tr_device *base, void *workspace, size_t bytes)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    TR_ASSERT((uintptr_t)workspace % 256 == 0);
    device->workspace = workspace;
    device->workspace_bytes = bytes;
}

static tr_status host_memory_create(size_t bytes, void **memory)
{
    cudaError_t error = cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* told here; it must not surface at another call */
        return tr_fail(
            TR_ERR_MEMORY,
            "cannot pin %zu bytes of host memory for copies to the GPU: the host has too "
            "little that is free, or a limit on locked memory (ulimit -l) is too low",
            bytes);
    }
    TR_TRY(tr_cuda_check(error, "cudaHostAlloc"));
    memset(*memory, 0, bytes);
    return TR_OK;
}

static tr_status device_memory_create(tr_device *device, size_t bytes, void **memory)
{
    size_t free_bytes = 0, total_bytes = 0;
    void *start;
    cudaError_t error = cudaMalloc(&start, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total_bytes);
        return tr_fail(TR_ERR_MEMORY,
                       "cannot allocate %zu bytes on GPU %d: %zu of its %zu bytes are free", bytes,
                       tr_cuda_device_of(device)->index, free_bytes, total_bytes);
    }
    TR_TRY(tr_cuda_check(error, "cudaMalloc"));
    cudaStream_t stream = stream_of(device, TR_STREAM_COMPUTE);
    tr_status status;
    TR_CUDA_TRY_GOTO(status, cudaMemsetAsync(start, 0, bytes, stream), release);
    TR_CUDA_TRY_GOTO(status, cudaStreamSynchronize(stream), release);
    *memory = start;
    return TR_OK;
release:
    cudaFree(start);
    return status;
}

static size_t memory_free(tr_device *device)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)device; /* the one that is current */
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return free_bytes;
}

static tr_status memory_create(tr_device *device, tr_memory_kind kind, size_t bytes, void **memory)
{
    if (bytes == 0) /* an address of its own, as for any other size */
        bytes = LEAST_ALLOCATION;
    return kind == TR_MEMORY_HOST ? host_memory_create(bytes, memory)
                                  : device_memory_create(device, bytes, memory);
}

static void memory_destroy(tr_device *device, tr_memory_kind kind, void *memory, size_t bytes)
{
    (void)device;
    (void)bytes;
    if (kind == TR_MEMORY_HOST)
        cudaFreeHost(memory);
    else
        cudaFree(memory);
}

/* The current GPU is a thread's own, and GPU 0 at first: what another thread than the owner calls would make a context there, some hundreds
 * of megabytes for each process of the node. */
static tr_status thread_bind(tr_device *device, tr_stream stream)
{
    if (stream == TR_STREAM_COPY) /* others are the owner's alone */
        TR_CUDA_TRY(cudaSetDevice(tr_cuda_device_of(device)->index));
    return TR_OK;
}

static tr_status copy(tr_device *device, tr_stream stream, void *dst, const void *src, size_t bytes)
{
    TR_TRY(thread_bind(device, stream));
    if (bytes > 0)
        TR_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_of(device, stream)));
    return TR_OK;
}

/* ---- streams and events ---- */

struct tr_device_event {
    cudaEvent_t event;
};

static tr_status event_create(tr_device *device, tr_device_event **out)
{
    (void)device;
    tr_device_event *event = TR_NEW(tr_device_event);
    tr_status status;
    TR_CUDA_TRY_GOTO(
        status,
        cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming | cudaEventBlockingSync),
        release);
    *out = event;
    return TR_OK;
release:
    tr_free(event);
    return status;
}

static void event_destroy(tr_device *device, tr_device_event *event)
{
    (void)device;
    if (event == NULL)
        return;
    cudaEventDestroy(event->event);
    tr_free(event);
}

static tr_status event_record(tr_device *device, tr_device_event *event, tr_stream stream)
{
    TR_CUDA_TRY(cudaEventRecord(event->event, stream_of(device, stream)));
    return TR_OK;
}

static tr_status event_wait(tr_device *device, tr_stream stream, tr_device_event *event)
{
    TR_CUDA_TRY(cudaStreamWaitEvent(stream_of(device, stream), event->event, cudaEventWaitDefault));
    return TR_OK;
}

static tr_status event_query(tr_device *device, tr_device_event *event, bool *done)
{
    (void)device;
    cudaError_t error = cudaEventQuery(event->event);
    if (error != cudaErrorNotReady)
        TR_TRY(tr_cuda_check(error, "cudaEventQuery"));
    else
        cudaGetLastError(); /* an answer, not an error of ours */
    *done = error == cudaSuccess;
    return TR_OK;
}

static tr_status event_synchronize(tr_device *device, tr_device_event *event)
{
    (void)device;
    TR_CUDA_TRY(cudaEventSynchronize(event->event));
    return TR_OK;
}

static tr_status synchronize(tr_device *device, tr_stream stream)
{
    TR_TRY(thread_bind(device, stream));
    TR_CUDA_TRY(cudaStreamSynchronize(stream_of(device, stream)));
    return TR_OK;
}

/* Communication goes before arithmetic when both could run: others wait for it. */
static tr_status stream_create(tr_cuda_device *device, bool talks)
{
    int least, greatest;
    TR_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TR_CUDA_TRY(cudaStreamCreateWithPriority(&device->streams[device->num_streams],
                                             cudaStreamNonBlocking, talks ? greatest : least));
    device->num_streams++;
    return TR_OK;
}

static tr_status streams_create(tr_cuda_device *device)
{
    for (int s = 0; s < TR_STREAM_NUM; s++)
        TR_TRY(stream_create(device, s == TR_STREAM_TENSOR || s == TR_STREAM_DATA ||
                                         s == TR_STREAM_PIPELINE));
    return TR_OK;
}

static tr_status stream_add(tr_device *base, tr_stream *stream)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    if (device->num_streams == TR_STREAM_MOST)
        return tr_fail(TR_ERR_MEMORY, "GPU %d has no more than %d streams", device->index,
                       TR_STREAM_MOST);
    TR_TRY(stream_create(device, true));
    *stream = (tr_stream)(device->num_streams - 1);
    return TR_OK;
}

static tr_status combine(tr_device *device, tr_stream stream, const tr_combine *args)
{
    return tr_cuda_combine(stream_of(device, stream), args);
}

/* ---- which GPU ---- */

/* Streams that wait for other ranks must not hold up others: each gets a hardware queue of its own. And the first launch of a kernel that
 * the driver has not loaded waits until the GPU is idle, which it is not while it waits for a rank that waits for this one. */
void tr_cuda_prepare(bool waits)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (waits)
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

bool tr_cuda_is_present(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static const char *visible_devices(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible != NULL ? visible : "not set";
}

static tr_status refuse_driver(void)
{
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0)
        return tr_fail(TR_ERR_MEMORY,
                       "no NVIDIA driver on this machine (libcuda.so.1 was not found); install one "
                       "for CUDA %d.%d or later, or use device.kind=cpu",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return tr_fail(TR_ERR_MEMORY,
                   "the NVIDIA driver is too old: it serves CUDA %d.%d, trine was built for CUDA "
                   "%d.%d; update "
                   "the driver, or build trine with the older toolkit",
                   driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                   CUDART_VERSION % 1000 / 10);
}

tr_status tr_cuda_driver_check(void)
{
    int count, driver = 0;
    if (cudaGetDeviceCount(&count) != cudaErrorInsufficientDriver)
        return TR_OK;
    cudaDriverGetVersion(&driver);
    return driver == 0 ? TR_OK : refuse_driver();
}

static tr_status count_devices(int *count)
{
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaErrorInsufficientDriver)
        return refuse_driver();
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *count == 0))
        return tr_fail(TR_ERR_MEMORY,
                       "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES is "
                       "%s); check nvidia-smi, "
                       "or use device.kind=cpu",
                       visible_devices());
    return tr_cuda_check(error, "cudaGetDeviceCount");
}

static tr_status choose_device(const tr_cuda_options *options, int *index)
{
    int count = 0;
    TR_TRY(count_devices(&count));
    /* Launchers may show each process one GPU of its own; then the caller looks for two on one (tr_cuda_device_place). */
    if (options->local_size > count && count > 1 && !options->share)
        return tr_fail(TR_ERR_MEMORY,
                       "%d processes on this node and %d GPUs (CUDA_VISIBLE_DEVICES is %s): each "
                       "process needs its "
                       "own; start at most %d per node, or set the environment variable "
                       "TRINE_SHARE_GPU=1 for ranks that share GPUs, which is slow and meant for "
                       "tests; device.kind=cpu needs none",
                       options->local_size, count, visible_devices(), count);
    *index = options->local_rank % count;
    return TR_OK;
}

static tr_status describe(tr_cuda_device *device, bool tf32)
{
    struct cudaDeviceProp properties;
    TR_CUDA_TRY(cudaGetDeviceProperties(&properties, device->index));
    int capability = 10 * properties.major + properties.minor, driver;
    device->capability = capability;
    if (capability < LEAST_CAPABILITY)
        return tr_fail(TR_ERR_MEMORY,
                       "GPU %d (%s) has compute capability %d.%d; trine needs 8.0 or later (A100 "
                       "and its successors); "
                       "choose others with CUDA_VISIBLE_DEVICES, or use device.kind=cpu",
                       device->index, properties.name, properties.major, properties.minor);
    const tr_cublaslt *lt;
    TR_TRY(tr_cuda_library_cublaslt(&lt));
    TR_CUDA_TRY(cudaDriverGetVersion(&driver));
    snprintf(device->numerics, sizeof device->numerics,
             "cuda sm_%d %s x %d driver %d.%d runtime %d.%d cublasLt %zu%s", capability,
             properties.name, properties.multiProcessorCount, driver / 1000, driver % 1000 / 10,
             CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, lt->GetVersion(),
             tf32 ? " tf32" : "");
    snprintf(device->name, sizeof device->name, "%s", properties.name);
    for (size_t i = 0; i < sizeof properties.uuid.bytes; i++)
        snprintf(device->place + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
    return TR_OK;
}

/* Of the GPU that is current. */
static tr_status check_kernels(const tr_cuda_device *device)
{
    cudaError_t error = tr_cuda_image_there();
    int major = device->capability / 10, minor = device->capability % 10;
    if (error != cudaErrorNoKernelImageForDevice)
        return tr_cuda_check(error, "cudaFuncGetAttributes");
    return tr_fail(TR_ERR_MEMORY,
                   "this build of trine has no kernels for GPU %d (%s, compute capability %d.%d); "
                   "build it with -DCMAKE_CUDA_ARCHITECTURES=%d%d, or use device.kind=cpu",
                   device->index, device->name, major, minor, major, minor);
}

/* ---- life ---- */

static void destroy(tr_device *base)
{
    tr_cuda_device *device = tr_cuda_device_of(base);
    tr_cuda_cudnn_destroy(device->cudnn);
    tr_cuda_products_destroy(device->products);
    for (int s = 0; s < device->num_streams; s++)
        cudaStreamDestroy(device->streams[s]);
    tr_free(device);
}

static tr_status open_device(tr_cuda_device *device, const tr_cuda_options *options)
{
    TR_TRY(choose_device(options, &device->index));
    TR_TRY(describe(device, options->tf32));
    TR_CUDA_TRY(
        cudaInitDevice(device->index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid));
    TR_CUDA_TRY(cudaSetDevice(device->index));
    TR_TRY(check_kernels(device));
    TR_TRY(streams_create(device));
    return tr_cuda_products_create(&device->products, options->tf32);
}

tr_status tr_cuda_device_create(tr_device **out, const tr_cuda_options *options)
{
    tr_cuda_device *device = TR_NEW(tr_cuda_device);
    device->base = (tr_device){.kind = TR_DEVICE_CUDA,
                               .numerics = device->numerics,
                               .ops = &tr_cuda_ops,
                               .workspace_bytes = tr_cuda_ops_workspace,
                               .workspace_set = workspace_set,
                               .memory_create = memory_create,
                               .memory_free = memory_free,
                               .memory_destroy = memory_destroy,
                               .copy = copy,
                               .stream_add = stream_add,
                               .combine = combine,
                               .event_create = event_create,
                               .event_destroy = event_destroy,
                               .event_record = event_record,
                               .event_wait = event_wait,
                               .event_query = event_query,
                               .event_synchronize = event_synchronize,
                               .synchronize = synchronize,
                               .destroy = destroy};
    tr_cuda_ranges_set(&device->base);
    tr_status status;
    TR_TRY_GOTO(status, open_device(device, options), destroy);
    *out = &device->base;
    return TR_OK;
destroy:
    destroy(&device->base);
    return status;
}

const char *tr_cuda_device_place(const tr_device *device)
{
    return ((const tr_cuda_device *)device)->place;
}

const char *tr_cuda_device_name(const tr_device *device)
{
    return ((const tr_cuda_device *)device)->name;
}

void *tr_cuda_device_stream(tr_device *device, tr_stream stream)
{
    return stream_of(device, stream);
}

static void counting_destroy(tr_device *device)
{
    tr_free(tr_cuda_device_of(device));
}

tr_status tr_cuda_device_create_counting(tr_device **out, bool cudnn)
{
    tr_cuda_device *device = TR_NEW(tr_cuda_device);
    device->base = (tr_device){.kind = TR_DEVICE_CUDA,
                               .numerics = "cuda",
                               .workspace_bytes = tr_cuda_ops_workspace,
                               .destroy = counting_destroy};
    device->cudnn_used = cudnn;
    *out = &device->base;
    return TR_OK;
}
