#include "io/file_commit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool tr_file_is_regular(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

tr_status tr_file_write_all(int fd, const void *bytes, size_t size, const char *path)
{
    const unsigned char *next = bytes;
    while (size > 0) {
        ssize_t done = write(fd, next, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return tr_fail_errno(TR_ERR_IO, errno, "%s: writing failed", path);
        next += done;
        size -= (size_t)done;
    }
    return TR_OK;
}

tr_status tr_folders_make(const char *path)
{
    char text[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof text)
        return tr_fail(TR_ERR_IO, "%s: the path is longer than %zu bytes", path, sizeof text);
    memcpy(text, path, length + 1);
    for (size_t at = 1; at <= length; at++) {
        if (path[at] != '/' && path[at] != '\0')
            continue;
        text[at] = '\0';
        if (mkdir(text, 0777) == 0)
            tr_file_sync_folder(text); /* or not: what is put into it is flushed too, and tells */
        else if (errno != EEXIST)
            return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot make the folder", text);
        text[at] = path[at];
    }
    return TR_OK;
}

tr_status tr_file_sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash != NULL ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder)
        return tr_fail(TR_ERR_IO, "%s: the path is longer than %zu bytes", path, sizeof folder);
    if (slash == NULL) {
        strcpy(folder, ".");
    } else if (slash == path) {
        strcpy(folder, "/");
    } else {
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot open the folder", folder);
    /* Some network file systems refuse to flush a folder; the rename itself stands. */
    int failed = fsync(fd) != 0 && errno != EINVAL && errno != EROFS;
    int errnum = errno;
    close(fd);
    if (failed)
        return tr_fail_errno(TR_ERR_IO, errnum, "%s: flushing the folder failed", folder);
    return TR_OK;
}

tr_status tr_file_end(int fd, const char *path, tr_status written)
{
    tr_status status = written;
    if (status == TR_OK && fsync(fd) != 0)
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: flushing to the disk failed", path);
    if (close(fd) != 0 && status == TR_OK)
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: closing failed", path);
    if (status != TR_OK)
        unlink(path);
    return status;
}

tr_status tr_file_move(const char *temp, const char *path)
{
    if (rename(temp, path) != 0) {
        int errnum = errno;
        unlink(temp);
        return tr_fail_errno(TR_ERR_IO, errnum, "%s: cannot rename to %s", temp, path);
    }
    return tr_file_sync_folder(path);
}

tr_status tr_file_commit(int fd, const char *temp, const char *path)
{
    TR_TRY(tr_file_end(fd, temp, TR_OK));
    return tr_file_move(temp, path);
}
