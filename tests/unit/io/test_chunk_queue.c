/* Chunks of a shard while the values change: what is written is the state at the queue's making, in
 * the same bytes however many encoders there are, and the owner waits for no more than it must. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/background.h"
#include "base/clock.h"
#include "io/chunk_queue.h"
#include "tests/unit/io/io_scratch.h"

/* Two boxes in chunks of 100 values: 7 chunks and 4, the last one of each shorter. */
enum { FIRST = 640, SECOND = 301, COUNT = FIRST + SECOND, CHUNK = 400, NUM_CHUNKS = 11 };

static float values[COUNT];

static const tr_shard_part *parts_make(void)
{
    static tr_shard_part parts[2];
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)i;
    parts[0] =
        (tr_shard_part){0, TR_SHARD_MASTER, tr_box_2d(0, FIRST / 10, 0, 10), values, "first"};
    parts[1] = (tr_shard_part){1, TR_SHARD_V, tr_box_1d(0, SECOND), values + FIRST, "second"};
    return parts;
}

static void expect_no_more(tr_chunk_queue *queue)
{
    float buffer[CHUNK / 4];
    tr_queued_chunk chunk;
    bool taken = true;
    assert_int_equal(tr_chunk_queue_take(queue, buffer, &chunk, &taken), TR_OK);
    assert_false(taken);
}

static void values_spoil(void)
{
    for (int i = 0; i < COUNT; i++)
        values[i] = -1;
}

/* Takes `count` chunks, each of which must be the next one and hold what was there at the making. */
static void expect_taken(tr_chunk_queue *queue, int first, int count)
{
    float buffer[CHUNK / 4];
    for (int i = first; i < first + count; i++) {
        tr_queued_chunk chunk;
        int at = i < 7 ? 100 * i : FIRST + 100 * (i - 7);
        int end = i == 6 ? FIRST : i == 10 ? COUNT : at + 100;
        bool taken = false;
        assert_int_equal(tr_chunk_queue_take(queue, buffer, &chunk, &taken), TR_OK);
        assert_true(taken);
        assert_int_equal(chunk.index, i);
        assert_int_equal(chunk.part->tensor, i >= 7);
        assert_int_equal(chunk.num_values, end - at);
        for (int v = at; v < end; v++)
            assert_true(chunk.values[v - at] == (float)v);
    }
}

static void test_in_order_and_whole(void **state)
{
    (void)state;
    tr_chunk_queue *queue = tr_chunk_queue_create(parts_make(), 2, CHUNK);
    assert_int_equal(tr_chunk_queue_count(queue), NUM_CHUNKS);
    assert_false(tr_chunk_queue_needs_buffer(queue));
    expect_taken(queue, 0, NUM_CHUNKS);
    expect_no_more(queue);
    tr_chunk_queue_destroy(queue);
}

/* The pool has room for all, or for all but some of the first; `taken` are gone before. */
static void preserve_with(size_t pool_bytes, int taken, int expected_waiting)
{
    static float pool[COUNT];
    int64_t copied, no_room;
    tr_chunk_queue *queue = tr_chunk_queue_create(parts_make(), 2, CHUNK);
    tr_chunk_queue_set_pool(queue, pool, pool_bytes);
    memset(pool, 0, sizeof pool);
    expect_taken(queue, 0, taken);
    assert_int_equal(tr_chunk_queue_preserve(queue, 0.01), expected_waiting == 0);
    tr_chunk_queue_get_preserved(queue, &copied, &no_room);
    assert_true(copied <= (int64_t)pool_bytes);
    assert_int_equal(copied + no_room, 4 * (COUNT - 100 * taken));
    assert_int_equal(no_room, 400 * expected_waiting);
    if (expected_waiting > 0) {
        /* The first ones, which encoders take next, are what is waited for. */
        expect_taken(queue, taken, expected_waiting - 1);
        assert_false(tr_chunk_queue_preserve(queue, 0.01));
        expect_taken(queue, taken + expected_waiting - 1, 1);
        assert_true(tr_chunk_queue_preserve(queue, 0.01));
    }
    values_spoil();
    expect_taken(queue, taken + expected_waiting, NUM_CHUNKS - taken - expected_waiting);
    assert_true(tr_chunk_queue_preserve(queue, 0));
    tr_chunk_queue_get_preserved(queue, &copied, &no_room);
    assert_int_equal(no_room, 400 * expected_waiting);
    tr_chunk_queue_destroy(queue);
}

static void test_what_fits_is_copied(void **state)
{
    (void)state;
    preserve_with(4 * COUNT, 0, 0);
    preserve_with(4 * COUNT, 3, 0);
    preserve_with(4 * (COUNT - 300), 3, 0);
    preserve_with(4 * (COUNT - 300) - 4, 3, 1);
    preserve_with(4 * (COUNT - 200), 0, 2);
    preserve_with(4 * (COUNT - 500), 1, 4);
}

static void test_without_a_pool_all_is_waited_for(void **state)
{
    (void)state;
    tr_chunk_queue *queue = tr_chunk_queue_create(parts_make(), 2, CHUNK);
    tr_chunk_queue_set_pool(queue, NULL, 0);
    double begin = tr_clock_seconds();
    assert_false(tr_chunk_queue_preserve(queue, 0.05));
    assert_true(tr_clock_seconds() - begin >= 0.05);
    expect_taken(queue, 0, NUM_CHUNKS - 1);
    assert_false(tr_chunk_queue_preserve(queue, 0));
    expect_taken(queue, NUM_CHUNKS - 1, 1);
    assert_true(tr_chunk_queue_preserve(queue, 0));
    tr_chunk_queue_destroy(queue);
}

static void test_stopped(void **state)
{
    (void)state;
    tr_chunk_queue *queue = tr_chunk_queue_create(parts_make(), 2, CHUNK);
    tr_chunk_queue_set_pool(queue, NULL, 0);
    expect_taken(queue, 0, 2);
    assert_false(tr_chunk_queue_preserve(queue, 0));
    tr_chunk_queue_stop(queue);
    assert_true(tr_chunk_queue_is_stopped(queue));
    assert_true(tr_chunk_queue_preserve(queue, 0)); /* nobody will read the rest */
    expect_no_more(queue);
    tr_chunk_queue_destroy(queue);
}

/* ---- values that the host cannot read ---- */

/* The values as a device would have them: what lies there is not what is meant. */
typedef struct sealed {
    float values[COUNT];
    atomic_int num_left; /* fetches that succeed */
} sealed;

static tr_status unseal(void *context, void *host, const float *from, size_t bytes)
{
    sealed *s = context;
    if (atomic_fetch_sub(&s->num_left, 1) <= 0)
        return tr_fail(TR_ERR_MEMORY, "the device is gone");
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)host)[i] = -1 - from[i];
    return TR_OK;
}

static tr_chunk_queue *sealed_queue(sealed *s, int num_fetches)
{
    static tr_shard_part parts[2];
    memcpy(parts, parts_make(), sizeof parts);
    for (int i = 0; i < COUNT; i++)
        s->values[i] = -1 - values[i];
    s->num_left = num_fetches;
    parts[0].values = s->values;
    parts[1].values = s->values + FIRST;
    tr_chunk_queue *queue = tr_chunk_queue_create(parts, 2, CHUNK);
    tr_chunk_queue_set_fetch(queue, unseal, s);
    return queue;
}

static void test_fetched(void **state)
{
    (void)state;
    static float pool[COUNT];
    static sealed s;
    tr_chunk_queue *queue = sealed_queue(&s, NUM_CHUNKS);
    assert_true(tr_chunk_queue_needs_buffer(queue));
    expect_taken(queue, 0, NUM_CHUNKS);
    expect_no_more(queue);
    tr_chunk_queue_destroy(queue);
    /* Some through the pool, before they change. */
    queue = sealed_queue(&s, NUM_CHUNKS);
    tr_chunk_queue_set_pool(queue, pool, sizeof pool);
    expect_taken(queue, 0, 3);
    assert_true(tr_chunk_queue_preserve(queue, 0));
    memset(s.values, 0, sizeof s.values);
    expect_taken(queue, 3, NUM_CHUNKS - 3);
    tr_chunk_queue_destroy(queue);
}

/* The failure is the encoders'; what the owner could not copy is still to be read. */
static void test_a_fetch_that_fails(void **state)
{
    (void)state;
    static float pool[COUNT], buffer[CHUNK / 4];
    static sealed s;
    tr_queued_chunk chunk;
    bool taken;
    tr_chunk_queue *queue = sealed_queue(&s, 4);
    tr_chunk_queue_set_pool(queue, pool, sizeof pool);
    expect_taken(queue, 0, 2);
    assert_false(tr_chunk_queue_preserve(queue, 0)); /* two chunks are copied */
    assert_int_equal(tr_chunk_queue_take(queue, buffer, &chunk, &taken), TR_ERR_MEMORY);
    assert_string_equal(tr_error_message(), "the device is gone");
    tr_chunk_queue_stop(queue);
    assert_true(tr_chunk_queue_preserve(queue, 0));
    tr_chunk_queue_destroy(queue);
    tr_shard_summary summary;
    const char *path = scratch_path("shard-00004.bin");
    for (int encoders = 1; encoders <= 3; encoders++)
        for (int fetches = 0; fetches < NUM_CHUNKS; fetches += 3) {
            queue = sealed_queue(&s, fetches);
            assert_int_equal(tr_shard_write_queue(path, queue, 1, encoders, NULL, &summary),
                             TR_ERR_MEMORY);
            assert_string_equal(tr_error_message(), "the device is gone");
            assert_false(scratch_exists(path));
            tr_chunk_queue_destroy(queue);
        }
}

/* ---- whole files ---- */

static void expect_same_file(const char *a, const char *b)
{
    size_t a_size, b_size;
    unsigned char *a_bytes = scratch_read(a, &a_size), *b_bytes = scratch_read(b, &b_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a_bytes, b_bytes, a_size);
    free(a_bytes);
    free(b_bytes);
}

typedef struct file_work {
    const char *path;
    tr_chunk_queue *queue;
    int level, num_encoders;
    tr_shard_summary summary;
} file_work;

static tr_status file_write(void *context)
{
    file_work *work = context;
    return tr_shard_write_queue(work->path, work->queue, work->level, work->num_encoders, NULL,
                                &work->summary);
}

/* A big box, changed by its owner while encoders are at it; with too small a pool the owner waits. */
static void test_files_do_not_depend_on_encoders_or_changes(void **state)
{
    (void)state;
    enum { BIG = 400000, BIG_CHUNK = 16384 };
    float *big = calloc(BIG, sizeof(float)), *pool = calloc(BIG, sizeof(float));
    const tr_shard_part part = {0, TR_SHARD_M, tr_box_1d(0, BIG), big, NULL};
    const char *plain = scratch_path("shard-00000.bin"), *other = scratch_path("shard-00001.bin");
    for (int round = 0; round < 36; round++) {
        for (int i = 0; i < BIG; i++)
            big[i] = sinf((float)i) * 0.01f;
        int level = round % 3;
        tr_shard_summary summary;
        assert_int_equal(tr_shard_write(plain, &part, 1, level, BIG_CHUNK, &summary), TR_OK);
        file_work work = {.path = other,
                          .queue = tr_chunk_queue_create(&part, 1, BIG_CHUNK),
                          .level = level,
                          .num_encoders = 1 + round / 3 % 4};
        tr_background *background = tr_background_create();
        bool changes = round >= 12;
        if (changes)
            tr_chunk_queue_set_pool(work.queue, pool, round < 24 ? BIG * sizeof(float) : 100000);
        assert_int_equal(tr_background_start(background, file_write, &work, 0), TR_OK);
        if (changes) {
            while (!tr_chunk_queue_preserve(work.queue, 0.001)) {
            }
            for (int i = 0; i < BIG; i++)
                big[i] = -1;
        }
        assert_int_equal(tr_background_finish(background), TR_OK);
        tr_background_destroy(background);
        assert_int_equal(work.summary.bytes, summary.bytes);
        assert_true(tr_hash128_equal(work.summary.hash, summary.hash));
        assert_true(tr_hash128_equal(work.summary.table_hash, summary.table_hash));
        expect_same_file(plain, other);
        tr_chunk_queue_destroy(work.queue);
    }
    free(big);
    free(pool);
}

static void test_values_that_are_not_finite(void **state)
{
    (void)state;
    tr_shard_summary summary;
    const char *path = scratch_path("shard-00002.bin");
    for (int encoders = 1; encoders <= 3; encoders++)
        for (int kind = 0; kind < 2; kind++) {
            tr_chunk_queue *queue = tr_chunk_queue_create(parts_make(), 2, CHUNK);
            values[FIRST + 250] = kind == 0 ? NAN : -INFINITY;
            assert_int_equal(tr_shard_write_queue(path, queue, 1, encoders, NULL, &summary),
                             TR_ERR_IO);
            assert_string_equal(tr_error_message(),
                                "tensor second (v) holds values that are not finite");
            assert_false(scratch_exists(path));
            tr_chunk_queue_destroy(queue);
        }
}

static void test_a_stopped_file_is_removed(void **state)
{
    (void)state;
    tr_shard_summary summary;
    const char *path = scratch_path("shard-00003.bin");
    tr_chunk_queue *queue = tr_chunk_queue_create(parts_make(), 2, CHUNK);
    tr_chunk_queue_stop(queue);
    assert_int_equal(tr_shard_write_queue(path, queue, 1, 2, NULL, &summary), TR_STOPPED);
    assert_false(scratch_exists(path));
    tr_chunk_queue_destroy(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order_and_whole),
        cmocka_unit_test(test_what_fits_is_copied),
        cmocka_unit_test(test_without_a_pool_all_is_waited_for),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_fetched),
        cmocka_unit_test(test_a_fetch_that_fails),
        cmocka_unit_test(test_files_do_not_depend_on_encoders_or_changes),
        cmocka_unit_test(test_values_that_are_not_finite),
        cmocka_unit_test(test_a_stopped_file_is_removed),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
