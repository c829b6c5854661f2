#include "tests/cudasim/runtime/sim_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void cudasim_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("cudasim: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(CUDASIM_EXIT);
}
