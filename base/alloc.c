#include "base/alloc.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

/* _exit: handlers of exit() may want memory too, or wait for threads that hold locks. */
static _Noreturn void out_of_memory(size_t count, size_t size)
{
    char line[160];
    int length =
        snprintf(line, sizeof line,
                 "error: not enough memory for %zu x %zu bytes of tables during set-up; use fewer "
                 "ranks on this node\n",
                 count, size);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written;
    _exit(tr_status_exit_code(TR_ERR_MEMORY));
}

void *tr_alloc(size_t count, size_t size)
{
    bool empty = count == 0 || size == 0;
    void *pointer = empty ? calloc(1, 1) : calloc(count, size);
    if (pointer == NULL)
        out_of_memory(count, size);
    return pointer;
}

void *tr_alloc_aligned(size_t count, size_t size, size_t alignment)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        out_of_memory(count, size);
    void *pointer;
    if (posix_memalign(&pointer, alignment, bytes == 0 ? 1 : bytes) != 0)
        out_of_memory(count, size);
    return memset(pointer, 0, bytes);
}

void *tr_realloc(void *pointer, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        out_of_memory(count, size);
    void *moved = realloc(pointer, bytes == 0 ? 1 : bytes);
    if (moved == NULL)
        out_of_memory(count, size);
    return moved;
}

char *tr_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(tr_alloc(bytes, 1), text, bytes);
}

char *tr_format(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    TR_ASSERT(length >= 0);
    char *text = tr_alloc((size_t)length + 1, 1);
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    return text;
}

void tr_free(void *pointer)
{
    free(pointer);
}
