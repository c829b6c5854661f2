#include "kernels/device_host.h"

#include <string.h>

enum { PINNED_BYTES = 4 << 20 };

tr_status tr_device_writer_begin(tr_device_writer *writer, tr_device *device)
{
    *writer = (tr_device_writer){.device = device};
    if (device->unified)
        return TR_OK;
    void *pinned;
    TR_TRY(device->memory_create(device, TR_MEMORY_HOST, PINNED_BYTES, &pinned));
    writer->pinned = pinned;
    return TR_OK;
}

/* Enqueues the copy of what lies in pinned memory and is not on its way. */
static tr_status send(tr_device_writer *writer)
{
    size_t bytes = writer->used - writer->sent;
    const void *src = writer->pinned + writer->sent;
    writer->sent = writer->used;
    return bytes == 0 ? TR_OK
                      : writer->device->copy(writer->device, TR_STREAM_COMPUTE, writer->memory, src,
                                             bytes);
}

static tr_status make_room(tr_device_writer *writer)
{
    TR_TRY(send(writer));
    writer->used = writer->sent = 0;
    return writer->device->synchronize(writer->device, TR_STREAM_COMPUTE);
}

tr_status tr_device_writer_add(tr_device_writer *writer, void *memory, const void *host,
                               size_t bytes)
{
    if (writer->pinned == NULL) {
        memcpy(memory, host, bytes);
        return TR_OK;
    }
    for (size_t done = 0, some; done < bytes; done += some) {
        char *to = (char *)memory + done;
        if (writer->used == PINNED_BYTES)
            TR_TRY(make_room(writer));
        if (writer->memory + (writer->used - writer->sent) != to)
            TR_TRY(send(writer));
        if (writer->used == writer->sent)
            writer->memory = to;
        size_t room = PINNED_BYTES - writer->used;
        some = room < bytes - done ? room : bytes - done;
        memcpy(writer->pinned + writer->used, (const char *)host + done, some);
        writer->used += some;
    }
    return TR_OK;
}

tr_status tr_device_writer_end(tr_device_writer *writer)
{
    tr_device *device = writer->device;
    if (writer->pinned == NULL)
        return TR_OK;
    tr_status status = send(writer), waited = device->synchronize(device, TR_STREAM_COMPUTE);
    device->memory_destroy(device, TR_MEMORY_HOST, writer->pinned, PINNED_BYTES);
    writer->pinned = NULL;
    return status != TR_OK ? status : waited;
}

tr_status tr_device_write(tr_device *device, void *memory, const void *host, size_t bytes)
{
    tr_device_writer writer;
    TR_TRY(tr_device_writer_begin(&writer, device));
    tr_status status = tr_device_writer_add(&writer, memory, host, bytes);
    tr_status end = tr_device_writer_end(&writer);
    return status != TR_OK ? status : end;
}

/* Through pinned memory of so many bytes. */
static tr_status read_through(tr_device *device, void *pinned, void *host, const void *memory,
                              size_t bytes)
{
    for (size_t done = 0, some; done < bytes; done += some) {
        some = bytes - done < PINNED_BYTES ? bytes - done : PINNED_BYTES;
        TR_TRY(device->copy(device, TR_STREAM_COMPUTE, pinned, (const char *)memory + done, some));
        TR_TRY(device->synchronize(device, TR_STREAM_COMPUTE));
        memcpy((char *)host + done, pinned, some);
    }
    return TR_OK;
}

tr_status tr_device_read(tr_device *device, void *host, const void *memory, size_t bytes)
{
    if (device->unified) {
        memcpy(host, memory, bytes);
        return TR_OK;
    }
    /* Without a copy nothing would be waited for, and what is pinned could be in use when it is given back. */
    if (bytes == 0)
        return TR_OK;
    void *pinned;
    TR_TRY(device->memory_create(device, TR_MEMORY_HOST, PINNED_BYTES, &pinned));
    tr_status status = read_through(device, pinned, host, memory, bytes);
    device->memory_destroy(device, TR_MEMORY_HOST, pinned, PINNED_BYTES);
    return status;
}
