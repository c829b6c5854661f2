/* Groups of GPUs without one of the events by which they and the compute stream wait for each other (parallel/group_nccl.c): each removal must give a wrong
 * result on some rank for some seed of the simulator, and the whole the right one for all of them.
 *
 * The device's functions are wrapped: a wait, or a record, of the kind that is removed does nothing. Each round makes two sums of what the ranks have
 * written, on two streams, and exchanges it in both directions; the compute stream writes the sources, reads the results and goes on to the next round in the same memory. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_device.h"
#include "parallel/world.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/parallel/rank_check.h"

enum { RANKS = 2, N = 40, ROUNDS = 6, SEEDS = 24 };

typedef enum edge {
    SUM_FOR_SOURCE,
    SUM_RECORD_OF_SOURCE,
    RESULT_FOR_SUM,
    RESULT_RECORD_OF_SUM,
    TRANSFER_FOR_SOURCE,
    RESULT_FOR_TRANSFER,
    RESULT_RECORD_OF_TRANSFER,
    SCRATCH_OF_ITS_OWN,
    NUM_EDGES
} edge;

static const char *const edge_names[NUM_EDGES] = {
    "the group's stream waits for what a sum adds",
    "the compute stream's point at a post is recorded",
    "the compute stream waits for a sum",
    "the point behind a sum is recorded",
    "a channel's stream waits for what it sends",
    "the compute stream waits for a transfer",
    "the point behind a transfer is recorded",
    "sums of two streams have a scratch each"};

/* ---- the device with a removal ---- */

enum { MOST_EVENTS = 1024 };

static struct {
    int edge; /* removed, or NUM_EDGES */
    tr_device original;
    struct {
        tr_device_event *event;
        tr_stream stream; /* where it was recorded last */
    } known[MOST_EVENTS];
    int num_known;
} removal;

static tr_stream *stream_of(tr_device_event *event)
{
    int i = 0;
    while (i < removal.num_known && removal.known[i].event != event)
        i++;
    if (i == removal.num_known) {
        if (i == MOST_EVENTS)
            abort();
        removal.known[removal.num_known++].event = event;
    }
    return &removal.known[i].stream;
}

static bool is_channel(tr_stream stream)
{
    return stream == TR_STREAM_PIPELINE || stream >= TR_STREAM_NUM;
}

static tr_status event_record(tr_device *device, tr_device_event *event, tr_stream stream)
{
    bool removed = (removal.edge == SUM_RECORD_OF_SOURCE && stream == TR_STREAM_COMPUTE) ||
                   (removal.edge == RESULT_RECORD_OF_SUM && stream == TR_STREAM_DATA) ||
                   (removal.edge == RESULT_RECORD_OF_TRANSFER && is_channel(stream));
    *stream_of(event) = stream;
    return removed ? TR_OK : removal.original.event_record(device, event, stream);
}

static tr_status event_wait(tr_device *device, tr_stream stream, tr_device_event *event)
{
    tr_stream of = *stream_of(event);
    bool removed =
        (removal.edge == SUM_FOR_SOURCE && stream == TR_STREAM_DATA && of == TR_STREAM_COMPUTE) ||
        (removal.edge == RESULT_FOR_SUM && stream == TR_STREAM_COMPUTE && of == TR_STREAM_DATA) ||
        (removal.edge == TRANSFER_FOR_SOURCE && is_channel(stream) && of == TR_STREAM_COMPUTE) ||
        (removal.edge == RESULT_FOR_TRANSFER && stream == TR_STREAM_COMPUTE && is_channel(of));
    return removed ? TR_OK : removal.original.event_wait(device, stream, event);
}

/* ---- the program ---- */

static int rank;

typedef struct program {
    tr_device *device;
    tr_world *world;
    tr_group *sums, *others, *pairs; /* others: sums on another stream */
    float *comm;                     /* [3][ROW]: sources of both sums, what is sent */
    float *memory;                   /* [3][ROW]: both sums, what came; then two scratches */
    float *host;                     /* [ROUNDS][4][N]: what is written, the sums, what came */
    size_t memory_bytes, scratch_bytes, host_bytes;
} program;

enum { ROW = 64 }; /* floats between places: N rounded up to 256 bytes */

static void program_open(program *p)
{
    static const int ranks[RANKS] = {0, 1};
    static const tr_channel channels[] = {{0, 1}, {1, 0}};
    const tr_world_options options = {.timeout_s = 60};
    CHECK_OK(tr_world_create(&p->world, MPI_COMM_WORLD, &options));
    rank = tr_world_rank(p->world);
    const tr_cuda_options cuda = {.local_rank = rank, .local_size = RANKS};
    CHECK_OK(tr_cuda_device_create(&p->device, &cuda));
    removal.edge = NUM_EDGES;
    removal.original = *p->device;
    p->device->event_record = event_record;
    p->device->event_wait = event_wait;
    CHECK_OK(tr_world_set_device(p->world, p->device));
    void *comm, *memory, *host;
    CHECK_OK(tr_world_comm_memory(p->world, 3 * ROW * sizeof(float), &comm));
    p->scratch_bytes = tr_group_scratch_bytes(RANKS, N);
    p->memory_bytes = 3 * ROW * sizeof(float) + 2 * p->scratch_bytes;
    p->host_bytes = (size_t)ROUNDS * 4 * N * sizeof(float);
    CHECK_OK(p->device->memory_create(p->device, TR_MEMORY_DEVICE, p->memory_bytes, &memory));
    CHECK_OK(p->device->memory_create(p->device, TR_MEMORY_HOST, p->host_bytes, &host));
    p->comm = comm;
    p->memory = memory;
    p->host = host;
    CHECK_OK(
        tr_world_device_group_create(p->world, ranks, RANKS, "sums", TR_STREAM_DATA, &p->sums));
    CHECK_OK(tr_world_device_group_create(p->world, ranks, RANKS, "others", TR_STREAM_TENSOR,
                                          &p->others));
    tr_group_scratch_set(p->sums, p->memory + 3 * ROW, p->scratch_bytes);
    CHECK_OK(tr_world_device_group_create(p->world, ranks, RANKS, "pairs", TR_STREAM_PIPELINE,
                                          &p->pairs));
    CHECK_OK(tr_group_channels_open(p->pairs, channels, 2));
}

static void program_close(program *p)
{
    tr_group_destroy(p->sums);
    tr_group_destroy(p->others);
    tr_group_destroy(p->pairs);
    p->device->memory_destroy(p->device, TR_MEMORY_DEVICE, p->memory, p->memory_bytes);
    p->device->memory_destroy(p->device, TR_MEMORY_HOST, p->host, p->host_bytes);
    tr_world_destroy(p->world);
    tr_device_destroy(p->device);
}

static float *host_place(const program *p, int round, int which)
{
    return p->host + ((size_t)round * 4 + (size_t)which) * N;
}

static float value(int of_rank, int round, int i)
{
    return (float)((of_rank + 1) * 1000 + round * 50 + i);
}

static void copy(program *p, float *dst, const float *src)
{
    CHECK_OK(p->device->copy(p->device, TR_STREAM_COMPUTE, dst, src, N * sizeof(float)));
}

static void run_round(program *p, int round)
{
    tr_event sum = {0}, other = {0}, sent = {0}, received = {0};
    float *source = p->comm, *other_source = p->comm + ROW, *to_send = p->comm + 2 * ROW;
    float *sums = p->memory, *others = p->memory + ROW, *came = p->memory + 2 * ROW;
    copy(p, source, host_place(p, round, 0));
    copy(p, other_source, host_place(p, ROUNDS - 1 - round, 0));
    CHECK_OK(tr_group_all_reduce(p->sums, source, sums, N, &sum));
    CHECK_OK(tr_group_all_reduce(p->others, other_source, others, N, &other));
    CHECK_OK(tr_event_wait(&sum));
    CHECK_OK(tr_event_wait(&other));
    copy(p, host_place(p, round, 1), sums);
    copy(p, host_place(p, round, 2), others);
    copy(p, to_send, source);
    CHECK_OK(tr_group_send(p->pairs, 1 - rank, to_send, N * sizeof(float), round, &sent));
    CHECK_OK(tr_group_recv(p->pairs, 1 - rank, came, N * sizeof(float), round, &received));
    CHECK_OK(tr_event_wait(&sent));
    CHECK_OK(tr_event_wait(&received));
    copy(p, host_place(p, round, 3), came);
}

static void finish(program *p)
{
    int num_streams = TR_STREAM_NUM + 1; /* and that of the second channel */
    for (int s = 0; s < num_streams; s++)
        CHECK_OK(p->device->synchronize(p->device, (tr_stream)s));
}

/* The ranks' sum of a round's values. */
static float total(int round, int i)
{
    return value(0, round, i) + value(1, round, i);
}

static bool is_wrong(const program *p)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N; i++)
            if (host_place(p, round, 1)[i] != total(round, i) ||
                host_place(p, round, 2)[i] != total(ROUNDS - 1 - round, i) ||
                host_place(p, round, 3)[i] != value(1 - rank, round, i))
                return true;
    return false;
}

/* Whether the program without the edge gives a wrong result on a rank. */
static bool goes_wrong(program *p, int removed, uint64_t seed)
{
    int wrong, any;
    size_t scratch = removed == SCRATCH_OF_ITS_OWN ? 0 : 1;
    tr_group_scratch_set(p->others, (char *)(p->memory + 3 * ROW) + scratch * p->scratch_bytes,
                         p->scratch_bytes);
    cudasim_seed_set(seed * RANKS + (uint64_t)rank);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N; i++)
            host_place(p, round, 0)[i] = value(rank, round, i);
    removal.edge = removed;
    for (int round = 0; round < ROUNDS; round++)
        run_round(p, round);
    finish(p);
    removal.edge = NUM_EDGES;
    wrong = is_wrong(p);
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return any != 0;
}

int main(int argc, char **argv)
{
    program p = {0};
    int failures = 0;
    MPI_Init(&argc, &argv);
    program_open(&p);
    for (int e = NUM_EDGES; e >= 0; e--) {
        int wrong = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            wrong += goes_wrong(&p, e, seed);
        bool failed = e == NUM_EDGES ? wrong > 0 : wrong == 0;
        failures += failed;
        if (rank == 0)
            printf("%s%3d of %d seeds go wrong; removed: %s\n", failed ? "FAILED: " : "", wrong,
                   (int)SEEDS, e == NUM_EDGES ? "nothing" : edge_names[e]);
    }
    program_close(&p);
    MPI_Finalize();
    return failures > 0;
}
