/* Groups on real ranks: `mpiexec -n N group_test shm|mpi|auto PART`. Every rank can compute what every rank should hold, so that each
 * result is compared bit for bit with a reference made here.
 *
 * Parts: `all`: each operation with all kinds of sizes; a storm of many operations in flight on the overlapping groups of a mesh, completed
 * in a random order by delayed ranks, sources poisoned once complete; the byte counters; foreign sources. `two_nodes`: the same where the launcher says so.
 * `trouble`: deadlines and who is named, sizes that differ, the idle callback. `fallback`: no shared memory to be had.
 * Exits 1 at the first difference. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mpi.h>

#include "base/hash.h"
#include "tests/parallel/group_task.h"

static void test_integers(const setting *s)
{
    static int64_t values[4096];
    static const int sizes[] = {0, 1, 2, 77, 4096};
    for (int g = 0; g < s->num_groups; g++) {
        const member *m = &s->groups[g];
        for (int k = 0; k < 15; k++) {
            int n = sizes[k % 5];
            tr_int_op op = (tr_int_op)(k / 5);
            for (int i = 0; i < n; i++)
                values[i] = (int64_t)(my_rank * 31 % 7 - 3) * 1000000007LL * (i + 1 + k);
            CHECK_OK(tr_group_all_reduce_i64(m->group, values, n, op));
            for (int i = 0; i < n; i++) {
                int64_t expected = op == TR_INT_SUM ? 0 : op == TR_INT_MAX ? INT64_MIN : INT64_MAX;
                for (int r = 0; r < m->size; r++) {
                    int64_t v = (int64_t)(m->ranks[r] * 31 % 7 - 3) * 1000000007LL * (i + 1 + k);
                    expected = op == TR_INT_SUM                       ? expected + v
                               : (op == TR_INT_MAX) == (v > expected) ? v
                                                                      : expected;
                }
                CHECK(values[i] == expected);
            }
        }
    }
}

static void test_broadcast(const setting *s)
{
    static unsigned char data[300001];
    static const size_t sizes[] = {0, 1, 65536, 65537, sizeof data};
    for (int g = 0; g < s->num_groups; g++) {
        const member *m = &s->groups[g];
        for (int k = 0; k < 5; k++) {
            int root = k % m->size;
            for (size_t i = 0; i < sizes[k]; i++)
                data[i] = m->rank == root ? (unsigned char)(i * 7 + (size_t)k) : 0;
            CHECK_OK(tr_group_broadcast(m->group, root, data, sizes[k]));
            for (size_t i = 0; i < sizes[k]; i++)
                CHECK(data[i] == (unsigned char)(i * 7 + (size_t)k));
        }
    }
}

/* Everybody counts in a shared place after the barrier only if everybody came. */
static void test_barrier(const setting *s)
{
    for (int i = 0; i < 5; i++) {
        double entered = MPI_Wtime(), last = 0;
        if (i % num_ranks == my_rank) {
            usleep(20000);
            entered = MPI_Wtime();
        }
        CHECK_OK(tr_group_barrier(s->groups[0].group));
        double left = MPI_Wtime(), first_left = 0;
        MPI_Allreduce(&entered, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(&left, &first_left, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
        CHECK(first_left >= last);
    }
}

/* More posts than a group has slots: the later ones wait for the oldest. */
static void test_many_posts(const setting *s)
{
    enum { MANY = 200 };
    const member *m = &s->groups[0];
    static float dst[MANY][MAX_RANKS], received[MANY];
    static tr_event events[MANY], pair_events[MANY];
    int64_t counts[MAX_RANKS];
    for (int r = 0; r < m->size; r++)
        counts[r] = 1;
    for (int i = 0; i < MANY; i++) {
        s->memory[i] = (float)(1000 * i + my_rank);
        CHECK_OK(tr_group_all_gather(m->group, &s->memory[i], counts, 4, dst[i], &events[i]));
        if (m->size > 1 && my_rank == 0)
            CHECK_OK(tr_group_send(m->group, 1, &s->memory[i], 4, i, &pair_events[i]));
        if (my_rank == 1)
            CHECK_OK(tr_group_recv(m->group, 0, &received[i], 4, i, &pair_events[i]));
    }
    for (int i = MANY - 1; i >= 0; i--) {
        CHECK_OK(tr_event_wait(&events[i]));
        CHECK_OK(tr_event_wait(&pair_events[i]));
        for (int r = 0; r < m->size; r++)
            CHECK(dst[i][r] == (float)(1000 * i + r));
        CHECK(my_rank != 1 || received[i] == (float)(1000 * i));
    }
}

static void test_operations(void)
{
    setting s;
    setting_open_mesh(&s);
    random_stream shared = {.key = 11};
    enum { MAX_N = 100000 };
    float *private_dst = malloc((MAX_N * MAX_RANKS + 2) * sizeof(float));
    float *src = s.memory, *shared_dst = s.memory + MAX_N * MAX_RANKS;
    CHECK(2 * (size_t)MAX_N * MAX_RANKS * 4 <= COMM_BYTES);
    for (int i = 0; i < 160; i++) {
        task t;
        task_draw(&t, &s.groups[i % s.num_groups], &shared, MAX_N);
        float *dst = random_below(&shared, 2) ? private_dst + 1 : shared_dst + 1;
        dst[-1] = dst[t.dst_n] = 42.5f;
        task_post(&t, src, dst);
        CHECK_OK(tr_event_wait_result(&t.event));
        task_check(&t);
        CHECK_OK(tr_event_wait(&t.event));
        CHECK(t.event.group == NULL);
        task_check(&t);
        CHECK(dst[-1] == 42.5f && (t.dst != dst || dst[t.dst_n] == 42.5f));
        for (int64_t k = 0; k < t.n; k++)
            src[k] = NAN;
    }
    test_integers(&s);
    test_broadcast(&s);
    test_barrier(&s);
    test_many_posts(&s);
    free(private_dst);
    setting_close(&s);
}

/* The same posts in the same order everywhere; which is waited for, tested or left alone, and how long a rank dawdles, is each rank's
 * own. */
static void test_storm(uint64_t seed)
{
    enum { FLIGHT = 100, ROUNDS = 800, MAX_N = 3000, STRIDE = MAX_N * MAX_RANKS, LARGE = 20000 };
    setting s;
    setting_open_mesh(&s);
    random_stream shared = {.key = seed}, own = {.key = tr_hash_mix(seed, (uint64_t)my_rank)};
    static task tasks[FLIGHT];
    float *results = malloc((size_t)FLIGHT * STRIDE * sizeof(float));
    CHECK((size_t)FLIGHT * STRIDE * 4 <= COMM_BYTES);
    for (int i = 0; i < ROUNDS + FLIGHT; i++) {
        task *t = &tasks[i % FLIGHT];
        float *src = s.memory + (int64_t)(i % FLIGHT) * STRIDE;
        if (i >= FLIGHT) {
            CHECK_OK(tr_event_wait(&t->event));
            task_check(t);
            for (int64_t k = 0; k < t->n; k++)
                src[k] = NAN;
        }
        if (i < ROUNDS) {
            task_draw(t, &s.groups[random_below(&shared, s.num_groups)], &shared, MAX_N);
            float *dst = results + (int64_t)(i % FLIGHT) * STRIDE;
            bool sum = t->kind == ALL_REDUCE || t->kind == ALL_REDUCE_MAX;
            if (sum &&
                random_below(&shared, 3) == 0) { /* one that shared memory cuts into shares */
                t->n = t->src_n = t->dst_n = LARGE - random_below(&shared, 99);
                dst = src + STRIDE / 2;
            }
            task_post(t, src, dst);
        }
        if (random_below(&own, 40) == 0)
            usleep((useconds_t)random_below(&own, 2000));
        task *other = &tasks[random_below(&own, FLIGHT)];
        bool complete = false;
        switch (random_below(&own, 6)) {
        case 0:
            CHECK_OK(tr_event_wait(&other->event));
            CHECK(other->event.group == NULL);
            break;
        case 1:
            CHECK_OK(tr_event_test(&other->event, &complete));
            CHECK(complete == (other->event.group == NULL));
            break;
        case 2:
            CHECK_OK(tr_group_progress(s.groups[0].group));
            break;
        default:
            break;
        }
        if (random_below(&shared, 50) == 0) {
            int64_t sum = my_rank;
            CHECK_OK(tr_group_all_reduce_i64(s.groups[0].group, &sum, 1, TR_INT_SUM));
            CHECK(sum == num_ranks * (num_ranks - 1) / 2);
        }
    }
    free(results);
    setting_close(&s);
}

static void test_bytes(void)
{
    setting s;
    setting_open(&s, 60);
    const member *m = &s.groups[0];
    const tr_group_stats *stats = tr_group_get_stats(m->group);
    int64_t counts[MAX_RANKS], sum = 0;
    for (int i = 0; i < m->size; i++)
        sum += counts[i] = 100 * i + 3;
    static float dst[MAX_RANKS * 2000];
    tr_event event = {0};
    uint64_t before = 0, others = (uint64_t)num_ranks - 1;
    CHECK(stats->bytes_sent == 0);
#define SENT() (stats->bytes_sent - before)
    CHECK_OK(tr_group_reduce_scatter(m->group, s.memory, counts, dst, &event));
    CHECK_OK(tr_event_wait(&event));
    CHECK(SENT() == 4 * (uint64_t)(sum - counts[my_rank]));
    before = stats->bytes_sent;
    CHECK_OK(tr_group_all_gather(m->group, s.memory, counts, 2, dst, &event));
    CHECK_OK(tr_event_wait(&event));
    CHECK(SENT() == 2 * (uint64_t)counts[my_rank] * others);
    before = stats->bytes_sent;
    int64_t n = 16 * num_ranks; /* equal shares of 16 */
    CHECK_OK(tr_group_all_reduce(m->group, s.memory, dst, n, &event));
    CHECK_OK(tr_event_wait(&event));
    CHECK(SENT() == 4 * 2 * 16 * others);
    before = stats->bytes_sent;
    int64_t values[5] = {0};
    CHECK_OK(tr_group_all_reduce_i64(m->group, values, 5, TR_INT_MAX));
    CHECK(SENT() == 8 * 5 * others);
    before = stats->bytes_sent;
    CHECK_OK(tr_group_broadcast(m->group, 0, values, sizeof values));
    CHECK(SENT() == (my_rank == 0 ? sizeof values * others : 0));
    before = stats->bytes_sent;
    if (num_ranks > 1 && my_rank == 1)
        CHECK_OK(tr_group_send(m->group, 0, s.memory, 1000, 0, &event));
    if (num_ranks > 1 && my_rank == 0)
        CHECK_OK(tr_group_recv(m->group, 1, dst, 1000, 0, &event));
    CHECK_OK(tr_event_wait(&event));
    CHECK(SENT() == (my_rank == 1 ? 1000 : 0));
    CHECK(stats->num_operations == 5u + (num_ranks > 1 && my_rank < 2));
    CHECK(num_ranks == 1 || stats->wait_seconds > 0);
    setting_close(&s);
}

/* A source outside of communication memory ends the program, on every transport: seen from outside a forked copy. */
static void test_foreign_source(void)
{
    setting s;
    setting_open(&s, 60);
    static float source[64], dst[64 * MAX_RANKS];
    int64_t counts[MAX_RANKS] = {4};
    fflush(NULL);
    for (int k = 0; k < 3; k++) {
        pid_t child = fork();
        if (child == 0) {
            tr_event event = {0};
            close(STDERR_FILENO);
            if (k == 0)
                (void)tr_group_all_gather(s.groups[0].group, source, counts, 4, dst, &event);
            if (k == 1)
                (void)tr_group_all_reduce(s.groups[0].group, source, dst, 64, &event);
            if (k == 2) /* the last bytes lie outside */
                (void)tr_group_reduce_scatter(s.groups[0].group, s.memory + COMM_BYTES / 4 - 3,
                                              counts, dst, &event);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        bool refused = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        CHECK(refused || (k == 0 && my_rank > 0)); /* those send nothing */
    }
    setting_close(&s);
}

static void expect_late(tr_status status, const char *operation, const char *who)
{
    CHECK(status == TR_ERR_TIMEOUT);
    if (strstr(tr_error_message(), operation) == NULL || strstr(tr_error_message(), who) == NULL)
        fail_here(tr_error_message(), __FILE__, __LINE__);
    if (my_rank == 0)
        printf("%s\n", tr_error_message());
}

/* The last rank comes when the others have given up. */
static void test_late(int kind)
{
    setting s;
    setting_open(&s, 0.6);
    tr_group *group = s.groups[0].group;
    static float dst[MAX_RANKS * MAX_RANKS];
    int64_t value = 1, counts[MAX_RANKS];
    for (int i = 0; i < num_ranks; i++)
        counts[i] = i + 1;
    bool late = my_rank == num_ranks - 1;
    char last[64];
    snprintf(last, sizeof last, "rank %d (world rank %d)", num_ranks - 1, num_ranks - 1);
    tr_event event = {0}, first = {0};
    if (late) {
        usleep(1200000);
    } else if (kind == 0) {
        CHECK_OK(tr_group_all_gather(group, s.memory, counts, 4, dst, &first));
        CHECK_OK(tr_group_reduce_scatter(group, s.memory, counts, dst, &event));
        double start = MPI_Wtime();
        expect_late(tr_event_wait(&event), "reduce_scatter number 1", last);
        CHECK(MPI_Wtime() - start >= 0.6 && MPI_Wtime() - start < 1.1);
    } else if (kind == 1) {
        expect_late(tr_group_all_reduce_i64(group, &value, 1, TR_INT_SUM), "all_reduce_i64",
                    num_ranks == 2 ? last : "rank ");
    } else {
        CHECK_OK(tr_group_recv(group, num_ranks - 1, dst, 8, 13, &event));
        expect_late(tr_event_wait(&event), "tag 13", last);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; late && kind == 2 && i < num_ranks - 1; i++) /* so that MPI can end */
        CHECK_OK(tr_group_send(group, i, s.memory, 8, 13, &(tr_event){0}));
    setting_abandon(&s);
}

/* Rank 0 receives more than rank 1 sends. */
static void test_sizes(void)
{
    setting s;
    setting_open(&s, 0.6);
    tr_event event = {0};
    static char dst[64];
    if (my_rank == 1)
        CHECK_OK(tr_group_send(s.groups[0].group, 0, s.memory, 8, 1, &event));
    if (my_rank == 0) {
        CHECK_OK(tr_group_recv(s.groups[0].group, 1, dst, 12, 1, &event));
        CHECK(tr_event_wait(&event) == TR_ERR_INTERNAL);
        CHECK(strstr(tr_error_message(), "expected 12 bytes") != NULL);
    }
    setting_abandon(&s);
}

typedef struct stopper {
    int num_calls, stop_at;
} stopper;

static tr_status count_calls(void *context)
{
    stopper *calls = context;
    if (++calls->num_calls == calls->stop_at)
        return tr_fail(TR_STOPPED, "asked to");
    return TR_OK;
}

/* While rank 1 sleeps 0.55 s, the others' callbacks are called at least every 100 ms, and end the wait when they say so. */
static void test_stop(void)
{
    setting s;
    setting_open(&s, 60);
    stopper calls = {0};
    tr_world_set_idle_callback(s.world, count_calls, &calls);
    if (my_rank == 1)
        usleep(550000);
    CHECK_OK(tr_group_barrier(s.groups[0].group));
    CHECK(my_rank == 1 || (calls.num_calls >= 5 && calls.num_calls < 20));
    tr_wait wait;
    CHECK(!tr_waitpoint_get(tr_world_waitpoint(s.world), &wait));
    calls = (stopper){.stop_at = 2};
    MPI_Barrier(MPI_COMM_WORLD);
    if (my_rank == 1)
        usleep(550000);
    else
        CHECK(tr_group_barrier(s.groups[0].group) == TR_STOPPED);
    setting_abandon(&s);
}

/* One rank can open no file: `auto` takes MPI everywhere, `shm` is refused everywhere with the reason. */
static void test_fallback(void)
{
    int last[1] = {num_ranks - 1};
    struct rlimit limit, none = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    none.rlim_max = limit.rlim_max;
    if (my_rank == last[0])
        setrlimit(RLIMIT_NOFILE, &none);
    tr_world *world = NULL;
    tr_world_options options = {.inside = transport, .timeout_s = 20};
    tr_status status = tr_world_create(&world, MPI_COMM_WORLD, &options);
    if (my_rank == last[0])
        setrlimit(RLIMIT_NOFILE, &limit);
    if (transport == TR_TRANSPORT_SHM) {
        CHECK(status == TR_ERR_TRANSPORT);
        char who[64];
        snprintf(who, sizeof who, "rank %d", last[0]);
        CHECK(strstr(tr_error_message(), my_rank == last[0] ? "memfd_create" : who) != NULL);
    } else {
        CHECK_OK(status);
        CHECK(strcmp(tr_world_transport_name(world, (int[]){0, last[0]}, 2), "mpi") == 0);
        tr_world_destroy(world);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What the launcher's environment says about nodes is what groups follow. */
static void test_transport_names(int num_nodes)
{
    setting s;
    setting_open(&s, 60);
    CHECK(tr_world_rank(s.world) == my_rank && tr_world_size(s.world) == num_ranks);
    CHECK(tr_world_num_nodes(s.world) == num_nodes);
    CHECK(tr_world_local_size(s.world) == num_ranks / num_nodes);
    CHECK(tr_world_local_rank(s.world) == my_rank / num_nodes); /* nodes in turn */
    bool shm = transport != TR_TRANSPORT_MPI && num_ranks > num_nodes;
    const char *near = tr_world_transport_name(s.world, (int[]){0, num_nodes % num_ranks}, 2);
    CHECK(strcmp(near, shm ? "shm" : "mpi") == 0);
    if (num_nodes > 1)
        CHECK(strcmp(tr_world_transport_name(s.world, (int[]){0, 1}, 2), "mpi") == 0);
    setting_close(&s);
}

static void run_part(const char *part)
{
    if (strcmp(part, "all") == 0) {
        test_transport_names(1);
        test_operations();
        for (uint64_t seed = 1; seed <= 2; seed++)
            test_storm(seed);
        test_bytes();
        test_foreign_source();
    } else if (strcmp(part, "two_nodes") == 0) {
        test_transport_names(2);
        test_operations();
        test_storm(3);
    } else if (strcmp(part, "trouble") == 0) {
        for (int kind = 0; kind < 3; kind++)
            test_late(kind);
        test_sizes();
        test_stop();
    } else if (strcmp(part, "fallback") == 0) {
        test_fallback();
    } else {
        fail_here("no such part", __FILE__, __LINE__);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    CHECK(argc == 3 && num_ranks <= MAX_RANKS);
    transport = strcmp(argv[1], "shm") == 0   ? TR_TRANSPORT_SHM
                : strcmp(argv[1], "mpi") == 0 ? TR_TRANSPORT_MPI
                                              : TR_TRANSPORT_AUTO;
    run_part(argv[2]);
    MPI_Finalize();
    if (my_rank == 0)
        printf("group_test %s %s on %d ranks: ok\n", argv[1], argv[2], num_ranks);
    return 0;
}
