/* Groups of GPUs: `mpiexec -n 4 device_group_test PART [SEEDS]`, each rank on a simulated GPU of its own.
 *
 * Every rank can compute what every rank should hold; results are compared bit for bit. Nothing but the group's own ordering is between the
 * compute stream's copies that fill sources, the operations, and the copies that fetch results and overwrite sources at once.
 *
 * MPI has fewer tags here than there are groups to tell apart by them.
 *
 * Parts: `all`: storms of operations on overlapping groups and of transfers over channels in both directions, waited for in an order that
 * differs by rank; the byte counters; more groups than tags tell apart; a post that is early. `native`: sums of NCCL's own, and that nothing else is. `hang`: a rank that does not join is named by those that wait for the device. `shared`: ranks on one GPU, not asked for.
 * Exits 1 at the first difference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "base/log.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cudasim/device_group_task.h"
#include "tests/cudasim/runtime/sim_nccl.h"
#include "tests/cudasim/runtime/sim_runtime.h"

static int largest_tag = 16383;

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found)
{
    int code = PMPI_Comm_get_attr(comm, key, value, found);
    if (code == MPI_SUCCESS && key == MPI_TAG_UB)
        *(int **)value = &largest_tag;
    return code;
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    CHECK(tag >= 0 && tag <= largest_tag);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

static void run_storm(setting *s, uint64_t storm)
{
    static task tasks[OPS];
    uint64_t state = storm << 20, own = state + ((uint64_t)my_rank + 1) * 1000;
    bool waited[OPS] = {false};
    cudasim_seed_set(storm * RANKS + (uint64_t)my_rank + 1);
    for (int i = 0; i < OPS; i++) {
        task_draw(s, &tasks[i], i, &state);
        task_post(s, &tasks[i], storm);
        for (int k = 0; k <= i; k++)
            if (!waited[k] && draw(&own, 6) == 0) {
                task_wait(s, &tasks[k], draw(&own, 3));
                waited[k] = true;
            }
    }
    for (int left = OPS - 1; left >= 0; left--)
        if (!waited[left])
            task_wait(s, &tasks[left], draw(&own, 3));
    wait_for_compute(s);
    for (int i = 0; i < OPS; i++)
        task_check(s, &tasks[i], storm);
}

static void test_all(int num_storms)
{
    setting s;
    setting_open(&s, 60);
    for (int storm = 1; storm <= num_storms; storm++)
        run_storm(&s, (uint64_t)storm);
    for (int g = 0; g < NUM_GROUPS; g++) {
        const member *m = &s.groups[g];
        if (m->group == NULL)
            continue;
        CHECK(tr_group_get_stats(m->group)->bytes_sent == m->bytes && m->bytes > 0);
        CHECK(tr_group_get_stats(m->group)->num_operations == m->operations);
    }
    CHECK(tr_group_get_stats(s.pipeline)->bytes_sent == s.pipeline_bytes);
    setting_close(&s);
}

/* A post returns before the other ranks have posted, also the first one of many bytes. The group is not the first one of its tag, and pairs of its ranks do not connect. */
static void test_early_post(void)
{
    setting s;
    setting_open(&s, 5);
    member backwards = {.size = RANKS, .ranks = {3, 2, 1, 0}, .stream = TR_STREAM_DATA};
    int64_t before = cudasim_nccl_works();
    CHECK_OK(tr_world_device_gather_group_create(s.world, backwards.ranks, RANKS, "backwards",
                                                 TR_STREAM_DATA, &backwards.group));
    CHECK(cudasim_nccl_works() == before + 1);
    backwards.rank = tr_group_rank(backwards.group);
    task t = {.kind = ALL_GATHER, .on = &backwards, .counts = {MOST, MOST, MOST, MOST}};
    if (my_rank != 0)
        MPI_Barrier(MPI_COMM_WORLD);
    task_post(&s, &t, 1);
    if (my_rank == 0)
        MPI_Barrier(MPI_COMM_WORLD);
    task_wait(&s, &t, 2);
    wait_for_compute(&s);
    task_check(&s, &t, 1);
    tr_group_destroy(backwards.group);
    setting_close(&s);
}

/* Ranks' parts of a reduce-scatter, and whether it is in place. */
typedef struct shape {
    int64_t counts[RANKS];
    bool in_place;
} shape;

/* A sum of that shape, at sum[MOST]; NaNs behind it. */
static void shape_sum(setting *s, const shape *of, float *sum)
{
    task t = {.kind = REDUCE_SCATTER, .on = &s->groups[0], .in_place = of->in_place};
    memcpy(t.counts, of->counts, sizeof t.counts);
    memcpy(sum, s->poison, MOST * sizeof *sum);
    task_post(s, &t, 1);
    task_wait(s, &t, 2);
    wait_for_compute(s);
    memcpy(sum, s->fetched, (size_t)t.num_fetched * sizeof *sum);
}

/* NCCL's own sums are the same bits each time, near the tree's, but not the tree's: of equal parts and of others, also of none. */
static void test_native(void)
{
    static const shape shapes[] = {{{MOST, MOST, MOST, MOST}, false},
                                   {{MOST, MOST - 1, MOST, 64}, false},
                                   {{MOST / 2, MOST, 3, MOST - 64}, true},
                                   {{MOST, 0, MOST - 64, 0}, false},
                                   {{0, 0, 0, MOST}, true},
                                   {{0, 0, 0, 0}, false}};
    enum { NUM = sizeof shapes / sizeof shapes[0] };
    static float tree[NUM][MOST], first[NUM][MOST], again[MOST];
    setting s;
    setting_open(&s, 60);
    for (int k = 0; k < NUM; k++)
        shape_sum(&s, &shapes[k], tree[k]); /* the tree's, as test_all has seen */
    int64_t before = cudasim_nccl_works();
    CHECK_OK(tr_group_native_set(s.groups[0].group));
    CHECK(cudasim_nccl_works() == before + 2); /* ranks have connected for both ways */
    for (int turn = 0; turn < 3; turn++)
        for (int k = 0; k < NUM; k++) {
            cudasim_seed_set((uint64_t)turn + 1);
            shape_sum(&s, &shapes[k], turn == 0 ? first[k] : again);
            CHECK(turn == 0 || memcmp(first[k], again, sizeof again) == 0);
        }
    for (int k = 0; k < NUM; k++) {
        int num_others = 0, count = (int)shapes[k].counts[my_rank];
        for (int i = 0; i < count; i++) {
            CHECK(fabsf(first[k][i] - tree[k][i]) <= 1.0f); /* of up to 4e6 */
            num_others += first[k][i] != tree[k][i];
        }
        CHECK(count < 64 || num_others > 0);
    }
    setting_close(&s);
}

/* All other operations of a native group are as they were. */
static void test_native_others(void)
{
    setting s;
    setting_open(&s, 60);
    CHECK_OK(tr_group_native_set(s.groups[0].group));
    for (task_kind kind = ALL_REDUCE; kind <= ALL_GATHER; kind++) {
        task t = {
            .kind = kind, .on = &s.groups[0], .n = 4 * MOST - 3, .counts = {MOST, 0, MOST - 64, 5}};
        task_post(&s, &t, 1);
        task_wait(&s, &t, 2);
        wait_for_compute(&s);
        task_check(&s, &t, 1);
    }
    setting_close(&s);
}

/* Rank 3 does not join the second of three operations. */
static void test_hang(void)
{
    setting s;
    setting_open(&s, 1.0);
    tr_event events[3] = {{0}};
    member *m = &s.groups[0];
    int num_posts = my_rank == 3 ? 1 : 3;
    for (int i = 0; i < num_posts; i++)
        CHECK_OK(tr_group_all_reduce(m->group, s.comm + i * PLACE, s.results + i * PLACE, 100 + i,
                                     &events[i]));
    for (int i = 0; i < num_posts; i++)
        CHECK_OK(tr_event_wait(&events[i]));
    CHECK_OK(s.device->event_record(s.device, s.end, TR_STREAM_COMPUTE));
    tr_status status = tr_world_wait_device(s.world, s.end);
    if (my_rank == 3) {
        CHECK(status == TR_OK);
    } else {
        char place[64];
        snprintf(place, sizeof place, "of group g0, at its rank %d of 4", my_rank);
        CHECK(status == TR_ERR_TIMEOUT);
        CHECK(strstr(tr_error_message(), "all_reduce number 1 ") != NULL);
        CHECK(strstr(tr_error_message(), place) != NULL);
        CHECK(strstr(tr_error_message(), "another rank of the group has not joined") != NULL);
    }
    if (my_rank == 0)
        printf("%s\n", tr_error_message());
    setting_close(&s);
}

/* A receive without its send is named with its peer. */
static void test_hung_transfer(void)
{
    setting s;
    setting_open(&s, 1.0);
    tr_event event = {0};
    if (my_rank == 2)
        CHECK_OK(tr_group_recv(s.pipeline, 1, s.results, 4, 17, &event));
    CHECK_OK(tr_event_wait(&event));
    CHECK_OK(s.device->event_record(s.device, s.end, TR_STREAM_COMPUTE));
    tr_status status = tr_world_wait_device(s.world, s.end);
    CHECK(status == (my_rank == 2 ? TR_ERR_TIMEOUT : TR_OK));
    CHECK(my_rank != 2 || strstr(tr_error_message(),
                                 "recv number 0 from rank 1 (world rank 1), tag 17, of group line, "
                                 "at its rank 2 of 4 (world rank 2), is not complete") != NULL);
    setting_close(&s);
}

/* NCCL says that a rank is lost while the host waits for the device. */
static void test_lost(void)
{
    setting s;
    setting_open(&s, 60);
    tr_event event = {0};
    if (my_rank != 3)
        CHECK_OK(tr_group_all_reduce(s.groups[0].group, s.comm, s.results, 100, &event));
    CHECK_OK(tr_event_wait(&event));
    CHECK_OK(s.device->event_record(s.device, s.end, TR_STREAM_COMPUTE));
    cudasim_nccl_fail_all(ncclRemoteError);
    CHECK(my_rank == 3 || tr_world_wait_device(s.world, s.end) == TR_ERR_TRANSPORT);
    CHECK(my_rank == 3 || strstr(tr_error_message(), "NCCL failed in group") != NULL);
    if (my_rank == 0)
        printf("%s\n", tr_error_message());
    setting_close(&s);
}

/* All ranks see one GPU. */
static void test_shared(void)
{
    const cudasim_machine machine = {
        .driver_version = 13000, .num_devices = 1, .capability = 90, .memory_bytes = 1 << 30};
    const tr_cuda_options options = {.local_rank = my_rank, .local_size = RANKS};
    cudasim_machine_set(&machine);
    for (int share = 0; share < 2; share++) {
        const tr_world_options world_options = {.timeout_s = 60, .share_device = share == 1};
        tr_world *world;
        tr_device *device;
        CHECK_OK(tr_world_create(&world, MPI_COMM_WORLD, &world_options));
        CHECK_OK(tr_cuda_device_create(&device, &options));
        tr_status status = tr_world_set_device(world, device);
        CHECK(status == (share ? TR_OK : TR_ERR_MEMORY));
        CHECK(share || strstr(tr_error_message(), "ranks 0 and 1 use one GPU") != NULL);
        CHECK(share || strstr(tr_error_message(), "TRINE_SHARE_GPU=1") != NULL);
        const char *host = getenv("NCCL_HOSTID"), *multi = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
        CHECK(share == (host != NULL || multi != NULL));
        tr_world_destroy(world);
        tr_device_destroy(device);
    }
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_log_init(my_rank, false, TR_LOG_INFO);
    const char *part = argc > 1 ? argv[1] : "all";
    CHECK(size == RANKS);
    if (strcmp(part, "all") == 0) {
        test_all(argc > 2 ? atoi(argv[2]) : 20);
        test_early_post();
    } else if (strcmp(part, "hang") == 0) {
        test_hang();
        test_hung_transfer();
        test_lost();
    } else if (strcmp(part, "shared") == 0)
        test_shared();
    else if (strcmp(part, "native") == 0) {
        test_native();
        test_native_others();
    } else
        CHECK(!"a part that is known");
    MPI_Finalize();
    return 0;
}
