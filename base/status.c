#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 8192, TRAIL_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local char trail[TRAIL_BYTES];

static const struct {
    int exit_code;
    const char *text;
} status_rows[] = {
#define STATUS_ROW(name, code, text) {code, text},
    TR_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

int tr_status_exit_code(tr_status status)
{
    return status_rows[status].exit_code;
}

const char *tr_status_text(tr_status status)
{
    return status_rows[status].text;
}

/* Formatted aside first: an argument may be the old message itself. */
static void message_set(const char *format, va_list args, int errnum)
{
    char text[MESSAGE_BYTES];
    int length = vsnprintf(text, sizeof text, format, args);
    if (length < 0)
        length = 0;
    if (length >= (int)sizeof text)
        length = (int)sizeof text - 1;
    if (errnum != 0)
        snprintf(text + length, sizeof text - (size_t)length, ": %s", strerror(errnum));
    memcpy(message, text, sizeof message);
    trail[0] = '\0';
}

tr_status tr_fail(tr_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message_set(format, args, 0);
    va_end(args);
    return status;
}

tr_status tr_fail_errno(tr_status status, int errnum, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message_set(format, args, errnum);
    va_end(args);
    return status;
}

const char *tr_error_message(void)
{
    return message;
}

const char *tr_error_trail(void)
{
    return trail;
}

void tr_error_trail_add(const char *file, int line)
{
    size_t used = strlen(trail);
    snprintf(trail + used, sizeof trail - used, "%s%s:%d", used ? " < " : "", file, line);
}

_Noreturn void tr_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "error: broken invariant at %s:%d: %s (a bug in trine, please report it)\n",
            file, line, condition);
    fflush(stderr);
    abort();
}
