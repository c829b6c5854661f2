/* The folder of checkpoints: exact names, whole or not at all, room made in numeric order, nothing
 * of the user's touched. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "io/dir_commit.h"
#include "io/manifest.h"
#include "tests/unit/io/checkpoint_fixture.h"
#include "tests/unit/io/io_scratch.h"

static char top[64], dir[128];

/* Linked with --wrap=renameat2, rename and fsync: a file system that cannot exchange folders, a rename or a flush that fails. */
static bool no_exchange;
static int renames_left, flushes_left; /* the one that makes it 0 fails */

int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (!no_exchange)
        return __real_renameat2(from_dir, from, to_dir, to, flags);
    errno = EINVAL; /* as NFS says it */
    return -1;
}

int __wrap_rename(const char *from, const char *to)
{
    if (renames_left == 0 || --renames_left > 0)
        return __real_rename(from, to);
    errno = EIO;
    return -1;
}

/* What was flushed, a line each, until it is full. */
static char flushed[4096];

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    size_t used = strlen(flushed);
    snprintf(flushed + used, sizeof flushed - used, "%.*s\n", (int)length, path);
    if (flushes_left == 0 || --flushes_left > 0)
        return __real_fsync(fd);
    errno = EIO;
    return -1;
}

static int setup(void **state)
{
    (void)state;
    fixture_folder_make(top);
    snprintf(dir, sizeof dir, "%s/runs/a/checkpoints", top);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_folder_remove(top);
    return 0;
}

static const char *in_dir(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void file_make(const char *path, const char *text)
{
    scratch_write(path, text, strlen(text));
}

/* Of one tensor and one file. */
static void manifest_make(const char *path, int64_t step, const char *text)
{
    static char numerics[] = "cpu test", config[] = "train:\n  steps: 10\n";
    tr_manifest_param param = {"a.weight", 1, {3, 1}, -1};
    tr_manifest_file file = {.bytes = (int64_t)strlen(text)};
    tr_manifest_file_name(0, file.name);
    const tr_manifest manifest = {.step = step,
                                  .scale = 1,
                                  .numerics = numerics,
                                  .config = config,
                                  .kinds = {true, false, false},
                                  .params = &param,
                                  .num_params = 1,
                                  .files = &file,
                                  .num_files = 1};
    assert_int_equal(tr_manifest_write(path, &manifest), TR_OK);
}

/* Finishes it; with trouble of which `text` tells, or without (NULL). */
static void finish_expect(int64_t step, const char *text)
{
    char *trouble;
    assert_int_equal(tr_dir_commit_finish(dir, step, &trouble), TR_OK);
    if (text == NULL)
        assert_null(trouble);
    else
        assert_true(trouble != NULL && strstr(trouble, text) != NULL);
    tr_free(trouble);
}

static void finish_fails(int64_t step)
{
    char *trouble;
    assert_int_equal(tr_dir_commit_finish(dir, step, &trouble), TR_ERR_IO);
    assert_null(trouble);
}

/* A checkpoint with `text` in its shard; finished or left as a killed run would. */
static void save(int64_t step, const char *text, bool finish)
{
    char name[64];
    assert_int_equal(tr_dir_commit_begin(dir, step), TR_OK);
    snprintf(name, sizeof name, "step-%08d.tmp/shard-00000.bin", (int)step);
    file_make(in_dir(name), text);
    snprintf(name, sizeof name, "step-%08d.tmp/manifest.json", (int)step);
    manifest_make(in_dir(name), step, text);
    if (finish)
        finish_expect(step, NULL);
}

static void prune(int64_t last, int64_t every, int64_t newest)
{
    const tr_dir_retention keep = {last, every};
    assert_int_equal(tr_dir_prune(dir, &keep, newest), TR_OK);
}

static void expect_steps(const char *expected)
{
    char text[256] = "";
    tr_step_list list;
    assert_int_equal(tr_step_list_read(&list, dir), TR_OK);
    for (int i = 0; i < list.num_entries; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d%s%s", i > 0 ? " " : "",
                 (int)list.entries[i].step, list.entries[i].is_temp ? "t" : "",
                 list.entries[i].has_manifest ? "" : "-");
    tr_step_list_clear(&list);
    assert_string_equal(text, expected);
}

static void expect_shard(int64_t step, const char *expected)
{
    char name[64];
    snprintf(name, sizeof name, "step-%08d/shard-00000.bin", (int)step);
    unsigned char *bytes = scratch_read(in_dir(name), NULL);
    assert_string_equal((const char *)bytes, expected);
    free(bytes);
}

static void test_names(void **state)
{
    (void)state;
    char name[TR_STEP_NAME];
    int64_t step = -1;
    tr_step_name(1000, name);
    assert_string_equal(name, "step-00001000");
    tr_step_name(123456789, name);
    assert_string_equal(name, "step-123456789");
    assert_true(tr_step_from_name("step-00000000", &step) && step == 0);
    assert_true(tr_step_from_name("step-123456789", &step) && step == 123456789);
    static const char *const others[] = {
        "step-100",
        "step-00000004.bak",
        "old-step-00000006",
        "step-abc",
        "step-000001000",
        "step-",
        "step--0000001",
        "step- 0000001",
        "step-00001000 ",
        "step-0x000001",
        "",
        "step-99999999999999999999",
        "step-00000004.tmp",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(tr_step_from_name(others[i], &step));
}

static void test_a_checkpoint_appears_whole(void **state)
{
    (void)state;
    int64_t step;
    expect_steps(""); /* no folder yet */
    assert_false(tr_dir_latest_read(dir, &step));
    save(3, "three", false);
    expect_steps("3t");
    /* The folders that were made for it outlive a power cut. */
    static const char *const made_in[] = {"", "/runs", "/runs/a"};
    for (int i = 0; i < 3; i++) {
        char line[128];
        snprintf(line, sizeof line, "%s%s\n", top, made_in[i]);
        assert_non_null(strstr(flushed, line));
    }
    assert_false(tr_dir_latest_read(dir, &step));
    finish_expect(3, NULL);
    expect_steps("3");
    assert_true(tr_dir_latest_read(dir, &step) && step == 3);
    assert_false(scratch_exists(in_dir("latest.tmp")));

    save(4, "four", false);
    assert_true(tr_dir_latest_read(dir, &step) && step == 3);
    tr_dir_commit_abort(dir, 4);
    expect_steps("3");

    /* What a killed run left is replaced by the next try, and an older save of the step too. */
    save(4, "left over", false);
    file_make(in_dir("step-00000004.tmp/shard-00009.bin"), "left over");
    save(4, "four", true);
    save(4, "four again", true);
    expect_steps("3 4");
    assert_false(scratch_exists(in_dir("step-00000004/shard-00009.bin")));
    expect_shard(4, "four again");
    assert_true(tr_dir_latest_read(dir, &step) && step == 4);
}

/* NFS and others. */
static void test_a_step_is_replaced_where_folders_cannot_be_exchanged(void **state)
{
    (void)state;
    int64_t step;
    no_exchange = true;
    save(4, "four once more", true);
    expect_steps("3 4");
    expect_shard(4, "four once more");
    assert_false(scratch_exists(in_dir("step-00000004.replaced")));
    assert_true(tr_dir_latest_read(dir, &step) && step == 4);
    /* What a machine that stopped between the moves has left goes with the next. */
    assert_int_equal(mkdir(in_dir("step-00000004.replaced"), 0777), 0);
    file_make(in_dir("step-00000004.replaced/shard-00000.bin"), "older");
    expect_steps("3 4");
    save(4, "four", true);
    expect_shard(4, "four");
    assert_false(scratch_exists(in_dir("step-00000004.replaced")));
    /* One of the moves fails (the first try, which meets the older one, is a rename too): the older one is where it was. */
    for (int failing = 2; failing <= 3; failing++) {
        save(4, "too late", false);
        renames_left = failing;
        finish_fails(4);
        assert_int_equal(renames_left, 0);
        tr_dir_commit_abort(dir, 4);
        expect_steps("3 4");
        expect_shard(4, "four");
        assert_false(scratch_exists(in_dir("step-00000004.replaced")));
    }
    no_exchange = false;
}

static void test_without_room_for_latest_nothing_changes(void **state)
{
    (void)state;
    int64_t step;
    assert_int_equal(mkdir(in_dir("latest.tmp"), 0777), 0); /* cannot be written to either */
    save(5, "five", false);
    finish_fails(5);
    expect_steps("3 4 5t");
    assert_true(tr_dir_latest_read(dir, &step) && step == 4);
    assert_int_equal(rmdir(in_dir("latest.tmp")), 0);
    tr_dir_commit_abort(dir, 5);
    expect_steps("3 4");
}

/* The folder has its name, and then `latest` cannot be moved, or the names not be flushed: it is saved, and nothing that a resume
 * would take first goes away. */
static void test_trouble_with_latest(void **state)
{
    (void)state;
    int64_t step;
    char before[sizeof dir];
    strcpy(before, dir);
    snprintf(dir, sizeof dir, "%s/trouble", top);
    save(2, "two", true);
    save(3, "three", false);
    renames_left = 2;
    finish_expect(3, "latest: Input/output error; a resume finds it all the same");
    assert_false(tr_dir_latest_read(dir, &step)); /* so that 3 is found, and not 2 */
    expect_steps("2 3");
    assert_false(scratch_exists(in_dir("latest.tmp")));
    prune(1, 0, 3);
    expect_steps("3");
    save(9, "of a run that went back", true);
    save(4, "four", true);
    expect_steps("3 4 9");
    save(5, "five", false);
    renames_left = 2;
    finish_expect(5, "latest: Input/output error; until then a resume takes step-00000004 first");
    assert_true(tr_dir_latest_read(dir, &step) && step == 4);
    prune(1, 0, 5);
    expect_steps("4 5"); /* 4 since `latest` names it */
    save(6, "six", true);
    prune(1, 0, 6);
    expect_steps("6");
    save(7, "seven", false);
    flushes_left = 3; /* the temporary folder, latest.tmp, the folder */
    finish_expect(7, "flushing the folder failed: Input/output error; until then a resume takes "
                     "step-00000006 first");
    assert_true(tr_dir_latest_read(dir, &step) && step == 6); /* whose name is on the disk */
    prune(1, 0, 7);
    expect_steps("6 7");
    strcpy(dir, before);
}

static void test_leftovers_give_way_before_the_writing(void **state)
{
    (void)state;
    save(7, "left over", false);
    assert_int_equal(rename(in_dir("step-00000007.tmp"), in_dir("kept")), 0);
    save(6, "left over", false);
    assert_int_equal(rename(in_dir("kept"), in_dir("step-00000007.tmp")), 0);
    expect_steps("3 4 6t 7t");
    assert_int_equal(tr_dir_commit_begin(dir, 5), TR_OK);
    expect_steps("3 4 5t-");
    tr_dir_commit_abort(dir, 5);
}

static void test_latest_with_another_text_is_no_name(void **state)
{
    (void)state;
    int64_t step;
    static const char *const texts[] = {"", "../step-00000001", "step-1",
                                        "step-00000003\nmore text",
                                        "step-00000003 and a long text behind the name of it"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        file_make(in_dir("latest"), texts[i]);
        assert_int_equal(tr_dir_latest_read(dir, &step), i == 3);
    }
    unlink(in_dir("latest"));
    assert_int_equal(mkfifo(in_dir("latest"), 0666), 0);
    alarm(60); /* a pipe that nobody writes into: waiting would be for ever */
    assert_false(tr_dir_latest_read(dir, &step));
    alarm(0);
    unlink(in_dir("latest"));
    assert_int_equal(mkdir(in_dir("latest"), 0777), 0);
    assert_false(tr_dir_latest_read(dir, &step));
    assert_int_equal(rmdir(in_dir("latest")), 0);
}

static void test_room_is_made_in_numeric_order(void **state)
{
    (void)state;
    for (int step = 8; step <= 11; step++)
        save(step, "x", true);
    expect_steps("3 4 8 9 10 11");
    prune(0, 0, 11);
    expect_steps("3 4 8 9 10 11");
    prune(2, 0, 11);
    expect_steps("10 11");
    /* After a step back the newest is not the highest number: it stays. */
    save(5, "x", true);
    prune(2, 0, 5);
    expect_steps("5 11");
    /* What it has left behind makes room before what it wrote since. */
    save(6, "x", true);
    prune(2, 0, 6);
    expect_steps("5 6");
    save(5, "x", true);
    prune(1, 0, 5);
    expect_steps("5");
    save(11, "x", true);
}

static void test_multiples_stay_beside_the_last_ones(void **state)
{
    (void)state;
    prune(1, 0, 11);
    for (int step = 95; step <= 121; step++)
        save(step, "x", true);
    prune(2, 10, 121);
    expect_steps("100 110 120 121");
    prune(2, 11, 121); /* the two last ones are no less so for being multiples */
    expect_steps("110 120 121");
    /* What a run that began anew has left behind stays where it is a multiple. */
    save(5, "x", true);
    save(6, "x", true);
    prune(1, 60, 6);
    expect_steps("6 120");
    prune(1, 0, 6);
    expect_steps("6");
}

static void test_damaged_ones_push_out_no_good_one(void **state)
{
    (void)state;
    for (int step = 21; step <= 26; step++)
        save(step, "x", true);
    file_make(in_dir("step-00000026/shard-00000.bin"), "longer");
    unlink(in_dir("step-00000025/shard-00000.bin"));
    file_make(in_dir("step-00000024/manifest.json"), "{}\n");
    prune(2, 0, 26);
    expect_steps("22 23 24 25 26");
    prune(1, 0, 26);
    expect_steps("23 24 25 26");
    save(27, "x", true);
    prune(1, 0, 27);
    expect_steps("27");
    save(5, "x", true);
    prune(1, 0, 5);
    save(11, "x", true);
}

static void test_foreign_entries_stay(void **state)
{
    (void)state;
    static const char *const folders[] = {"step-00000004.bak", "old-step-00000006", "step-abc",
                                          "step-9", "step-00000002"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        assert_int_equal(mkdir(in_dir(folders[i]), 0777), 0);
    file_make(in_dir("step-00000008"), "a file");
    file_make(in_dir("step-00000009.tmp"), "a file");
    file_make(in_dir("notes.txt"), "mine");
    save(12, "x", true);
    save(20, "x", false); /* of a killed run */
    file_make(in_dir("step-00000011/notes.txt"), "mine");
    expect_steps("2- 5 11 12 20t");
    prune(1, 0, 12);
    expect_steps("2- 11 12");
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        assert_true(scratch_exists(in_dir(folders[i])));
    assert_true(scratch_exists(in_dir("step-00000008")));
    assert_true(scratch_exists(in_dir("step-00000009.tmp")));
    assert_true(scratch_exists(in_dir("notes.txt")));
    assert_true(scratch_exists(in_dir("step-00000011/notes.txt")));
    assert_true(scratch_exists(in_dir("step-00000011/shard-00000.bin")));
}

/* The message is that of the first, though others follow, and more is looked at. */
static void test_the_first_that_cannot_be_removed_is_named(void **state)
{
    (void)state;
    const tr_dir_retention keep = {1, 0};
    for (int step = 30; step <= 32; step++)
        save(step, "x", true);
    save(33, "x", false);
    file_make(in_dir("step-00000033.tmp/notes.txt"), "mine");
    save(34, "x", false);
    file_make(in_dir("step-00000034.tmp/notes.txt"), "mine");
    file_make(in_dir("step-00000032/manifest.json"), "{}\n");
    assert_int_equal(tr_dir_prune(dir, &keep, 32), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "step-00000033.tmp: not removed"));
    expect_steps("2- 11 31 32 33t 34t");
}

/* Names that could be ours, of what is not. */
static void test_only_files_are_ours(void **state)
{
    (void)state;
    unlink(in_dir("step-00000033.tmp/notes.txt")); /* of the test before */
    unlink(in_dir("step-00000034.tmp/notes.txt"));
    save(14, "x", true);
    save(15, "x", true);
    save(16, "x", true);
    assert_int_equal(mkdir(in_dir("step-00000014/shard-00009.bin"), 0777), 0);
    assert_int_equal(symlink("elsewhere", in_dir("step-00000015/shard-00009.bin")), 0);
    prune(1, 0, 16);
    expect_steps("2- 11 14 15 16");
    assert_true(scratch_exists(in_dir("step-00000014/shard-00000.bin")));
    assert_true(scratch_exists(in_dir("step-00000015/shard-00000.bin")));
    assert_int_equal(rmdir(in_dir("step-00000014/shard-00009.bin")), 0);
    assert_int_equal(unlink(in_dir("step-00000015/shard-00009.bin")), 0);
    prune(1, 0, 16);
    expect_steps("2- 11 16");
}

static void expect_archived(const char *away)
{
    char name[64];
    snprintf(name, sizeof name, "%s/shard-00000.bin", away);
    unsigned char *bytes = scratch_read(in_dir(name), NULL);
    assert_string_equal((const char *)bytes, "archived");
    free(bytes);
}

/* A checkpoint that was moved away, with a link in its place. */
static void move_and_link(const char *name, const char *away)
{
    assert_int_equal(rename(in_dir(name), in_dir(away)), 0);
    assert_int_equal(symlink(in_dir(away), in_dir(name)), 0);
}

static void test_what_links_lead_to_stays(void **state)
{
    (void)state;
    for (int step = 40; step <= 43; step++)
        save(step, "archived", true);
    move_and_link("step-00000040", "archive-40");
    move_and_link("step-00000042", "archive-42");
    assert_int_equal(symlink(in_dir("archive-40"), in_dir("step-00000044.tmp")), 0);
    prune(2, 0, 43); /* links take no place of the last ones, and keep theirs */
    expect_steps("2- 11 40 41 42 43 44t");
    /* None is saved through a link, nor is anything removed through it when that fails. */
    assert_int_equal(tr_dir_commit_begin(dir, 44), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "step-00000044.tmp: a link"));
    tr_dir_commit_abort(dir, 44);
    expect_archived("archive-40");
    unlink(in_dir("step-00000044.tmp"));
    /* A new checkpoint takes the link's place, not that of what it leads to. */
    save(40, "new", true);
    no_exchange = true;
    save(42, "new", true);
    no_exchange = false;
    expect_steps("2- 11 40 41 42 43");
    expect_shard(40, "new");
    expect_shard(42, "new");
    expect_archived("archive-40");
    expect_archived("archive-42");
    assert_false(scratch_exists(in_dir("step-00000042.replaced")));
}

static void test_a_folder_that_cannot_be_made_is_named(void **state)
{
    (void)state;
    char path[192];
    snprintf(path, sizeof path, "%s/notes.txt/checkpoints", dir);
    assert_int_equal(tr_dir_commit_begin(path, 1), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "notes.txt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_a_checkpoint_appears_whole),
        cmocka_unit_test(test_a_step_is_replaced_where_folders_cannot_be_exchanged),
        cmocka_unit_test(test_without_room_for_latest_nothing_changes),
        cmocka_unit_test(test_trouble_with_latest),
        cmocka_unit_test(test_leftovers_give_way_before_the_writing),
        cmocka_unit_test(test_latest_with_another_text_is_no_name),
        cmocka_unit_test(test_room_is_made_in_numeric_order),
        cmocka_unit_test(test_multiples_stay_beside_the_last_ones),
        cmocka_unit_test(test_damaged_ones_push_out_no_good_one),
        cmocka_unit_test(test_foreign_entries_stay),
        cmocka_unit_test(test_the_first_that_cannot_be_removed_is_named),
        cmocka_unit_test(test_only_files_are_ours),
        cmocka_unit_test(test_what_links_lead_to_stays),
        cmocka_unit_test(test_a_folder_that_cannot_be_made_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
