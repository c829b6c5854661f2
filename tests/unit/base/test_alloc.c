/* base/alloc and base/clock: zeroed memory, texts, the end when memory ends; a clock that goes forward. */
#include "base/alloc.h"

#include <signal.h>
#include <sys/wait.h>
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

static void test_memory(void **state)
{
    (void)state;
    unsigned char *bytes = tr_alloc(1000, 3); /* used before, so that it is not zero by chance */
    memset(bytes, 0xff, 3000);
    tr_free(bytes);
    bytes = tr_alloc(1000, 3);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(bytes[i], 0);
    bytes[2999] = 7;
    bytes = tr_realloc(bytes, 100000, 1);
    assert_int_equal(bytes[2999], 7);
    tr_free(bytes);
    tr_free(NULL);
    bytes = tr_alloc(10000, 1);
    memset(bytes, 0xff, 10000);
    tr_free(bytes);
    void *aligned = tr_alloc_aligned(3, 100, 4096);
    assert_int_equal((uintptr_t)aligned % 4096, 0);
    for (int i = 0; i < 300; i++)
        assert_int_equal(((unsigned char *)aligned)[i], 0);
    tr_free(aligned);
    void *empty = tr_alloc(0, 8);
    assert_non_null(empty);
    tr_free(empty);
}

static void test_texts(void **state)
{
    (void)state;
    char *copy = tr_strdup("");
    assert_string_equal(copy, "");
    tr_free(copy);
    char *text = tr_format("%d %s", 12, "x");
    assert_string_equal(text, "12 x");
    tr_free(text);
    text = tr_format("%5000d", 1);
    assert_int_equal(strlen(text), 5000);
    tr_free(text);
}

/* Exit code and stderr of a child that does `action`. */
static int child_run(void (*action)(void), char *text, size_t bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        action();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t got;
    while ((got = read(ends[0], text + used, bytes - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void product_overflows(void)
{
    tr_alloc(SIZE_MAX / 2, 3);
}

static void resize_overflows(void)
{
    tr_realloc(NULL, SIZE_MAX / 2, 3);
}

static void aligned_overflows(void)
{
    tr_alloc_aligned(SIZE_MAX / 2, 3, 64);
}

static void test_end_of_memory(void **state)
{
    (void)state;
    void (*const actions[])(void) = {product_overflows, resize_overflows, aligned_overflows};
    for (int i = 0; i < 3; i++) {
        char text[500];
        assert_int_equal(child_run(actions[i], text, sizeof text), 6);
        assert_int_equal(
            strncmp(text, "error: not enough memory for 9223372036854775807 x 3 bytes", 50), 0);
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    }
}

static void ignore_signal(int signal_number)
{
    (void)signal_number;
}

static void test_clock(void **state)
{
    (void)state;
    double before = tr_clock_seconds();
    tr_clock_sleep(0.03);
    double after = tr_clock_seconds();
    assert_true(after - before >= 0.03 && after - before < 10);
    tr_clock_sleep(0);
    tr_clock_sleep(-1);
    struct sigaction action = {.sa_handler = ignore_signal};
    sigaction(SIGALRM, &action, NULL);
    ualarm(10000, 0);
    before = tr_clock_seconds();
    tr_clock_sleep(0.05); /* interrupted after 10 ms, and goes on */
    assert_true(tr_clock_seconds() - before >= 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_end_of_memory),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
