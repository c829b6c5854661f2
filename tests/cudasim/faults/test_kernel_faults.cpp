/* Each planted fault of kernel_faults.h is found as is said there, and errors name the kernel. Without its fault each kernel is right in every
 * order. Built twice: under AddressSanitizer, and with every access checked. */
#include "tests/cudasim/faults/kernel_faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

extern "C" {
#include <cmocka.h>
}

#include "tests/cudasim/simt_test.h"

enum { EXIT_WRONG = 3 };

static const char *how(const kernel_fault *fault)
{
#ifdef __SANITIZE_THREAD__
    return fault->found_by_checked;
#else
    return fault->found_by;
#endif
}

static void test_sound(void **state)
{
    (void)state;
    for (int i = 0; i < num_kernel_faults; i++)
        simt_test_orders([=] {
            if (!kernel_faults[i].run(false))
                fail_msg("%s: wrong without the fault", kernel_faults[i].name);
        });
}

/* Runs the faulty kernel in a process of its own; *text is what it says on stderr. */
static int run_planted(const kernel_fault *fault, std::string *text)
{
    int ends[2], status;
    fflush(stdout);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        _exit(fault->run(true) ? 0 : EXIT_WRONG);
    }
    close(ends[1]);
    char buffer[4096];
    text->clear();
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        text->append(buffer, (size_t)n);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static bool holds(const std::string &text, const char *part)
{
    return text.find(part) != std::string::npos;
}

/* An error must come in every order, a wrong result in some of the seeded ones, by which tests run. */
static void check_planted(const kernel_fault *fault, const char *found_by)
{
    bool by_result = found_by == WRONG_RESULT || found_by == NOTHING, found_seeded = false;
    int num_orders = by_result ? SIMT_TEST_ORDERS : 3, num_found = 0;
    std::string text;
    for (int order = 0; order < num_orders; order++) {
        simt_test_order_set(order);
        int code = run_planted(fault, &text);
        bool found = code == EXIT_WRONG;
        if (!by_result) {
            found = code != 0 && code != EXIT_WRONG && holds(text, found_by) &&
                    holds(text, "cudasim: kernel ");
            if (!found)
                fail_msg("%s: not found in order %d (exit code %d): %s", fault->name, order, code,
                         text.c_str());
        } else if (code != 0 && code != EXIT_WRONG) {
            fail_msg("%s: found by more than %s: %s", fault->name, found_by, text.c_str());
        }
        num_found += found;
        found_seeded = found_seeded || (found && order >= 2);
    }
    printf("%-46s found in %d of %d orders by %s\n", fault->name, num_found, num_orders, found_by);
    if (found_seeded == (found_by == NOTHING))
        fail_msg("%s: found by %s in %d orders", fault->name, found_by, num_found);
}

static void test_planted(void **state)
{
    (void)state;
    for (int i = 0; i < num_kernel_faults; i++)
        check_planted(&kernel_faults[i], how(&kernel_faults[i]));
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_planted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
