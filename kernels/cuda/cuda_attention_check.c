/* cuDNN's attention beside our own, on this GPU (cuda_attention_check.h). */
#include "kernels/cuda/cuda_attention_check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/philox.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_device_int.h"

/* Elements that come back from the device at a time; random tensors repeat after a prime number of them. */
enum { CHUNK = 1 << 16, PERIOD = 16381 };

enum { Q, K, V, DOUT, NUM_INPUTS, OUT = NUM_INPUTS, DQ, DK, DV, LSE, NUM_TENSORS };
static const char *const names[NUM_TENSORS] = {"q",  "k",  "v",  "dout", "out",
                                               "dq", "dk", "dv", "lse"};

/* One shape under comparison: inputs, and outputs twice. */
typedef struct trial {
    tr_device *device;
    tr_cuda_cudnn *cudnn;
    tr_attention shape;
    void *memory, *host; /* host: pinned, two chunks */
    size_t bytes, workspace_bytes;
    void *sets[2][NUM_TENSORS]; /* the second one's inputs are those of the first */
    void *workspace;
} trial;

static int64_t num_elements(const trial *t, int tensor)
{
    const tr_attention *s = &t->shape;
    if (tensor == LSE)
        return s->B * s->A * s->T;
    bool of_keys = tensor == K || tensor == V || tensor == DK || tensor == DV;
    return s->B * s->T * s->D * (of_keys ? s->K : s->A);
}

static size_t element_bytes(const trial *t, int tensor)
{
    return tr_dtype_size(tensor == LSE ? TR_F32 : t->shape.dtype);
}

/* Places everything from `memory` on, which is NULL to count; returns the bytes. */
static size_t layout(trial *t, char *memory)
{
    size_t at = 0;
    for (int set = 0; set < 2; set++)
        for (int i = set == 0 ? 0 : NUM_INPUTS; i < NUM_TENSORS; i++) {
            t->sets[set][i] = memory + at;
            at += ((size_t)num_elements(t, i) * element_bytes(t, i) + 255) & ~(size_t)255;
        }
    for (int i = 0; i < NUM_INPUTS; i++)
        t->sets[1][i] = t->sets[0][i];
    t->workspace = memory + at;
    return at + t->workspace_bytes;
}

static tr_attention args_of(const trial *t, int set)
{
    tr_attention args = t->shape;
    void *const *tensors = t->sets[set];
    args.scale = (float)(1.0 / sqrt((double)args.D));
    args.q = tensors[Q];
    args.k = tensors[K];
    args.v = tensors[V];
    args.dout = tensors[DOUT];
    args.out = tensors[OUT];
    args.dq = tensors[DQ];
    args.dk = tensors[DK];
    args.dv = tensors[DV];
    args.lse = tensors[LSE];
    return args;
}

/* ---- between host and device ---- */

static tr_status wait(const trial *t)
{
    return t->device->synchronize(t->device, TR_STREAM_COMPUTE);
}

static uint16_t narrow(const trial *t, float value)
{
    return t->shape.dtype == TR_BF16 ? tr_bf16_from_f32(value) : tr_f16_from_f32(value);
}

/* Normal random numbers. */
static tr_status fill(const trial *t, int tensor)
{
    uint16_t *values = t->host;
    float *normals = TR_NEW_ARRAY(float, PERIOD);
    tr_philox_normal_fill((uint64_t)tensor, 0, PERIOD, 1.0, normals);
    for (int i = 0; i < PERIOD; i++)
        values[i] = narrow(t, normals[i]);
    tr_free(normals);
    char *tensor_memory = t->sets[0][tensor];
    int64_t count = num_elements(t, tensor);
    for (int64_t begin = 0; begin < count; begin += PERIOD) {
        int64_t part = count - begin < PERIOD ? count - begin : PERIOD;
        TR_TRY(t->device->copy(t->device, TR_STREAM_COMPUTE, tensor_memory + 2 * begin, values,
                               2 * (size_t)part));
    }
    return wait(t);
}

static double widen(const trial *t, int tensor, const char *values, int64_t i)
{
    if (tensor == LSE)
        return ((const float *)(const void *)values)[i];
    uint16_t bits = ((const uint16_t *)(const void *)values)[i];
    return t->shape.dtype == TR_BF16 ? tr_f32_from_bf16(bits) : tr_f32_from_f16(bits);
}

/* *distance = |a - b| / |a| of the two sets' tensors; *same: they agree bit for bit. */
static tr_status compare(const trial *t, int tensor, double *distance, bool *same)
{
    size_t size = element_bytes(t, tensor);
    char *a = t->host, *b = a + CHUNK * sizeof(float);
    const char *first = t->sets[0][tensor], *second = t->sets[1][tensor];
    double difference = 0, norm = 0;
    int64_t count = num_elements(t, tensor);
    *same = true;
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        int64_t part = count - begin < CHUNK ? count - begin : CHUNK;
        size_t bytes = (size_t)part * size, at = (size_t)begin * size;
        TR_TRY(t->device->copy(t->device, TR_STREAM_COMPUTE, a, first + at, bytes));
        TR_TRY(t->device->copy(t->device, TR_STREAM_COMPUTE, b, second + at, bytes));
        TR_TRY(wait(t));
        *same = *same && memcmp(a, b, bytes) == 0;
        for (int64_t i = 0; i < part; i++) {
            double x = widen(t, tensor, a, i), y = widen(t, tensor, b, i);
            difference += (x - y) * (x - y);
            norm += x * x;
        }
    }
    *distance = sqrt(difference / norm);
    return TR_OK;
}

/* ---- the comparison ---- */

static tr_status run_own(const trial *t, int set)
{
    cudaStream_t stream = tr_cuda_device_of(t->device)->streams[TR_STREAM_COMPUTE];
    tr_attention args = args_of(t, set);
    TR_TRY(tr_cuda_attention_forward(stream, &args));
    return tr_cuda_attention_backward(stream, &args, t->workspace);
}

static tr_status run_cudnn(const trial *t, int set)
{
    cudaStream_t stream = tr_cuda_device_of(t->device)->streams[TR_STREAM_COMPUTE];
    tr_attention args = args_of(t, set);
    TR_TRY(tr_cuda_cudnn_forward(t->cudnn, stream, &args, t->workspace));
    return tr_cuda_cudnn_backward(t->cudnn, stream, &args, t->workspace);
}

static double tolerance(const trial *t, int tensor)
{
    if (tensor == LSE)
        return 1e-4;
    return t->shape.dtype == TR_BF16 ? 0x1p-6 : 0x1p-9;
}

static tr_status expect_near(const trial *t)
{
    const tr_attention *s = &t->shape;
    for (int i = NUM_INPUTS; i < NUM_TENSORS; i++) {
        double distance;
        bool same;
        TR_TRY(compare(t, i, &distance, &same));
        if (!(distance <= tolerance(t, i)))
            return tr_fail(TR_ERR_NUMERICS,
                           "cuDNN %s's attention differs from trine's own on this GPU: %s by %.3g "
                           "of its norm, %.3g is expected at most (B %" PRId64 ", T %" PRId64
                           ", %" PRId64 " heads over %" PRId64 ", head size %" PRId64 ", %s); use "
                           "device.attention=own",
                           tr_cuda_cudnn_version(t->cudnn), names[i], distance, tolerance(t, i),
                           s->B, s->T, s->A, s->K, s->D, tr_dtype_name(s->dtype));
    }
    return TR_OK;
}

static tr_status expect_same(const trial *t)
{
    const tr_attention *s = &t->shape;
    for (int i = NUM_INPUTS; i < NUM_TENSORS; i++) {
        double distance;
        bool same;
        TR_TRY(compare(t, i, &distance, &same));
        if (!same)
            return tr_fail(TR_ERR_NUMERICS,
                           "cuDNN %s's attention does not repeat its bits on this GPU: %s differs "
                           "by %.3g of its norm from the same call before (B %" PRId64
                           ", T %" PRId64 ", %" PRId64 " heads over %" PRId64 ", head size %" PRId64
                           ", %s); use device.attention=own",
                           tr_cuda_cudnn_version(t->cudnn), names[i], distance, s->B, s->T, s->A,
                           s->K, s->D, tr_dtype_name(s->dtype));
    }
    return TR_OK;
}

static tr_status trial_run(const trial *t)
{
    for (int i = 0; i < NUM_INPUTS; i++)
        TR_TRY(fill(t, i));
    TR_TRY(run_own(t, 0));
    TR_TRY(run_cudnn(t, 1));
    TR_TRY(expect_near(t));
    TR_TRY(run_cudnn(t, 0));
    return expect_same(t);
}

static tr_status trial_create(trial *t)
{
    const tr_attention *s = &t->shape;
    const tr_workspace_need need = {
        .dtype = s->dtype, .B = s->B, .T = s->T, .A = s->A, .K = s->K, .D = s->D};
    size_t own = tr_cuda_attention_workspace(&need);
    TR_TRY(tr_cuda_cudnn_prepare(t->cudnn, s));
    size_t cudnns = tr_cuda_cudnn_bytes(t->cudnn, s);
    t->workspace_bytes = own > cudnns ? own : cudnns;
    t->bytes = layout(t, NULL);
    TR_TRY(
        t->device->memory_create(t->device, TR_MEMORY_HOST, 2 * CHUNK * sizeof(float), &t->host));
    TR_TRY(t->device->memory_create(t->device, TR_MEMORY_DEVICE, t->bytes, &t->memory));
    layout(t, t->memory);
    return TR_OK;
}

/* Waits for what a failed trial left on its way, so that its memory can go. */
static void trial_clear(trial *t)
{
    (void)wait(t);
    t->device->memory_destroy(t->device, TR_MEMORY_DEVICE, t->memory, t->bytes);
    t->device->memory_destroy(t->device, TR_MEMORY_HOST, t->host, 2 * CHUNK * sizeof(float));
}

tr_status tr_cuda_attention_check(tr_device *device, tr_cuda_cudnn *cudnn,
                                  const tr_attention *shape)
{
    int64_t group = shape->A / shape->K;
    const struct {
        int64_t B, T, A, K;
    } shapes[] = {
        {1, 133, 2 * group, 2}, {2, 64, group, 1}, {shape->B, shape->T, shape->A, shape->K}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        trial t = {.device = device, .cudnn = cudnn};
        t.shape = (tr_attention){.B = shapes[i].B,
                                 .T = shapes[i].T,
                                 .A = shapes[i].A,
                                 .K = shapes[i].K,
                                 .D = shape->D,
                                 .dtype = shape->dtype};
        tr_status status = trial_create(&t);
        if (status == TR_OK)
            status = trial_run(&t);
        trial_clear(&t);
        TR_TRY(status);
    }
    return TR_OK;
}
