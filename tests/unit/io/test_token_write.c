/* io/token_write and io/tokenizer_bytes: what is written, to the byte, and that it appears whole
 * or not at all. */
#include "io/token_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/token_file.h"
#include "io/tokenizer_bytes.h"
#include "tests/unit/io/io_scratch.h"

static tr_token_writer *open_writer(const char *name, uint64_t vocab, tr_token_store store)
{
    tr_token_writer *writer;
    const tr_token_writer_options options = {scratch_path(name), vocab, store};
    assert_int_equal(tr_token_writer_open(&writer, &options), TR_OK);
    return writer;
}

static void put_document(tr_token_writer *writer, const int32_t *ids, size_t count)
{
    assert_int_equal(tr_token_writer_append(writer, ids, count), TR_OK);
    assert_int_equal(tr_token_writer_end_document(writer), TR_OK);
}

static void commit(tr_token_writer *writer)
{
    assert_int_equal(tr_token_writer_commit(writer), TR_OK);
    tr_token_writer_close(writer);
}

/* Three documents of one sequence each: the reference layout with pointers 0, 6, 10 and document
 * entries 0 to 3. */
static void test_bytes_of_both_files(void **state)
{
    (void)state;
    static const unsigned char expected_idx[102] = {
        0x4d, 0x4d, 0x49, 0x44, 0x49, 0x44, 0x58, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 3, 0, 0,
        0,    0,    0,    0,    0,    4,    0,    0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0,
        4,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 10,
        0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
        0,    0,    2,    0,    0,    0,    0,    0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    static const unsigned char expected_bin[18] = {1,    0, 2, 0, 3, 0, 4, 0, 0xda,
                                                   0xff, 5, 0, 6, 0, 7, 0, 8, 0};
    size_t size;
    tr_token_writer *writer = open_writer("w", 65499, TR_TOKEN_STORE_AUTO);
    put_document(writer, (const int32_t[]){1, 2, 3}, 3);
    put_document(writer, (const int32_t[]){4, 65498}, 2);
    put_document(writer, (const int32_t[]){5, 6, 7, 8}, 4);
    assert_false(scratch_exists(scratch_path("w.bin")));
    assert_false(scratch_exists(scratch_path("w.idx")));
    commit(writer);
    unsigned char *idx = scratch_read(scratch_path("w.idx"), &size);
    assert_int_equal(size, sizeof expected_idx);
    assert_memory_equal(idx, expected_idx, size);
    unsigned char *bin = scratch_read(scratch_path("w.bin"), &size);
    assert_int_equal(size, sizeof expected_bin);
    assert_memory_equal(bin, expected_bin, size);
    free(idx);
    free(bin);
    assert_false(scratch_exists(scratch_path("w.bin.tmp")));
    assert_false(scratch_exists(scratch_path("w.idx.tmp")));
    assert_false(scratch_exists(scratch_path("w.idx.lengths.tmp")));
}

/* The ids at the maximum of the vocabulary come back, and 16 bit is chosen only below 65500. */
static void test_width_follows_the_vocabulary(void **state)
{
    (void)state;
    static const struct {
        uint64_t vocab;
        size_t width;
    } rows[] = {{257, 2},   {65499, 2}, {65500, 4}, {65535, 4},     {65536, 4},
                {65537, 4}, {70000, 4}, {1, 2},     {0x7fffffff, 4}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        int32_t top = (int32_t)rows[r].vocab - 1, ids[2] = {top, 0}, back[2];
        tr_token_file *file;
        tr_token_writer *writer = open_writer("w", rows[r].vocab, TR_TOKEN_STORE_AUTO);
        assert_int_equal(tr_token_writer_item_size(writer), rows[r].width);
        put_document(writer, ids, 2);
        commit(writer);
        assert_int_equal(tr_token_file_open(&file, scratch_path("w")), TR_OK);
        assert_int_equal(tr_token_file_info(file)->item_size, rows[r].width);
        assert_int_equal(tr_token_file_read(file, 0, 2, back), TR_OK);
        assert_memory_equal(back, ids, sizeof ids);
        tr_token_file_close(file);
    }
}

static void test_forced_16_bit_names_the_id_that_does_not_fit(void **state)
{
    (void)state;
    static const int32_t fits[] = {65535}, too_big[] = {1, 65536}, beyond[] = {70000},
                         negative[] = {-1};
    tr_token_writer *writer = open_writer("f", 70000, TR_TOKEN_STORE_U16);
    put_document(writer, fits, 1);
    assert_int_equal(tr_token_writer_append(writer, too_big, 2), TR_ERR_DATA);
    assert_non_null(
        strstr(tr_error_message(), "document 1: token id 65536 does not fit in 16 bits"));
    assert_int_equal(tr_token_writer_append(writer, beyond, 1), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "token id 70000, expected 0 to 69999"));
    assert_int_equal(tr_token_writer_append(writer, negative, 1), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "token id -1"));
    tr_token_writer_close(writer);
    assert_false(scratch_exists(scratch_path("f.bin")));
    assert_false(scratch_exists(scratch_path("f.idx")));
    assert_false(scratch_exists(scratch_path("f.bin.tmp")));
    assert_false(scratch_exists(scratch_path("f.idx.tmp")));
}

static void test_a_writer_that_gives_up_leaves_the_old_files(void **state)
{
    (void)state;
    tr_token_file *file;
    int32_t id;
    tr_token_writer *writer = open_writer("o", 257, TR_TOKEN_STORE_AUTO);
    put_document(writer, (const int32_t[]){11}, 1);
    commit(writer);
    writer = open_writer("o", 257, TR_TOKEN_STORE_AUTO);
    put_document(writer, (const int32_t[]){22, 23}, 2);
    tr_token_writer_close(writer);
    assert_int_equal(tr_token_file_open(&file, scratch_path("o")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_tokens, 1);
    assert_int_equal(tr_token_file_read(file, 0, 1, &id), TR_OK);
    assert_int_equal(id, 11);
    tr_token_file_close(file);

    writer = open_writer("o", 257, TR_TOKEN_STORE_AUTO);
    put_document(writer, (const int32_t[]){22, 23}, 2);
    commit(writer);
    assert_int_equal(tr_token_file_open(&file, scratch_path("o")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_tokens, 2);
    tr_token_file_close(file);
}

/* Documents longer and shorter than the write buffer, given up at every place. */
static void test_discarded_documents_leave_no_trace(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    int32_t *ids = calloc(LONG, sizeof *ids), *back = calloc(LONG + 4, sizeof *back);
    for (int i = 0; i < LONG; i++)
        ids[i] = i % 251;
    tr_token_writer *writer = open_writer("x", 257, TR_TOKEN_STORE_AUTO);
    assert_int_equal(tr_token_writer_append(writer, ids, 5), TR_OK);
    assert_int_equal(tr_token_writer_discard_document(writer), TR_OK);
    put_document(writer, (const int32_t[]){1, 2}, 2);
    assert_int_equal(tr_token_writer_append(writer, ids, LONG), TR_OK);
    assert_int_equal(tr_token_writer_append(writer, ids, LONG), TR_OK);
    assert_int_equal(tr_token_writer_discard_document(writer), TR_OK);
    assert_int_equal(tr_token_writer_num_tokens(writer), 2);
    put_document(writer, ids, LONG);
    assert_int_equal(tr_token_writer_append(writer, ids, 7), TR_OK);
    assert_int_equal(tr_token_writer_discard_document(writer), TR_OK);
    put_document(writer, (const int32_t[]){3, 4}, 2);
    assert_int_equal(tr_token_writer_num_documents(writer), 3);
    commit(writer);
    tr_token_file *file;
    assert_int_equal(tr_token_file_open(&file, scratch_path("x")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_tokens, LONG + 4);
    assert_int_equal(tr_token_file_read(file, 0, LONG + 4, back), TR_OK);
    assert_int_equal(back[1], 2);
    assert_memory_equal(back + 2, ids, LONG * sizeof *ids);
    assert_int_equal(back[LONG + 2], 3);
    tr_token_file_close(file);
    free(ids);
    free(back);
}

/* More documents than one block of the length list; empty ones among them. */
static void test_many_documents_are_indexed(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    tr_token_writer *writer = open_writer("m", 257, TR_TOKEN_STORE_I32);
    for (int32_t i = 0; i < COUNT; i++) {
        const int32_t ids[3] = {i % 257, i / 257, 1};
        put_document(writer, ids, (size_t)(i % 4));
    }
    commit(writer);
    tr_token_file *file;
    tr_token_document document;
    assert_int_equal(tr_token_file_open(&file, scratch_path("m")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_documents, COUNT);
    for (int32_t i = 0; i < COUNT; i++) {
        int32_t ids[3];
        tr_token_file_document(file, (uint64_t)i, &document);
        assert_int_equal(document.num_tokens, i % 4);
        assert_int_equal(tr_token_file_read(file, document.first_token, document.num_tokens, ids),
                         TR_OK);
        if (i % 4 > 1)
            assert_int_equal(ids[0] + 257 * ids[1], i);
    }
    tr_token_file_close(file);
}

static void test_an_unwritable_place_is_an_error(void **state)
{
    (void)state;
    tr_token_writer *writer = NULL;
    const tr_token_writer_options options = {"/nonexistent-folder/x", 257, TR_TOKEN_STORE_AUTO};
    assert_int_equal(tr_token_writer_open(&writer, &options), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "/nonexistent-folder/x.bin.tmp"));
    assert_null(writer);
}

static void test_a_name_has_one_writer_at_a_time(void **state)
{
    (void)state;
    const int32_t ids[3] = {1, 2, 3};
    tr_token_writer *first = open_writer("one", 257, TR_TOKEN_STORE_AUTO), *second = NULL;
    put_document(first, ids, 3);
    char other[512];
    snprintf(other, sizeof other, "%s", scratch_path("./one"));
    const tr_token_writer_options options = {other, 257, TR_TOKEN_STORE_AUTO};
    assert_int_equal(tr_token_writer_open(&second, &options), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "one.bin.tmp: is being written already"));
    commit(first);
    tr_token_file *file;
    assert_int_equal(tr_token_file_open(&file, scratch_path("one")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_tokens, 3);
    tr_token_file_close(file);
    /* What a killed writer left is in nobody's way. */
    FILE *left = fopen(scratch_path("one.bin.tmp"), "w");
    assert_non_null(left);
    fputs("left over", left);
    fclose(left);
    second = open_writer("one", 257, TR_TOKEN_STORE_AUTO);
    put_document(second, ids, 2);
    commit(second);
    assert_int_equal(tr_token_file_open(&file, scratch_path("one")), TR_OK);
    assert_int_equal(tr_token_file_info(file)->num_tokens, 2);
    tr_token_file_close(file);
}

static void test_bytes_tokenizer_loses_nothing(void **state)
{
    (void)state;
    unsigned char text[256], back[258];
    int32_t ids[258];
    for (int i = 0; i < 256; i++)
        text[i] = (unsigned char)(255 - i);
    tr_tokenizer_bytes_encode(text, 256, ids);
    assert_int_equal(ids[0], 255);
    ids[256] = TR_BYTES_EOD;
    ids[257] = -1;
    assert_int_equal(tr_tokenizer_bytes_decode(ids, 258, back), 256);
    assert_memory_equal(back, text, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_both_files),
        cmocka_unit_test(test_width_follows_the_vocabulary),
        cmocka_unit_test(test_forced_16_bit_names_the_id_that_does_not_fit),
        cmocka_unit_test(test_a_writer_that_gives_up_leaves_the_old_files),
        cmocka_unit_test(test_discarded_documents_leave_no_trace),
        cmocka_unit_test(test_many_documents_are_indexed),
        cmocka_unit_test(test_an_unwritable_place_is_an_error),
        cmocka_unit_test(test_a_name_has_one_writer_at_a_time),
        cmocka_unit_test(test_bytes_tokenizer_loses_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
