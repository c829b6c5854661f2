/* The manifest: what is written comes back; a damaged or a crafted one is refused with its name. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "tests/unit/io/checkpoint_fixture.h"
#include "tests/unit/io/io_scratch.h"

static char folder[64];

static const char *manifest_path(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    return path;
}

static int setup(void **state)
{
    (void)state;
    fixture_folder_make(folder);
    fixture_checkpoint_write(folder, 1, FIXTURE_WHOLE);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_folder_remove(folder);
    return 0;
}

static void test_what_is_written_comes_back(void **state)
{
    (void)state;
    tr_manifest manifest;
    assert_int_equal(tr_manifest_read(manifest_path(), &manifest), TR_OK);
    assert_int_equal(manifest.step, 7);
    assert_int_equal(manifest.samples, 56);
    assert_int_equal(manifest.updates, 6);
    assert_int_equal(manifest.skips_in_row, 1);
    assert_true(manifest.seed == UINT64_MAX);
    assert_true(manifest.scale == 1024 && manifest.good_steps == 3 && manifest.loss == 2.5);
    assert_string_equal(manifest.numerics, "cpu test");
    assert_string_equal(manifest.config, "train:\n  steps: 10\n");
    assert_true(manifest.kinds[0] && manifest.kinds[1] && manifest.kinds[2]);
    assert_int_equal(manifest.num_params, 3);
    assert_string_equal(manifest.params[0].name, "a.weight");
    assert_int_equal(manifest.params[0].num_dims, 2);
    assert_int_equal(manifest.params[0].shape[0], FIXTURE_ROWS);
    assert_int_equal(manifest.params[0].shape[1], FIXTURE_COLUMNS);
    assert_int_equal(manifest.params[1].num_dims, 1);
    assert_int_equal(manifest.params[0].tied_to, -1);
    assert_int_equal(manifest.params[2].tied_to, 0);
    assert_int_equal(tr_manifest_find(&manifest, "c.weight"), 2);
    assert_int_equal(tr_manifest_find(&manifest, "d"), -1);
    assert_int_equal(manifest.num_files, FIXTURE_RANKS);
    assert_string_equal(manifest.files[3].name, "shard-00003.bin");

    /* Written again it is the same file, and a loss that is not known stays so. */
    size_t size, size_again;
    unsigned char *bytes = scratch_read(manifest_path(), &size);
    assert_int_equal(tr_manifest_write(manifest_path(), &manifest), TR_OK);
    unsigned char *again = scratch_read(manifest_path(), &size_again);
    assert_int_equal(size, size_again);
    assert_memory_equal(bytes, again, size);
    free(again);
    manifest.loss = NAN;
    assert_int_equal(tr_manifest_write(manifest_path(), &manifest), TR_OK);
    tr_manifest_clear(&manifest);
    assert_int_equal(tr_manifest_read(manifest_path(), &manifest), TR_OK);
    assert_true(isnan(manifest.loss));
    tr_manifest_clear(&manifest);
    scratch_write(manifest_path(), bytes, size);
    free(bytes);
}

static void expect_refused(const char *part)
{
    tr_manifest manifest;
    if (tr_manifest_read(manifest_path(), &manifest) != TR_ERR_CHECKPOINT)
        fail_msg("expected a refusal with \"%s\"", part);
    assert_non_null(strstr(tr_error_message(), manifest_path()));
    if (strstr(tr_error_message(), part) == NULL)
        fail_msg("expected \"%s\" in: %s", part, tr_error_message());
}

static void test_the_last_line_is_the_hash_of_what_is_before(void **state)
{
    (void)state;
    size_t size;
    char text[TR_HASH128_TEXT];
    unsigned char *bytes = scratch_read(manifest_path(), &size);
    tr_hash128_to_text(tr_hash128_compute(bytes, size - 33), text);
    assert_memory_equal(bytes + size - 33, text, 32);
    assert_int_equal(bytes[size - 34], '\n');
    assert_int_equal(bytes[size - 1], '\n');
    for (size_t at = 0; at < size; at++) {
        int fd = open(manifest_path(), O_WRONLY);
        unsigned char other = bytes[at] ^ 1;
        assert_int_equal(pwrite(fd, &other, 1, (off_t)at), 1);
        expect_refused("damaged");
        assert_int_equal(pwrite(fd, bytes + at, 1, (off_t)at), 1);
        close(fd);
    }
    for (size_t length = size; length-- > 0;) {
        assert_int_equal(truncate(manifest_path(), (off_t)length), 0);
        expect_refused("damaged");
    }
    assert_int_equal(unlink(manifest_path()), 0);
    expect_refused("cannot open");
    scratch_write(manifest_path(), bytes, size);
    free(bytes);
}

/* The document with `from` replaced by `to` (or cut off there) and a right hash. */
static void write_changed(const char *from, const char *to)
{
    size_t size;
    char hash[TR_HASH128_TEXT];
    unsigned char *bytes = scratch_read(manifest_path(), &size);
    bytes[size - 33] = '\0';
    const char *document = (const char *)bytes, *at = strstr(document, from);
    assert_non_null(at);
    char *changed = malloc(size + strlen(to) + 64);
    int length =
        sprintf(changed, "%.*s%s%s", (int)(at - document), document, to, at + strlen(from));
    tr_hash128_to_text(tr_hash128_compute(changed, (size_t)length), hash);
    length += sprintf(changed + length, "%s\n", hash);
    scratch_write(manifest_path(), changed, (size_t)length);
    free(changed);
    free(bytes);
}

static void test_crafted_documents_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *part;
    } changes[] = {
        {"{", "", ":2:"},
        {"\"step\": 7", "\"step\": 7, \"step\": 8", "duplicate"},
        {"trine checkpoint", "another", "\"format\""},
        {"\"version\": 1", "\"version\": 2", "checkpoint format 2"},
        {"\"step\": 7", "\"step\": -7", "\"step\""},
        {"\"step\": 7", "\"step\": 7.5", "\"step\""},
        {"\"samples\": 56", "\"sample\": 56", "\"samples\""},
        {"\"samples\": 56", "\"samples\": 9223372036854775800", "\"samples\""},
        {"\"updates\": 6", "\"updates\": \"6\"", "\"updates\""},
        {"18446744073709551615", "18446744073709551616", "\"seed\""},
        {"18446744073709551615", "-1", "\"seed\""},
        {"\"scale\": 1024.0", "\"scale\": 0", "\"scale\""},
        {"\"good_steps\": 3", "\"good_steps\": null", "\"good_steps\""},
        {"\"loss\": 2.5", "\"loss\": \"2\"", "\"loss\""},
        {"\"cpu test\"", "[]", "\"numerics\""},
        {"\"master\"", "\"masters\"", "\"kinds\""},
        {"\"master\"", "\"m\"", "\"kinds\""},
        {"\"a.weight\"", "\"b.bias\"", "twice"},
        {"\"a.weight\"", "\"a weight\"", "\"name\""},
        {"\"a.weight\"", "\"\"", "\"name\""},
        {" 37", "0", "shape"},
        {" 37", "-37", "shape"},
        {" 37", "1152921504606846976", "shape"},
        {" 37", "2, 37", "shape"},
        {"129", "", "shape"},
        {"\"tied_to\": \"a.weight\"", "\"tied_to\": \"b.bias\"", "\"tied_to\""},
        {"\"tied_to\": \"a.weight\"", "\"tied_to\": \"c.weight\"", "\"tied_to\""},
        {"\"tied_to\": \"a.weight\"", "\"tied_to\": \"z\"", "\"tied_to\""},
        {"shard-00001.bin", "../shard-1.bin", "\"name\""},
        {"shard-00001.bin", "shard-1.bin", "\"name\""},
        {"shard-00000.bin", "../shard-00.bin", "\"name\""},
        {"shard-00003.bin", "shard-0003/.bin", "\"name\""},
        {"shard-00001.bin", "shard-00000.bin", "\"name\""},
        {"\"table_hash\": \"", "\"table_hash\": \"0", "\"table_hash\""},
        {"\"files\"", "\"file\"", "\"files\""},
        {"\"params\"", "\"param\"", "\"params\""},
    };
    size_t size;
    unsigned char *bytes = scratch_read(manifest_path(), &size);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        write_changed(changes[i].from, changes[i].to);
        expect_refused(changes[i].part);
        scratch_write(manifest_path(), bytes, size);
    }
    free(bytes);
}

static void expect_incomplete(const tr_manifest *manifest, const char *expected)
{
    char *wrong = tr_manifest_find_incomplete(manifest, folder);
    assert_non_null(wrong);
    assert_string_equal(wrong, expected);
    tr_free(wrong);
}

static void test_files_that_are_not_whole_are_named(void **state)
{
    (void)state;
    tr_manifest manifest;
    char path[128];
    size_t size;
    int64_t bytes = 0;
    assert_int_equal(tr_manifest_read(manifest_path(), &manifest), TR_OK);
    assert_null(tr_manifest_find_incomplete(&manifest, folder));
    for (int i = 0; i < FIXTURE_RANKS; i++)
        bytes += manifest.files[i].bytes;
    assert_int_equal(tr_manifest_bytes(&manifest), bytes);
    snprintf(path, sizeof path, "%s/shard-00003.bin", folder);
    unsigned char *file = scratch_read(path, &size);
    assert_int_equal(size, manifest.files[3].bytes);
    assert_int_equal(truncate(path, (off_t)size - 1), 0);
    expect_incomplete(&manifest, "shard-00003.bin has another size");
    assert_int_equal(unlink(path), 0);
    expect_incomplete(&manifest, "shard-00003.bin is missing");
    scratch_write(path, file, size);
    free(file);
    assert_null(tr_manifest_find_incomplete(&manifest, folder));
    tr_manifest_clear(&manifest);
}

static void test_file_names(void **state)
{
    (void)state;
    char name[TR_MANIFEST_FILE];
    tr_manifest_file_name(123456, name);
    assert_string_equal(name, "shard-123456.bin");
    assert_true(tr_manifest_is_file_name("shard-123456.bin"));
    assert_true(tr_manifest_is_file_name("shard-00000.bin"));
    static const char *const others[] = {
        "shard-0.bin",       "shard-000001.bin", "shard-00000.bin.old",
        "shard--0001.bin",   "shard-00000",      "xshard-00000.bin",
        "shard-00000.bin/a", "manifest.json",    ""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(tr_manifest_is_file_name(others[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_comes_back),
        cmocka_unit_test(test_the_last_line_is_the_hash_of_what_is_before),
        cmocka_unit_test(test_crafted_documents_are_refused),
        cmocka_unit_test(test_files_that_are_not_whole_are_named),
        cmocka_unit_test(test_file_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
