/* Files that appear whole or not at all: written under a temporary name, flushed to the disk,
 * renamed.
 *
 * A reader of the final name sees the old file or the new one, never a part, also after a crash
 * or a power cut. Nothing here allocates heap memory; every function may be called from any
 * thread. */
#ifndef TR_IO_FILE_COMMIT_H
#define TR_IO_FILE_COMMIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Whether `fd` is a file on a disk, and no device or pipe: those nobody may cut or remove, also after a write that failed. */
bool tr_file_is_regular(int fd);

/* Writes all `size` bytes to `fd`, going on after signals and short writes. `path` is for the
 * message. */
tr_status tr_file_write_all(int fd, const void *bytes, size_t size, const char *path);

/* Flushes `fd` (open on `temp`) to the disk, closes it in every case, renames `temp` to `path`
 * and flushes the folder. On failure `temp` is removed and `path` is as it was. */
tr_status tr_file_commit(int fd, const char *temp, const char *path);
/* Its two halves. Ends the writing of a file: where `written` is TR_OK, flushes and closes it; otherwise, or when that fails, closes and removes
 * it, and returns what failed. */
tr_status tr_file_end(int fd, const char *path, tr_status written);
/* Renames, and flushes the folder. On failure `temp` is removed. */
tr_status tr_file_move(const char *temp, const char *path);

/* Makes a folder and its missing parents, which outlive a power cut like what is put into them. */
tr_status tr_folders_make(const char *path);

/* Flushes the folder that holds `path`, so that a rename in it outlives a power cut. */
tr_status tr_file_sync_folder(const char *path);

#endif
