/* Latency of the collectives: `mpiexec -n N group_bench shm|mpi [milliseconds of each measurement]`. One line per operation: median and 90th
 * percentile of rank 0's time from post to complete, in microseconds; ranks start each turn together as well as a barrier lets them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "base/clock.h"
#include "parallel/world.h"

enum { ELEMENTS = 1 << 18 /* 1 MiB */, MOST = 20000, MAX_RANKS = 64 };

typedef struct bench {
    tr_group *group;
    float *source, *result, *shared_result;
    int64_t counts[MAX_RANKS];
} bench;

static void try_or_abort(tr_status status)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "error: %s\n", tr_error_message());
    MPI_Abort(MPI_COMM_WORLD, tr_status_exit_code(status));
}

static void run_integers(bench *b)
{
    int64_t value = 1;
    try_or_abort(tr_group_all_reduce_i64(b->group, &value, 1, TR_INT_SUM));
}

static void run_reduce_scatter(bench *b)
{
    tr_event event = {0};
    try_or_abort(tr_group_reduce_scatter(b->group, b->source, b->counts, b->result, &event));
    try_or_abort(tr_event_wait(&event));
}

static void run_all_gather(bench *b)
{
    tr_event event = {0};
    try_or_abort(tr_group_all_gather(b->group, b->source, b->counts, 4, b->result, &event));
    try_or_abort(tr_event_wait(&event));
}

static void run_all_reduce(bench *b)
{
    tr_event event = {0};
    try_or_abort(tr_group_all_reduce(b->group, b->source, b->result, ELEMENTS, &event));
    try_or_abort(tr_event_wait(&event));
}

static void run_all_reduce_cut(bench *b)
{
    tr_event event = {0};
    try_or_abort(tr_group_all_reduce(b->group, b->source, b->shared_result, ELEMENTS, &event));
    try_or_abort(tr_event_wait(&event));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(bench *b, const char *name, void (*run)(bench *), double seconds)
{
    static double times[MOST];
    int n = 0;
    int64_t more = 1;
    double start = tr_clock_seconds();
    for (int i = 0; i < 3; i++)
        run(b);
    while (more) {
        for (int i = 0; i < 10; i++) {
            double begin = tr_clock_seconds();
            run(b);
            times[n++] = tr_clock_seconds() - begin;
        }
        more = n < MOST - 10 && tr_clock_seconds() - start < seconds;
        try_or_abort(tr_group_all_reduce_i64(b->group, &more, 1, TR_INT_MIN));
    }
    qsort(times, (size_t)n, sizeof times[0], compare);
    if (tr_group_rank(b->group) == 0)
        printf("%-34s %10.1f %10.1f us  (%d times)\n", name, 1e6 * times[n / 2],
               1e6 * times[n * 9 / 10], n);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    tr_world_options options = {
        .timeout_s = 60,
        .inside = argc > 1 && strcmp(argv[1], "mpi") == 0 ? TR_TRANSPORT_MPI : TR_TRANSPORT_SHM};
    double seconds = argc > 2 ? atof(argv[2]) / 1000 : 0.5, start = tr_clock_seconds();
    tr_world *world;
    try_or_abort(tr_world_create(&world, MPI_COMM_WORLD, &options));
    void *memory;
    try_or_abort(tr_world_comm_memory(world, (size_t)ELEMENTS * 8, &memory));
    int ranks[MAX_RANKS], size = tr_world_size(world);
    bench b = {.source = memory,
               .shared_result = (float *)memory + ELEMENTS,
               .result = malloc((size_t)ELEMENTS * 4)};
    for (int i = 0; i < size && i < MAX_RANKS; i++) {
        ranks[i] = i;
        b.counts[i] = (int64_t)ELEMENTS * (i + 1) / size - (int64_t)ELEMENTS * i / size;
    }
    try_or_abort(tr_world_group_create(world, ranks, size, "world", &b.group));
    if (tr_world_rank(world) == 0)
        printf("%d ranks, transport %s, set up in %.1f ms; median, 90th percentile\n", size,
               tr_world_transport_name(world, ranks, size), 1e3 * (tr_clock_seconds() - start));
    memset(b.source, 0, (size_t)ELEMENTS * 4);
    measure(&b, "all_reduce_i64, 1 number", run_integers, seconds);
    measure(&b, "reduce_scatter, 1 MiB", run_reduce_scatter, seconds);
    measure(&b, "all_gather, 1 MiB", run_all_gather, seconds);
    measure(&b, "all_reduce, 1 MiB", run_all_reduce, seconds);
    measure(&b, "all_reduce, 1 MiB, shared result", run_all_reduce_cut, seconds);
    tr_group_destroy(b.group);
    tr_world_destroy(world);
    free(b.result);
    MPI_Finalize();
    return 0;
}
