/* Tests of what ends a process: runs a function in a child and looks at how it ended and what it said. */
#ifndef TR_TESTS_SIM_CHILD_H
#define TR_TESTS_SIM_CHILD_H

/* Runs `body` in a child process that then exits with code 0, unless it ended before. Returns its exit code (128 + signal when it was killed);
 * said[0 ... size - 1] receives the beginning of what it wrote to stderr. */
int sim_child_run(void (*body)(void), char *said, unsigned size);

/* Fails the cmocka test unless the child ends with `exit_code` and says `words`. */
void sim_child_expect(const char *name, void (*body)(void), int exit_code, const char *words);

#endif
