/* A list of copies inside a device's memory that are made together: many small ones cost what one costs (copy_many of kernels/ops.h).
 *
 * Lives on the stack of who fills it. The copies of one list are independent of each other: none reads or writes what another writes. After the flush
 * they are made, on the device's compute stream. */
#ifndef TR_KERNELS_COPY_LIST_H
#define TR_KERNELS_COPY_LIST_H

#include "kernels/device.h"

enum { TR_COPY_LIST_ROOM = 64 };

typedef struct tr_copy_list {
    tr_device *device;
    int count;
    tr_copy copies[TR_COPY_LIST_ROOM];
} tr_copy_list;

static inline void tr_copy_list_begin(tr_copy_list *list, tr_device *device)
{
    list->device = device;
    list->count = 0;
}

tr_status tr_copy_list_flush(tr_copy_list *list);
/* Copies of no bytes are left out; a full list is flushed. */
tr_status tr_copy_list_add(tr_copy_list *list, void *dst, const void *src, size_t bytes);

#endif
