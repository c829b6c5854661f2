/* The console and log.txt (log.h). One mutex keeps lines whole and in the same order in both places. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 }; /* longer lines are formatted on the heap */

static struct {
    pthread_mutex_t mutex;
    int rank;
    bool loud;
    tr_log_level level;
    FILE *file;
    bool status_line_open; /* the terminal's last line has no newline yet */
} log_state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .loud = true, .level = TR_LOG_INFO};

void tr_log_init(int rank, bool loud, tr_log_level level)
{
    pthread_mutex_lock(&log_state.mutex);
    log_state.rank = rank;
    log_state.loud = loud;
    log_state.level = level;
    pthread_mutex_unlock(&log_state.mutex);
}

bool tr_log_file_open(const char *path)
{
    FILE *file = fopen(path, "ae");
    if (file == NULL)
        return false;
    pthread_mutex_lock(&log_state.mutex);
    if (log_state.file != NULL)
        fclose(log_state.file);
    log_state.file = file;
    pthread_mutex_unlock(&log_state.mutex);
    return true;
}

void tr_log_file_close(void)
{
    pthread_mutex_lock(&log_state.mutex);
    if (log_state.file != NULL)
        fclose(log_state.file);
    log_state.file = NULL;
    if (log_state.status_line_open)
        fputs("\n", stdout);
    log_state.status_line_open = false;
    fflush(stdout);
    pthread_mutex_unlock(&log_state.mutex);
}

static bool level_is_printed(tr_log_level level)
{
    return level <= log_state.level && (level != TR_LOG_INFO || log_state.loud);
}

/* "error: rank 3: " and the like; INFO lines of rank 0 have none. */
static int prefix_format(char *text, size_t bytes, tr_log_level level)
{
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    if (log_state.rank == 0)
        return snprintf(text, bytes, "%s", names[level]);
    return snprintf(text, bytes, "%srank %d: ", names[level], log_state.rank);
}

static void stream_write(FILE *stream, const char *line, size_t length)
{
    fwrite(line, 1, length, stream);
    fflush(stream);
}

/* `line` ends with a newline. On a terminal a status line stays open: the next line overwrites it. */
static void line_write(tr_log_level level, const char *line, size_t length, bool status)
{
    FILE *stream = level <= TR_LOG_WARNING || level == TR_LOG_DEBUG ? stderr : stdout;
    if (log_state.status_line_open)
        fputs("\r\033[K", stdout);
    if (status) {
        fwrite(line, 1, length - 1, stdout);
        fflush(stdout);
    } else {
        fflush(stdout);
        stream_write(stream, line, length);
    }
    log_state.status_line_open = status;
    if (log_state.file != NULL)
        stream_write(log_state.file, line, length);
}

static void log_va(tr_log_level level, bool status, const char *format, va_list args)
{
    int errno_kept = errno;
    pthread_mutex_lock(&log_state.mutex);
    if (level_is_printed(level)) {
        char buffer[LINE_BYTES];
        char *line = buffer;
        int prefix = prefix_format(buffer, sizeof buffer, level);
        va_list again;
        va_copy(again, args);
        int body = vsnprintf(buffer + prefix, sizeof buffer - (size_t)prefix, format, args);
        if (body < 0)
            body = 0;
        size_t length = (size_t)prefix + (size_t)body;
        if (length + 2 > sizeof buffer) {
            char *longer = malloc(length + 2);
            if (longer != NULL) {
                memcpy(longer, buffer, (size_t)prefix);
                vsnprintf(longer + prefix, (size_t)body + 1, format, again);
                line = longer;
            } else {
                length = sizeof buffer - 2;
            }
        }
        va_end(again);
        if (length == 0 || line[length - 1] != '\n')
            line[length++] = '\n';
        line_write(level, line, length, status);
        if (line != buffer)
            free(line);
    }
    pthread_mutex_unlock(&log_state.mutex);
    errno = errno_kept;
}

void tr_log(tr_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va(level, false, format, args);
    va_end(args);
}

void tr_log_status_line(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va(TR_LOG_INFO, isatty(STDOUT_FILENO) != 0, format, args);
    va_end(args);
}
