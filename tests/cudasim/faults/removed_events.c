/* A step's shape in small, on all streams of the device, with one of its dependencies removed: each removal must give a wrong result for some
 * seed of the simulator, and the whole program the right one for all of them.
 *
 * Each round the host fills one of two pinned buffers, which the copy stream uploads; the compute stream makes a gradient of it; the data
 * stream sends the gradient; the pipeline stream stores what was sent; the tensor stream brings it back to the host, which reads it
 * some rounds late. All buffers but the first two have room for one round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda_device.h"
#include "tests/cudasim/runtime/sim_runtime.h"

enum { N = 24, ROUNDS = 10, SLOTS = 2, LATE = 4, SEEDS = 100 };

/* Who waits for what: the dependencies. */
typedef enum edge {
    HOST_FOR_UPLOAD,
    UPLOAD_FOR_GRADIENT,
    GRADIENT_FOR_UPLOAD,
    GRADIENT_FOR_SEND,
    SEND_FOR_GRADIENT,
    SEND_FOR_STORE,
    STORE_FOR_SEND,
    STORE_FOR_FETCH,
    FETCH_FOR_STORE,
    HOST_FOR_FETCH,
    NUM_EDGES
} edge;

static const char *const edge_names[NUM_EDGES] = {
    "the host, before it fills a buffer, for the upload from it",
    "an upload for the gradient that reads what it overwrites",
    "a gradient for the upload of its input",
    "a gradient for the send of the one that it overwrites",
    "a send for its gradient",
    "a send for the store that reads what it overwrites",
    "a store for the send of its input",
    "a store for the fetch of what it overwrites",
    "a fetch for the store of its input",
    "the host, before it reads a result, for its fetch"};

typedef struct program {
    tr_device *device;
    int removed; /* an edge, or NUM_EDGES */
    float *host, *memory;
    float *staging[SLOTS], *results;                     /* pinned; results [ROUNDS][N] */
    float *input[SLOTS], *one, *gradient, *sent, *state; /* device memory */
    tr_device_event *uploaded[SLOTS], *used[SLOTS], *made, *sent_away, *stored, *fetched[ROUNDS];
    void *workspace;
    size_t workspace_bytes;
    bool wrong;
} program;

enum {
    ROW = 256 / sizeof(float), /* between buffers: N rounded up to 256 bytes */
    HOST_FLOATS = ROW * (SLOTS + 1) + N * ROUNDS,
    DEVICE_FLOATS = ROW * (SLOTS + 4)
};

static void must(tr_status status)
{
    if (status != TR_OK)
        fail_msg("%s", tr_error_message());
}

static void event_make(program *p, tr_device_event **event)
{
    must(p->device->event_create(p->device, event));
}

static void event_drop(program *p, tr_device_event **event)
{
    p->device->event_destroy(p->device, *event);
}

static void events_each(program *p, void (*visit)(program *p, tr_device_event **event))
{
    for (int s = 0; s < SLOTS; s++) {
        visit(p, &p->uploaded[s]);
        visit(p, &p->used[s]);
    }
    for (int r = 0; r < ROUNDS; r++)
        visit(p, &p->fetched[r]);
    visit(p, &p->made);
    visit(p, &p->sent_away);
    visit(p, &p->stored);
}

static void memory_make(program *p)
{
    tr_device *device = p->device;
    const tr_workspace_need need = {.dtype = TR_F32, .max_matmul = N};
    void *host, *memory;
    p->workspace_bytes = device->workspace_bytes(device, &need);
    must(device->memory_create(device, TR_MEMORY_DEVICE, p->workspace_bytes, &p->workspace));
    device->workspace_set(device, p->workspace, p->workspace_bytes);
    must(device->memory_create(device, TR_MEMORY_HOST, HOST_FLOATS * sizeof(float), &host));
    must(device->memory_create(device, TR_MEMORY_DEVICE, DEVICE_FLOATS * sizeof(float), &memory));
    p->host = host;
    p->memory = memory;
    for (int s = 0; s < SLOTS; s++) {
        p->staging[s] = p->host + s * ROW;
        p->input[s] = p->memory + s * ROW;
    }
    p->results = p->host + (SLOTS + 1) * ROW;
    p->one = p->memory + SLOTS * ROW;
    p->gradient = p->one + ROW;
    p->sent = p->gradient + ROW;
    p->state = p->sent + ROW;
    float *host_one = p->host + SLOTS * ROW;
    host_one[0] = 1.0f;
    must(device->copy(device, TR_STREAM_COMPUTE, p->one, host_one, sizeof(float)));
    must(device->synchronize(device, TR_STREAM_COMPUTE));
}

/* ---- the program ---- */

static void stream_waits(program *p, edge e, tr_stream stream, tr_device_event *event)
{
    if ((int)e != p->removed)
        must(p->device->event_wait(p->device, stream, event));
}

static void host_waits(program *p, edge e, tr_device_event *event)
{
    if ((int)e != p->removed)
        must(p->device->event_synchronize(p->device, event));
}

static void copy(program *p, tr_stream stream, float *dst, const float *src, tr_device_event *done)
{
    must(p->device->copy(p->device, stream, dst, src, N * sizeof(float)));
    must(p->device->event_record(p->device, done, stream));
}

static float input_value(int round, int i)
{
    return (float)(100 * (round + 1) + i);
}

/* gradient[N] = input[N] times one. */
static void make_gradient(program *p, const float *input)
{
    const tr_matmul args = {.form = TR_MATMUL_NT,
                            .M = N,
                            .N = 1,
                            .K = 1,
                            .dtype = TR_F32,
                            .c_dtype = TR_F32,
                            .A = input,
                            .lda = 1,
                            .B = p->one,
                            .ldb = 1,
                            .C = p->gradient,
                            .ldc = 1};
    must(p->device->ops->matmul(p->device, &args));
}

static void read_result(program *p, int round)
{
    host_waits(p, HOST_FOR_FETCH, p->fetched[round]);
    for (int i = 0; i < N; i++)
        p->wrong = p->wrong || p->results[round * N + i] != input_value(round, i);
}

static void run_round(program *p, int round)
{
    int slot = round % SLOTS;
    host_waits(p, HOST_FOR_UPLOAD, p->uploaded[slot]);
    for (int i = 0; i < N; i++)
        p->staging[slot][i] = input_value(round, i);

    stream_waits(p, UPLOAD_FOR_GRADIENT, TR_STREAM_COPY, p->used[slot]);
    copy(p, TR_STREAM_COPY, p->input[slot], p->staging[slot], p->uploaded[slot]);

    stream_waits(p, GRADIENT_FOR_UPLOAD, TR_STREAM_COMPUTE, p->uploaded[slot]);
    stream_waits(p, GRADIENT_FOR_SEND, TR_STREAM_COMPUTE, p->sent_away);
    make_gradient(p, p->input[slot]);
    must(p->device->event_record(p->device, p->used[slot], TR_STREAM_COMPUTE));
    must(p->device->event_record(p->device, p->made, TR_STREAM_COMPUTE));

    stream_waits(p, SEND_FOR_GRADIENT, TR_STREAM_DATA, p->made);
    stream_waits(p, SEND_FOR_STORE, TR_STREAM_DATA, p->stored);
    copy(p, TR_STREAM_DATA, p->sent, p->gradient, p->sent_away);

    stream_waits(p, STORE_FOR_SEND, TR_STREAM_PIPELINE, p->sent_away);
    if (round > 0)
        stream_waits(p, STORE_FOR_FETCH, TR_STREAM_PIPELINE, p->fetched[round - 1]);
    copy(p, TR_STREAM_PIPELINE, p->state, p->sent, p->stored);

    stream_waits(p, FETCH_FOR_STORE, TR_STREAM_TENSOR, p->stored);
    copy(p, TR_STREAM_TENSOR, p->results + round * N, p->state, p->fetched[round]);
    if (round >= LATE)
        read_result(p, round - LATE);
}

/* Whether the program without the edge gives a wrong result. */
static bool goes_wrong(int removed, uint64_t seed)
{
    const tr_cuda_options options = {.local_size = 1};
    program p = {.removed = removed};
    cudasim_seed_set(seed);
    must(tr_cuda_device_create(&p.device, &options));
    events_each(&p, event_make);
    memory_make(&p);
    for (int round = 0; round < ROUNDS; round++)
        run_round(&p, round);
    for (int round = ROUNDS - LATE; round < ROUNDS; round++)
        read_result(&p, round);
    for (int s = 0; s < TR_STREAM_NUM; s++)
        must(p.device->synchronize(p.device, (tr_stream)s));
    events_each(&p, event_drop);
    p.device->memory_destroy(p.device, TR_MEMORY_DEVICE, p.workspace, p.workspace_bytes);
    p.device->memory_destroy(p.device, TR_MEMORY_DEVICE, p.memory, DEVICE_FLOATS * sizeof(float));
    p.device->memory_destroy(p.device, TR_MEMORY_HOST, p.host, HOST_FLOATS * sizeof(float));
    tr_device_destroy(p.device);
    return p.wrong;
}

static void test_whole(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        if (goes_wrong(NUM_EDGES, seed))
            fail_msg("seed %llu: a wrong result with every event in place",
                     (unsigned long long)seed);
}

static void test_removed(void **state)
{
    (void)state;
    for (int e = 0; e < NUM_EDGES; e++) {
        int wrong = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            wrong += goes_wrong(e, seed);
        print_message("%3d of %d seeds see it when nothing makes wait: %s\n", wrong, SEEDS,
                      edge_names[e]);
        if (wrong == 0)
            fail_msg("no seed sees that nothing makes wait: %s", edge_names[e]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole),
                                       cmocka_unit_test(test_removed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
