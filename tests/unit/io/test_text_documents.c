/* io/text_documents: where texts are cut, that no byte is lost, and compressed input. */
#include "io/text_documents.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

#include "tests/unit/io/io_scratch.h"

/* What a sink saw: documents joined with '|', an empty one as "~". */
typedef struct record {
    char *text;
    size_t size, room;
    uint64_t documents, empty, last_offset;
} record;

static void add(record *seen, const void *bytes, size_t size)
{
    if (seen->size + size + 1 > seen->room) {
        seen->room = 2 * (seen->size + size + 1);
        seen->text = realloc(seen->text, seen->room);
    }
    memcpy(seen->text + seen->size, bytes, size);
    seen->size += size;
    seen->text[seen->size] = '\0';
}

static tr_status on_begin(void *context, uint64_t offset)
{
    ((record *)context)->last_offset = offset;
    return TR_OK;
}

static tr_status on_text(void *context, const unsigned char *bytes, size_t size)
{
    assert_true(size > 0);
    add(context, bytes, size);
    return TR_OK;
}

static tr_status on_end(void *context, bool empty)
{
    record *seen = context;
    seen->documents++;
    seen->empty += empty;
    add(seen, empty ? "~" : "|", 1);
    return TR_OK;
}

static void read_text(record *seen, const char *path, tr_text_split split, uint64_t min_bytes,
                      uint64_t *offset)
{
    const tr_text_options options = {split, min_bytes};
    const tr_text_sink sink = {seen, on_begin, on_text, on_end};
    add(seen, "", 0);
    assert_int_equal(tr_text_documents_read(path, &options, &sink, offset), TR_OK);
}

static void expect_cut(const char *text, tr_text_split split, uint64_t min_bytes,
                       const char *expected)
{
    record seen = {0};
    uint64_t offset = 0, size = 0;
    scratch_write(scratch_path("text"), text, strlen(text));
    read_text(&seen, scratch_path("text"), split, min_bytes, &offset);
    assert_string_equal(seen.text, expected);
    assert_int_equal(offset, strlen(text));
    assert_int_equal(tr_text_documents_measure(scratch_path("text"), &size), TR_OK);
    assert_int_equal(size, strlen(text));
    free(seen.text);
}

static void test_paragraphs_and_entries(void **state)
{
    (void)state;
    const char *text = "\n\nA\n  a\n\n   b\n\n\nC\r\n\r\nD\n";
    expect_cut(text, TR_TEXT_PARAGRAPH, 0, "\n\nA\n  a\n\n|   b\n\n\n|C\r\n\r\n|D\n|");
    expect_cut(text, TR_TEXT_ENTRY, 0, "\n\nA\n  a\n\n   b\n\n\n|C\r\n\r\n|D\n|");
    expect_cut(text, TR_TEXT_PARAGRAPH, 9, "\n\nA\n  a\n\n|   b\n\n\nC\r\n\r\n|D\n|");
    expect_cut(text, TR_TEXT_PARAGRAPH, 1000, "\n\nA\n  a\n\n   b\n\n\nC\r\n\r\nD\n|");
    expect_cut("one", TR_TEXT_PARAGRAPH, 0, "one|");
    expect_cut(" \n\n \t\r\n", TR_TEXT_PARAGRAPH, 0, " \n\n \t\r\n~");
    expect_cut("", TR_TEXT_PARAGRAPH, 0, "");
}

/* Empty first, in the middle, two in a row, last, and only empty ones. */
static void test_lines_and_empty_documents(void **state)
{
    (void)state;
    expect_cut("\na\n\n\nb\n\n", TR_TEXT_LINE, 0, "~a|~~b|~");
    expect_cut("a\nb", TR_TEXT_LINE, 0, "a|b|");
    expect_cut("\n\n", TR_TEXT_LINE, 0, "~~");
    expect_cut("a\r\nb\rc\r\r\n\r\nd\r", TR_TEXT_LINE, 0, "a|b\rc\r|~d\r|");
    expect_cut("", TR_TEXT_LINE, 0, "");
}

static void test_files_and_empty_files(void **state)
{
    (void)state;
    expect_cut("a\n\nb\n", TR_TEXT_FILE, 0, "a\n\nb\n|");
    expect_cut("", TR_TEXT_FILE, 0, "~");
    expect_cut(" \n", TR_TEXT_FILE, 0, " \n~");
}

/* Offsets go on over files, and a document never spans two. */
static void test_several_files(void **state)
{
    (void)state;
    record seen = {0};
    uint64_t offset = 0;
    scratch_write(scratch_path("1"), "ab", 2);
    scratch_write(scratch_path("2"), "cd\n\nef", 6);
    read_text(&seen, scratch_path("1"), TR_TEXT_PARAGRAPH, 100, &offset);
    read_text(&seen, scratch_path("2"), TR_TEXT_PARAGRAPH, 0, &offset);
    assert_string_equal(seen.text, "ab|cd\n\n|ef|");
    assert_int_equal(seen.last_offset, 6);
    assert_int_equal(offset, 8);
    free(seen.text);
}

/* Line ends at every place relative to the reader's block border, which is 2^18. */
static void test_block_borders(void **state)
{
    (void)state;
    enum { SIZE = (1 << 18) + 64 };
    char *text = malloc(SIZE + 1);
    for (int shift = 0; shift < 12; shift++) {
        memset(text, 'x', SIZE);
        text[SIZE] = '\0';
        memcpy(text + (1 << 18) - shift, "\r\nyy\r\rz\r\n", 9);
        record seen = {0};
        uint64_t offset = 0;
        scratch_write(scratch_path("text"), text, SIZE);
        read_text(&seen, scratch_path("text"), TR_TEXT_LINE, 0, &offset);
        char *first = strchr(seen.text, '|');
        assert_int_equal(first - seen.text, (1 << 18) - shift);
        assert_memory_equal(first, "|yy\r\rz|x", 8);
        assert_int_equal(seen.documents, 3);
        free(seen.text);

        seen = (record){0};
        offset = 0;
        memcpy(text + (1 << 18) - shift, "\r\n\r\nyy\n\nz", 9);
        scratch_write(scratch_path("text"), text, SIZE);
        read_text(&seen, scratch_path("text"), TR_TEXT_PARAGRAPH, 0, &offset);
        first = strchr(seen.text, '|');
        assert_int_equal(first - seen.text, (1 << 18) - shift + 4);
        assert_memory_equal(first, "|yy\n\n|zx", 8);
        assert_int_equal(seen.documents, 3);
        free(seen.text);
    }
    free(text);
}

static void test_gzip_is_read_and_damage_is_refused(void **state)
{
    (void)state;
    enum { SIZE = 300000 };
    char *text = malloc(SIZE);
    for (int i = 0; i < SIZE; i++)
        text[i] = (char)('a' + i % 23 * i % 23);
    gzFile gz = gzopen(scratch_path("t.gz"), "wb");
    assert_int_equal(gzwrite(gz, text, SIZE), SIZE);
    gzclose(gz);
    record seen = {0};
    uint64_t offset = 0, size;
    read_text(&seen, scratch_path("t.gz"), TR_TEXT_FILE, 0, &offset);
    assert_int_equal(offset, SIZE);
    assert_memory_equal(seen.text, text, SIZE);
    free(seen.text);
    free(text);

    size_t packed;
    unsigned char *bytes = scratch_read(scratch_path("t.gz"), &packed);
    scratch_write(scratch_path("cut.gz"), bytes, packed - 1);
    assert_int_equal(tr_text_documents_measure(scratch_path("cut.gz"), &size), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "cut.gz"));
    scratch_write(scratch_path("cut.gz"), bytes, packed / 2);
    assert_int_equal(tr_text_documents_measure(scratch_path("cut.gz"), &size), TR_ERR_DATA);
    bytes[packed - 6] ^= 1; /* in the checksum */
    scratch_write(scratch_path("bad.gz"), bytes, packed);
    assert_int_equal(tr_text_documents_measure(scratch_path("bad.gz"), &size), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "damaged or cut"));
    free(bytes);
    assert_int_equal(tr_text_documents_measure(scratch_path("none"), &size), TR_ERR_DATA);
    assert_int_equal(tr_text_documents_measure("/tmp", &size), TR_ERR_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paragraphs_and_entries),
        cmocka_unit_test(test_lines_and_empty_documents),
        cmocka_unit_test(test_files_and_empty_files),
        cmocka_unit_test(test_several_files),
        cmocka_unit_test(test_block_borders),
        cmocka_unit_test(test_gzip_is_read_and_damage_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
