#include "tests/parallel/slow_link.h"

#include <mpi.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

enum { MAX_GROUPS = 64, MAX_RANKS = 8, MAX_OPEN = 32, STREAMS = 1 + 2 * MAX_RANKS };

/* When a rank posted number `sequence` of a stream: written by that rank, the number last. */
typedef struct posted {
    _Atomic double at;
    _Atomic uint64_t next; /* sequence + 1 */
} posted;

/* The streams of a rank in a group: its collectives, its sends to each rank, its receives from each rank. */
typedef struct board {
    posted posts[MAX_GROUPS][MAX_RANKS][STREAMS][TR_GROUP_SLOTS];
} board;

/* A group of this rank. */
typedef struct slow_group {
    tr_group *group;                /* NULL: free */
    double due[TR_GROUP_SLOTS + 1]; /* of the slot's operation: off the wire; 0 while not on it */
    double free_at[STREAMS];        /* when the stream's last operation is off the wire */
    const slow_rule *rule[TR_GROUP_SLOTS + 1]; /* NULL: not slowed */
    double wire[TR_GROUP_SLOTS + 1];
    slow_totals totals;
} slow_group;

static struct {
    board *board;
    MPI_Win window;
    slow_rule rules[SLOW_MAX_RULES];
    int num_rules;
    uint64_t num_random; /* drawn by this rank */
    slow_group groups[MAX_OPEN];
    struct {
        char name[32];
        slow_totals totals;
    } closed[MAX_OPEN]; /* groups that are no more */
    int num_closed;
} net;

/* The linker (--wrap) calls the transports of libtrine __real_..., and gives world.c the tables below for them. */
extern const tr_group_transport __real_tr_group_transport_shm, __real_tr_group_transport_mpi;
extern const tr_group_transport __wrap_tr_group_transport_shm, __wrap_tr_group_transport_mpi;

static const tr_group_transport *real(const tr_group *group)
{
    return group->transport == &__wrap_tr_group_transport_shm ? &__real_tr_group_transport_shm
                                                              : &__real_tr_group_transport_mpi;
}

static slow_group *slow_of(const tr_group *group)
{
    for (int i = 0; i < MAX_OPEN; i++)
        if (net.groups[i].group == group)
            return &net.groups[i];
    return NULL;
}

static int stream_of(tr_op_kind kind, int peer)
{
    return kind == TR_OP_SEND ? 1 + peer : kind == TR_OP_RECV ? 1 + MAX_RANKS + peer : 0;
}

static size_t result_bytes(const tr_group *group, const tr_op *op)
{
    size_t items = 0;
    if (tr_op_is_pair(op->kind))
        return (size_t)op->n;
    if (op->counts == NULL)
        return (size_t)op->n * sizeof(float);
    for (int i = 0; i < group->size; i++)
        items += (size_t)op->counts[i];
    return items * op->item_bytes;
}

/* All bytes 0xFF: a NaN in every format, and no length or label. */
static void poison(const void *memory, size_t bytes)
{
    if (memory != NULL && bytes > 0)
        memset((void *)(uintptr_t)memory, 0xFF, bytes);
}

static void destination_poison(const tr_group *group, const tr_op *op)
{
    bool scattered = op->kind == TR_OP_REDUCE_SCATTER;
    poison(op->dst,
           scattered ? (size_t)op->counts[group->rank] * op->item_bytes : result_bytes(group, op));
}

static void source_poison(const tr_group *group, const tr_op *op)
{
    bool gathered = op->kind == TR_OP_ALL_GATHER;
    poison(op->src,
           gathered ? (size_t)op->counts[group->rank] * op->item_bytes : result_bytes(group, op));
}

/* In [0, most), by this rank's own sequence of numbers. */
static double random_seconds(const tr_group *group, double most)
{
    uint64_t number = tr_hash_mix((uint64_t)group->world->rank, net.num_random++);
    return most * (double)(number >> 11) * 0x1p-53;
}

static const slow_rule *rule_for(const tr_group *group, const tr_op *op)
{
    for (int i = 0; i < net.num_rules; i++)
        if ((net.rules[i].group == NULL || strcmp(net.rules[i].group, group->name) == 0) &&
            (net.rules[i].kind == SLOW_ANY_KIND || net.rules[i].kind == (int)op->kind))
            return &net.rules[i];
    return NULL;
}

static void totals_add(slow_totals *sum, const slow_totals *more)
{
    sum->num_operations += more->num_operations;
    sum->wire_seconds += more->wire_seconds;
    sum->late_seconds += more->late_seconds;
    if (more->latest_seconds > sum->latest_seconds)
        sum->latest_seconds = more->latest_seconds;
}

/* ---- the wrapping transport ---- */

static tr_status slow_open(tr_group *group)
{
    TR_TRY(real(group)->open(group));
    slow_group *of = slow_of(NULL);
    TR_ASSERT(of != NULL && group->size <= MAX_RANKS && group->index < MAX_GROUPS);
    *of = (slow_group){.group = group};
    return TR_OK;
}

static void slow_close(tr_group *group)
{
    slow_group *of = slow_of(group);
    int i = 0;
    while (i < net.num_closed && strcmp(net.closed[i].name, group->name) != 0)
        i++;
    TR_ASSERT(i < MAX_OPEN && strlen(group->name) < sizeof net.closed[i].name);
    if (i == net.num_closed) {
        strcpy(net.closed[i].name, group->name);
        net.closed[i].totals = (slow_totals){0};
        net.num_closed++;
    }
    totals_add(&net.closed[i].totals, &of->totals);
    of->group = NULL;
    real(group)->close(group);
}

static void slow_reserve(tr_group *group, size_t bytes, int num_ops)
{
    if (real(group)->reserve != NULL)
        real(group)->reserve(group, bytes, num_ops);
}

static tr_status slow_post(tr_group *group, tr_op *op)
{
    slow_group *of = slow_of(group);
    const slow_rule *rule = net.board != NULL ? rule_for(group, op) : NULL;
    of->rule[op->index] = rule;
    of->due[op->index] = 0;
    if (rule != NULL) {
        of->wire[op->index] = rule->seconds +
                              rule->seconds_per_byte * (double)result_bytes(group, op) +
                              random_seconds(group, rule->random_seconds);
        posted *post = &net.board->posts[group->index][group->rank][stream_of(op->kind, op->peer)]
                                        [op->sequence % TR_GROUP_SLOTS];
        atomic_store(&post->at, tr_clock_seconds());
        atomic_store(&post->next, op->sequence + 1);
        group->world->num_polled++; /* nobody rings when the time is over */
        if (rule->poison)
            destination_poison(group, op);
    }
    return real(group)->post(group, op);
}

/* False while the rank has not posted it. */
static bool posted_at(const tr_group *group, int rank, int stream, uint64_t sequence, double *at)
{
    posted *post = &net.board->posts[group->index][rank][stream][sequence % TR_GROUP_SLOTS];
    if (atomic_load(&post->next) < sequence + 1)
        return false;
    double time = atomic_load(&post->at);
    *at = time > *at ? time : *at;
    return true;
}

/* When all ranks of the operation have posted it, its time on the wire is settled. */
static void settle(slow_group *of, const tr_group *group, const tr_op *op)
{
    int stream = stream_of(op->kind, op->peer);
    double begin = of->free_at[stream];
    if (tr_op_is_pair(op->kind)) {
        tr_op_kind other = op->kind == TR_OP_SEND ? TR_OP_RECV : TR_OP_SEND;
        if (!posted_at(group, group->rank, stream, op->sequence, &begin) ||
            !posted_at(group, op->peer, stream_of(other, group->rank), op->sequence, &begin))
            return;
    }
    for (int i = 0; !tr_op_is_pair(op->kind) && i < group->size; i++)
        if (!posted_at(group, i, 0, op->sequence, &begin))
            return;
    of->due[op->index] = of->free_at[stream] = begin + of->wire[op->index];
}

static tr_status slow_advance(tr_group *group, tr_op *op, bool *moved)
{
    slow_group *of = slow_of(group);
    if (op->index == TR_GROUP_SMALL || of->rule[op->index] == NULL)
        return real(group)->advance(group, op, moved);
    double *due = &of->due[op->index];
    if (*due == 0)
        settle(of, group, op);
    if (*due == 0 || tr_clock_seconds() < *due)
        return TR_OK;
    TR_TRY(real(group)->advance(group, op, moved));
    if (op->active)
        return TR_OK;
    double late = tr_clock_seconds() - *due;
    of->totals.num_operations++;
    of->totals.wire_seconds += of->wire[op->index];
    of->totals.late_seconds += late;
    of->totals.latest_seconds = late > of->totals.latest_seconds ? late : of->totals.latest_seconds;
    if (of->rule[op->index]->spend)
        source_poison(group, op);
    of->rule[op->index] = NULL;
    group->world->num_polled--;
    return TR_OK;
}

static tr_status slow_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op)
{
    return real(group)->all_reduce_i64(group, values, n, op);
}

static tr_status slow_broadcast(tr_group *group, int root, void *data, size_t bytes)
{
    return real(group)->broadcast(group, root, data, bytes);
}

static const char *slow_late(const tr_group *group, const tr_op *op, bool *late)
{
    return real(group)->late(group, op, late);
}

#define SLOW_TRANSPORT(text)                                                                       \
    {                                                                                              \
        .name = text, .open = slow_open, .close = slow_close, .reserve = slow_reserve,             \
        .post = slow_post, .advance = slow_advance, .all_reduce_i64 = slow_all_reduce_i64,         \
        .broadcast = slow_broadcast, .late = slow_late                                             \
    }

const tr_group_transport __wrap_tr_group_transport_shm = SLOW_TRANSPORT("shm");
const tr_group_transport __wrap_tr_group_transport_mpi = SLOW_TRANSPORT("mpi");

/* ---- for the test ---- */

static void sleeping_barrier(void)
{
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        tr_clock_sleep(5e-4);
}

static void board_open(int rank)
{
    MPI_Aint bytes;
    int unit;
    void *own;
    MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)sizeof(board) : 0, 1, MPI_INFO_NULL,
                            MPI_COMM_WORLD, &own, &net.window);
    MPI_Win_shared_query(net.window, 0, &bytes, &unit, &net.board);
    TR_ASSERT(bytes >= (MPI_Aint)sizeof(board));
}

void slow_link_begin(const slow_rule *rules, int num_rules)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    TR_ASSERT(num_rules <= SLOW_MAX_RULES);
    if (net.board == NULL)
        board_open(rank);
    sleeping_barrier();
    if (rank == 0)
        memset(net.board, 0, sizeof *net.board);
    for (int i = 0; i < MAX_OPEN; i++)
        TR_ASSERT(net.groups[i].group == NULL);
    for (int i = 0; i < num_rules; i++)
        net.rules[i] = rules[i];
    net.num_rules = num_rules;
    net.num_closed = 0;
    net.num_random = 0;
    sleeping_barrier();
}

slow_totals slow_link_totals(const char *group)
{
    slow_totals sum = {0};
    for (int i = 0; i < MAX_OPEN; i++)
        if (net.groups[i].group != NULL && strcmp(net.groups[i].group->name, group) == 0)
            totals_add(&sum, &net.groups[i].totals);
    for (int i = 0; i < net.num_closed; i++)
        if (strcmp(net.closed[i].name, group) == 0)
            totals_add(&sum, &net.closed[i].totals);
    return sum;
}

void slow_link_end(void)
{
    if (net.board == NULL)
        return;
    MPI_Win_free(&net.window);
    net.board = NULL;
}
