/* Buckets of gradients over real ranks: `mpiexec -n N bucket_reducer_test shm|mpi`.
 *
 * For every size of sharding group that divides the ranks, several buckets, tensors smaller than the group and several exchanges in a step: what each rank holds
 * has the bits of the recorded tree, made here from what every rank would contribute; the bytes sent are those of the formulas below. Exits 1 at the first difference. */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include "base/alloc.h"
#include "base/philox.h"
#include "parallel/bucket_reducer.h"
#include "parallel/shard_map.h"
#include "parallel/world.h"
#include "tests/parallel/rank_check.h"

enum { MAX_RANKS = 8, NUM_ITEMS = 7, COMM_BYTES = 1 << 20, MAX_COUNT = 3001, MAX_EXCHANGES = 12 };

static const int64_t item_counts[NUM_ITEMS] = {3001, 1, 64, 130, 2048, 63, 517};
static const int item_parts[NUM_ITEMS] = {0, 0, 0, 0, 1, 1, 1};

static int my_rank, num_ranks;
static tr_device *device;

/* What a rank contributes; sizes differ, so that another order gives other bits. */
static void contribution(int rank, int exchange, int item, float *values)
{
    uint64_t key = (uint64_t)((exchange * MAX_RANKS + rank) * NUM_ITEMS + item);
    tr_philox_normal_fill(key, 0, (uint64_t)item_counts[item], (rank + exchange) % 3 ? 1.0 : 1e3,
                          values);
}

/* The whole tensor of a step: the tree over ranks of each exchange, and over exchanges as the plan says. */
static void expected_make(const tr_reduce_plan *plan, int item, float *out)
{
    static float ranks[MAX_RANKS][MAX_COUNT], exchanges[MAX_EXCHANGES][MAX_COUNT];
    static float round[MAX_COUNT];
    int64_t n = item_counts[item];
    for (int e = 0; e < tr_reduce_num_exchanges(plan); e++) {
        const float *sources[MAX_RANKS];
        for (int r = 0; r < num_ranks; r++) {
            contribution(r, e, item, ranks[r]);
            sources[r] = ranks[r];
        }
        tr_tree_sum(n, num_ranks, sources, exchanges[e]);
    }
    for (int j = 0; j < plan->rounds; j++) {
        const float *parts[MAX_EXCHANGES];
        for (int k = 0; k < plan->parts; k++)
            parts[k] = exchanges[j * plan->parts + k];
        tr_tree_sum(n, plan->parts, parts, round);
        const float *pair[2] = {out, round};
        if (j == 0)
            memcpy(out, round, (size_t)n * sizeof(float));
        else
            tr_tree_sum(n, 2, pair, out);
    }
}

/* ---- one world with the groups of a mesh ---- */

typedef struct setting {
    tr_world *world;
    void *memory;
    tr_mesh mesh;
    tr_data_groups groups;
} setting;

/* Groups of `size` ranks `apart` from each other. */
static tr_group *groups_create(setting *s, int size, int apart, const char *name)
{
    tr_group *mine = NULL;
    for (int first = 0; first < num_ranks && size > 1; first++) {
        int ranks[MAX_RANKS];
        if (first / apart % size != 0)
            continue;
        for (int i = 0; i < size; i++)
            ranks[i] = first + i * apart;
        tr_group *group = NULL;
        CHECK_OK(tr_world_group_create(s->world, ranks, size, name, &group));
        mine = group != NULL ? group : mine;
    }
    return mine;
}

static void setting_open(setting *s, tr_transport transport, int shard_size)
{
    const tr_world_options options = {.inside = transport, .timeout_s = 60};
    CHECK_OK(tr_world_create(&s->world, MPI_COMM_WORLD, &options));
    CHECK_OK(tr_world_comm_memory(s->world, COMM_BYTES, &s->memory));
    s->mesh = tr_mesh_make(num_ranks, 1, 1, shard_size, my_rank);
    int replica_size = s->mesh.replica_size;
    s->groups.data = groups_create(s, num_ranks, 1, "data");
    s->groups.shard =
        shard_size == num_ranks ? s->groups.data : groups_create(s, shard_size, 1, "shard");
    s->groups.replica = replica_size == num_ranks
                            ? s->groups.data
                            : groups_create(s, replica_size, shard_size, "replica");
}

static void setting_close(setting *s)
{
    if (s->groups.shard != s->groups.data)
        tr_group_destroy(s->groups.shard);
    if (s->groups.replica != s->groups.data)
        tr_group_destroy(s->groups.replica);
    tr_group_destroy(s->groups.data);
    tr_world_destroy(s->world);
}

static uint64_t bytes_sent(const setting *s)
{
    const tr_data_groups *g = &s->groups;
    uint64_t bytes = g->data != NULL ? tr_group_get_stats(g->data)->bytes_sent : 0;
    if (g->shard != g->data && g->shard != NULL)
        bytes += tr_group_get_stats(g->shard)->bytes_sent;
    if (g->replica != g->data && g->replica != NULL)
        bytes += tr_group_get_stats(g->replica)->bytes_sent;
    return bytes;
}

/* ---- a step ---- */

typedef struct trial {
    setting *s;
    tr_reduce_plan plan;
    tr_bucket_reducer reducer;
    tr_shard_sums sums;
    float *grads[NUM_ITEMS];
    unsigned char *workspace, *accumulators;
} trial;

static int64_t state_elements(const trial *t, int item, int64_t *begin)
{
    int64_t end;
    tr_shard_interval(item_counts[item], t->s->mesh.shard_size, t->s->mesh.shard, begin, &end);
    return end - *begin;
}

static int64_t work_elements(const trial *t, int item)
{
    const tr_mesh *mesh = &t->s->mesh;
    int64_t begin, end;
    tr_work_interval(item_counts[item], mesh->shard_size, mesh->shard, mesh->replica_size,
                     mesh->replica, &begin, &end);
    return end - begin;
}

static void trial_open(trial *t, int64_t bucket_bytes)
{
    tr_arena comm, workspace, accumulators;
    tr_bucket_item items[NUM_ITEMS];
    int64_t held = 0, begin;
    t->workspace = tr_alloc_aligned(1 << 18, 1, 256);
    t->accumulators = tr_alloc_aligned(1 << 20, 1, 256);
    memset(t->accumulators, 0xff, 1 << 20);
    tr_arena_init(&comm, TR_MEM_COMMUNICATION, t->s->memory, COMM_BYTES);
    tr_arena_init(&workspace, TR_MEM_WORKSPACE, t->workspace, 1 << 18);
    tr_arena_init(&accumulators, TR_MEM_GRADIENTS, t->accumulators, 1 << 20);
    for (int i = 0; i < NUM_ITEMS; i++)
        items[i] = (tr_bucket_item){item_counts[i], item_parts[i]};
    tr_bucket_reducer_init(&t->reducer, items, NUM_ITEMS, bucket_bytes, &t->s->mesh, device, &comm,
                           &workspace);
    tr_bucket_reducer_connect(&t->reducer, &t->s->groups);
    for (int i = 0; i < NUM_ITEMS; i++) {
        t->grads[i] = TR_NEW_ARRAY(float, (size_t)item_counts[i]);
        t->reducer.held_offset[i] = held;
        held += (state_elements(t, i, &begin) + 63) / 64 * 64;
    }
    t->sums = (tr_shard_sums){0};
    if (tr_reduce_num_exchanges(&t->plan) > 1) {
        tr_shard_sums_init(&t->sums, &t->plan, held, device, &accumulators);
        t->reducer.sums = &t->sums;
    }
    for (int i = 0; i < NUM_ITEMS; i++) {
        (void)state_elements(t, i, &begin);
        t->reducer.held[i] = t->reducer.sums != NULL ? t->sums.total + t->reducer.held_offset[i]
                                                     : t->grads[i] + begin;
    }
}

/* Peers may still read what this rank gave out. */
static void trial_close(trial *t)
{
    CHECK_OK(tr_event_wait(&t->reducer.work_event));
    for (int s = 0; s < TR_BUCKET_SLOTS; s++) {
        for (int h = 0; h < TR_BUCKET_MAX_HOPS; h++)
            CHECK_OK(tr_event_wait(&t->reducer.slots[s].events[h]));
    }
    for (int i = 0; i < NUM_ITEMS; i++)
        tr_free(t->grads[i]);
    tr_shard_sums_clear(&t->sums);
    tr_bucket_reducer_clear(&t->reducer);
    tr_free(t->workspace);
    tr_free(t->accumulators);
}

/* The second part of the buckets may finish before the first, as chunks of a pipeline do. */
static void step_run(trial *t, bool second_first)
{
    int num_buckets = t->reducer.num_buckets, first_of_second = 0;
    while (t->reducer.bucket_first[first_of_second] < 4)
        first_of_second++;
    for (int e = 0; e < tr_reduce_num_exchanges(&t->plan); e++) {
        for (int i = 0; i < NUM_ITEMS; i++)
            contribution(my_rank, e, i, t->grads[i]);
        for (int n = 0; n < num_buckets; n++) {
            int b = second_first ? (n + first_of_second) % num_buckets : n;
            CHECK_OK(tr_bucket_reduce_post(&t->reducer, b, e, t->grads));
        }
    }
    CHECK_OK(tr_bucket_reduce_finish(&t->reducer));
}

/* reduce-scatter: what others own; twice in groups of a power of two (inside, and over the replicas). At the end the replicas get this rank's part. */
static uint64_t expected_bytes(const trial *t)
{
    const tr_mesh *mesh = &t->s->mesh;
    bool two = mesh->shard_size > 1 && mesh->replica_size > 1 &&
               (mesh->shard_size & (mesh->shard_size - 1)) == 0;
    uint64_t bytes = 0;
    for (int i = 0; i < NUM_ITEMS; i++) {
        int64_t begin, state = state_elements(t, i, &begin), work = work_elements(t, i);
        int64_t each = two ? (item_counts[i] - state) + (state - work) : item_counts[i] - work;
        bytes += 4 * (uint64_t)(each * tr_reduce_num_exchanges(&t->plan) +
                                work * (mesh->replica_size - 1));
    }
    return bytes;
}

static void held_check(const trial *t)
{
    static float expected[MAX_COUNT];
    for (int i = 0; i < NUM_ITEMS; i++) {
        int64_t begin, count = state_elements(t, i, &begin);
        expected_make(&t->plan, i, expected);
        CHECK(memcmp(t->reducer.held[i], expected + begin, (size_t)count * sizeof(float)) == 0);
    }
}

static void trial_run(setting *s, const tr_reduce_plan *plan, int64_t bucket_bytes)
{
    trial t = {.s = s, .plan = *plan};
    trial_open(&t, bucket_bytes);
    for (int step = 0; step < 2; step++) {
        uint64_t before = bytes_sent(s);
        step_run(&t, step == 1);
        CHECK(bytes_sent(s) - before == expected_bytes(&t));
        held_check(&t);
    }
    trial_close(&t);
}

int main(int argc, char **argv)
{
    static const int64_t bucket_sizes[] = {64, 2000, 1 << 20};
    const tr_reduce_plan plans[] = {{.parts = 1, .rounds = 1},
                                    {.parts = 1, .rounds = 3},
                                    {.parts = 4, .rounds = 1},
                                    {.parts = 3, .rounds = 2}};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    tr_transport transport =
        argc > 1 && strcmp(argv[1], "mpi") == 0 ? TR_TRANSPORT_MPI : TR_TRANSPORT_SHM;
    if (num_ranks == 1)
        transport = TR_TRANSPORT_AUTO;
    CHECK_OK(tr_cpu_device_create(&device, 1));
    for (int shard_size = 1; shard_size <= num_ranks; shard_size++) {
        setting s;
        if (num_ranks % shard_size != 0)
            continue;
        setting_open(&s, transport, shard_size);
        for (int p = 0; p < 4; p++)
            for (int b = 0; b < 3; b++)
                trial_run(&s, &plans[p], bucket_sizes[b]);
        setting_close(&s);
    }
    tr_device_destroy(device);
    MPI_Barrier(MPI_COMM_WORLD);
    if (my_rank == 0)
        printf("bucket_reducer_test: passed on %d ranks\n", num_ranks);
    MPI_Finalize();
    return 0;
}
