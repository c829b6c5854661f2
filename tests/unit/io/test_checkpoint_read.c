/* An opened checkpoint: any part of any tensor, layout-free hashes; missing, swapped, overlapping
 * and incomplete files are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/box_cover.h"
#include "io/checkpoint_read.h"
#include "tests/unit/io/checkpoint_fixture.h"
#include "tests/unit/io/io_scratch.h"

enum { MATRIX = FIXTURE_ROWS * FIXTURE_COLUMNS };

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

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static tr_checkpoint *open_written(int level, fixture_fault fault)
{
    tr_checkpoint *checkpoint = NULL;
    fixture_checkpoint_write(folder, level, fault);
    assert_int_equal(tr_checkpoint_open(&checkpoint, folder), TR_OK);
    return checkpoint;
}

static void test_any_interval_of_any_cut_is_read(void **state)
{
    (void)state;
    for (int level = 0; level < 2; level++) {
        tr_checkpoint *checkpoint = open_written(level, FIXTURE_WHOLE);
        tr_box whole = tr_checkpoint_tensor_box(checkpoint, 0);
        static float all[MATRIX], got[MATRIX], expected[MATRIX];
        fixture_values(0, TR_SHARD_M, all);
        for (int begin = 0; begin < MATRIX; begin += 61)
            for (int end = begin + 1; end <= MATRIX; end += 97) {
                tr_box pieces[TR_BOX_MAX_PIECES];
                int count = tr_box_from_interval(&whole, begin, end, pieces);
                memset(got, 0xff, sizeof got);
                assert_int_equal(tr_checkpoint_read(checkpoint, 0, TR_SHARD_M, pieces, count, got),
                                 TR_OK);
                assert_memory_equal(got, all + begin, (size_t)(end - begin) * sizeof(float));
            }
        /* A column cut that no rank wrote. */
        tr_box cut = tr_box_2d(3, 30, 7, 9);
        tr_box_copy(sizeof(float), &whole, all, &cut, expected);
        assert_int_equal(tr_checkpoint_cover(checkpoint, 0, TR_SHARD_M, &cut), TR_OK);
        assert_int_equal(tr_checkpoint_read(checkpoint, 0, TR_SHARD_M, &cut, 1, got), TR_OK);
        assert_memory_equal(got, expected, 30 * 9 * sizeof(float));
        tr_checkpoint_close(checkpoint);
    }
}

static void test_only_chunks_that_are_needed_are_read(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(0, FIXTURE_WHOLE);
    tr_box corner = tr_box_2d(0, 1, 0, 1);
    float value, first[MATRIX];
    assert_int_equal(tr_checkpoint_read(checkpoint, 0, TR_SHARD_MASTER, &corner, 1, NULL), TR_OK);
    assert_int_equal(tr_checkpoint_bytes_read(checkpoint), 256); /* one chunk */
    assert_int_equal(tr_checkpoint_read(checkpoint, 0, TR_SHARD_MASTER, &corner, 1, &value), TR_OK);
    assert_int_equal(tr_checkpoint_bytes_read(checkpoint), 512);
    fixture_values(0, TR_SHARD_MASTER, first);
    assert_memory_equal(&value, first, sizeof value);
    tr_checkpoint_close(checkpoint);
}

static void test_hashes_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1, FIXTURE_WHOLE);
    static float values[MATRIX];
    for (int tensor = 0; tensor < 2; tensor++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
            tr_hash128 hash;
            size_t count = tensor == 0 ? MATRIX : FIXTURE_VECTOR;
            fixture_values(tensor, (tr_shard_kind)kind, values);
            assert_int_equal(tr_checkpoint_hash(checkpoint, tensor, (tr_shard_kind)kind, &hash),
                             TR_OK);
            assert_true(tr_hash128_equal(hash, tr_hash128_compute(values, count * sizeof(float))));
        }
    tr_checkpoint_close(checkpoint);
}

static void expect_not_opened(const char *file, const char *part)
{
    tr_checkpoint *checkpoint = NULL;
    assert_int_equal(tr_checkpoint_open(&checkpoint, folder), TR_ERR_CHECKPOINT);
    if (strstr(tr_error_message(), file) == NULL || strstr(tr_error_message(), part) == NULL)
        fail_msg("expected \"%s\" and \"%s\" in: %s", file, part, tr_error_message());
}

static void test_files_that_do_not_belong_are_named(void **state)
{
    (void)state;
    fixture_checkpoint_write(folder, 1, FIXTURE_WHOLE);
    const char *one = in_folder("shard-00001.bin"), *two = in_folder("shard-00002.bin");
    const char *aside = in_folder("aside");
    /* Missing. */
    assert_int_equal(rename(one, aside), 0);
    expect_not_opened("shard-00001.bin", "No such file");
    /* Two swapped. */
    assert_int_equal(rename(two, one), 0);
    assert_int_equal(rename(aside, two), 0);
    expect_not_opened("shard-00001.bin", "manifest");
    /* One of another save, of the same size. */
    fixture_checkpoint_write(folder, 0, FIXTURE_OTHER);
    assert_int_equal(rename(two, aside), 0);
    fixture_checkpoint_write(folder, 0, FIXTURE_WHOLE);
    assert_int_equal(rename(aside, two), 0);
    expect_not_opened("shard-00002.bin", "another checkpoint's");
    /* And of another size. */
    fixture_checkpoint_write(folder, 1, FIXTURE_WHOLE);
    size_t size;
    unsigned char *manifest = scratch_read(in_folder("manifest.json"), &size);
    fixture_checkpoint_write(folder, 1, FIXTURE_OVERLAP);
    scratch_write(in_folder("manifest.json"), manifest, size);
    free(manifest);
    expect_not_opened("shard-00003.bin", "manifest");
    /* No manifest. */
    unlink(in_folder("manifest.json"));
    expect_not_opened("manifest.json", "No such file");
}

static void test_a_flipped_byte_is_found_before_values_are_given(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1, FIXTURE_WHOLE);
    size_t size;
    const char *path = in_folder("shard-00002.bin");
    unsigned char *bytes = scratch_read(path, &size);
    bytes[100] ^= 4;
    scratch_write(path, bytes, size);
    free(bytes);
    int failed = 0;
    static float values[MATRIX];
    for (int tensor = 0; tensor < 2; tensor++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
            tr_box whole = tr_checkpoint_tensor_box(checkpoint, tensor);
            tr_status check =
                tr_checkpoint_read(checkpoint, tensor, (tr_shard_kind)kind, &whole, 1, NULL);
            assert_int_equal(
                tr_checkpoint_read(checkpoint, tensor, (tr_shard_kind)kind, &whole, 1, values),
                check);
            failed +=
                check == TR_ERR_CHECKPOINT && strstr(tr_error_message(), "shard-00002.bin") != NULL;
        }
    assert_int_equal(failed, 1);
    tr_checkpoint_close(checkpoint);
}

static void test_every_element_must_be_there_once(void **state)
{
    (void)state;
    tr_checkpoint *checkpoint = open_written(1, FIXTURE_GAP);
    tr_box whole = tr_checkpoint_tensor_box(checkpoint, 0),
           top = tr_box_2d(0, 10, 0, FIXTURE_COLUMNS);
    assert_int_equal(tr_checkpoint_cover(checkpoint, 0, TR_SHARD_V, &whole), TR_ERR_CHECKPOINT);
    assert_non_null(strstr(tr_error_message(), "a.weight (v): 1 of 814"));
    assert_int_equal(tr_checkpoint_cover(checkpoint, 0, TR_SHARD_V, &top), TR_OK);
    tr_checkpoint_close(checkpoint);

    checkpoint = open_written(1, FIXTURE_OVERLAP);
    assert_int_equal(tr_checkpoint_cover(checkpoint, 0, TR_SHARD_V, &whole), TR_ERR_CHECKPOINT);
    assert_non_null(strstr(tr_error_message(), "shard-00001.bin and shard-00003.bin"));
    assert_int_equal(tr_checkpoint_cover(checkpoint, 0, TR_SHARD_V, &top), TR_OK);
    tr_checkpoint_close(checkpoint);
}

static void test_cover_counts_overlaps_that_make_up_for_gaps(void **state)
{
    (void)state;
    const tr_cover_part *a, *b;
    int64_t missing;
    tr_box target = tr_box_2d(0, 4, 0, 4);
    tr_cover_part parts[] = {
        {tr_box_2d(2, 2, 0, 4), 2}, {tr_box_2d(0, 2, 0, 2), 0}, {tr_box_2d(0, 2, 2, 2), 1}};
    assert_int_equal(tr_box_cover(&target, parts, 3, &a, &b, &missing), TR_COVER_EXACT);
    tr_cover_part twice[] = {{tr_box_2d(2, 2, 0, 4), 2},
                             {tr_box_2d(0, 2, 0, 2), 0},
                             {tr_box_2d(1, 2, 1, 2), 1}}; /* sixteen elements in all */
    assert_int_equal(tr_box_cover(&target, twice, 3, &a, &b, &missing), TR_COVER_OVERLAP);
    assert_int_equal(tr_box_cover(&target, parts, 2, &a, &b, &missing), TR_COVER_GAP);
    assert_int_equal(missing, 8);
    assert_int_equal(tr_box_cover(&target, parts, 0, &a, &b, &missing), TR_COVER_GAP);
    assert_int_equal(missing, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_interval_of_any_cut_is_read),
        cmocka_unit_test(test_only_chunks_that_are_needed_are_read),
        cmocka_unit_test(test_hashes_do_not_depend_on_the_cut),
        cmocka_unit_test(test_files_that_do_not_belong_are_named),
        cmocka_unit_test(test_a_flipped_byte_is_found_before_values_are_given),
        cmocka_unit_test(test_every_element_must_be_there_once),
        cmocka_unit_test(test_cover_counts_overlaps_that_make_up_for_gaps),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
