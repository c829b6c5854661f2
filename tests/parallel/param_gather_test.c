/* Pieces of sharded tensors through parallel/param_gather: every element from its owner and of the right use, in the announced order only, at most
 * TR_GATHER_AHEAD under way, bytes as the formula says.
 *
 *     mpiexec -n RANKS param_gather_test shm|mpi */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "parallel/param_gather.h"
#include "parallel/shard_map.h"
#include "tests/parallel/group_task.h"

/* Tensors smaller than the group's multiples, of no elements, at both sides of a multiple, and larger. */
static const int64_t sizes[] = {1, 64, 0, 65, 130, 63, 1000, 7 * 64, 4097, 2, 300};
enum { NUM_TENSORS = sizeof sizes / sizeof sizes[0], NUM_PIECES = 5, MAX_LENGTH = 60 };
/* The second piece has no elements. */
static const int pieces[NUM_PIECES + 1] = {0, 2, 3, 6, 8, NUM_TENSORS};

static tr_device *device;

typedef struct subject {
    setting world;
    const member *m;
    tr_arena comm, workspace;
    tr_param_gather gather;
    size_t item_bytes;
    bool own_sources;
    void *dst[NUM_TENSORS];
    unsigned char *intervals[NUM_PIECES]; /* of the caller, in communication memory */
    int version;                          /* of the caller's intervals */
    int num_posts, num_takes;             /* of the current sequence */
    random_stream delays;
} subject;

/* What `rank` knows of an element at a use: with the caller's sources a use shows the sequence's version. */
static unsigned char value(int tensor, int64_t element, int use, size_t byte)
{
    uint64_t mixed =
        ((uint64_t)tensor << 40) + ((uint64_t)element << 16) + (uint64_t)use * 8 + byte;
    mixed *= 0x9E3779B97F4A7C15u;
    return (unsigned char)(mixed >> 56);
}

static void intervals_fill(const subject *s, int piece, int use, unsigned char *to)
{
    for (int i = pieces[piece]; i < pieces[piece + 1]; i++) {
        int64_t begin, end;
        tr_shard_interval(sizes[i], s->m->size, s->m->rank, &begin, &end);
        for (int64_t e = begin; e < end; e++)
            for (size_t b = 0; b < s->item_bytes; b++)
                *to++ = value(i, e, use, b);
    }
}

static tr_status source_of(void *context, int piece, void *buffer, const void **source)
{
    subject *s = context;
    CHECK((buffer != NULL) == s->own_sources);
    int use = s->num_posts++;
    if (s->own_sources)
        intervals_fill(s, piece, use, buffer);
    *source = s->own_sources ? buffer : s->intervals[piece];
    return TR_OK;
}

static void subject_open(subject *s, size_t item_bytes, bool own_sources)
{
    *s = (subject){.item_bytes = item_bytes, .own_sources = own_sources};
    setting_open(&s->world, 60);
    s->m = &s->world.groups[0];
    s->delays.key = (uint64_t)my_rank + 99;
    static unsigned char plain[1 << 20] __attribute__((aligned(256)));
    tr_gather_tensor tensors[NUM_TENSORS];
    for (int i = 0; i < NUM_TENSORS; i++) {
        s->dst[i] = tr_alloc(1, (size_t)sizes[i] * item_bytes + 1);
        tensors[i] = (tr_gather_tensor){sizes[i], s->dst[i]};
    }
    tr_arena counted[2];
    for (int real = 0; real < 2; real++) {
        tr_arena *comm = real ? &s->comm : &counted[0],
                 *workspace = real ? &s->workspace : &counted[1];
        if (real) {
            tr_arena_init(comm, TR_MEM_COMMUNICATION, s->world.memory, COMM_BYTES);
            tr_arena_init(workspace, TR_MEM_WORKSPACE, plain, sizeof plain);
        } else {
            tr_arena_init_counting(comm, TR_MEM_COMMUNICATION);
            tr_arena_init_counting(workspace, TR_MEM_WORKSPACE);
        }
        tr_param_gather_clear(&s->gather);
        tr_param_gather_init(&s->gather, tensors, pieces, NUM_PIECES, s->m->size, s->m->rank,
                             item_bytes, own_sources, device, comm, workspace);
    }
    CHECK(s->comm.peak == counted[0].peak && s->workspace.peak == counted[1].peak);
    CHECK((s->comm.peak > 0) == own_sources);
    s->gather.group = s->m->group;
    s->gather.source = source_of;
    s->gather.context = s;
    for (int p = 0; p < NUM_PIECES; p++)
        s->intervals[p] = tr_arena_alloc(&s->comm, 64 << 10);
}

static void subject_close(subject *s)
{
    tr_param_gather_clear(&s->gather);
    for (int i = 0; i < NUM_TENSORS; i++)
        tr_free(s->dst[i]);
    setting_close(&s->world);
}

static void sleep_at_random(subject *s)
{
    if (random_below(&s->delays, 4) == 0)
        tr_clock_sleep(1e-6 * random_below(&s->delays, 800));
}

static void take_and_check(subject *s, int piece)
{
    for (int i = pieces[piece]; i < pieces[piece + 1]; i++)
        memset(s->dst[i], 0xA5, (size_t)sizes[i] * s->item_bytes + 1);
    CHECK_OK(tr_param_gather_take(&s->gather, piece));
    int use = s->own_sources ? s->num_takes : s->version;
    s->num_takes++;
    for (int i = pieces[piece]; i < pieces[piece + 1]; i++) {
        const unsigned char *at = s->dst[i];
        for (int64_t e = 0; e < sizes[i]; e++)
            for (size_t b = 0; b < s->item_bytes; b++)
                CHECK(*at++ == value(i, e, use, b));
        CHECK(*at == 0xA5);
    }
}

static void sequence_draw(random_stream *shared, int *sequence, int *length)
{
    *length = 1 + random_below(shared, MAX_LENGTH);
    for (int i = 0; i < *length; i++)
        sequence[i] = random_below(shared, NUM_PIECES);
}

static int64_t owned_elements(const subject *s, int piece)
{
    int64_t elements = 0;
    for (int i = pieces[piece]; i < pieces[piece + 1]; i++) {
        int64_t units = (sizes[i] + 63) / 64, each = (units + s->m->size - 1) / s->m->size * 64;
        int64_t left = sizes[i] - each * s->m->rank;
        elements += left < 0 ? 0 : left < each ? left : each;
    }
    return elements;
}

/* Sequences one after the other, with ranks that come late at random. */
static void test_sequences(size_t item_bytes, bool own_sources, bool ahead)
{
    subject s;
    subject_open(&s, item_bytes, own_sources);
    random_stream shared = {.key = 7 + item_bytes};
    for (int round = 0; round < 12; round++) {
        int sequence[MAX_LENGTH], length;
        sequence_draw(&shared, sequence, &length);
        s.version = 1000 + round;
        s.num_posts = s.num_takes = 0;
        for (int p = 0; p < NUM_PIECES; p++)
            intervals_fill(&s, p, s.version, s.intervals[p]);
        const tr_group_stats *stats = tr_group_get_stats(s.m->group);
        uint64_t operations = stats->num_operations, bytes = stats->bytes_sent, expected = 0;
        CHECK_OK(tr_param_gather_begin(&s.gather, sequence, length, ahead));
        int at_once = length < TR_GATHER_AHEAD ? length : TR_GATHER_AHEAD;
        CHECK(stats->num_operations - operations == (uint64_t)(ahead ? at_once : 0));
        for (int i = 0; i < length; i++) {
            sleep_at_random(&s);
            take_and_check(&s, sequence[i]);
            int under_way = length - i - 1 < TR_GATHER_AHEAD ? length - i - 1 : TR_GATHER_AHEAD;
            CHECK(s.num_posts == i + 1 + (ahead ? under_way : 0));
            CHECK(tr_param_gather_bytes_sent(&s.gather, sequence[i]) ==
                  owned_elements(&s, sequence[i]) * (int64_t)item_bytes * (s.m->size - 1));
            expected += (uint64_t)tr_param_gather_bytes_sent(&s.gather, sequence[i]);
        }
        CHECK_OK(tr_param_gather_end(&s.gather));
        CHECK(stats->num_operations - operations == (uint64_t)length);
        CHECK(stats->bytes_sent - bytes == expected);
    }
    CHECK(s.gather.most_in_flight == (ahead ? TR_GATHER_AHEAD : 1));
    subject_close(&s);
}

/* What was not announced is refused, and so is an end too soon. */
static void test_order(void)
{
    subject s;
    subject_open(&s, 4, true);
    const int sequence[] = {0, 3, 2};
    CHECK_OK(tr_param_gather_begin(&s.gather, sequence, 3, true));
    take_and_check(&s, 0);
    CHECK(tr_param_gather_take(&s.gather, 2) == TR_ERR_INTERNAL);
    CHECK(strstr(tr_error_message(), "piece 2 is asked for, but number 1 of 3") != NULL);
    take_and_check(&s, 3);
    CHECK(tr_param_gather_end(&s.gather) == TR_ERR_INTERNAL);
    CHECK(strstr(tr_error_message(), "only 2 of 3") != NULL);
    take_and_check(&s, 2);
    CHECK(tr_param_gather_take(&s.gather, 2) == TR_ERR_INTERNAL);
    CHECK_OK(tr_param_gather_end(&s.gather));
    subject_close(&s);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    CHECK(argc == 2 && num_ranks <= MAX_RANKS);
    transport = strcmp(argv[1], "shm") == 0 ? TR_TRANSPORT_SHM : TR_TRANSPORT_MPI;
    CHECK_OK(tr_cpu_device_create(&device, 1));
    for (int i = 0; i < 4; i++)
        test_sequences(i % 2 == 0 ? 2 : 4, i < 2, i % 3 != 1);
    test_sequences(4, false, false);
    test_order();
    tr_device_destroy(device);
    MPI_Finalize();
    if (my_rank == 0)
        printf("param_gather_test %s on %d ranks: ok\n", argv[1], num_ranks);
    return 0;
}
