#include "io/status_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/file_commit.h"

enum { REASON_BYTES = 2000 };

static const char *const state_names[] = {"running", "done", "stopped", "failed"};

/* JSON string with quotes, cut so that it fits whole. Bytes that are no printable ASCII become
 * escapes, so that a reason in a broken encoding still gives valid JSON. */
static void quote(char *dst, size_t room, const char *text)
{
    size_t used = 0;
    dst[used++] = '"';
    for (const char *at = text; *at != '\0' && used + 8 < room; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\') {
            dst[used++] = '\\';
            dst[used++] = (char)byte;
        } else if (byte == '\n') {
            dst[used++] = '\\';
            dst[used++] = 'n';
        } else if (byte < 0x20 || byte >= 0x7f) {
            used += (size_t)snprintf(dst + used, room - used, "\\u%04x", byte);
        } else {
            dst[used++] = (char)byte;
        }
    }
    dst[used++] = '"';
    dst[used] = '\0';
}

tr_status tr_status_file_write(const char *path, const tr_status_record *record)
{
    char reason[REASON_BYTES + 16] = "null", rank[16] = "null";
    char text[REASON_BYTES + 256], temp[PATH_MAX];
    if (record->reason != NULL)
        quote(reason, sizeof reason, record->reason);
    if (record->rank >= 0)
        snprintf(rank, sizeof rank, "%d", record->rank);
    int size = snprintf(
        text, sizeof text,
        "{\"state\": \"%s\", \"code\": %d, \"rank\": %s, \"reason\": %s, \"step\": %" PRIu64 "}\n",
        state_names[record->state], record->code, rank, reason, record->step);
    TR_ASSERT(size > 0 && (size_t)size < sizeof text);
    if (snprintf(temp, sizeof temp, "%s.%d.%d.tmp", path, (int)getpid(), (int)gettid()) >=
        (int)sizeof temp)
        return tr_fail(TR_ERR_IO, "%s: the path is longer than %zu bytes", path, sizeof temp);

    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", temp);
    tr_status status = tr_file_write_all(fd, text, (size_t)size, temp);
    if (status != TR_OK) {
        close(fd);
        unlink(temp);
        return status;
    }
    if (record->state != TR_RUN_RUNNING)
        return tr_file_commit(fd, temp, path);
    close(fd);
    if (rename(temp, path) != 0) {
        int errnum = errno;
        unlink(temp);
        return tr_fail_errno(TR_ERR_IO, errnum, "%s: cannot rename to %s", temp, path);
    }
    return TR_OK;
}
