/* Whatever happens to one file of a checkpoint is found, and the file named, both by reading all of it (as ckpt verify does) and by a load
 * that checks what it needs before it gives any value.
 *
 * Linked with --wrap=pread: reads can fail, or be short. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "io/checkpoint_read.h"
#include "io/shard_verify.h"
#include "tests/unit/io/checkpoint_fixture.h"
#include "tests/unit/io/io_scratch.h"

enum { FILES = FIXTURE_RANKS + 1, FLIPS = 200, CUTS = 20 };

static char folder[64];
static atomic_int reads;        /* so far */
static atomic_int failing_read; /* which one fails with EIO; 0: none */
static atomic_bool short_reads; /* a byte at a time */

ssize_t __real_pread(int fd, void *dst, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *dst, size_t size, off_t offset);

ssize_t __wrap_pread(int fd, void *dst, size_t size, off_t offset)
{
    if (++reads == failing_read) {
        errno = EIO;
        return -1;
    }
    return __real_pread(fd, dst, short_reads && size > 0 ? 1 : size, offset);
}

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

static const char *file_name(int file)
{
    static char name[TR_MANIFEST_FILE];
    if (file == FIXTURE_RANKS)
        return TR_MANIFEST_FILE_NAME;
    tr_manifest_file_name(file, name);
    return name;
}

static const char *file_path(int file)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, file_name(file));
    return path;
}

/* ---- the two ways to look ---- */

/* Every stored tensor covered; checked or read, where a kind of reading is given. */
static tr_status tensors_look(tr_checkpoint *checkpoint, bool check, float *dst)
{
    for (int tensor = 0; tensor < 2; tensor++) {
        tr_box whole = tr_checkpoint_tensor_box(checkpoint, tensor);
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
            TR_TRY(tr_checkpoint_cover(checkpoint, tensor, (tr_shard_kind)kind, &whole));
            if (check || dst != NULL)
                TR_TRY(tr_checkpoint_read(checkpoint, tensor, (tr_shard_kind)kind, &whole, 1, dst));
        }
    }
    return TR_OK;
}

static tr_status verify(void)
{
    tr_checkpoint *checkpoint;
    tr_shard_verifier *verifier;
    tr_hash128 hash;
    TR_TRY(tr_checkpoint_open(&checkpoint, folder));
    assert_int_equal(tr_shard_verifier_create(2, &verifier), TR_OK);
    tr_status status = tensors_look(checkpoint, false, NULL);
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    for (int i = 0; i < manifest->num_files && status == TR_OK; i++) {
        status = tr_shard_verify(verifier, tr_checkpoint_shard(checkpoint, i), NULL, NULL, &hash);
        if (status == TR_OK && !tr_hash128_equal(hash, manifest->files[i].hash))
            status = tr_fail(TR_ERR_CHECKPOINT, "%s", manifest->files[i].name);
    }
    tr_shard_verifier_destroy(verifier);
    tr_checkpoint_close(checkpoint);
    return status;
}

/* *checked: nothing was found before values were given. */
static tr_status load(bool *checked)
{
    static float values[FIXTURE_ROWS * FIXTURE_COLUMNS];
    tr_checkpoint *checkpoint;
    *checked = false;
    TR_TRY(tr_checkpoint_open(&checkpoint, folder));
    tr_status status = tensors_look(checkpoint, true, NULL);
    *checked = status == TR_OK;
    if (*checked)
        status = tensors_look(checkpoint, false, values);
    tr_checkpoint_close(checkpoint);
    return status;
}

static void expect_named(tr_status status, const char *way, const char *file, const char *what)
{
    if (status != TR_ERR_CHECKPOINT || strstr(tr_error_message(), file) == NULL)
        fail_msg("%s of %s: %s: status %d: %s", what, file, way, (int)status,
                 status == TR_OK ? "nothing found" : tr_error_message());
}

/* Both ways find it, and name the file. */
static void expect_found(const char *file, const char *what)
{
    bool checked;
    expect_named(verify(), "verify", file, what);
    expect_named(load(&checked), "load", file, what);
    assert_false(checked);
}

static void expect_whole(void)
{
    bool checked;
    if (verify() != TR_OK || load(&checked) != TR_OK)
        fail_msg("not whole: %s", tr_error_message());
}

/* ---- the contents of a file ---- */

static unsigned char *originals[FILES];
static size_t sizes[FILES];

static void originals_take(int level)
{
    fixture_checkpoint_write(folder, level, FIXTURE_WHOLE);
    for (int f = 0; f < FILES; f++) {
        free(originals[f]);
        originals[f] = scratch_read(file_path(f), &sizes[f]);
    }
    expect_whole();
}

static void test_every_flipped_bit_is_found(void **state)
{
    (void)state;
    uint64_t drawn = 0;
    int hit[FILES] = {0};
    for (int level = 0; level < 2; level++) {
        originals_take(level);
        size_t total = 0;
        for (int f = 0; f < FILES; f++)
            total += sizes[f];
        for (int i = 0; i < FLIPS / 2; i++) {
            size_t at = tr_hash_mix(41, drawn++) % total;
            int f = 0, bit = (int)(tr_hash_mix(42, drawn) % 8);
            for (; at >= sizes[f]; f++)
                at -= sizes[f];
            char what[64];
            snprintf(what, sizeof what, "bit %d of byte %zu of %zu", bit, at, sizes[f]);
            originals[f][at] ^= (unsigned char)(1 << bit);
            scratch_write(file_path(f), originals[f], sizes[f]);
            expect_found(file_name(f), what);
            originals[f][at] ^= (unsigned char)(1 << bit);
            scratch_write(file_path(f), originals[f], sizes[f]);
            hit[f]++;
        }
        expect_whole();
    }
    for (int f = 0; f < FILES; f++)
        assert_true(hit[f] > 0);
}

static void test_every_other_length_is_found(void **state)
{
    (void)state;
    originals_take(1);
    for (int f = 0; f < FILES; f++) {
        for (int i = 0; i < CUTS; i++) {
            size_t size = i == 0   ? 0
                          : i == 1 ? sizes[f] - 1
                                   : tr_hash_mix(43, (uint64_t)(f * CUTS + i)) % sizes[f];
            char what[64];
            snprintf(what, sizeof what, "%zu bytes of %zu", size, sizes[f]);
            assert_int_equal(truncate(file_path(f), (off_t)size), 0);
            expect_found(file_name(f), what);
            scratch_write(file_path(f), originals[f], sizes[f]);
        }
        assert_int_equal(truncate(file_path(f), (off_t)sizes[f] + 1), 0);
        expect_found(file_name(f), "a byte more");
        scratch_write(file_path(f), originals[f], sizes[f]);
    }
    expect_whole();
}

/* ---- files in other places ---- */

static void test_two_exchanged_files_are_found(void **state)
{
    (void)state;
    originals_take(0);
    for (int a = 0; a < FILES; a++)
        for (int b = a + 1; b < FILES; b++) {
            char first[TR_MANIFEST_FILE];
            strcpy(first, file_name(b < FIXTURE_RANKS ? a : FIXTURE_RANKS));
            scratch_write(file_path(a), originals[b], sizes[b]);
            scratch_write(file_path(b), originals[a], sizes[a]);
            expect_found(first, "exchanged with another");
            scratch_write(file_path(a), originals[a], sizes[a]);
            scratch_write(file_path(b), originals[b], sizes[b]);
        }
    expect_whole();
}

/* Of the same model, layout and sizes. */
static void test_another_runs_files_are_found(void **state)
{
    (void)state;
    fixture_checkpoint_write(folder, 0, FIXTURE_OTHER);
    unsigned char *other[FILES];
    for (int f = 0; f < FILES; f++) {
        size_t size;
        other[f] = scratch_read(file_path(f), &size);
        fixture_checkpoint_write(folder, 0, FIXTURE_WHOLE);
        scratch_write(file_path(f), other[f], size);
        expect_found(f < FIXTURE_RANKS ? file_name(f) : "shard-00000.bin", "another run's file");
        fixture_checkpoint_write(folder, 0, FIXTURE_OTHER);
    }
    expect_whole();
    for (int f = 0; f < FILES; f++)
        free(other[f]);
}

static void test_what_is_no_file_is_found(void **state)
{
    (void)state;
    originals_take(1);
    for (int f = 0; f < FILES; f++) {
        const char *path = file_path(f);
        unlink(path);
        expect_found(file_name(f), "absence");
        assert_int_equal(mkdir(path, 0777), 0);
        expect_found(file_name(f), "folder in place");
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(mkfifo(path, 0666), 0);
        alarm(60); /* nobody writes into it: waiting would be for ever */
        expect_found(file_name(f), "pipe in place");
        alarm(0);
        unlink(path);
        scratch_write(path, originals[f], sizes[f]);
    }
    expect_whole();
}

/* ---- reading ---- */

static void test_a_read_that_fails_is_told(void **state)
{
    (void)state;
    bool checked;
    originals_take(1);
    for (int way = 0; way < 2; way++) {
        reads = 0;
        assert_int_equal(way == 0 ? verify() : load(&checked), TR_OK);
        int total = reads;
        assert_true(total > FIXTURE_RANKS * 3);
        for (int at = 1; at <= total; at += 1 + total / 60) {
            reads = 0;
            failing_read = at;
            tr_status status = way == 0 ? verify() : load(&checked);
            failing_read = 0;
            expect_named(status, way == 0 ? "verify" : "load", "shard-0000", "EIO");
            assert_non_null(strstr(tr_error_message(), "Input/output error"));
        }
    }
    expect_whole();
}

static void test_short_reads_are_gone_on_with(void **state)
{
    (void)state;
    originals_take(1);
    short_reads = true;
    expect_whole();
    short_reads = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_flipped_bit_is_found),
        cmocka_unit_test(test_every_other_length_is_found),
        cmocka_unit_test(test_two_exchanged_files_are_found),
        cmocka_unit_test(test_another_runs_files_are_found),
        cmocka_unit_test(test_what_is_no_file_is_found),
        cmocka_unit_test(test_a_read_that_fails_is_told),
        cmocka_unit_test(test_short_reads_are_gone_on_with),
    };
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    for (int f = 0; f < FILES; f++)
        free(originals[f]);
    return failed;
}
