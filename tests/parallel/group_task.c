#include "tests/parallel/group_task.h"

#include <math.h>
#include <string.h>

#include <mpi.h>

#include "base/hash.h"
#include "base/philox.h"
#include "parallel/mesh.h"

int my_rank, num_ranks;
tr_transport transport;

/* --- numbers that all ranks can make --- */

uint32_t random_bits(random_stream *stream)
{
    uint32_t out[4];
    tr_philox_block(stream->key, stream->counter++, 0, 0, 0, out);
    return out[0];
}

int random_below(random_stream *stream, int n)
{
    return (int)(random_bits(stream) % (uint32_t)n);
}

/* Element i of what `world_rank` puts into the buffer `id`: sizes from 1e-3 to 1e3, so that the order of a sum shows. */
static float element(uint64_t id, int world_rank, int64_t i)
{
    uint64_t mixed = (id << 8) + (uint64_t)world_rank + ((uint64_t)i << 40);
    mixed = (mixed ^ mixed >> 31) * 0x7FB5D329728EA185u;
    mixed = (mixed ^ mixed >> 27) * 0x81DADEF4BC2DD44Du;
    mixed ^= mixed >> 33;
    static const float scales[] = {1e-3f, 1.0f, 30.0f, 1e3f};
    return (tr_philox_uniform((uint32_t)mixed) - 0.5f) * scales[mixed >> 62];
}

static void fill(uint64_t id, int world_rank, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = element(id, world_rank, i);
}

static float tree(uint64_t id, const int *ranks, int n, int64_t i)
{
    if (n == 1)
        return element(id, ranks[0], i);
    int split = 1;
    while (2 * split < n)
        split *= 2;
    return tree(id, ranks, split, i) + tree(id, ranks + split, n - split, i);
}

static float largest(uint64_t id, const int *ranks, int n, int64_t i)
{
    float most = element(id, ranks[0], i);
    for (int k = 1; k < n; k++)
        most = fmaxf(most, element(id, ranks[k], i));
    return most;
}

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* --- a world with its memory and the groups of a mesh --- */

static void setting_add(setting *s, const int *ranks, int size, const char *name)
{
    tr_group *group = NULL;
    CHECK_OK(tr_world_group_create(s->world, ranks, size, name, &group));
    if (group == NULL)
        return;
    CHECK(s->num_groups < MAX_GROUPS);
    member *m = &s->groups[s->num_groups++];
    m->group = group;
    m->size = size;
    m->rank = tr_group_rank(group);
    memcpy(m->ranks, ranks, (size_t)size * sizeof *ranks);
    CHECK(tr_group_size(group) == size && ranks[m->rank] == my_rank);
    CHECK(strcmp(tr_group_name(group), name) == 0);
}

void setting_open(setting *s, double timeout_s)
{
    *s = (setting){0};
    tr_world_options options = {.inside = transport, .timeout_s = timeout_s};
    CHECK_OK(tr_world_create(&s->world, MPI_COMM_WORLD, &options));
    void *memory;
    CHECK_OK(tr_world_comm_memory(s->world, COMM_BYTES, &memory));
    s->memory = memory;
    CHECK((uintptr_t)memory % 256 == 0 && s->memory[0] == 0 && s->memory[COMM_BYTES / 4 - 1] == 0);
    int all[MAX_RANKS];
    for (int i = 0; i < num_ranks; i++)
        all[i] = i;
    setting_add(s, all, num_ranks, "world");
}

void setting_open_mesh(setting *s)
{
    setting_open(s, 60);
    int tensor = num_ranks % 2 == 0 ? 2 : 1, ranks[MAX_RANKS];
    tr_mesh mesh = tr_mesh_make(num_ranks / tensor, tensor, 1, 1, my_rank);
    for (int d = 0; d < mesh.data_size; d++) {
        for (int t = 0; t < tensor; t++)
            ranks[t] = tr_mesh_rank_at(&mesh, d, t, 0);
        setting_add(s, ranks, tensor, "tensor");
    }
    for (int t = 0; t < tensor; t++) {
        for (int d = 0; d < mesh.data_size; d++)
            ranks[d] = tr_mesh_rank_at(&mesh, d, t, 0);
        setting_add(s, ranks, mesh.data_size, "data");
    }
    for (int i = 0; i < num_ranks; i++)
        ranks[i] = num_ranks - 1 - i;
    setting_add(s, ranks, num_ranks, "backwards");
    CHECK(s->num_groups == 4);
}

void setting_close(setting *s)
{
    for (int i = 0; i < s->num_groups; i++)
        tr_group_destroy(s->groups[i].group);
    tr_world_destroy(s->world);
    MPI_Barrier(MPI_COMM_WORLD);
}

void setting_abandon(setting *s)
{
    if (transport == TR_TRANSPORT_MPI)
        MPI_Barrier(MPI_COMM_WORLD);
    else
        setting_close(s);
}

/* --- one operation, as data --- */

void task_draw(task *t, const member *m, random_stream *shared, int max_n)
{
    *t = (task){.m = m};
    t->kind = random_below(shared, m->size > 1 ? NUM_KINDS : TRANSFER);
    t->id = random_bits(shared);
    int limit = random_below(shared, 8) == 0 ? max_n : 1 + max_n / 50;
    bool by_rank = t->kind == REDUCE_SCATTER || t->kind == ALL_GATHER;
    for (int i = 0; i < m->size; i++) {
        t->counts[i] = random_below(shared, 3) == 0 ? 0 : random_below(shared, limit);
        t->n += by_rank ? t->counts[i] : 0;
    }
    if (!by_rank)
        t->n = random_below(shared, 8) == 0 ? 0 : random_below(shared, limit);
    t->from = random_below(shared, m->size);
    t->to = (t->from + 1 + random_below(shared, m->size > 1 ? m->size - 1 : 1)) % m->size;
    t->in_place = random_below(shared, 2);
    t->src_n = t->dst_n = t->n;
    if (t->kind == REDUCE_SCATTER)
        t->dst_n = t->counts[m->rank];
    if (t->kind == ALL_GATHER)
        t->src_n = t->counts[m->rank];
    if (t->kind == TRANSFER) {
        t->src_n = m->rank == t->from ? t->n : 0;
        t->dst_n = m->rank == t->to ? t->n : 0;
    }
}

static int64_t count_before(const task *t)
{
    int64_t sum = 0;
    for (int i = 0; i < t->m->rank; i++)
        sum += t->counts[i];
    return sum;
}

void task_post(task *t, float *src, float *dst)
{
    t->src = src;
    t->dst = dst;
    bool inside = t->in_place && (t->kind == REDUCE_SCATTER || t->kind == ALL_GATHER);
    int64_t at = inside ? count_before(t) : 0;
    if (t->kind == REDUCE_SCATTER && inside)
        t->dst = src + at;
    if (t->kind == ALL_GATHER && inside) {
        t->dst = src;
        t->src = src + at;
    }
    fill(t->id, my_rank, t->src, t->src_n);
    tr_group *group = t->m->group;
    switch (t->kind) {
    case REDUCE_SCATTER:
        CHECK_OK(tr_group_reduce_scatter(group, t->src, t->counts, t->dst, &t->event));
        break;
    case ALL_REDUCE:
        CHECK_OK(tr_group_all_reduce(group, t->src, t->dst, t->n, &t->event));
        break;
    case ALL_REDUCE_MAX:
        CHECK_OK(tr_group_all_reduce_max(group, t->src, t->dst, t->n, &t->event));
        break;
    case ALL_GATHER:
        CHECK_OK(tr_group_all_gather(group, t->src, t->counts, sizeof(float), t->dst, &t->event));
        break;
    default:
        if (t->m->rank == t->from)
            CHECK_OK(tr_group_send(group, t->to, t->src, (size_t)t->n * 4, 7, &t->event));
        if (t->m->rank == t->to)
            CHECK_OK(tr_group_recv(group, t->from, t->dst, (size_t)t->n * 4, 7, &t->event));
    }
}

static float task_expected(const task *t, int64_t i)
{
    const member *m = t->m;
    switch (t->kind) {
    case REDUCE_SCATTER:
        return tree(t->id, m->ranks, m->size, i + count_before(t));
    case ALL_REDUCE:
        return tree(t->id, m->ranks, m->size, i);
    case ALL_REDUCE_MAX:
        return largest(t->id, m->ranks, m->size, i);
    case ALL_GATHER:
        for (int r = 0; r < m->size; r++) {
            if (i < t->counts[r])
                return element(t->id, m->ranks[r], i);
            i -= t->counts[r];
        }
        return NAN;
    default:
        return element(t->id, m->ranks[t->from], i);
    }
}

void task_check(const task *t)
{
    int64_t step = t->dst_n < 2000 ? 1 : t->dst_n / 997;
    for (int64_t i = 0; i < t->dst_n; i += step)
        CHECK(same_bits(t->dst[i], task_expected(t, i)));
    if (t->dst_n > 0)
        CHECK(same_bits(t->dst[t->dst_n - 1], task_expected(t, t->dst_n - 1)));
}
