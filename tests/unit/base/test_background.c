/* base/background: a work ends when it ends, on a thread that computing goes before, and tells what it came to. */
#include "base/background.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

typedef struct seen {
    atomic_bool go_on;
    int result;
    int nice;
    bool own_thread, blocks_signals;
    bool waits; /* a while, and needs no word to go on */
    tr_status status;
} seen;

static tr_status look(void *context)
{
    seen *s = context;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    s->blocks_signals = sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGUSR2) == 1;
    s->own_thread = syscall(SYS_gettid) != getpid();
    s->nice = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    if (s->waits)
        tr_clock_sleep(0.05);
    while (!s->waits && !atomic_load(&s->go_on))
        tr_clock_sleep(0.001);
    s->result = 17;
    return s->status == TR_OK ? TR_OK : tr_fail(s->status, "no room on %s", "the moon");
}

static void test_beside_its_owner(void **state)
{
    (void)state;
    seen s = {.status = TR_OK};
    tr_background *background = tr_background_create();
    int own = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(tr_background_start(background, look, &s, 5), TR_OK);
    assert_false(tr_background_wait(background, 0));
    double begin = tr_clock_seconds();
    assert_false(tr_background_wait(background, 0.05));
    assert_true(tr_clock_seconds() - begin >= 0.05);
    atomic_store(&s.go_on, true);
    while (!tr_background_wait(background, 1000)) {
    }
    assert_true(tr_background_wait(background, 0));
    assert_int_equal(s.result, 17);
    assert_int_equal(tr_background_get_status(background), TR_OK);
    assert_int_equal(tr_background_finish(background), TR_OK);
    tr_background_destroy(background);
    assert_true(s.own_thread && s.blocks_signals);
    assert_int_equal(s.nice, own + 5 < 19 ? own + 5 : 19);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
}

static void test_the_message_comes_over(void **state)
{
    (void)state;
    seen s = {.status = TR_ERR_IO};
    tr_background *background = tr_background_create();
    assert_int_equal(tr_background_start(background, look, &s, 0), TR_OK);
    atomic_store(&s.go_on, true);
    assert_int_equal(tr_fail(TR_ERR_DATA, "of this thread"), TR_ERR_DATA);
    assert_true(tr_background_wait(background, 1000));
    assert_int_equal(tr_background_get_status(background), TR_ERR_IO);
    assert_string_equal(tr_error_message(), "of this thread");
    assert_int_equal(tr_background_finish(background), TR_ERR_IO);
    assert_string_equal(tr_error_message(), "no room on the moon");
    assert_int_equal(tr_background_finish(background), TR_OK); /* nothing is under way */

    /* The next work on the same background. */
    s.status = TR_OK;
    assert_int_equal(tr_background_start(background, look, &s, 0), TR_OK);
    assert_int_equal(tr_background_finish(background), TR_OK);

    /* Destroying waits. */
    atomic_store(&s.go_on, false);
    s.result = 0;
    s.waits = true;
    assert_int_equal(tr_background_start(background, look, &s, 0), TR_OK);
    tr_background_destroy(background);
    assert_int_equal(s.result, 17);
    tr_background_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_its_owner),
        cmocka_unit_test(test_the_message_comes_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
