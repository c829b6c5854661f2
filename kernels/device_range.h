/* Ranges for profilers (kernels/device.h) whose names have numbers. */
#ifndef TR_KERNELS_DEVICE_RANGE_H
#define TR_KERNELS_DEVICE_RANGE_H

#include "kernels/device.h"

/* tr_device_range_begin with a name of at most 31 characters (printf format), which is made only where there is somebody to be told. */
void tr_device_range_begin_format(tr_device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
