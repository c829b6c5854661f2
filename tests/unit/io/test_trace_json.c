/* io/trace_json: the file is whole JSON after every flush, and says what was put into it. */
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/trace_json.h"
#include "tests/unit/io/io_scratch.h"

/* The events of the file; the caller gives the whole of it back. */
static json_t *load(const char *path, json_t **whole)
{
    json_error_t error;
    *whole = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (*whole == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    json_t *events = json_object_get(*whole, "traceEvents");
    assert_true(json_is_array(events));
    return events;
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    return value;
}

static double number(const json_t *object, const char *key)
{
    assert_true(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

static void test_slices_names_and_arrows(void **state)
{
    (void)state;
    const char *path = scratch_path("trace.json");
    tr_trace_file *file;
    json_t *whole;
    assert_int_equal(tr_trace_file_create(&file, path), TR_OK);
    assert_int_equal(tr_trace_file_flush(file), TR_OK);
    assert_int_equal(json_array_size(load(path, &whole)), 0);
    json_decref(whole);

    tr_trace_file_process(file, 3, "rank 3 \"odd\\\xc3");
    tr_trace_file_thread(file, 3, 200, "data: waits");
    tr_trace_slice slice = {.process = 3,
                            .thread = 200,
                            .name = "reduce_scatter bucket 2",
                            .begin = 1000.25,
                            .end = 1500.75,
                            .num_args = 2,
                            .args = {{"bytes", 1234567890123}, {"sequence", 7}}};
    tr_trace_file_slice(file, &slice);
    assert_int_equal(tr_trace_file_flush(file), TR_OK);
    json_t *events = load(path, &whole);
    assert_int_equal(json_array_size(events), 5);
    const json_t *name = json_array_get(events, 0);
    assert_string_equal(text(name, "ph"), "M");
    assert_string_equal(text(name, "name"), "process_name");
    assert_string_equal(text(json_object_get(name, "args"), "name"), "rank 3 \"odd\\?");
    const json_t *made = json_array_get(events, 4);
    assert_string_equal(text(made, "ph"), "X");
    assert_string_equal(text(made, "name"), "reduce_scatter bucket 2");
    assert_true(number(made, "pid") == 3 && number(made, "tid") == 200);
    assert_true(number(made, "ts") == 1000.25 && number(made, "dur") == 500.5);
    assert_true(number(json_object_get(made, "args"), "bytes") == 1234567890123);
    json_decref(whole);

    /* More after a flush, one slice without arguments. */
    slice.num_args = 0;
    tr_trace_file_slice(file, &slice);
    tr_trace_file_arrow(file, true, 3, 200, 10, 99);
    tr_trace_file_arrow(file, false, 4, 201, 20, 99);
    assert_int_equal(tr_trace_file_flush(file), TR_OK);
    tr_trace_file_close(file);
    events = load(path, &whole);
    assert_int_equal(json_array_size(events), 8);
    assert_null(json_object_get(json_array_get(events, 5), "args"));
    assert_string_equal(text(json_array_get(events, 6), "ph"), "s");
    assert_string_equal(text(json_array_get(events, 7), "ph"), "f");
    assert_true(number(json_array_get(events, 6), "id") == number(json_array_get(events, 7), "id"));
    json_decref(whole);
}

static void test_files_that_cannot_be_written(void **state)
{
    (void)state;
    tr_trace_file *file;
    assert_int_equal(tr_trace_file_create(&file, scratch_path("none/trace.json")), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "none/trace.json"));
    assert_int_equal(tr_trace_file_create(&file, "/dev/full"), TR_OK);
    tr_trace_file_process(file, 0, "rank 0");
    assert_int_equal(tr_trace_file_flush(file), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "/dev/full"));
    tr_trace_file_close(file);
    tr_trace_file_close(NULL);
}

/* A disk that becomes full: what was whole before stays so. */
static void test_full_disk(void **state)
{
    (void)state;
    const char *path = scratch_path("full.json");
    const tr_trace_slice slice = {.name = "step", .begin = 1, .end = 2};
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    struct rlimit small = {2000, RLIM_INFINITY};
    json_t *whole;
    signal(SIGXFSZ, SIG_IGN);
    for (int good = 0; good < 2; good++) { /* flushes before it is full */
        tr_trace_file *file;
        assert_int_equal(tr_trace_file_create(&file, path), TR_OK);
        for (int i = 0; i < good; i++) {
            tr_trace_file_slice(file, &slice);
            assert_int_equal(tr_trace_file_flush(file), TR_OK);
        }
        for (int i = 0; i < 1000; i++)
            tr_trace_file_slice(file, &slice);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        assert_int_equal(tr_trace_file_flush(file), TR_ERR_IO);
        tr_trace_file_close(file);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
        if (good == 0) {
            assert_int_equal(access(path, F_OK), -1);
            continue;
        }
        assert_int_equal(json_array_size(load(path, &whole)), good);
        json_decref(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_names_and_arrows),
        cmocka_unit_test(test_files_that_cannot_be_written),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
