/* engine/checkpoint_find: which checkpoints are tried, in which order. */
#include "engine/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "tests/unit/io/io_scratch.h"

static const struct {
    const char *name;
    bool whole;
} folders[] = {{"step-00000002", true},
               {"step-00000005", true},
               {"step-00000009", false},
               {"step-00000011", true},
               {"step-00000012.tmp", true}};
enum { NUM_FOLDERS = sizeof folders / sizeof folders[0] };

static const char *manifest_of(int folder)
{
    char name[128];
    snprintf(name, sizeof name, "%s/manifest.json", folders[folder].name);
    return scratch_path(name);
}

static void folders_make(void)
{
    for (int i = 0; i < NUM_FOLDERS; i++) {
        assert_int_equal(mkdir(scratch_path(folders[i].name), 0777), 0);
        if (folders[i].whole)
            scratch_write(manifest_of(i), "x", 1);
    }
}

static int teardown(void **state)
{
    for (int i = 0; i < NUM_FOLDERS; i++) {
        unlink(manifest_of(i));
        rmdir(scratch_path(folders[i].name));
    }
    return scratch_remove(state);
}

static void settings_make(tr_config *cfg, const char *resume)
{
    tr_config_init(cfg);
    char *assignment = tr_format("checkpoint.resume=%s", resume);
    assert_int_equal(tr_config_override(cfg, assignment), TR_OK);
    tr_free(assignment);
    cfg->checkpoint.dir = tr_strdup(scratch_path("."));
}

static void expect_refused(const char *resume, const char *message)
{
    tr_config cfg;
    tr_resume_list list;
    settings_make(&cfg, resume);
    assert_int_equal(tr_resume_list_find(&list, &cfg), TR_ERR_CHECKPOINT);
    assert_non_null(strstr(tr_error_message(), message));
    tr_config_clear(&cfg);
}

/* The list for checkpoint.resume, as "5 2 11", and what is ignored behind a bar. */
static void expect_list(const char *resume, const char *expected)
{
    tr_config cfg;
    tr_resume_list list;
    char text[256] = "";
    settings_make(&cfg, resume);
    assert_int_equal(tr_resume_list_find(&list, &cfg), TR_OK);
    for (int i = 0; i < list.num_paths; i++) {
        int step;
        assert_int_equal(sscanf(strrchr(list.paths[i], '/'), "/step-%d", &step), 1);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i > 0 ? " " : "", step);
    }
    if (list.ignored != NULL)
        snprintf(text + strlen(text), sizeof text - strlen(text), "|%s",
                 strrchr(list.ignored, '/') + 1);
    assert_string_equal(text, expected);
    tr_resume_list_clear(&list);
    tr_config_clear(&cfg);
}

static void test_order(void **state)
{
    (void)state;
    expect_list("auto", "");
    folders_make();
    expect_list("auto", "11 5 2|step-00000012.tmp");
    expect_list("none", "");
    scratch_write(scratch_path("latest"), "step-00000011\n", 14);
    expect_list("auto", "11 5 2|step-00000012.tmp");
    /* The run went back to 2 and has saved 5 since: 11 is what it left behind, and the last resort. */
    scratch_write(scratch_path("latest"), "step-00000005\n", 14);
    expect_list("auto", "5 2 11|step-00000012.tmp");
    expect_list(scratch_path("."), "5 2 11|step-00000012.tmp");
    expect_list(scratch_path("step-00000002"), "2");
    /* One that is gone. */
    scratch_write(scratch_path("latest"), "step-00000007\n", 14);
    expect_list("auto", "5 2 11|step-00000012.tmp");
}

/* Folders with files but without a manifest are no reason to begin anew; empty ones, and what a killed run leaves, are. */
static void test_bare(void **state)
{
    (void)state;
    char shard[512];
    snprintf(shard, sizeof shard, "%s", scratch_path("step-00000002/shard-00000.bin"));
    assert_int_equal(mkdir(scratch_path("step-00000002"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("step-00000012.tmp"), 0777), 0);
    scratch_write(scratch_path("step-00000012.tmp/shard-00000.bin"), "x", 1);
    expect_list("auto", "|step-00000002");
    scratch_write(shard, "x", 1);
    expect_refused("auto", "step-00000002 has lost its manifest.json");
    expect_refused(scratch_path("."), "step-00000002 has lost its manifest.json");
    expect_list("none", "");
    assert_int_equal(mkdir(scratch_path("step-00000001"), 0777), 0);
    scratch_write(scratch_path("step-00000001/manifest.json"), "x", 1);
    expect_list("auto", "1|step-00000002");
    unlink(scratch_path("step-00000001/manifest.json"));
    rmdir(scratch_path("step-00000001"));
    unlink(shard);
    unlink(scratch_path("step-00000012.tmp/shard-00000.bin"));
}

/* A run's folder stands for its checkpoints/. */
static void test_run_folder(void **state)
{
    (void)state;
    assert_int_equal(mkdir(scratch_path("run"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("run/checkpoints"), 0777), 0);
    expect_refused(scratch_path("run"), "or a run's folder");
    assert_int_equal(mkdir(scratch_path("run/checkpoints/step-00000003"), 0777), 0);
    scratch_write(scratch_path("run/checkpoints/step-00000003/manifest.json"), "x", 1);
    expect_list(scratch_path("run"), "3");
    expect_list(scratch_path("run/checkpoints"), "3");
    unlink(scratch_path("run/checkpoints/step-00000003/manifest.json"));
    rmdir(scratch_path("run/checkpoints/step-00000003"));
    rmdir(scratch_path("run/checkpoints"));
    rmdir(scratch_path("run"));
}

static void test_later(void **state)
{
    (void)state;
    static const int64_t steps[] = {0, 2, 5, 11, 12}, counts[] = {3, 2, 1, 0, 0};
    tr_config cfg;
    folders_make();
    settings_make(&cfg, "auto");
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int64_t last = -1;
        assert_int_equal(tr_checkpoint_count_later(&cfg, steps[i], &last), counts[i]);
        assert_int_equal(last, counts[i] > 0 ? 11 : steps[i]);
    }
    tr_config_clear(&cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, scratch_make, teardown),
        cmocka_unit_test_setup_teardown(test_bare, scratch_make, teardown),
        cmocka_unit_test_setup_teardown(test_run_folder, scratch_make, teardown),
        cmocka_unit_test_setup_teardown(test_later, scratch_make, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
