#include "tests/cudasim/device_group_task.h"

#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include "base/hash.h"
#include "base/tree_sum.h"
#include "kernels/cuda/cuda_device.h"

int my_rank;

static const size_t all_bytes = sizeof(float) * OPS * PLACE,
                    scratch_bytes = sizeof(float) * RANKS * PLACE;

static void group_add(setting *s, int index, const int *ranks, int size, tr_stream stream)
{
    member *m = &s->groups[index];
    tr_group *group;
    char name[16];
    snprintf(name, sizeof name, "g%d", index);
    CHECK_OK(tr_world_device_group_create(s->world, ranks, size, name, stream, &group));
    if (group == NULL)
        return;
    *m = (member){.group = group, .size = size, .rank = tr_group_rank(group), .stream = stream};
    memcpy(m->ranks, ranks, (size_t)size * sizeof *ranks);
    tr_group_scratch_set(group, s->scratch + (stream == TR_STREAM_DATA ? 0 : RANKS * PLACE),
                         scratch_bytes);
}

static void memory_create(setting *s)
{
    tr_device *device = s->device;
    void *memory;
    CHECK_OK(tr_world_comm_memory(s->world, all_bytes, &memory));
    s->comm = memory;
    CHECK_OK(device->memory_create(device, TR_MEMORY_DEVICE, all_bytes, (void **)&s->results));
    CHECK_OK(
        device->memory_create(device, TR_MEMORY_DEVICE, 2 * scratch_bytes, (void **)&s->scratch));
    CHECK_OK(device->memory_create(device, TR_MEMORY_HOST, all_bytes, (void **)&s->filled));
    CHECK_OK(device->memory_create(device, TR_MEMORY_HOST, all_bytes, (void **)&s->fetched));
    CHECK_OK(
        device->memory_create(device, TR_MEMORY_HOST, PLACE * sizeof(float), (void **)&s->poison));
    const uint32_t poison = POISON;
    for (int i = 0; i < PLACE; i++)
        memcpy(&s->poison[i], &poison, sizeof poison);
    CHECK_OK(device->event_create(device, &s->end));
}

void setting_open(setting *s, double timeout_s)
{
    static const tr_channel channels[] = {{0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}, {3, 0}};
    *s = (setting){0};
    const tr_world_options options = {.timeout_s = timeout_s};
    const tr_cuda_options device = {.local_rank = my_rank, .local_size = RANKS};
    CHECK_OK(tr_world_create(&s->world, MPI_COMM_WORLD, &options));
    CHECK_OK(tr_cuda_device_create(&s->device, &device));
    CHECK_OK(tr_world_set_device(s->world, s->device));
    memory_create(s);
    group_add(s, 0, (const int[]){0, 1, 2, 3}, 4, TR_STREAM_DATA);
    group_add(s, 1, (const int[]){0, 1}, 2, TR_STREAM_TENSOR);
    group_add(s, 1, (const int[]){2, 3}, 2, TR_STREAM_TENSOR);
    group_add(s, 2, (const int[]){0, 2}, 2, TR_STREAM_DATA);
    group_add(s, 2, (const int[]){1, 3}, 2, TR_STREAM_DATA);
    group_add(s, 3, (const int[]){3, 0, 2}, 3, TR_STREAM_TENSOR);
    CHECK_OK(tr_world_device_group_create(s->world, (const int[]){0, 1, 2, 3}, 4, "line",
                                          TR_STREAM_PIPELINE, &s->pipeline));
    CHECK_OK(tr_group_channels_open(s->pipeline, channels, sizeof channels / sizeof channels[0]));
}

void setting_close(setting *s)
{
    tr_device *device = s->device;
    for (int g = 0; g < NUM_GROUPS; g++)
        tr_group_destroy(s->groups[g].group);
    tr_group_destroy(s->pipeline);
    for (int i = 0; i < TR_STREAM_NUM; i++)
        CHECK_OK(device->synchronize(device, (tr_stream)i));
    tr_world_destroy(s->world);
    device->event_destroy(device, s->end);
    device->memory_destroy(device, TR_MEMORY_DEVICE, s->results, all_bytes);
    device->memory_destroy(device, TR_MEMORY_DEVICE, s->scratch, 2 * scratch_bytes);
    device->memory_destroy(device, TR_MEMORY_HOST, s->filled, all_bytes);
    device->memory_destroy(device, TR_MEMORY_HOST, s->fetched, all_bytes);
    device->memory_destroy(device, TR_MEMORY_HOST, s->poison, PLACE * sizeof(float));
    tr_device_destroy(device);
}

void wait_for_compute(setting *s)
{
    CHECK_OK(s->device->event_record(s->device, s->end, TR_STREAM_COMPUTE));
    CHECK_OK(tr_world_wait_device(s->world, s->end));
}

/* ---- one operation ---- */

static float value_at(uint64_t storm, int number, int rank, int64_t i)
{
    uint64_t key[4] = {storm, (uint64_t)number, (uint64_t)rank, (uint64_t)i};
    uint64_t hash = tr_hash64(key, sizeof key, 7);
    return ((float)(hash % 2000001) - 1000000.0f) * (hash >> 40 & 1 ? 1e-3f : 1.0f);
}

uint64_t draw(uint64_t *state, uint64_t below)
{
    uint64_t key[2] = {++*state, below};
    return tr_hash64(key, sizeof key, 3) % below;
}

static int64_t sum_counts(const task *t, int before)
{
    int64_t sum = 0;
    for (int i = 0; i < before; i++)
        sum += t->counts[i];
    return sum;
}

void task_draw(setting *s, task *t, int number, uint64_t *state)
{
    static const tr_channel pairs[] = {{0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}, {3, 0}};
    *t = (task){.kind = (task_kind)draw(state, NUM_KINDS), .number = number};
    int group = (int)draw(state, NUM_GROUPS);
    bool equal = draw(state, 3) == 0;
    t->n = draw(state, 5) == 0 ? (int64_t)draw(state, 3) : (int64_t)draw(state, 4 * MOST);
    for (int i = 0; i < RANKS; i++)
        t->counts[i] =
            equal && i > 0 ? t->counts[0] : (int64_t)draw(state, draw(state, 4) == 0 ? 2 : MOST);
    t->in_place = draw(state, 2) == 0;
    const tr_channel pair = pairs[draw(state, sizeof pairs / sizeof pairs[0])];
    t->from = pair.from;
    t->to = pair.to;
    t->on = s->groups[group].group != NULL ? &s->groups[group] : NULL;
}

static void task_place(setting *s, task *t)
{
    const member *m = t->on;
    t->src = s->comm + t->number * PLACE;
    t->dst = s->results + t->number * PLACE;
    int64_t all = m != NULL ? sum_counts(t, m->size) : 0, mine = m != NULL ? t->counts[m->rank] : 0;
    int64_t before = m != NULL ? sum_counts(t, m->rank) : 0;
    switch (t->kind) {
    case REDUCE_SCATTER:
        t->num_filled = all;
        t->num_fetched = mine;
        if (t->in_place)
            t->dst = t->src + before;
        break;
    case ALL_GATHER:
        t->num_filled = mine;
        t->num_fetched = all;
        if (t->in_place) {
            t->dst = t->src;
            t->src += before;
        }
        break;
    case TRANSFER:
        t->num_filled = my_rank == t->from ? t->n : 0;
        t->num_fetched = my_rank == t->to ? t->n : 0;
        break;
    default:
        t->num_filled = t->num_fetched = t->n;
    }
}

void task_post(setting *s, task *t, uint64_t storm)
{
    tr_device *device = s->device;
    member *m = t->on;
    if (t->kind == TRANSFER ? my_rank != t->from && my_rank != t->to : m == NULL) {
        t->number = -1;
        return;
    }
    task_place(s, t);
    float *filled = s->filled + t->number * PLACE;
    int place = t->kind == TRANSFER ? my_rank : m->rank;
    for (int64_t i = 0; i < t->num_filled; i++)
        filled[i] = value_at(storm, t->number, place, i);
    CHECK_OK(device->copy(device, TR_STREAM_COMPUTE, t->src, filled,
                          (size_t)t->num_filled * sizeof(float)));
    size_t bytes = (size_t)t->n * sizeof(float);
    int64_t all = m != NULL ? sum_counts(t, m->size) : 0;
    if (t->kind == TRANSFER) {
        if (my_rank == t->from)
            CHECK_OK(tr_group_send(s->pipeline, t->to, t->src, bytes, t->number, &t->event));
        else
            CHECK_OK(tr_group_recv(s->pipeline, t->from, t->dst, bytes, t->number, &t->event));
        s->pipeline_bytes += my_rank == t->from ? bytes : 0;
        return;
    }
    m->operations++;
    switch (t->kind) {
    case REDUCE_SCATTER:
        CHECK_OK(tr_group_reduce_scatter(m->group, t->src, t->counts, t->dst, &t->event));
        m->bytes += 4 * (uint64_t)(all - t->counts[m->rank]);
        break;
    case ALL_GATHER:
        CHECK_OK(tr_group_all_gather(m->group, t->src, t->counts, 4, t->dst, &t->event));
        m->bytes += 4 * (uint64_t)(t->counts[m->rank] * (m->size - 1));
        break;
    case ALL_REDUCE:
        CHECK_OK(tr_group_all_reduce(m->group, t->src, t->dst, t->n, &t->event));
        m->bytes += (uint64_t)tr_group_all_reduce_bytes(m->size, m->rank, t->n);
        break;
    default:
        CHECK_OK(tr_group_all_reduce_max(m->group, t->src, t->dst, t->n, &t->event));
        m->bytes += (uint64_t)tr_group_all_reduce_bytes(m->size, m->rank, t->n);
    }
}

void task_wait(setting *s, task *t, uint64_t how)
{
    tr_device *device = s->device;
    if (t->number < 0)
        return;
    if (how == 0) {
        bool complete;
        CHECK_OK(tr_event_test(&t->event, &complete));
        CHECK(complete == (t->event.group == NULL));
    }
    CHECK_OK(how == 1 ? tr_event_wait_result(&t->event) : tr_event_wait(&t->event));
    CHECK_OK(device->copy(device, TR_STREAM_COMPUTE, s->fetched + t->number * PLACE, t->dst,
                          (size_t)t->num_fetched * sizeof(float)));
    CHECK_OK(device->copy(device, TR_STREAM_COMPUTE, t->src, s->poison,
                          (size_t)t->num_filled * sizeof(float)));
    CHECK_OK(device->copy(device, TR_STREAM_COMPUTE, t->dst, s->poison,
                          (size_t)t->num_fetched * sizeof(float)));
    CHECK_OK(tr_event_wait(&t->event));
}

static void expect(const task *t, int64_t i, float found, float expected)
{
    char text[160];
    if (memcmp(&found, &expected, sizeof found) == 0)
        return;
    snprintf(text, sizeof text, "operation %d, kind %d, element %lld is %.9g, not %.9g", t->number,
             t->kind, (long long)i, (double)found, (double)expected);
    fail_here(text, __FILE__, __LINE__);
}

void task_check(const setting *s, const task *t, uint64_t storm)
{
    static float parts[RANKS][PLACE], sum[PLACE];
    const float *src[RANKS], *fetched = s->fetched + t->number * PLACE;
    const member *m = t->on;
    if (t->number < 0)
        return;
    if (t->kind == TRANSFER) {
        for (int64_t i = 0; i < t->num_fetched; i++)
            expect(t, i, fetched[i], value_at(storm, t->number, t->from, i));
        return;
    }
    int64_t n = t->num_fetched, first = t->kind == REDUCE_SCATTER ? sum_counts(t, m->rank) : 0;
    for (int r = 0; r < m->size; r++) {
        int64_t begin = t->kind == ALL_GATHER ? sum_counts(t, r) : 0;
        for (int64_t i = 0; i < (t->kind == ALL_GATHER ? t->counts[r] : n); i++)
            parts[r][begin + i] = value_at(storm, t->number, r, first + i);
        for (int64_t i = 0; t->kind == ALL_GATHER && i < t->counts[r]; i++)
            expect(t, begin + i, fetched[begin + i], parts[r][begin + i]);
        src[r] = parts[r];
    }
    if (t->kind == ALL_GATHER)
        return;
    tr_tree_sum(n, m->size, src, sum);
    for (int64_t i = 0; i < n; i++) {
        float most = parts[0][i];
        for (int r = 1; r < m->size; r++)
            most = parts[r][i] > most ? parts[r][i] : most;
        expect(t, i, fetched[i], t->kind == MAXIMUM ? most : sum[i]);
    }
}
