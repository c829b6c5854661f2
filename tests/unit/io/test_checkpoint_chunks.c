/* Chunks in one numbering: what readers mark together is cut into portions that have every marked
 * chunk once, and its values. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/checkpoint_chunks.h"
#include "tests/unit/io/checkpoint_fixture.h"
#include "tests/unit/io/io_scratch.h"

enum { MATRIX = FIXTURE_ROWS * FIXTURE_COLUMNS, MOST_CHUNKS = 512 };

static char folder[64];

static int setup(void **state)
{
    (void)state;
    fixture_folder_make(folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_folder_remove(folder);
    return 0;
}

static tr_checkpoint *open_written(int level)
{
    tr_checkpoint *checkpoint = NULL;
    fixture_checkpoint_write(folder, level, FIXTURE_WHOLE);
    assert_int_equal(tr_checkpoint_open(&checkpoint, folder), TR_OK);
    assert_in_range(tr_checkpoint_num_chunks(checkpoint), 64, MOST_CHUNKS); /* several words */
    return checkpoint;
}

static tr_chunk_word *set_make(const tr_checkpoint *checkpoint)
{
    return calloc(tr_checkpoint_set_words(checkpoint), sizeof(tr_chunk_word));
}

static void mark_all(const tr_checkpoint *checkpoint, tr_chunk_word *set)
{
    for (int tensor = 0; tensor < 2; tensor++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
            tr_box whole = tr_checkpoint_tensor_box(checkpoint, tensor);
            tr_checkpoint_mark(checkpoint, tensor, (tr_shard_kind)kind, &whole, 1, set);
        }
}

/* Reads all portions of a set and counts how often each chunk was in one. `values` of every tensor and
 * kind get what was read. Returns the stored bytes of it. */
static int64_t portions_read(tr_checkpoint *checkpoint, const tr_chunk_word *set, int64_t room,
                             int *seen, float values[2][TR_SHARD_NUM_KINDS][MATRIX])
{
    tr_chunk_portion portion = {0, 0};
    int64_t least = tr_checkpoint_largest_chunk(checkpoint);
    tr_chunk_reader reader;
    tr_chunk_reader_init(&reader, checkpoint);
    float *slot = malloc((size_t)(room > least ? room : least));
    while (tr_checkpoint_portion_next(checkpoint, set, room, &portion)) {
        int64_t bytes = 0;
        int count = 0;
        const float *at = slot;
        assert_int_equal(tr_chunk_portion_read(&reader, set, &portion, slot), TR_OK);
        for (int64_t c = tr_chunk_portion_find(&portion, set, portion.begin); c >= 0;
             c = tr_chunk_portion_find(&portion, set, c + 1), count++) {
            tr_numbered_chunk chunk;
            tr_checkpoint_get_chunk(checkpoint, c, &chunk);
            tr_box whole = tr_checkpoint_tensor_box(checkpoint, chunk.tensor);
            tr_boxes_copy(chunk.pieces, chunk.num_pieces, at, &whole, 1,
                          values[chunk.tensor][chunk.kind]);
            at += chunk.raw_bytes / 4;
            bytes += chunk.raw_bytes;
            seen[c]++;
        }
        assert_true(count == 1 || bytes <= room);
    }
    int64_t bytes_read = reader.bytes_read;
    tr_chunk_reader_clear(&reader);
    free(slot);
    return bytes_read;
}

static void test_portions_have_every_chunk_once(void **state)
{
    (void)state;
    static const int64_t rooms[] = {0, 256, 700, 4096, 1 << 20};
    static float values[2][TR_SHARD_NUM_KINDS][MATRIX], expected[MATRIX];
    for (int level = 0; level < 2; level++) {
        tr_checkpoint *checkpoint = open_written(level);
        tr_chunk_word *set = set_make(checkpoint);
        mark_all(checkpoint, set);
        int64_t stored = tr_checkpoint_set_sums(checkpoint, set).stored;
        for (size_t r = 0; r < sizeof rooms / sizeof rooms[0]; r++) {
            int seen[MOST_CHUNKS] = {0};
            memset(values, 0xff, sizeof values);
            assert_int_equal(portions_read(checkpoint, set, rooms[r], seen, values), stored);
            for (int64_t c = 0; c < tr_checkpoint_num_chunks(checkpoint); c++)
                assert_int_equal(seen[c], 1);
            for (int tensor = 0; tensor < 2; tensor++)
                for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
                    size_t count = tensor == 0 ? MATRIX : FIXTURE_VECTOR;
                    fixture_values(tensor, (tr_shard_kind)kind, expected);
                    assert_memory_equal(values[tensor][kind], expected, count * sizeof(float));
                }
        }
        free(set);
        tr_checkpoint_close(checkpoint);
    }
}

/* Two readers with columns of their own: the set has the chunks of either, each once, and no others. */
static void test_a_set_has_what_any_reader_needs(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1);
    tr_chunk_word *set = set_make(checkpoint);
    tr_box wanted[2] = {tr_box_2d(0, 9, 3, 2), tr_box_2d(5, 9, 4, 9)};
    int64_t needed = 0;
    int seen[MOST_CHUNKS] = {0};
    static float values[2][TR_SHARD_NUM_KINDS][MATRIX];
    for (int reader = 0; reader < 2; reader++)
        tr_checkpoint_mark(checkpoint, 0, TR_SHARD_V, &wanted[reader], 1, set);
    int64_t bytes_read = portions_read(checkpoint, set, 1000, seen, values);
    for (int64_t c = 0; c < tr_checkpoint_num_chunks(checkpoint); c++) {
        tr_numbered_chunk chunk;
        tr_checkpoint_get_chunk(checkpoint, c, &chunk);
        bool meets = chunk.tensor == 0 && chunk.kind == TR_SHARD_V &&
                     tr_boxes_meet(wanted, 2, chunk.pieces, chunk.num_pieces);
        assert_int_equal(seen[c], meets);
        needed += meets ? chunk.stored_bytes : 0;
    }
    assert_true(needed > 0);
    assert_int_equal(tr_checkpoint_set_sums(checkpoint, set).stored, needed);
    assert_int_equal(bytes_read, needed);
    free(set);
    tr_checkpoint_close(checkpoint);
}

static void test_an_empty_set_has_no_portion(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1);
    tr_chunk_word *set = set_make(checkpoint);
    tr_chunk_portion portion = {0, 0};
    tr_checkpoint_mark(checkpoint, 0, TR_SHARD_M, NULL, 0, set);
    assert_false(tr_checkpoint_portion_next(checkpoint, set, 1 << 20, &portion));
    assert_int_equal(tr_checkpoint_set_sums(checkpoint, set).raw, 0);
    free(set);
    tr_checkpoint_close(checkpoint);
}

/* Also of a portion that is only checked; the others are whole. */
static void test_a_damaged_chunk_is_named(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1);
    tr_chunk_word *set = set_make(checkpoint);
    tr_chunk_portion portion = {0, 0};
    char path[128];
    size_t size;
    float slot[4096];
    int failed = 0;
    snprintf(path, sizeof path, "%s/shard-00002.bin", folder);
    unsigned char *bytes = scratch_read(path, &size);
    bytes[100] ^= 4;
    scratch_write(path, bytes, size);
    free(bytes);
    mark_all(checkpoint, set);
    tr_chunk_reader reader;
    tr_chunk_reader_init(&reader, checkpoint);
    while (tr_checkpoint_portion_next(checkpoint, set, 0, &portion)) {
        tr_status checked = tr_chunk_portion_read(&reader, set, &portion, NULL);
        failed +=
            checked == TR_ERR_CHECKPOINT && strstr(tr_error_message(), "shard-00002.bin") != NULL;
        assert_int_equal(tr_chunk_portion_read(&reader, set, &portion, slot), checked);
    }
    tr_chunk_reader_clear(&reader);
    assert_int_equal(failed, 1);
    free(set);
    tr_checkpoint_close(checkpoint);
}

static int num_open_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Two readers in turn at the same files: neither closes one that the other is at, and none stays open. */
static void test_readers_share_files(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1);
    tr_chunk_word *set = set_make(checkpoint);
    tr_chunk_portion portions[2] = {{0, 0}, {0, 0}};
    tr_chunk_reader readers[2];
    float slot[4096];
    int before = num_open_files();
    mark_all(checkpoint, set);
    for (int r = 0; r < 2; r++)
        tr_chunk_reader_init(&readers[r], checkpoint);
    for (int turn = 0; turn < 3; turn++) /* the second is a portion behind */
        assert_true(tr_checkpoint_portion_next(checkpoint, set, 0, &portions[0]));
    bool more = true;
    while (more) {
        for (int r = 0; r < 2; r++)
            assert_int_equal(tr_chunk_portion_read(&readers[r], set, &portions[r], slot), TR_OK);
        more = tr_checkpoint_portion_next(checkpoint, set, 0, &portions[0]) &&
               tr_checkpoint_portion_next(checkpoint, set, 0, &portions[1]);
    }
    assert_int_equal(tr_chunk_portion_read(&readers[0], set, &portions[1], slot), TR_OK);
    tr_chunk_reader_clear(&readers[0]);
    assert_int_equal(num_open_files(), before + 1);
    assert_int_equal(tr_chunk_portion_read(&readers[1], set, &portions[1], slot), TR_OK);
    tr_chunk_reader_clear(&readers[1]);
    assert_int_equal(num_open_files(), before);
    free(set);
    tr_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_portions_have_every_chunk_once),
        cmocka_unit_test(test_a_set_has_what_any_reader_needs),
        cmocka_unit_test(test_an_empty_set_has_no_portion),
        cmocka_unit_test(test_a_damaged_chunk_is_named),
        cmocka_unit_test(test_readers_share_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
