/* How the simulated device says that a program misused it: one line on stderr that begins "cudasim: ", and the end of the
 * process. There is nothing to go on with: a real device would have computed something else, or crashed later. */
#ifndef TR_TESTS_SIM_ERROR_H
#define TR_TESTS_SIM_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDASIM_EXIT = 99 }; /* the exit code of a process that ended so */

void cudasim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#ifdef __cplusplus
}
#endif

#endif
