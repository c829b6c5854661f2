/* Runs every kind of schedule through the executor with a toy model whose numbers remember where
 * they came from and in which order, on as many stages as there are ranks, and compares with the
 * same work done in sequence: results, live activations, bytes sent, allocations.
 *
 *     mpiexec -n RANKS pipeline_exec_test shm|mpi */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "parallel/pipeline_exec.h"
#include "parallel/world.h"

enum { MAX_MICROBATCHES = 9 };
enum {
    WORDS = 601,
    MAX_CHUNKS = 12,
    MAX_SLOTS = 3 * MAX_MICROBATCHES,
    SEND_BUFFERS = 8,
    LIMIT_S = 60
};

static int num_stages, stage;
static tr_device *device;
static uint64_t random_state;
static long num_allocations;

/* The linker sends the allocations of libtrine here (--wrap); those inside MPI stay out. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

void *__wrap_malloc(size_t size)
{
    num_allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    num_allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    num_allocations++;
    return __real_realloc(pointer, size);
}

_Noreturn static void fail_test(const char *what)
{
    fprintf(stderr, "error: rank %d of %d: %s\n", stage, num_stages, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static void check(bool holds, const char *what)
{
    if (!holds)
        fail_test(what);
}

static void check_ok(tr_status status)
{
    if (status != TR_OK)
        fail_test(tr_error_message());
}

/* The toy model. Chunk c makes mix(x, c) of each word; the gradient of its input is mix(g ^ x, c);
 * its weight gradient is a chain over microbatches. */
static uint64_t forward_word(uint64_t input, int chunk)
{
    return tr_hash_mix(input, (uint64_t)chunk);
}

static uint64_t backward_word(uint64_t input, uint64_t grad, int chunk)
{
    return tr_hash_mix(input ^ grad, (uint64_t)(chunk + 1000));
}

static uint64_t first_word(int microbatch, int i)
{
    return tr_hash_mix((uint64_t)microbatch + 77, (uint64_t)i);
}

typedef struct toy {
    const tr_schedule *schedule;
    int delay_us;                       /* longest random sleep of a call */
    int fails_at;                       /* microbatch whose forward fails, -1 for none */
    uint64_t *inputs;                   /* [num_slots, WORDS] */
    int owners[MAX_SLOTS];              /* pair_of, -1 for none */
    uint64_t *grads;                    /* [num_slots, WORDS] between the halves of backward */
    bool halved[MAX_SLOTS];             /* the first half is done, not the second */
    int num_halves;                     /* weight gradients that were calls of their own */
    uint64_t outputs[MAX_MICROBATCHES]; /* last chunk: hash of its output */
    uint64_t weights[MAX_CHUNKS];
} toy;

static void sleep_at_random(const toy *model)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    if (model->delay_us > 0 && random_state >> 62 == 0)
        tr_clock_sleep(1e-6 * (double)((random_state >> 33) % (uint64_t)model->delay_us));
}

static int pair_of(int chunk, int microbatch)
{
    return chunk * MAX_MICROBATCHES + microbatch;
}

static void *toy_input(void *context, int chunk, int slot)
{
    const toy *model = context;
    check(slot < model->schedule->num_slots[stage], "slot out of range");
    (void)chunk;
    return model->inputs + (size_t)slot * WORDS;
}

static tr_status toy_forward(void *context, int chunk, int microbatch, int slot, void *output)
{
    toy *model = context;
    uint64_t *input = toy_input(model, chunk, slot), *out = output;
    bool is_last = chunk == num_stages * model->schedule->num_virtual - 1;
    if (microbatch == model->fails_at)
        return tr_fail(TR_ERR_NUMERICS, "asked to fail");
    check(model->owners[slot] == -1, "a forward into a slot that is live");
    check(is_last == (output == NULL), "only the last chunk has no output");
    if (model->schedule->trains)
        model->owners[slot] = pair_of(chunk, microbatch);
    if (chunk == 0)
        for (int i = 0; i < WORDS; i++)
            input[i] = first_word(microbatch, i);
    sleep_at_random(model);
    for (int i = 0; i < WORDS; i++) {
        uint64_t word = forward_word(input[i], chunk);
        if (is_last)
            model->outputs[microbatch] = tr_hash_mix(model->outputs[microbatch], word);
        else
            out[i] = word;
    }
    return TR_OK;
}

static void backward_first_half(toy *model, int chunk, int microbatch, int slot,
                                const uint64_t *grad, uint64_t *grad_in)
{
    const uint64_t *input = toy_input(model, chunk, slot);
    bool is_last = chunk == num_stages * model->schedule->num_virtual - 1;
    check(model->owners[slot] == pair_of(chunk, microbatch),
          "a backward from a slot of another microbatch");
    check(!model->halved[slot], "an input gradient twice");
    check(is_last == (grad == NULL), "only the last chunk gets no gradient");
    check((chunk == 0) == (grad_in == NULL), "only the first chunk sends no gradient");
    sleep_at_random(model);
    for (int i = 0; i < WORDS; i++) {
        uint64_t word = is_last ? 0 : grad[i];
        model->grads[(size_t)slot * WORDS + (size_t)i] = word;
        if (chunk > 0)
            grad_in[i] = backward_word(input[i], word, chunk);
    }
}

static void backward_second_half(toy *model, int chunk, int microbatch, int slot)
{
    const uint64_t *input = toy_input(model, chunk, slot);
    check(model->owners[slot] == pair_of(chunk, microbatch),
          "a weight gradient of another microbatch");
    model->owners[slot] = -1;
    for (int i = 0; i < WORDS; i++)
        model->weights[chunk] = tr_hash_mix(
            model->weights[chunk], input[i] + model->grads[(size_t)slot * WORDS + (size_t)i]);
}

static tr_status toy_backward(void *context, int chunk, int microbatch, int slot,
                              const void *grad_output, void *grad_input)
{
    backward_first_half(context, chunk, microbatch, slot, grad_output, grad_input);
    backward_second_half(context, chunk, microbatch, slot);
    return TR_OK;
}

static tr_status toy_backward_input(void *context, int chunk, int microbatch, int slot,
                                    const void *grad_output, void *grad_input)
{
    toy *model = context;
    backward_first_half(model, chunk, microbatch, slot, grad_output, grad_input);
    model->halved[slot] = true;
    return TR_OK;
}

static tr_status toy_backward_weight(void *context, int chunk, int microbatch, int slot)
{
    toy *model = context;
    check(model->halved[slot], "a weight gradient before its input gradient");
    model->halved[slot] = false;
    model->num_halves++;
    sleep_at_random(model);
    backward_second_half(model, chunk, microbatch, slot);
    return TR_OK;
}

/* The same work of all chunks in sequence, into a toy without memory for inputs. */
static void run_in_sequence(const tr_schedule *schedule, toy *expected)
{
    static uint64_t inputs[MAX_CHUNKS][WORDS];
    int num_chunks = num_stages * schedule->num_virtual;
    for (int m = 0; m < schedule->num_microbatches; m++)
        for (int i = 0; i < WORDS; i++) {
            uint64_t word = first_word(m, i);
            for (int c = 0; c < num_chunks; c++) {
                inputs[c][i] = word;
                word = forward_word(word, c);
            }
            expected->outputs[m] = tr_hash_mix(expected->outputs[m], word);
            uint64_t grad = 0;
            for (int c = num_chunks - 1; c >= 0; c--) {
                expected->weights[c] = tr_hash_mix(expected->weights[c], inputs[c][i] + grad);
                grad = backward_word(inputs[c][i], grad, c);
            }
        }
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static int stage_of(const tr_schedule *schedule, int chunk)
{
    return tr_chunk_stage(schedule->placement, num_stages, chunk);
}

static void check_results(const tr_schedule *schedule, const toy *model, const toy *expected)
{
    int num_chunks = num_stages * schedule->num_virtual;
    if (stage == stage_of(schedule, num_chunks - 1))
        for (int m = 0; m < schedule->num_microbatches; m++)
            check(model->outputs[m] == expected->outputs[m], "wrong output");
    for (int c = 0; c < num_chunks; c++) {
        if (stage_of(schedule, c) != stage)
            continue;
        check(model->weights[c] == (schedule->trains ? expected->weights[c] : 0),
              "wrong weight gradient");
    }
    for (int s = 0; s < schedule->num_slots[stage]; s++)
        check(model->owners[s] == -1, "a slot is live after the step");
}

static void check_peak(const tr_schedule *schedule, int peak)
{
    int m = schedule->num_microbatches, v = schedule->num_virtual;
    check(peak == tr_schedule_live_peak(schedule, stage, -1), "as many live as the list says");
    switch (schedule->kind) {
    case TR_SCHEDULE_GPIPE:
        check(peak == v * m, "gpipe keeps all microbatches");
        break;
    case TR_SCHEDULE_1F1B:
        check(peak == smaller(m, num_stages - stage), "1f1b keeps min(M, p - s) microbatches");
        break;
    case TR_SCHEDULE_ZB_H1:
        check(peak == smaller(m, num_stages), "zb-h1 keeps min(M, p) microbatches");
        break;
    case TR_SCHEDULE_INTERLEAVED:
        check(m < num_stages || m % num_stages != 0 || stage > 0 ||
                  peak == smaller(v * m, num_stages * v + num_stages - 1),
              "interleaved keeps p v + p - 1 chunks on the first stage");
        break;
    case TR_SCHEDULE_ZB_V:
        check(m < 2 * num_stages || peak == 2 * num_stages, "zb-v keeps 2 p chunks");
        break;
    case TR_SCHEDULE_LISTED:
        break;
    case TR_SCHEDULE_FORWARD_ONLY:
    case TR_SCHEDULE_FORWARD_V:
        check(peak == 1, "evaluation keeps one microbatch");
        break;
    }
}

static uint64_t count_sends(const tr_schedule *schedule)
{
    const tr_action_list *list = &schedule->ranks[stage];
    uint64_t count = 0;
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        if (action->kind == TR_ACTION_SEND_FORWARD)
            count += stage_of(schedule, action->chunk + 1) != stage;
        if (action->kind == TR_ACTION_SEND_BACKWARD)
            count += stage_of(schedule, action->chunk - 1) != stage;
    }
    return count;
}

static tr_stage_functions toy_functions(toy *model)
{
    return (tr_stage_functions){.context = model,
                                .input = toy_input,
                                .forward = toy_forward,
                                .backward = toy_backward,
                                .backward_input = toy_backward_input,
                                .backward_weight = toy_backward_weight};
}

static void toy_init(toy *model, const tr_schedule *schedule, int delay_us)
{
    *model = (toy){.schedule = schedule, .delay_us = delay_us, .fails_at = -1};
    memset(model->owners, -1, sizeof model->owners);
    size_t size = (size_t)schedule->num_slots[stage] * WORDS;
    check(schedule->num_slots[stage] <= MAX_SLOTS, "more slots than expected");
    model->inputs = tr_alloc(size, sizeof(uint64_t));
    model->grads = tr_alloc(size, sizeof(uint64_t));
}

static void toy_clear(toy *model)
{
    tr_free(model->inputs);
    tr_free(model->grads);
}

/* Weight gradients of this stage that other actions part from their input gradients. */
static int count_halves(const tr_schedule *schedule)
{
    const tr_action_list *list = &schedule->ranks[stage];
    int count = 0;
    for (int i = 0; i < list->num_actions; i++)
        count += list->actions[i].kind == TR_ACTION_BACKWARD && !tr_schedule_is_pair(list, i);
    return count;
}

/* Ends the schedule. */
static void run_schedule(tr_schedule *schedule, tr_group *group, void *send_memory,
                         void *recv_memory)
{
    check(schedule->num_send_buffers[stage] <= SEND_BUFFERS, "more send buffers than expected");
    toy model, expected = {0};
    toy_init(&model, schedule, 400);
    tr_stage_functions functions = toy_functions(&model);
    tr_pipeline_exec *exec;
    check_ok(tr_pipeline_exec_create(&exec, schedule, stage, group, device,
                                     WORDS * sizeof(uint64_t), send_memory, recv_memory,
                                     &functions));
    /* Twice, with buffers and events as the first run left them. */
    for (int run = 0; run < 2; run++) {
        uint64_t bytes = group != NULL ? tr_group_get_stats(group)->bytes_sent : 0;
        long allocations = num_allocations;
        check_ok(tr_pipeline_exec_run(exec));
        check(num_allocations == allocations, "the run allocated memory");
        if (group != NULL)
            bytes = tr_group_get_stats(group)->bytes_sent - bytes;
        check(bytes == count_sends(schedule) * WORDS * sizeof(uint64_t), "wrong bytes sent");
        run_in_sequence(schedule, &expected);
        check_results(schedule, &model, &expected);
        check(model.num_halves == (run + 1) * count_halves(schedule),
              "backward and its halves are called where the list says");
        check_peak(schedule, tr_pipeline_exec_peak_live(exec));
        check(group == NULL || tr_group_get_stats(group)->wait_seconds >= 0, "negative wait");
    }
    tr_pipeline_exec_destroy(exec);
    toy_clear(&model);
    tr_schedule_destroy(schedule);
}

/* The last stage waits while the first one works: 3 microbatches of at least 20 ms. */
static void check_waits_are_counted(tr_group *group, void *send_memory, void *recv_memory)
{
    tr_schedule *schedule;
    check_ok(tr_schedule_create(&schedule, TR_SCHEDULE_1F1B, num_stages, 1, 3));
    toy model;
    toy_init(&model, schedule, 0);
    tr_stage_functions functions = toy_functions(&model);
    tr_pipeline_exec *exec;
    check_ok(tr_pipeline_exec_create(&exec, schedule, stage, group, device,
                                     WORDS * sizeof(uint64_t), send_memory, recv_memory,
                                     &functions));
    check_ok(tr_group_barrier(group));
    double waited = tr_group_get_stats(group)->wait_seconds;
    if (stage == 0)
        tr_clock_sleep(0.05);
    check_ok(tr_pipeline_exec_run(exec));
    if (stage == num_stages - 1)
        check(tr_group_get_stats(group)->wait_seconds - waited > 0.03,
              "the wait for stage 0 is not counted");
    tr_pipeline_exec_destroy(exec);
    toy_clear(&model);
    tr_schedule_destroy(schedule);
}

/* What needs no other rank. */
static void check_failures(void)
{
    tr_schedule *schedule;
    check_ok(tr_schedule_create(&schedule, TR_SCHEDULE_GPIPE, 1, 1, 2));
    check(tr_pipeline_exec_send_bytes(schedule, 0, 1000) == 0, "one stage needs no send buffer");
    check(tr_pipeline_exec_recv_bytes(schedule, 0, 1000) == 0, "one stage needs no receive buffer");
    toy model;
    toy_init(&model, schedule, 0);
    model.fails_at = 1;
    tr_stage_functions functions = toy_functions(&model);
    tr_pipeline_exec *exec;
    check_ok(
        tr_pipeline_exec_create(&exec, schedule, 0, NULL, device, 1000, NULL, NULL, &functions));
    check(tr_pipeline_exec_run(exec) == TR_ERR_NUMERICS, "a failing stage function ends the run");
    check(strcmp(tr_error_message(), "asked to fail") == 0, "its message is kept");
    tr_pipeline_exec_destroy(exec);

    toy_clear(&model);
    tr_schedule_destroy(schedule);
}

/* Lists that no generator makes: weight gradients last, transfers within a rank, other orders on
 * each stage. */
static void run_listed(tr_group *group, void *send_memory, void *recv_memory)
{
    static const char *const texts[][3] = {
        {"0F0,0F1,0B0,0B1,0W0,0W1", "0F0,1F0,1B0,0F1,0B0,1F1,1W0,0W0,1B1,0B1,1W1,0W1", NULL},
        {"0F0,0F1,0F2,0B1,0B0,0B2,0W0,0W1,0W2\n1F0,1F1,1B1,1B0,1F2,1W0,1B2,1W1,1W2",
         "0F0,0F1,3F0,3F1,3B1,3B0,3W0,0B1,0B0,0W0,3W1,0W1\n"
         "1F0,1F1,2F0,2F1,2B1,2B0,1B1,1B0,2W0,1W0,1W1,2W1",
         "0F0,2F0,0F1,2F1,2B0,0B0,2B1,0B1,2W0,2W1,0W0,0W1\n"
         "1F0,3F0,1F1,3F1,3B0,1B0,3B1,1B1,1W0,1W1,3W0,3W1"}};
    if (num_stages > 2)
        return;
    for (int i = 0; i < 3 && texts[num_stages - 1][i] != NULL; i++) {
        tr_schedule *schedule;
        check_ok(tr_schedule_read(&schedule, texts[num_stages - 1][i]));
        check(count_halves(schedule) > 0, "the list has nothing to part");
        run_schedule(schedule, group, send_memory, recv_memory);
    }
}

static void run_all(tr_group *group, void *send_memory, void *recv_memory)
{
    for (int v = 1; v <= 3; v++)
        for (int m = 1; m <= MAX_MICROBATCHES; m++)
            for (int kind = TR_SCHEDULE_GPIPE; kind < TR_SCHEDULE_LISTED; kind++) {
                tr_schedule *schedule;
                if (tr_schedule_supported((tr_schedule_kind)kind, num_stages, v, m) != TR_OK)
                    continue;
                check_ok(tr_schedule_create(&schedule, (tr_schedule_kind)kind, num_stages, v, m));
                run_schedule(schedule, group, send_memory, recv_memory);
            }
    run_listed(group, send_memory, recv_memory);
    if (num_stages > 1)
        check_waits_are_counted(group, send_memory, recv_memory);
    else
        check_failures();
}

int main(int argc, char **argv)
{
    alarm(LIMIT_S);
    MPI_Init(&argc, &argv);
    check(argc == 2, "usage: pipeline_exec_test shm|mpi");
    tr_world *world;
    const tr_world_options options = {.inside = strcmp(argv[1], "shm") == 0 ? TR_TRANSPORT_SHM
                                                                            : TR_TRANSPORT_MPI,
                                      .timeout_s = 20};
    check_ok(tr_world_create(&world, MPI_COMM_WORLD, &options));
    stage = tr_world_rank(world);
    num_stages = tr_world_size(world);
    check(num_stages * 3 <= MAX_CHUNKS, "too many ranks");
    random_state = (uint64_t)stage * 7919 + 1;
    check_ok(tr_cpu_device_create(&device, 1));

    /* Gradients need fewer buffers than there are chunks and microbatches, and sends fewer than
     * SEND_BUFFERS. */
    size_t stride = WORDS * sizeof(uint64_t) + 256;
    void *send_memory, *recv_memory = tr_alloc(3 * MAX_MICROBATCHES, stride);
    check_ok(tr_world_comm_memory(world, SEND_BUFFERS * stride, &send_memory));
    int ranks[MAX_CHUNKS];
    for (int r = 0; r < num_stages; r++)
        ranks[r] = r;
    tr_group *group = NULL;
    if (num_stages > 1)
        check_ok(tr_world_group_create(world, ranks, num_stages, "pipeline", &group));
    run_all(group, send_memory, recv_memory);
    tr_group_destroy(group);
    tr_world_destroy(world);
    tr_device_destroy(device);
    tr_free(recv_memory);
    MPI_Finalize();
    return 0;
}
