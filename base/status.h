/* Status codes and the error message of a thread.
 *
 * A function that can fail returns tr_status. Who decides that something failed calls tr_fail with a
 * message that says what, where, what was expected and what to do; who propagates uses TR_TRY, which
 * stays quiet and adds file:line to the thread's error trail. Codes are grouped by what the process
 * exits with (tr_status_exit_code). Messages and trails are thread-local; no function here blocks. */
#ifndef TR_BASE_STATUS_H
#define TR_BASE_STATUS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, exit code, text */
#define TR_STATUS_LIST(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(ERR_INTERNAL, 1, "internal error")                                                           \
    X(ERR_IO, 1, "input/output error")                                                             \
    X(ERR_SETTINGS, 2, "bad settings")                                                             \
    X(ERR_DATA, 3, "input data damaged or missing")                                                \
    X(ERR_CHECKPOINT, 4, "checkpoint damaged or missing")                                          \
    X(ERR_TRANSPORT, 5, "launcher or transport")                                                   \
    X(ERR_MEMORY, 6, "not enough memory or no device")                                             \
    X(ERR_NUMERICS, 7, "numbers went wrong")                                                       \
    X(ERR_TIMEOUT, 8, "a wait timed out")                                                          \
    X(ERR_RANK_LOST, 9, "a rank was lost")                                                         \
    X(STOPPED, 75, "stopped early on request, everything saved")

typedef enum tr_status {
#define TR_STATUS_ENUM(name, code, text) TR_##name,
    TR_STATUS_LIST(TR_STATUS_ENUM)
#undef TR_STATUS_ENUM
} tr_status;

/* What the process exits with when it ends with this status. */
int tr_status_exit_code(tr_status status);
const char *tr_status_text(tr_status status);

/* Sets this thread's error message (printf format, no newline, no "error:" prefix), clears its trail, returns
 * `status`. The first line is the message; further lines separated by '\n' are details. */
tr_status tr_fail(tr_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with the text of errno `errnum` appended. */
tr_status tr_fail_errno(tr_status status, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The last message set on this thread ("" when none); valid until the next tr_fail on it. */
const char *tr_error_message(void);
/* "file:line < file:line ..." of the TR_TRY frames that the error passed. */
const char *tr_error_trail(void);
void tr_error_trail_add(const char *file, int line);

#define TR_TRY(call)                                                                               \
    do {                                                                                           \
        tr_status tr_try_status_ = (call);                                                         \
        if (tr_try_status_ != TR_OK) {                                                             \
            tr_error_trail_add(__FILE__, __LINE__);                                                \
            return tr_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* The same for functions with clean-up: sets `status_var` and jumps. */
#define TR_TRY_GOTO(status_var, call, label)                                                       \
    do {                                                                                           \
        (status_var) = (call);                                                                     \
        if ((status_var) != TR_OK) {                                                               \
            tr_error_trail_add(__FILE__, __LINE__);                                                \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* For broken invariants of our own code only, never for files, flags or peers. Always compiled in. */
#define TR_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            tr_assert_failed(#condition, __FILE__, __LINE__);                                      \
    } while (0)
void tr_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
