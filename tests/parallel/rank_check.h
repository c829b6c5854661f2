/* Checks of a program on several ranks: the first that fails ends all of them. */
#ifndef TR_TESTS_RANK_CHECK_H
#define TR_TESTS_RANK_CHECK_H

#include "base/status.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_here(#condition, __FILE__, __LINE__);                                             \
    } while (0)
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        if ((call) != TR_OK)                                                                       \
            fail_here(tr_error_message(), __FILE__, __LINE__);                                     \
    } while (0)

_Noreturn void fail_here(const char *what, const char *file, int line);

#endif
