/* Attention by cuDNN: its plans by shape, and their operands (cuda_cudnn_attention.h). */
#include "kernels/cuda/cuda_cudnn_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/cuda_cudnn_attention_int.h"
#include "kernels/cuda/cuda_scratch.h"

/* The version whose graphs and engines these are, as cudnnGetVersion tells it; and the one from which on the knobs of the engine for compute capability 10
 * mean something else. */
enum { LEAST_VERSION = 91900, OTHER_KNOBS_VERSION = 92300 };

typedef struct plan_pair {
    tr_cudnn_attention_shape shape;
    tr_cudnn_plan forward, backward;
    struct plan_pair *next;
} plan_pair;

struct tr_cuda_cudnn {
    const tr_cudnn *dnn;
    cudnnHandle_t handle;
    int capability;
    size_t version_number;
    char version[32];
    plan_pair *plans;
};

/* ---- life ---- */

/* Where the vendor describes a backward that repeats its bits: on 9.0 by the form of the graph, on 10.0 to 10.3 by an engine of its own. */
static tr_status check_known(const tr_cuda_cudnn *cudnn)
{
    int c = cudnn->capability;
    if (cudnn->version_number < LEAST_VERSION)
        return tr_fail(TR_ERR_MEMORY,
                       "cuDNN %s is too old: trine uses the attention of 9.19 and later; install a "
                       "later one, or use device.attention=own",
                       cudnn->version);
    if (c != 90 && (c < 100 || c > 103))
        return tr_fail(TR_ERR_MEMORY,
                       "cuDNN's attention is used on GPUs of compute capability 9.0 and 10.0 to "
                       "10.3, where its gradients repeat bit for bit; this one has %d.%d: use "
                       "device.attention=own",
                       c / 10, c % 10);
    if (c >= 100 && cudnn->version_number >= OTHER_KNOBS_VERSION)
        return tr_fail(TR_ERR_MEMORY,
                       "cuDNN %s is newer than what trine knows of its attention on compute "
                       "capability %d.%d (9.19 to 9.22): use one of these, or "
                       "device.attention=own",
                       cudnn->version, c / 10, c % 10);
    return TR_OK;
}

static tr_status open(tr_cuda_cudnn *cudnn)
{
    TR_TRY(tr_cuda_library_cudnn(&cudnn->dnn));
    size_t v = cudnn->version_number = cudnn->dnn->GetVersion();
    snprintf(cudnn->version, sizeof cudnn->version, "%zu.%zu.%zu", v / 10000, v % 10000 / 100,
             v % 100);
    TR_TRY(check_known(cudnn));
    cudnnStatus_t status = cudnn->dnn->Create(&cudnn->handle);
    if (status != CUDNN_STATUS_SUCCESS)
        return tr_fail(TR_ERR_MEMORY, "cuDNN %s does not start: %s", cudnn->version,
                       cudnn->dnn->GetErrorString(status));
    return TR_OK;
}

tr_status tr_cuda_cudnn_create(tr_cuda_cudnn **out, int capability)
{
    tr_cuda_cudnn *cudnn = TR_NEW(tr_cuda_cudnn);
    cudnn->capability = capability;
    tr_status status = open(cudnn);
    if (status == TR_OK)
        *out = cudnn;
    else
        tr_cuda_cudnn_destroy(cudnn);
    return status;
}

static void pair_destroy(plan_pair *pair)
{
    tr_cudnn_plan_clear(&pair->forward);
    tr_cudnn_plan_clear(&pair->backward);
    tr_free(pair);
}

void tr_cuda_cudnn_destroy(tr_cuda_cudnn *cudnn)
{
    if (cudnn == NULL)
        return;
    while (cudnn->plans != NULL) {
        plan_pair *pair = cudnn->plans;
        cudnn->plans = pair->next;
        pair_destroy(pair);
    }
    if (cudnn->handle != NULL)
        cudnn->dnn->Destroy(cudnn->handle);
    tr_free(cudnn);
}

const char *tr_cuda_cudnn_version(const tr_cuda_cudnn *cudnn)
{
    return cudnn->version;
}

/* ---- plans ---- */

static plan_pair *pair_find(const tr_cuda_cudnn *cudnn, const tr_attention *args)
{
    const tr_cudnn_attention_shape shape = {args->B, args->T, args->A,
                                            args->K, args->D, args->dtype};
    for (plan_pair *pair = cudnn->plans; pair != NULL; pair = pair->next)
        if (memcmp(&pair->shape, &shape, sizeof shape) == 0)
            return pair;
    return NULL;
}

static tr_status pair_plan(const tr_cuda_cudnn *cudnn, plan_pair *pair)
{
    /* the engine of capability 10 that adds dq up in order, and the form of it that does */
    static const tr_cudnn_choice ordered = {
        .engine = 5,
        .num_knobs = 2,
        .knobs = {CUDNN_KNOB_TYPE_KERNEL_CFG, CUDNN_KNOB_TYPE_STAGES},
        .values = {31, 2}};
    tr_cudnn_graph_init(&pair->forward.graph, cudnn->dnn, cudnn->handle);
    tr_cudnn_attention_forward_graph(&pair->forward.graph, &pair->shape);
    TR_TRY(tr_cudnn_plan_create(&pair->forward, NULL));
    tr_cudnn_graph_init(&pair->backward.graph, cudnn->dnn, cudnn->handle);
    tr_cudnn_attention_backward_graph(&pair->backward.graph, &pair->shape);
    return tr_cudnn_plan_create(&pair->backward, cudnn->capability >= 100 ? &ordered : NULL);
}

size_t tr_cuda_cudnn_bytes(const tr_cuda_cudnn *cudnn, const tr_attention *args)
{
    const plan_pair *pair = pair_find(cudnn, args);
    if (pair == NULL)
        return 0;
    const tr_cudnn_attention_shape *s = &pair->shape;
    size_t backward = tr_cuda_cudnn_delta_bytes(s->B, s->T, s->A) + pair->backward.workspace_bytes;
    size_t forward = pair->forward.workspace_bytes;
    return forward > backward ? forward : backward;
}

tr_status tr_cuda_cudnn_prepare(tr_cuda_cudnn *cudnn, const tr_attention *args)
{
    TR_ASSERT(tr_cuda_cudnn_serves(args));
    if (pair_find(cudnn, args) != NULL)
        return TR_OK;
    plan_pair *pair = TR_NEW(plan_pair);
    pair->shape =
        (tr_cudnn_attention_shape){args->B, args->T, args->A, args->K, args->D, args->dtype};
    tr_status status = pair_plan(cudnn, pair);
    if (status != TR_OK) {
        pair_destroy(pair);
        return status;
    }
    pair->next = cudnn->plans;
    cudnn->plans = pair;
    return TR_OK;
}

/* ---- runs ---- */

/* Ids and pointers for a plan, by name. */
typedef struct operands {
    int64_t ids[TR_CUDNN_ID_END];
    void *pointers[TR_CUDNN_ID_END];
    int count;
} operands;

static void add(operands *o, tr_cudnn_attention_id id, const void *pointer)
{
    o->ids[o->count] = id;
    memcpy(&o->pointers[o->count++], &pointer,
           sizeof pointer); /* the library's inputs too are void * */
}

static void add_shared(operands *o, const tr_attention *args, const float *masked)
{
    add(o, TR_CUDNN_Q, args->q);
    add(o, TR_CUDNN_K, args->k);
    add(o, TR_CUDNN_V, args->v);
    add(o, TR_CUDNN_OUT, args->out);
    add(o, TR_CUDNN_LSE, args->lse);
    add(o, TR_CUDNN_SCALE, &args->scale);
    add(o, TR_CUDNN_MASKED, masked);
}

tr_status tr_cuda_cudnn_forward(tr_cuda_cudnn *cudnn, cudaStream_t stream, const tr_attention *args,
                                void *workspace)
{
    const float masked = -INFINITY;
    operands o = {.count = 0};
    const plan_pair *pair = pair_find(cudnn, args);
    TR_ASSERT(pair != NULL);
    add_shared(&o, args, &masked);
    return tr_cudnn_plan_run(&pair->forward, stream, o.count, o.ids, o.pointers, workspace);
}

tr_status tr_cuda_cudnn_backward(tr_cuda_cudnn *cudnn, cudaStream_t stream,
                                 const tr_attention *args, void *workspace)
{
    const float masked = -INFINITY, one = 1.0f;
    operands o = {.count = 0};
    const plan_pair *pair = pair_find(cudnn, args);
    TR_ASSERT(pair != NULL);
    add_shared(&o, args, &masked);
    add(&o, TR_CUDNN_DOUT, args->dout);
    add(&o, TR_CUDNN_DQ, args->dq);
    add(&o, TR_CUDNN_DK, args->dk);
    add(&o, TR_CUDNN_DV, args->dv);
    add(&o, TR_CUDNN_DELTA, workspace);
    add(&o, TR_CUDNN_ONE, &one);
    return tr_cudnn_plan_run(&pair->backward, stream, o.count, o.ids, o.pointers,
                             (char *)workspace +
                                 tr_cuda_cudnn_delta_bytes(args->B, args->T, args->A));
}
