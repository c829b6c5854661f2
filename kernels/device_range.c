#include "kernels/device_range.h"

#include <stdarg.h>
#include <stdio.h>

void tr_device_range_begin_format(tr_device *device, const char *format, ...)
{
    char name[32];
    va_list args;
    if (device->range_begin == NULL)
        return;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    device->range_begin(device, name);
}
