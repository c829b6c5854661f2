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

/* The list for checkpoint.resume, as "5 2 11", and what is ignored behind a bar. */
static void expect_list(const char *resume, const char *expected)
{
    tr_config cfg;
    tr_resume_list list;
    char text[256] = "";
    tr_config_init(&cfg);
    char *assignment = tr_format("checkpoint.resume=%s", resume);
    assert_int_equal(tr_config_override(&cfg, assignment), TR_OK);
    tr_free(assignment);
    cfg.checkpoint.dir = tr_strdup(scratch_path("."));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, scratch_make, teardown);
}
