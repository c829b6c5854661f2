/* base/waitpoint: the line, and readers beside a busy writer. */
#include "base/waitpoint.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"

static void test_line(void **state)
{
    (void)state;
    char text[TR_WAIT_TEXT];
    tr_wait wait = {.operation = "reduce_scatter",
                    .group = "data",
                    .peer = 3,
                    .microbatch = 2,
                    .seconds = 12.34};
    const char *full = "waiting 12.3 s in reduce_scatter, group data, for rank 3, microbatch 2";
    assert_int_equal(tr_wait_format(&wait, text, sizeof text), strlen(full));
    assert_string_equal(text, full);
    wait =
        (tr_wait){.operation = "loader", .group = NULL, .peer = -1, .microbatch = -1, .seconds = 0};
    tr_wait_format(&wait, text, sizeof text);
    assert_string_equal(text, "waiting 0.0 s in loader");
    wait.peer = wait.microbatch = 0;
    tr_wait_format(&wait, text, sizeof text);
    assert_string_equal(text, "waiting 0.0 s in loader, for rank 0, microbatch 0");
    assert_int_equal(tr_wait_format(&wait, text, 10), 9);
    assert_string_equal(text, "waiting 0");
}

static void test_begin_and_end(void **state)
{
    (void)state;
    tr_waitpoint waitpoint;
    tr_wait wait;
    memset(&waitpoint, 0xff, sizeof waitpoint);
    tr_waitpoint_init(&waitpoint);
    assert_false(tr_waitpoint_get(&waitpoint, &wait));
    tr_waitpoint_begin(&waitpoint, "send", "pipeline", 5, 7);
    usleep(20000);
    assert_true(tr_waitpoint_get(&waitpoint, &wait));
    assert_string_equal(wait.operation, "send");
    assert_string_equal(wait.group, "pipeline");
    assert_int_equal(wait.peer, 5);
    assert_int_equal(wait.microbatch, 7);
    assert_true(wait.seconds >= 0.02 && wait.seconds < 20);
    tr_waitpoint_end(&waitpoint);
    assert_false(tr_waitpoint_get(&waitpoint, &wait));
}

static void test_print(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    tr_waitpoint waitpoint;
    tr_waitpoint_init(&waitpoint);
    tr_waitpoint_print(&waitpoint, ends[1], "rank 1: ");
    tr_waitpoint_begin(&waitpoint, "barrier", NULL, -1, -1);
    tr_waitpoint_print(&waitpoint, ends[1], "rank 1: ");
    close(ends[1]);
    char text[300] = "";
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    assert_string_equal(text, "rank 1: waiting 0.0 s in barrier\n");
    close(ends[0]);
}

static tr_waitpoint shared;
static atomic_bool stopping;

static void *writer(void *context)
{
    (void)context;
    for (int i = 0; !atomic_load(&stopping); i = (i + 1) % 1000) {
        tr_waitpoint_begin(&shared, i % 2 ? "odd" : "even", i % 2 ? "odd group" : "even group", i,
                           i);
        if (i % 3 == 0)
            tr_waitpoint_end(&shared);
    }
    return NULL;
}

static void test_readers_see_whole_waits(void **state)
{
    (void)state;
    tr_waitpoint_init(&shared);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, writer, NULL), 0);
    /* On a busy machine the writer may have to wait for its turn first. */
    double begin = tr_clock_seconds();
    int found = 0;
    while (found < 200000 && tr_clock_seconds() - begin < (found <= 1000 ? 20 : 1)) {
        tr_wait wait;
        if (!tr_waitpoint_get(&shared, &wait)) {
            sched_yield();
            continue;
        }
        found++;
        assert_int_equal(wait.peer, wait.microbatch);
        assert_string_equal(wait.operation, wait.peer % 2 ? "odd" : "even");
        assert_string_equal(wait.group, wait.peer % 2 ? "odd group" : "even group");
    }
    atomic_store(&stopping, true);
    pthread_join(thread, NULL);
    assert_true(found > 1000);
}

/* What a signal handler sees that interrupted the writer between its two steps: no wait, and no endless loop. */
static void test_interrupted_writer(void **state)
{
    (void)state;
    tr_waitpoint waitpoint;
    tr_wait wait;
    tr_waitpoint_init(&waitpoint);
    tr_waitpoint_begin(&waitpoint, "send", NULL, -1, -1);
    atomic_fetch_add(&waitpoint.version, 1);
    assert_false(tr_waitpoint_get(&waitpoint, &wait));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_begin_and_end),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_readers_see_whole_waits),
        cmocka_unit_test(test_interrupted_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
