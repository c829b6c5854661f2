/* base/status: codes, messages and trails of a thread. */
#include "base/status.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(tr_status_exit_code(TR_OK), 0);
    assert_int_equal(tr_status_exit_code(TR_ERR_SETTINGS), 2);
    assert_int_equal(tr_status_exit_code(TR_ERR_RANK_LOST), 9);
    assert_int_equal(tr_status_exit_code(TR_STOPPED), 75);
    assert_string_equal(tr_status_text(TR_ERR_TIMEOUT), "a wait timed out");
}

static tr_status inner(void)
{
    return tr_fail(TR_ERR_DATA, "file %s", "a.bin");
}

static tr_status outer(void)
{
    TR_TRY(inner());
    return TR_OK;
}

static void test_try_keeps_message_and_adds_trail(void **state)
{
    (void)state;
    assert_int_equal(outer(), TR_ERR_DATA);
    assert_string_equal(tr_error_message(), "file a.bin");
    assert_non_null(strstr(tr_error_trail(), "test_status.c:"));
    assert_int_equal(tr_fail(TR_ERR_IO, "outer: %s", tr_error_message()), TR_ERR_IO);
    assert_string_equal(tr_error_message(), "outer: file a.bin");
    assert_string_equal(tr_error_trail(), "");
    tr_fail_errno(TR_ERR_IO, ENOENT, "open x");
    assert_string_equal(tr_error_message(), "open x: No such file or directory");
}

static void *other_thread(void *context)
{
    (void)context;
    tr_fail(TR_ERR_IO, "elsewhere");
    return NULL;
}

static void test_messages_belong_to_threads(void **state)
{
    (void)state;
    tr_fail(TR_ERR_IO, "here");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(tr_error_message(), "here");
}

static void test_long_messages_are_cut(void **state)
{
    (void)state;
    static char text[20000];
    memset(text, 'x', sizeof text - 1);
    tr_fail_errno(TR_ERR_IO, ENOENT, "%s", text);
    assert_in_range(strlen(tr_error_message()), 4000, 19999);
    for (int i = 0; i < 1000; i++)
        tr_error_trail_add("file.c", i);
    assert_true(strlen(tr_error_trail()) < 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_try_keeps_message_and_adds_trail),
        cmocka_unit_test(test_messages_belong_to_threads),
        cmocka_unit_test(test_long_messages_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
