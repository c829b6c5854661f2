#include "tests/cudasim/sim_child.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

int sim_child_run(void (*body)(void), char *said, unsigned size)
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        signal(SIGSEGV, SIG_DFL); /* cmocka's handler would end the test here, not the process */
        body();
        exit(0);
    }
    close(ends[1]);
    unsigned used = 0;
    char rest[4096];
    for (ssize_t got = 1; got > 0;) {
        bool full = used + 1 >= size;
        got = full ? read(ends[0], rest, sizeof rest) : read(ends[0], said + used, size - 1 - used);
        if (!full && got > 0)
            used += (unsigned)got;
    }
    said[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void sim_child_expect(const char *name, void (*body)(void), int exit_code, const char *words)
{
    char said[8192];
    int ended = sim_child_run(body, said, sizeof said);
    if (ended != exit_code || strstr(said, words) == NULL)
        fail_msg("%s: ended with %d instead of %d, or did not say \"%s\":\n%s", name, ended,
                 exit_code, words, said);
}
