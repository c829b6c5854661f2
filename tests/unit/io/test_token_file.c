/* io/token_file: the formats to the byte, stream reading, and every damaged header field
 * refused. */
#include "io/token_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/io/io_scratch.h"

/* Lengths 3, 2, 4; documents {0, 1}, {2}; u16. */
static const unsigned char vector_idx[94] = {
    0x4d, 0x4d, 0x49, 0x44, 0x49, 0x44, 0x58, 0, 0, 1, 0, 0, 0, 0, 0,  0, 0, 8, 3, 0, 0, 0, 0, 0,
    0,    0,    3,    0,    0,    0,    0,    0, 0, 0, 3, 0, 0, 0, 2,  0, 0, 0, 4, 0, 0, 0, 0, 0,
    0,    0,    0,    0,    0,    0,    6,    0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0,    0,    0,    0,    0,    0,    2,    0, 0, 0, 0, 0, 0, 0, 3,  0, 0, 0, 0, 0, 0, 0};
static const unsigned char vector_bin[18] = {10, 0,  11, 0,  12, 0,  20, 0,  21,
                                             0,  30, 0,  31, 0,  32, 0,  33, 0xff};

static void write_vector(void)
{
    scratch_write(scratch_path("v.idx"), vector_idx, sizeof vector_idx);
    scratch_write(scratch_path("v.bin"), vector_bin, sizeof vector_bin);
}

static void test_vector_is_read(void **state)
{
    (void)state;
    static const int32_t expected[9] = {10, 11, 12, 20, 21, 30, 31, 32, 33 | 0xff00};
    static const char *const names[] = {"v", "v.bin", "v.idx"};
    write_vector();
    for (int i = 0; i < 3; i++) {
        tr_token_file *file;
        assert_int_equal(tr_token_file_open(&file, scratch_path(names[i])), TR_OK);
        const tr_token_info *info = tr_token_file_info(file);
        assert_string_equal(info->format, "megatron");
        assert_string_equal(info->dtype, "u16");
        assert_string_equal(info->path, scratch_path("v.bin"));
        assert_int_equal(info->num_tokens, 9);
        assert_int_equal(info->num_sequences, 3);
        assert_int_equal(info->num_documents, 2);
        for (uint64_t first = 0; first <= 9; first++) {
            for (uint64_t count = 0; count <= 9 - first; count++) {
                int32_t ids[10] = {-7, -7, -7, -7, -7, -7, -7, -7, -7, -7};
                assert_int_equal(tr_token_file_read(file, first, count, ids), TR_OK);
                assert_memory_equal(ids, expected + first, 4 * count);
                assert_int_equal(ids[count], -7);
            }
        }
        tr_token_file_close(file);
    }
}

static void test_documents_are_found(void **state)
{
    (void)state;
    tr_token_file *file;
    tr_token_document document;
    write_vector();
    assert_int_equal(tr_token_file_open(&file, scratch_path("v")), TR_OK);
    for (uint64_t token = 0; token < 9; token++) {
        tr_token_file_locate(file, token, &document);
        assert_int_equal(document.index, token < 5 ? 0 : 1);
        assert_int_equal(document.first_token, token < 5 ? 0 : 5);
        assert_int_equal(document.num_tokens, token < 5 ? 5 : 4);
    }
    tr_token_file_document(file, 1, &document);
    assert_int_equal(document.first_token, 5);
    tr_token_file_close(file);
}

/* Opens the damaged pair d.*; it must be refused as data, naming the file and `expected`
 * somewhere. */
static void expect_refused(const char *name, const char *expected)
{
    tr_token_file *file = NULL;
    tr_status status = tr_token_file_open(&file, scratch_path(name));
    if (status == TR_OK)
        fail_msg("a file that should be refused (%s) was opened", expected);
    assert_int_equal(status, TR_ERR_DATA);
    assert_null(file);
    if (strstr(tr_error_message(), expected) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), expected);
    assert_non_null(strstr(tr_error_message(), "/trine-test-"));
}

static void test_damaged_megatron_index_is_refused(void **state)
{
    (void)state;
    static const struct {
        int at, bytes;
        uint64_t value;
        const char *message;
    } rows[] = {
        {0, 1, 'X', "offset 0: expected the magic"},
        {9, 8, 2, "offset 9: version 2, expected 1"},
        {9, 8, 1ull << 32 | 1, "offset 9"},
        {17, 1, 0, "offset 17: dtype code 0"},
        {17, 1, 2, "offset 17"},
        {17, 1, 6, "offset 17"},
        {17, 1, 7, "offset 17"},
        {17, 1, 4, "expected to lie inside the 18 bytes"},
        {17, 1, 5, "expected to lie inside the 18 bytes"},
        {18, 8, 4, "expected"},
        {18, 8, 2, "expected"},
        {18, 8, 1ull << 62, "offset 18"},
        {18, 8, UINT64_MAX, "offset 18"},
        {18, 8, 0x1555555555555556ull, "offset 18"}, /* 12 * this wraps to 8 */
        {26, 8, 0, "offset 26"},
        {26, 8, 2, "94 bytes, expected 86"},
        {26, 8, 4, "offset 26"},
        {26, 8, 1ull << 61, "offset 26"}, /* 8 * this wraps to 0 */
        {26, 8, UINT64_MAX, "offset 26"},
        {34, 4, 0xffffffff, "offset 34: length -1 of sequence 0"},
        {42, 4, 5, "offset 62: sequence 2 has 5 tokens at byte 10"},
        {42, 4, 0x7fffffff, "offset 62"},
        {46, 8, UINT64_MAX, "offset 46: sequence 0 has 3 tokens at byte -1"},
        {54, 8, 15, "offset 54"},
        {62, 8, 19, "offset 62"},
        {62, 8, INT64_MAX, "offset 62"},
        {70, 8, 1, "offset 70: the first document entry is 1, expected 0"},
        {78, 8, 4, "offset 78: document entry 1 is 4"},
        {78, 8, UINT64_MAX, "offset 78: document entry 1 is -1"},
        {86, 8, 1, "offset 86"},
        {86, 8, 2, "offset 86: the last document entry is 2, expected 3"},
    };
    scratch_write(scratch_path("d.bin"), vector_bin, sizeof vector_bin);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char idx[sizeof vector_idx];
        memcpy(idx, vector_idx, sizeof idx);
        put_le(idx + rows[i].at, rows[i].value, rows[i].bytes);
        scratch_write(scratch_path("d.idx"), idx, sizeof idx);
        expect_refused("d", rows[i].message);
    }
}

/* No cut of the index, and no single changed byte, may crash; what is accepted must be readable
 * as a whole. */
static void test_any_cut_or_changed_byte_is_safe(void **state)
{
    (void)state;
    int32_t ids[256];
    scratch_write(scratch_path("d.bin"), vector_bin, sizeof vector_bin);
    for (size_t size = 0; size < sizeof vector_idx; size++) {
        scratch_write(scratch_path("d.idx"), vector_idx, size);
        expect_refused("d", size < 34 ? "expected at least the 34" : "expected");
    }
    unsigned char idx[sizeof vector_idx];
    memcpy(idx, vector_idx, sizeof idx);
    int accepted = 0;
    for (size_t at = 0; at < sizeof idx; at++) {
        for (int value = 0; value < 256; value += 51) {
            idx[at] = (unsigned char)(vector_idx[at] ^ value);
            scratch_write(scratch_path("d.idx"), idx, sizeof idx);
            tr_token_file *file;
            tr_status status = tr_token_file_open(&file, scratch_path("d"));
            if (status == TR_OK) {
                uint64_t tokens = tr_token_file_info(file)->num_tokens;
                assert_true(tokens <= 256);
                status = tr_token_file_read(file, 0, tokens, ids);
                assert_true(status == TR_OK || status == TR_ERR_DATA);
                accepted++;
                tr_token_file_close(file);
            } else {
                assert_int_equal(status, TR_ERR_DATA);
            }
        }
        idx[at] = vector_idx[at];
    }
    assert_true(accepted >= (int)sizeof idx); /* at least the unchanged ones */
    /* With one more byte per sequence it has modes; any other size is wrong. */
    unsigned char longer[sizeof vector_idx + 4] = {0};
    memcpy(longer, vector_idx, sizeof vector_idx);
    for (size_t extra = 1; extra <= 4; extra++) {
        scratch_write(scratch_path("d.idx"), longer, sizeof vector_idx + extra);
        tr_token_file *file;
        if (extra == 3) {
            assert_int_equal(tr_token_file_open(&file, scratch_path("d")), TR_OK);
            tr_token_file_close(file);
        } else {
            expect_refused("d", "with modes");
        }
    }
}

static void test_cut_or_missing_bin_is_refused(void **state)
{
    (void)state;
    scratch_write(scratch_path("d.idx"), vector_idx, sizeof vector_idx);
    scratch_write(scratch_path("d.bin"), vector_bin, sizeof vector_bin - 1);
    expect_refused("d", "17 bytes of ");
    scratch_write(scratch_path("d.bin"), vector_bin, 0);
    expect_refused("d", "0 bytes of ");
    unsigned char more[19] = {0};
    scratch_write(scratch_path("d.bin"), more, sizeof more);
    expect_refused("d", "a multiple of the 2 bytes");
    unlink(scratch_path("d.bin"));
    expect_refused("d", "cannot open the token file");
    expect_refused("nothing-here", "no such token file");
    scratch_write(scratch_path("text.txt"), "hello, these are words", 22);
    expect_refused("text.txt", "not a token file");
    /* A pipe without a writer must not hold the reader up. */
    assert_int_equal(mkfifo(scratch_path("pipe.bin"), 0600), 0);
    expect_refused("pipe.bin", "must be a regular file");
    expect_refused(".", "must be a regular file");
}

/* Writes an index of `count` sequences, one document each, with the given lengths and byte
 * pointers. */
static void write_index(const char *name, int code, int count, const uint32_t *lengths,
                        const uint64_t *pointers)
{
    size_t size = 34 + 12 * (size_t)count + 8 * ((size_t)count + 1);
    unsigned char *idx = calloc(1, size);
    memcpy(idx, vector_idx, 18);
    idx[17] = (unsigned char)code;
    put_le(idx + 18, (uint64_t)count, 8);
    put_le(idx + 26, (uint64_t)count + 1, 8);
    for (int i = 0; i < count; i++) {
        put_le(idx + 34 + 4 * i, lengths[i], 4);
        put_le(idx + 34 + 4 * count + 8 * i, pointers[i], 8);
    }
    for (int i = 0; i <= count; i++)
        put_le(idx + 34 + 12 * count + 8 * i, (uint64_t)i, 8);
    scratch_write(scratch_path(name), idx, size);
    free(idx);
}

/* 700 sequences of 0 to 4 tokens, laid out backwards: stream order must come from the pointers. */
static void test_pointers_in_any_order_and_empty_sequences(void **state)
{
    (void)state;
    enum { COUNT = 700 };
    static uint32_t lengths[COUNT];
    static uint64_t pointers[COUNT];
    static int32_t bin[4 * COUNT], expected[4 * COUNT];
    uint64_t total = 0, at = 0;
    for (int i = 0; i < COUNT; i++)
        total += lengths[i] = (uint32_t)((i * 7 + i / 5) % 5);
    uint64_t end = total;
    for (int i = 0; i < COUNT; i++) {
        end -= lengths[i];
        pointers[i] = 4 * end;
        for (uint32_t j = 0; j < lengths[i]; j++)
            expected[at++] = bin[end + j] = 1000 * i + (int32_t)j;
    }
    write_index("p.idx", 4, COUNT, lengths, pointers);
    scratch_write(scratch_path("p.bin"), bin, 4 * total);
    tr_token_file *file;
    assert_int_equal(tr_token_file_open(&file, scratch_path("p")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_tokens, total);
    for (uint64_t first = 0; first < total; first += 3) {
        int32_t ids[97];
        uint64_t count = total - first < 97 ? total - first : 97;
        tr_token_document document;
        assert_int_equal(tr_token_file_read(file, first, count, ids), TR_OK);
        assert_memory_equal(ids, expected + first, 4 * count);
        tr_token_file_locate(file, first, &document);
        assert_int_equal(document.index, expected[first] / 1000);
        assert_int_equal(first - document.first_token, expected[first] % 1000);
        assert_int_equal(document.num_tokens, lengths[document.index]);
    }
    tr_token_file_close(file);
}

static void test_documents_that_go_back_are_refused(void **state)
{
    (void)state;
    static const uint64_t entries[] = {0, 2, 1, 3};
    size_t size;
    write_index("d.idx", 8, 3, (uint32_t[]){3, 2, 4}, (uint64_t[]){0, 6, 10});
    scratch_write(scratch_path("d.bin"), vector_bin, sizeof vector_bin);
    unsigned char *idx = scratch_read(scratch_path("d.idx"), &size);
    for (int i = 0; i < 4; i++)
        put_le(idx + 70 + 8 * i, entries[i], 8);
    scratch_write(scratch_path("d.idx"), idx, size);
    free(idx);
    expect_refused("d", "offset 86: document entry 2 is 1, expected 2");
}

static void test_every_dtype(void **state)
{
    (void)state;
    static const struct {
        int code, bytes;
        const char *name;
        uint64_t values[3];
        int32_t expected[3];
    } rows[] = {
        {1, 1, "u8", {0, 255, 7}, {0, 255, 7}},
        {3, 2, "i16", {0, 32767, 7}, {0, 32767, 7}},
        {4, 4, "i32", {0, 0x7fffffff, 7}, {0, 0x7fffffff, 7}},
        {5, 8, "i64", {0, 0x7fffffff, 7}, {0, 0x7fffffff, 7}},
        {8, 2, "u16", {0, 65535, 7}, {0, 65535, 7}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        unsigned char bin[24];
        int32_t ids[3];
        tr_token_file *file;
        for (int i = 0; i < 3; i++)
            put_le(bin + rows[r].bytes * i, rows[r].values[i], rows[r].bytes);
        write_index("t.idx", rows[r].code, 1, (uint32_t[]){3}, (uint64_t[]){0});
        scratch_write(scratch_path("t.bin"), bin, 3 * (size_t)rows[r].bytes);
        assert_int_equal(tr_token_file_open(&file, scratch_path("t")), TR_OK);
        assert_string_equal(tr_token_file_info(file)->dtype, rows[r].name);
        assert_int_equal(tr_token_file_read(file, 0, 3, ids), TR_OK);
        assert_memory_equal(ids, rows[r].expected, sizeof ids);
        tr_token_file_close(file);
    }
}

/* Values that are no id must not be wrapped into one. */
static void test_impossible_ids_are_refused(void **state)
{
    (void)state;
    static const struct {
        int code, bytes;
        uint64_t value;
        const char *message;
    } rows[] = {
        {3, 2, 0x8000, "token id -32768"},
        {4, 4, 0xffffffff, "token id -1"},
        {5, 8, 1ull << 32, "token id 4294967296"},
        {5, 8, 1ull << 63, "token id -9223372036854775808"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        unsigned char bin[32] = {0};
        int32_t ids[4];
        tr_token_file *file;
        put_le(bin + 3 * rows[r].bytes, rows[r].value, rows[r].bytes);
        write_index("t.idx", rows[r].code, 2, (uint32_t[]){2, 2},
                    (uint64_t[]){0, 2 * (uint64_t)rows[r].bytes});
        scratch_write(scratch_path("t.bin"), bin, 4 * (size_t)rows[r].bytes);
        assert_int_equal(tr_token_file_open(&file, scratch_path("t")), TR_OK);
        assert_int_equal(tr_token_file_read(file, 0, 3, ids), TR_OK);
        assert_int_equal(tr_token_file_read(file, 0, 4, ids), TR_ERR_DATA);
        assert_non_null(strstr(tr_error_message(), rows[r].message));
        assert_non_null(strstr(tr_error_message(), "document 1, position 1"));
        tr_token_file_close(file);
    }
}

/* A 6 GB file without blocks: 3 documents of 1e9 tokens, real ids only in its last page. */
static void test_offsets_beyond_32_bits(void **state)
{
    (void)state;
    const uint64_t billion = 1000000000, total = 3 * billion;
    unsigned char page[4096];
    for (int i = 0; i < 2048; i++)
        put_le(page + 2 * i, (uint64_t)(i + 1), 2);
    int fd = open(scratch_path("big.bin"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(2 * total)), 0);
    assert_int_equal(pwrite(fd, page, 4096, (off_t)(2 * total - 4096)), 4096);
    close(fd);
    write_index("big.idx", 8, 3, (uint32_t[]){1000000000, 1000000000, 1000000000},
                (uint64_t[]){0, 2 * billion, 4 * billion});
    tr_token_file *file;
    assert_int_equal(tr_token_file_open(&file, scratch_path("big")), TR_OK);
    assert_true(tr_token_file_info(file)->num_tokens == total);
    int32_t ids[2049];
    assert_int_equal(tr_token_file_read(file, total - 2049, 2049, ids), TR_OK);
    assert_int_equal(ids[0], 0);
    for (int i = 1; i <= 2048; i++)
        assert_int_equal(ids[i], i);
    tr_token_document document;
    tr_token_file_locate(file, total - 1, &document);
    assert_int_equal(document.index, 2);
    assert_true(document.first_token == 2 * billion);
    tr_token_file_locate(file, 2 * billion - 1, &document);
    assert_int_equal(document.index, 1);
    tr_token_file_close(file);
}

static size_t make_llmc(unsigned char *bytes, uint32_t magic, uint32_t version, uint32_t tokens,
                        int width)
{
    memset(bytes, 0, 1024);
    put_le(bytes, magic, 4);
    put_le(bytes + 4, version, 4);
    put_le(bytes + 8, tokens, 4);
    for (uint32_t i = 0; i < tokens && i < 8; i++)
        put_le(bytes + 1024 + width * (int)i, width == 2 ? 50256 - i : 128000 + i, width);
    return 1024 + (size_t)width * (tokens < 8 ? tokens : 8);
}

static void test_llmc_versions_1_and_7(void **state)
{
    (void)state;
    unsigned char bytes[1100];
    int32_t ids[5];
    tr_token_file *file;
    scratch_write(scratch_path("l.bin"), bytes, make_llmc(bytes, 20240520, 1, 5, 2));
    assert_int_equal(tr_token_file_open(&file, scratch_path("l.bin")), TR_OK);
    assert_string_equal(tr_token_file_info(file)->format, "llm.c");
    assert_string_equal(tr_token_file_info(file)->dtype, "u16");
    assert_false(tr_token_file_info(file)->has_documents);
    assert_int_equal(tr_token_file_info(file)->num_tokens, 5);
    assert_int_equal(tr_token_file_read(file, 0, 5, ids), TR_OK);
    assert_int_equal(ids[0], 50256);
    assert_int_equal(ids[4], 50252);
    tr_token_file_close(file);

    scratch_write(scratch_path("l.bin"), bytes, make_llmc(bytes, 20240801, 7, 5, 4));
    assert_int_equal(tr_token_file_open(&file, scratch_path("l.bin")), TR_OK);
    assert_string_equal(tr_token_file_info(file)->dtype, "u32");
    assert_int_equal(tr_token_file_read(file, 1, 4, ids), TR_OK);
    assert_int_equal(ids[0], 128001);
    assert_int_equal(ids[3], 128004);
    tr_token_file_close(file);
}

static void test_damaged_llmc_header_is_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t magic, version, tokens;
        int cut; /* bytes added to the right size */
        const char *message;
    } rows[] = {
        {20240521, 1, 5, 0, "offset 0: magic 20240521"},
        {20240522, 1, 5, 0, "without a token stream"},
        {20240326, 3, 5, 0, "without a token stream"},
        {99, 1, 5, 0, "not a token file"},
        {20240520, 7, 5, 0, "offset 4: version 7, expected 1"},
        {20240801, 1, 5, 0, "offset 4: version 1, expected 7"},
        {20240520, 1, 0, 0, "offset 8: 0 tokens"},
        {20240520, 1, 5, -1, "1033 bytes, expected 1034"},
        {20240520, 1, 5, 1, "1035 bytes, expected 1034"},
        {20240520, 1, 0x7fffffff, 0, "expected 4294968318"},
        {20240520, 1, 0x80000000, 0, "offset 8"},
        {20240520, 1, 0xffffffff, 0, "offset 8: -1 tokens"},
        {20240520, 1, 5, -11, "at least the 1024"},
        {20240520, 1, 5, -1030, "at least the 1024"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char bytes[1100] = {0};
        size_t size = make_llmc(bytes, rows[i].magic, rows[i].version, rows[i].tokens, 2);
        scratch_write(scratch_path("l.bin"), bytes, (size_t)((int)size + rows[i].cut));
        expect_refused("l.bin", rows[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vector_is_read),
        cmocka_unit_test(test_documents_are_found),
        cmocka_unit_test(test_damaged_megatron_index_is_refused),
        cmocka_unit_test(test_any_cut_or_changed_byte_is_safe),
        cmocka_unit_test(test_cut_or_missing_bin_is_refused),
        cmocka_unit_test(test_pointers_in_any_order_and_empty_sequences),
        cmocka_unit_test(test_documents_that_go_back_are_refused),
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_impossible_ids_are_refused),
        cmocka_unit_test(test_offsets_beyond_32_bits),
        cmocka_unit_test(test_llmc_versions_1_and_7),
        cmocka_unit_test(test_damaged_llmc_header_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
