/* The idle share of every schedule, measured on ranks whose chunks sleep for known times, beside
 * what the simulation predicts; and what the zero-bubble schedules gain.
 *
 *     mpiexec -n 4 pipeline_idle_test
 *
 * Ranks sleep instead of computing, so that they may outnumber the cores. A run's idle share is one
 * minus the time inside the stage functions over all ranks' time from the common start to the last
 * end; of REPEATS runs the shortest counts, since what disturbs a run only lengthens it. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "parallel/pipeline_exec.h"
#include "parallel/world.h"

enum { BYTES = 4096, NUM_MICROBATCHES = 8, MAX_CHUNKS = 16, REPEATS = 3 };

static int num_stages, stage, num_failures;
static tr_device *device;

_Noreturn static void fail_test(const char *what)
{
    fprintf(stderr, "error: rank %d: %s\n", stage, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static void check_ok(tr_status status)
{
    if (status != TR_OK)
        fail_test(tr_error_message());
}

/* Seconds of each chunk's actions, and what was spent in them. */
typedef struct sleeper {
    double costs[3][MAX_CHUNKS]; /* F, B, W */
    double busy;
    char *inputs; /* [slots of all chunks, BYTES], never read */
} sleeper;

static void sleep_for(sleeper *self, double seconds)
{
    double start = tr_clock_seconds();
    tr_clock_sleep(seconds);
    self->busy += tr_clock_seconds() - start;
}

static void *sleeper_input(void *context, int chunk, int slot)
{
    const sleeper *self = context;
    return self->inputs + (size_t)BYTES * (size_t)(chunk * NUM_MICROBATCHES + slot);
}

static tr_status sleeper_forward(void *context, int chunk, int microbatch, int slot, void *output)
{
    sleeper *self = context;
    (void)microbatch, (void)slot, (void)output;
    sleep_for(self, self->costs[TR_ACTION_FORWARD][chunk]);
    return TR_OK;
}

static tr_status sleeper_backward_input(void *context, int chunk, int microbatch, int slot,
                                        const void *grad_output, void *grad_input)
{
    sleeper *self = context;
    (void)microbatch, (void)slot, (void)grad_output, (void)grad_input;
    sleep_for(self, self->costs[TR_ACTION_BACKWARD][chunk]);
    return TR_OK;
}

static tr_status sleeper_backward_weight(void *context, int chunk, int microbatch, int slot)
{
    sleeper *self = context;
    (void)microbatch, (void)slot;
    sleep_for(self, self->costs[TR_ACTION_WEIGHT][chunk]);
    return TR_OK;
}

static tr_status sleeper_backward(void *context, int chunk, int microbatch, int slot,
                                  const void *grad_output, void *grad_input)
{
    sleeper *self = context;
    (void)microbatch, (void)slot, (void)grad_output, (void)grad_input;
    sleep_for(self, self->costs[TR_ACTION_BACKWARD][chunk] + self->costs[TR_ACTION_WEIGHT][chunk]);
    return TR_OK;
}

/* Seconds of a run; *share: its idle share. */
static double measure_once(tr_pipeline_exec *exec, sleeper *self, tr_group *group, double *share)
{
    self->busy = 0;
    check_ok(tr_group_barrier(group));
    double start = tr_clock_seconds();
    check_ok(tr_pipeline_exec_run(exec));
    double total = tr_clock_seconds() - start, longest, busy;
    MPI_Allreduce(&total, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&self->busy, &busy, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    *share = 1 - busy / (num_stages * longest);
    return longest;
}

static double measure(tr_pipeline_exec *exec, sleeper *self, tr_group *group)
{
    double shortest = 0, best = 0, share;
    for (int i = 0; i < REPEATS; i++) {
        double seconds = measure_once(exec, self, group, &share);
        if (i == 0 || seconds < shortest) {
            shortest = seconds;
            best = share;
        }
    }
    return best;
}

typedef struct setting {
    const char *name;
    tr_schedule_kind kind;
    int num_virtual;
} setting;

/* Seconds of a whole stage's F, B and W; `slow`: how many times that for the last chunk. */
typedef struct pace {
    const char *name;
    double forward, backward, weight, slow;
} pace;

static void set_costs(sleeper *self, const pace *at, int num_virtual)
{
    int num_chunks = num_stages * num_virtual;
    for (int c = 0; c < num_chunks; c++) {
        double share = (c == num_chunks - 1 ? at->slow : 1) / num_virtual;
        self->costs[TR_ACTION_FORWARD][c] = at->forward * share;
        self->costs[TR_ACTION_BACKWARD][c] = at->backward * share;
        self->costs[TR_ACTION_WEIGHT][c] = at->weight * share;
    }
}

static double predict(const tr_schedule *schedule, const sleeper *self)
{
    double busy[MAX_CHUNKS];
    const tr_schedule_costs costs = {.forward = self->costs[TR_ACTION_FORWARD],
                                     .backward = self->costs[TR_ACTION_BACKWARD],
                                     .weight = self->costs[TR_ACTION_WEIGHT]};
    tr_schedule_times times = {.busy = busy};
    check_ok(tr_schedule_simulate(schedule, &costs, &times));
    return times.idle_share;
}

/* Prints a line; returns the measured share. */
static double run_setting(const setting *which, const pace *at, tr_group *group, void *send_memory,
                          void *recv_memory)
{
    tr_schedule *schedule;
    check_ok(tr_schedule_create(&schedule, which->kind, num_stages, which->num_virtual,
                                NUM_MICROBATCHES));
    sleeper self = {.inputs = tr_alloc((size_t)MAX_CHUNKS * NUM_MICROBATCHES, BYTES)};
    set_costs(&self, at, which->num_virtual);
    const tr_stage_functions functions = {.context = &self,
                                          .input = sleeper_input,
                                          .forward = sleeper_forward,
                                          .backward = sleeper_backward,
                                          .backward_input = sleeper_backward_input,
                                          .backward_weight = sleeper_backward_weight};
    tr_pipeline_exec *exec;
    check_ok(tr_pipeline_exec_create(&exec, schedule, stage, group, device, BYTES, send_memory,
                                     recv_memory, &functions));
    double predicted = predict(schedule, &self), measured = measure(exec, &self, group);
    if (stage == 0) {
        bool close = fabs(measured - predicted) <= 0.03;
        printf("%-12s %-14s predicted %5.2f %%, measured %5.2f %%%s\n", which->name, at->name,
               100 * predicted, 100 * measured, close ? "" : "  FAILED: more than 3 points apart");
        num_failures += !close;
    }
    tr_pipeline_exec_destroy(exec);
    tr_free(self.inputs);
    tr_schedule_destroy(schedule);
    return measured;
}

static void expect(bool holds, const char *what)
{
    if (stage != 0 || holds)
        return;
    printf("FAILED: %s\n", what);
    num_failures++;
}

static void run_all(tr_group *group, void *send_memory, void *recv_memory)
{
    static const setting settings[] = {{"gpipe", TR_SCHEDULE_GPIPE, 1},
                                       {"1f1b", TR_SCHEDULE_1F1B, 1},
                                       {"interleaved", TR_SCHEDULE_INTERLEAVED, 2},
                                       {"zb-h1", TR_SCHEDULE_ZB_H1, 1},
                                       {"zb-v", TR_SCHEDULE_ZB_V, 2}};
    enum { ONE_F_ONE_B = 1, ZB_H1 = 3, ZB_V = 4, NUM = 5 };
    static const pace paces[] = {{"F = B = W", 0.036, 0.036, 0.036, 1},
                                 {"W < F < B", 0.036, 0.045, 0.027, 1},
                                 {"slow head", 0.024, 0.024, 0.024, 1.4}};
    for (size_t i = 0; i < sizeof paces / sizeof *paces; i++) {
        double measured[NUM];
        for (int k = 0; k < NUM; k++)
            measured[k] = run_setting(&settings[k], &paces[i], group, send_memory, recv_memory);
        if (i > 0)
            continue;
        if (stage == 0)
            printf("idle of zb-h1 is %.0f %% of 1f1b's, of zb-v %.0f %%\n",
                   100 * measured[ZB_H1] / measured[ONE_F_ONE_B],
                   100 * measured[ZB_V] / measured[ONE_F_ONE_B]);
        expect(measured[ZB_H1] < 0.6 * measured[ONE_F_ONE_B],
               "zb-h1 idles less than 60 % of what 1f1b does");
        expect(measured[ZB_V] < measured[ZB_H1], "zb-v idles less than zb-h1");
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    tr_world *world;
    const tr_world_options options = {.inside = TR_TRANSPORT_AUTO, .timeout_s = 30};
    check_ok(tr_world_create(&world, MPI_COMM_WORLD, &options));
    stage = tr_world_rank(world);
    num_stages = tr_world_size(world);
    if (num_stages != 4)
        fail_test("runs on 4 ranks");
    check_ok(tr_cpu_device_create(&device, 1));
    void *send_memory, *recv_memory = tr_alloc(2 * NUM_MICROBATCHES, BYTES);
    check_ok(tr_world_comm_memory(world, 2 * NUM_MICROBATCHES * BYTES, &send_memory));
    int ranks[] = {0, 1, 2, 3};
    tr_group *group;
    check_ok(tr_world_group_create(world, ranks, num_stages, "pipeline", &group));
    run_all(group, send_memory, recv_memory);
    tr_group_destroy(group);
    tr_world_destroy(world);
    tr_device_destroy(device);
    tr_free(recv_memory);
    MPI_Bcast(&num_failures, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return num_failures > 0;
}
