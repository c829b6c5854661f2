/* io/metrics_jsonl and io/status_file: what programs that watch a run read. */
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/metrics_jsonl.h"
#include "io/status_file.h"
#include "tests/unit/io/io_scratch.h"

static int num_heap_calls;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

void *__wrap_malloc(size_t size)
{
    num_heap_calls++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    num_heap_calls++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    num_heap_calls++;
    return __real_realloc(pointer, size);
}

static tr_metrics_record make_record(uint64_t step)
{
    return (tr_metrics_record){
        .step = step,
        .samples = 24 * step,
        .tokens = 768 * step,
        .loss = 1.0 / 3.0,
        .grad_norm = 0.1,
        .lr = 3e-4,
        .loss_scale = 65536,
        .skipped = step % 2 == 0,
        .step_ms = 12.5,
        .tokens_per_s = 1e6,
        .mfu = 0.5,
        .memory_peak_bytes = UINT64_MAX / 4,
        .time = {1, 2, 3, 4, 5, 6, 7},
    };
}

static void write_steps(const char *name, uint64_t keep, uint64_t first, uint64_t last)
{
    tr_metrics_file *file;
    assert_int_equal(tr_metrics_file_open(&file, scratch_path(name), keep), TR_OK);
    for (uint64_t step = first; step <= last; step++) {
        tr_metrics_record record = make_record(step);
        assert_int_equal(tr_metrics_file_append(file, &record), TR_OK);
    }
    tr_metrics_file_close(file);
}

/* The steps in the file as text, "1 2 3". */
static void expect_steps(const char *name, const char *expected)
{
    char seen[256] = "";
    char *text = (char *)scratch_read(scratch_path(name), NULL);
    for (char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        json_t *object = json_loads(line, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        sprintf(seen + strlen(seen), "%s%d", seen[0] ? " " : "",
                (int)json_integer_value(json_object_get(object, "step")));
        json_decref(object);
    }
    free(text);
    assert_string_equal(seen, expected);
}

static void test_one_line_to_the_byte(void **state)
{
    (void)state;
    tr_metrics_file *file;
    tr_metrics_record record = make_record(2);
    record.has_valid_loss = true;
    record.valid_loss = 2.5;
    assert_int_equal(tr_metrics_file_open(&file, scratch_path("m1"), 0), TR_OK);
    assert_int_equal(tr_metrics_file_append(file, &record), TR_OK);
    tr_metrics_file_close(file);
    char *text = (char *)scratch_read(scratch_path("m1"), NULL);
    assert_string_equal(
        text,
        "{\"step\": 2, \"samples\": 48, \"tokens\": 1536, \"loss\": 0.33333333333333331, "
        "\"grad_norm\": 0.10000000000000001, \"lr\": 0.00029999999999999997, "
        "\"loss_scale\": 65536, \"skipped\": 1, \"step_ms\": 12.5, \"tokens_per_s\": 1000000, "
        "\"mfu\": 0.5, \"memory_peak_bytes\": 4611686018427387903, "
        "\"time\": {\"compute\": 1, \"tensor\": 2, \"data\": 3, \"pipeline\": 4, \"idle\": 5, "
        "\"feed\": 6, \"checkpoint\": 7}, \"valid_loss\": 2.5}\n");
    free(text);
}

static void test_values_come_back_exactly(void **state)
{
    (void)state;
    static const double values[] = {M_PI, DBL_MIN, DBL_MAX, 4.9e-324, -0.1, 1e22};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        tr_metrics_file *file;
        tr_metrics_record record = make_record(1);
        record.loss = values[i];
        record.mfu = NAN;
        record.grad_norm = INFINITY;
        record.time.feed = -INFINITY;
        assert_int_equal(tr_metrics_file_open(&file, scratch_path("m2"), 0), TR_OK);
        assert_int_equal(tr_metrics_file_append(file, &record), TR_OK);
        tr_metrics_file_close(file);
        json_t *object = json_load_file(scratch_path("m2"), 0, NULL);
        assert_non_null(object);
        assert_true(json_number_value(json_object_get(object, "loss")) == values[i]);
        assert_string_equal(json_string_value(json_object_get(object, "mfu")), "nan");
        assert_string_equal(json_string_value(json_object_get(object, "grad_norm")), "inf");
        json_t *time = json_object_get(object, "time");
        assert_string_equal(json_string_value(json_object_get(time, "feed")), "-inf");
        assert_null(json_object_get(object, "valid_loss"));
        json_decref(object);
    }
}

static void test_resume_keeps_each_step_once(void **state)
{
    (void)state;
    write_steps("m3", 0, 1, 12);
    write_steps("m3", 10, 11, 13);
    expect_steps("m3", "1 2 3 4 5 6 7 8 9 10 11 12 13");
    write_steps("m3", 5, 6, 6);
    expect_steps("m3", "1 2 3 4 5 6");
    write_steps("m3", 100, 7, 7);
    expect_steps("m3", "1 2 3 4 5 6 7");
    write_steps("m3", 0, 1, 2);
    expect_steps("m3", "1 2");
    assert_false(scratch_exists(scratch_path("m3.tmp")));
}

static void test_a_line_cut_by_a_crash_goes(void **state)
{
    (void)state;
    size_t size;
    write_steps("m4", 0, 1, 3);
    unsigned char *text = scratch_read(scratch_path("m4"), &size);
    scratch_write(scratch_path("m4"), text, size - 9);
    free(text);
    write_steps("m4", 3, 4, 4);
    expect_steps("m4", "1 2 4");
    scratch_write(scratch_path("m4"), "something else\n", 15);
    tr_metrics_file *file;
    assert_int_equal(tr_metrics_file_open(&file, scratch_path("m4"), 3), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "line 1"));
    text = scratch_read(scratch_path("m4"), NULL);
    assert_string_equal((char *)text, "something else\n");
    free(text);
}

/* A disk that is full in the middle of a line, and has room again later. */
static void test_a_full_disk_leaves_whole_lines(void **state)
{
    (void)state;
    tr_metrics_file *file;
    struct rlimit before, tight;
    struct stat about;
    write_steps("m6", 0, 1, 1);
    assert_int_equal(stat(scratch_path("m6"), &about), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = (struct rlimit){.rlim_cur = (rlim_t)about.st_size + 20, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(tr_metrics_file_open(&file, scratch_path("m6"), 1), TR_OK);
    tr_metrics_record record = make_record(2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    tr_status status = tr_metrics_file_append(file, &record);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, TR_ERR_IO);
    expect_steps("m6", "1");
    record = make_record(3);
    assert_int_equal(tr_metrics_file_append(file, &record), TR_OK);
    tr_metrics_file_close(file);
    expect_steps("m6", "1 3");
}

static void test_no_heap_in_the_step_loop(void **state)
{
    (void)state;
    tr_metrics_file *file;
    tr_metrics_record record = make_record(1);
    const tr_status_record running = {TR_RUN_RUNNING, 0, -1, "steps", 7};
    const char *path = scratch_path("s1");
    assert_int_equal(tr_metrics_file_open(&file, scratch_path("m5"), 0), TR_OK);
    int before = num_heap_calls;
    assert_true(before > 0); /* the wrapping works: opening allocates */
    for (int i = 0; i < 50; i++) {
        assert_int_equal(tr_metrics_file_append(file, &record), TR_OK);
        assert_int_equal(tr_status_file_write(path, &running), TR_OK);
    }
    assert_int_equal(num_heap_calls, before);
    tr_metrics_file_close(file);
}

static void test_status_object(void **state)
{
    (void)state;
    tr_status_record record = {TR_RUN_FAILED, 9, 3, "rank 3 \"died\"\nin\tsend \xc3\xa9 \\", 41};
    assert_int_equal(tr_status_file_write(scratch_path("s2"), &record), TR_OK);
    json_t *object = json_load_file(scratch_path("s2"), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "state")), "failed");
    assert_int_equal(json_integer_value(json_object_get(object, "code")), 9);
    assert_int_equal(json_integer_value(json_object_get(object, "rank")), 3);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), 41);
    assert_int_equal(strncmp(json_string_value(json_object_get(object, "reason")),
                             "rank 3 \"died\"\nin\tsend ", 22),
                     0);
    json_decref(object);

    static const char *const names[] = {"running", "done", "stopped", "failed"};
    for (int i = 0; i < 4; i++) {
        record = (tr_status_record){(tr_run_state)i, 0, -1, NULL, 0};
        assert_int_equal(tr_status_file_write(scratch_path("s2"), &record), TR_OK);
        object = json_load_file(scratch_path("s2"), 0, NULL);
        assert_string_equal(json_string_value(json_object_get(object, "state")), names[i]);
        assert_true(json_is_null(json_object_get(object, "rank")));
        assert_true(json_is_null(json_object_get(object, "reason")));
        json_decref(object);
    }
}

static void test_a_long_reason_is_cut_to_valid_json(void **state)
{
    (void)state;
    char reason[5001];
    for (int i = 0; i < 5000; i++)
        reason[i] = "\"\\\xff\nx"[i % 5];
    reason[5000] = '\0';
    const tr_status_record record = {TR_RUN_FAILED, 1, 0, reason, 1};
    assert_int_equal(tr_status_file_write(scratch_path("s3"), &record), TR_OK);
    json_t *object = json_load_file(scratch_path("s3"), 0, NULL);
    assert_non_null(object);
    assert_true(json_string_length(json_object_get(object, "reason")) > 500);
    json_decref(object);
}

static void test_status_in_a_missing_folder_is_an_error(void **state)
{
    (void)state;
    const tr_status_record record = {TR_RUN_DONE, 0, -1, NULL, 5};
    assert_int_equal(tr_status_file_write(scratch_path("none/s4"), &record), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "none/s4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_line_to_the_byte),
        cmocka_unit_test(test_values_come_back_exactly),
        cmocka_unit_test(test_resume_keeps_each_step_once),
        cmocka_unit_test(test_a_line_cut_by_a_crash_goes),
        cmocka_unit_test(test_a_full_disk_leaves_whole_lines),
        cmocka_unit_test(test_no_heap_in_the_step_loop),
        cmocka_unit_test(test_status_object),
        cmocka_unit_test(test_a_long_reason_is_cut_to_valid_json),
        cmocka_unit_test(test_status_in_a_missing_folder_is_an_error),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
