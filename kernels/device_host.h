/* Values between a device's memory and host memory of any kind, which is where files, checks and set-up have them.
 *
 * On a device whose memory the host shares these are plain copies. Elsewhere values pass through pinned memory of a bounded size, on the compute stream: they come after
 * everything that was enqueued there, and what is enqueued later comes after them. Not for a step's work: reads wait for the device. */
#ifndef TR_KERNELS_DEVICE_HOST_H
#define TR_KERNELS_DEVICE_HOST_H

#include "kernels/device.h"

/* host[0 ... bytes - 1] = memory; waits until it is there. */
tr_status tr_device_read(tr_device *device, void *host, const void *memory, size_t bytes);
/* memory[0 ... bytes - 1] = host; `host` has been read when it returns. */
tr_status tr_device_write(tr_device *device, void *memory, const void *host, size_t bytes);

/* Many writes that need not have happened one by one; one that begins where the last one ended becomes part of its copy. begin, any number of writes, end. */
typedef struct tr_device_writer {
    tr_device *device;
    unsigned char *pinned; /* NULL where the host shares the device's memory */
    size_t used;           /* bytes of it */
    size_t sent;           /* of them, those whose copies are enqueued; the others go to `memory` */
    char *memory;
} tr_device_writer;

tr_status tr_device_writer_begin(tr_device_writer *writer, tr_device *device);
/* `host` has been read when it returns; the values are in place after the end. */
tr_status tr_device_writer_add(tr_device_writer *writer, void *memory, const void *host,
                               size_t bytes);
/* Waits for the writes, and gives the pinned memory back; also after a failure. */
tr_status tr_device_writer_end(tr_device_writer *writer);

#endif
