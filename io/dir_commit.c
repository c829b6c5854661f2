#include "io/dir_commit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "io/file_commit.h"
#include "io/manifest.h"

#define TEMP_SUFFIX ".tmp"
#define REPLACED_SUFFIX ".replaced"

void tr_step_name(int64_t step, char name[TR_STEP_NAME])
{
    snprintf(name, TR_STEP_NAME, "step-%08" PRId64, step);
}

bool tr_step_from_name(const char *name, int64_t *step)
{
    char exact[TR_STEP_NAME];
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    errno = 0;
    long long value = strtoll(name + 5, NULL, 10);
    if (errno != 0)
        return false;
    tr_step_name(value, exact);
    if (strcmp(name, exact) != 0)
        return false;
    *step = value;
    return true;
}

char *tr_step_path(const char *dir, int64_t step)
{
    char name[TR_STEP_NAME];
    tr_step_name(step, name);
    return tr_format("%s/%s", dir, name);
}

char *tr_step_temp_path(const char *dir, int64_t step)
{
    char name[TR_STEP_NAME];
    tr_step_name(step, name);
    return tr_format("%s/%s" TEMP_SUFFIX, dir, name);
}

/* ---- removing ---- */

/* By its name, and what it is: trine makes no folders, links or devices in a checkpoint. */
static bool is_ours(int folder, const char *name)
{
    struct stat about;
    if (strcmp(name, TR_MANIFEST_FILE_NAME) != 0 && !tr_manifest_is_file_name(name))
        return false;
    return fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0 || S_ISREG(about.st_mode);
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool is_link(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
}

/* Calls unlink on our files (remove) or only looks. *foreign: something else is there too. Not through a link: what lies
 * behind it was put there by someone else. */
static tr_status folder_walk(const char *path, bool remove, bool *foreign)
{
    if (is_link(path))
        return tr_fail(TR_ERR_IO, "%s: a link, not a folder that trine made", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot open the folder", path);
    const struct dirent *entry;
    tr_status status = TR_OK;
    *foreign = false;
    while ((entry = readdir(dir)) != NULL) {
        if (is_dot(entry->d_name))
            continue;
        if (!is_ours(dirfd(dir), entry->d_name))
            *foreign = true;
        else if (remove && unlinkat(dirfd(dir), entry->d_name, 0) != 0 && errno != ENOENT)
            status = tr_fail_errno(TR_ERR_IO, errno, "%s/%s: cannot remove the file", path,
                                   entry->d_name);
    }
    closedir(dir);
    return status;
}

/* A temporary folder, unless it holds a file that is not ours. One that is not there is fine. */
static tr_status temp_remove(const char *path)
{
    struct stat about;
    bool foreign;
    if (lstat(path, &about) != 0 && errno == ENOENT)
        return TR_OK;
    TR_TRY(folder_walk(path, false, &foreign));
    if (foreign)
        return tr_fail(TR_ERR_IO, "%s: not removed, it holds files that are not trine's", path);
    TR_TRY(folder_walk(path, true, &foreign));
    if (rmdir(path) != 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot remove the folder", path);
    return TR_OK;
}

/* What stood at a checkpoint's name and has given way to a new one. Of a link only the link. */
static tr_status older_remove(const char *path)
{
    if (!is_link(path))
        return temp_remove(path);
    if (unlink(path) != 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot remove the link", path);
    return TR_OK;
}

/* First out of sight under the temporary name: a half removed folder is never taken for a
 * checkpoint. */
static tr_status step_remove(const char *dir, int64_t step)
{
    char *path = tr_step_path(dir, step), *temp = tr_step_temp_path(dir, step);
    bool foreign = false;
    tr_status status = folder_walk(path, false, &foreign);
    if (status == TR_OK && !foreign) {
        status = temp_remove(temp);
        if (status == TR_OK && rename(path, temp) != 0)
            status = tr_fail_errno(TR_ERR_IO, errno, "%s: cannot rename to %s", path, temp);
        if (status == TR_OK)
            status = temp_remove(temp);
    }
    tr_free(temp);
    tr_free(path);
    return status;
}

/* The first of several failures: the thread's message is that of the last. */
typedef struct failure {
    tr_status status;
    char *message; /* tr_free */
} failure;

static void failure_note(failure *first, tr_status status)
{
    if (status == TR_OK || first->status != TR_OK)
        return;
    first->status = status;
    first->message = tr_strdup(tr_error_message());
}

static tr_status failure_end(failure *first)
{
    if (first->status != TR_OK)
        tr_fail(first->status, "%s", first->message);
    tr_free(first->message);
    return first->status;
}

static void temps_remove(const tr_step_list *list, const char *dir, failure *first)
{
    for (int i = 0; i < list->num_entries; i++)
        if (list->entries[i].is_temp && !list->entries[i].is_link) {
            char *temp = tr_step_temp_path(dir, list->entries[i].step);
            failure_note(first, temp_remove(temp));
            tr_free(temp);
        }
}

/* ---- writing ---- */

/* What killed runs left takes the room that is needed now. What cannot be removed is told when room is made. */
static tr_status leftovers_remove(const char *dir)
{
    tr_step_list list;
    failure unsaid = {.status = TR_OK};
    TR_TRY(tr_step_list_read(&list, dir));
    temps_remove(&list, dir, &unsaid);
    tr_free(unsaid.message);
    tr_step_list_clear(&list);
    return TR_OK;
}

tr_status tr_dir_commit_begin(const char *dir, int64_t step)
{
    char *temp = tr_step_temp_path(dir, step);
    tr_status status = tr_folders_make(dir);
    if (status == TR_OK)
        status = leftovers_remove(dir);
    if (status == TR_OK)
        status = temp_remove(temp);
    if (status == TR_OK && mkdir(temp, 0777) != 0)
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: cannot make the folder", temp);
    tr_free(temp);
    return status;
}

void tr_dir_commit_abort(const char *dir, int64_t step)
{
    char *temp = tr_step_temp_path(dir, step);
    bool foreign;
    if (folder_walk(temp, true, &foreign) == TR_OK)
        rmdir(temp);
    tr_free(temp);
}

/* `latest` under its temporary name, on the disk. */
static tr_status latest_write(const char *temp, int64_t step)
{
    char name[TR_STEP_NAME + 1];
    tr_step_name(step, name);
    strcat(name, "\n");
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot create the file", temp);
    return tr_file_end(fd, temp, tr_file_write_all(fd, name, strlen(name), temp));
}

/* Where two folders cannot be exchanged in one move: the older one steps aside first. A machine that
 * stops between the moves leaves it whole, under a name that is not looked at. */
static tr_status older_replace(const char *temp, const char *path)
{
    char *aside = tr_format("%s" REPLACED_SUFFIX, path);
    tr_status status = older_remove(aside); /* an earlier replacement's, now that `path` is there */
    if (status == TR_OK && rename(path, aside) != 0)
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: cannot rename to %s", path, aside);
    if (status == TR_OK && rename(temp, path) != 0) {
        status = tr_fail_errno(TR_ERR_IO, errno, "%s: cannot take the place of %s", temp, path);
        rename(aside, path);
    }
    if (status == TR_OK)
        older_remove(aside);
    tr_free(aside);
    return status;
}

/* Network file systems (NFS, Lustre) know no exchange. */
static bool is_unknown_call(int errnum)
{
    return errnum == EINVAL || errnum == ENOSYS || errnum == EOPNOTSUPP;
}

/* Moves the temporary folder to its name. An older checkpoint of the step lands under the temporary
 * name, and is removed. */
static tr_status folder_move(const char *temp, const char *path)
{
    if (rename(temp, path) == 0)
        return TR_OK;
    int errnum = errno;
    if (errnum != ENOTEMPTY && errnum != EEXIST && !is_link(path))
        return tr_fail_errno(TR_ERR_IO, errnum, "%s: cannot rename to %s", temp, path);
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE) != 0) {
        if (is_unknown_call(errno))
            return older_replace(temp, path);
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot take the place of %s", temp, path);
    }
    older_remove(temp); /* what stays is seen as temporary, and removed with the next checkpoint */
    return TR_OK;
}

/* The checkpoint that a resume takes first; -1: there is none. *highest: that of the highest step. */
static int64_t first_found(const char *dir, int64_t *highest)
{
    tr_step_list list;
    int64_t named;
    *highest = -1;
    if (tr_step_list_read(&list, dir) == TR_OK)
        for (int i = 0; i < list.num_entries; i++)
            if (!list.entries[i].is_temp && list.entries[i].has_manifest)
                *highest = list.entries[i].step;
    tr_step_list_clear(&list);
    return tr_dir_latest_read(dir, &named) ? named : *highest;
}

/* What this thread's message says happened after the folder had its name, and what follows from it. may_remove: a `latest` that names an older one, which
 * would be resumed in the place of the new one, may go where the new one has the highest number and is found without it. */
static char *trouble_tell(const char *dir, const char *latest, int64_t step, bool may_remove)
{
    char *reason = tr_strdup(tr_error_message());
    char name[TR_STEP_NAME];
    int64_t highest, first = first_found(dir, &highest);
    if (first != step && highest == step && may_remove && unlink(latest) == 0)
        first = highest;
    tr_step_name(first, name);
    char *text = first == step ? tr_format("%s; a resume finds it all the same", reason)
                               : tr_format("%s; until then a resume takes %s first", reason, name);
    tr_free(reason);
    return text;
}

/* `latest` is written before the folder moves: where the disk has no room for it, nothing has changed yet. */
tr_status tr_dir_commit_finish(const char *dir, int64_t step, char **trouble)
{
    *trouble = NULL;
    char *temp = tr_step_temp_path(dir, step), *path = tr_step_path(dir, step);
    char *inside = tr_format("%s/" TR_MANIFEST_FILE_NAME, temp);
    char *latest = tr_format("%s/latest", dir), *latest_temp = tr_format("%s/latest.tmp", dir);
    tr_status status = tr_file_sync_folder(inside);
    if (status == TR_OK)
        status = latest_write(latest_temp, step);
    if (status == TR_OK) {
        status = folder_move(temp, path);
        bool named = status == TR_OK, flushed = named && tr_file_sync_folder(path) == TR_OK;
        if (named && (!flushed || tr_file_move(latest_temp, latest) != TR_OK))
            *trouble = trouble_tell(dir, latest, step, flushed);
        if (!flushed)
            unlink(latest_temp);
    }
    tr_free(latest_temp);
    tr_free(latest);
    tr_free(inside);
    tr_free(path);
    tr_free(temp);
    return status;
}

/* ---- finding ---- */

static int by_step(const void *a, const void *b)
{
    const tr_step_entry *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (int)x->is_temp - (int)y->is_temp;
}

/* True for an exact name of a folder, temporary or not. */
static bool entry_parse(int dir_fd, const char *name, tr_step_entry *entry)
{
    char text[TR_STEP_NAME + sizeof TEMP_SUFFIX];
    size_t length = strlen(name);
    struct stat about;
    if (length >= sizeof text)
        return false;
    strcpy(text, name);
    *entry = (tr_step_entry){0};
    if (fstatat(dir_fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    entry->is_link = S_ISLNK(about.st_mode);
    if (tr_ends_with(text, TEMP_SUFFIX)) {
        entry->is_temp = true;
        text[length - strlen(TEMP_SUFFIX)] = '\0';
    }
    if (!tr_step_from_name(text, &entry->step) || fstatat(dir_fd, name, &about, 0) != 0 ||
        !S_ISDIR(about.st_mode))
        return false;
    char *manifest = tr_format("%s/" TR_MANIFEST_FILE_NAME, name);
    entry->has_manifest = faccessat(dir_fd, manifest, F_OK, 0) == 0;
    tr_free(manifest);
    return true;
}

tr_status tr_step_list_read(tr_step_list *list, const char *path)
{
    *list = (tr_step_list){0};
    DIR *dir = opendir(path);
    if (dir == NULL && errno == ENOENT)
        return TR_OK;
    if (dir == NULL)
        return tr_fail_errno(TR_ERR_IO, errno, "%s: cannot open the folder of checkpoints", path);
    const struct dirent *item;
    while ((item = readdir(dir)) != NULL) {
        tr_step_entry entry;
        if (!entry_parse(dirfd(dir), item->d_name, &entry))
            continue;
        list->entries = tr_realloc(list->entries, (size_t)list->num_entries + 1, sizeof entry);
        list->entries[list->num_entries++] = entry;
    }
    closedir(dir);
    if (list->num_entries > 1)
        qsort(list->entries, (size_t)list->num_entries, sizeof list->entries[0], by_step);
    return TR_OK;
}

void tr_step_list_clear(tr_step_list *list)
{
    tr_free(list->entries);
    *list = (tr_step_list){0};
}

bool tr_dir_latest_read(const char *dir, int64_t *step)
{
    char text[TR_STEP_NAME + 2] = "";
    char *path = tr_format("%s/latest", dir);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe has nothing to say */
    tr_free(path);
    if (file < 0)
        return false;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return tr_step_from_name(text, step);
}

/* ---- making room ---- */

/* As far as names and sizes tell: the manifest has its own hash, every file is there and as long as it says. */
static bool is_whole(const char *dir, int64_t step)
{
    char *path = tr_step_path(dir, step), *file = tr_format("%s/" TR_MANIFEST_FILE_NAME, path);
    tr_manifest manifest;
    bool whole = tr_manifest_read(file, &manifest) == TR_OK;
    if (whole) {
        char *wrong = tr_manifest_find_incomplete(&manifest, path);
        whole = wrong == NULL;
        tr_free(wrong);
        tr_manifest_clear(&manifest);
    }
    tr_free(file);
    tr_free(path);
    return whole;
}

/* Which steps go, the one that is missed least last; how many. What `latest` names is what a resume would take: it stays. */
static int spare_find(const tr_step_list *list, const char *dir, const tr_dir_retention *keep,
                      int64_t newest, int64_t *spare)
{
    int64_t whole = 0, named;
    int count = 0;
    if (!tr_dir_latest_read(dir, &named))
        named = newest;
    for (int pass = 0; pass < 2; pass++) /* up to the newest, then what lies beyond it */
        for (int i = list->num_entries - 1; i >= 0; i--) {
            const tr_step_entry *entry = &list->entries[i];
            if (entry->is_temp || entry->is_link || !entry->has_manifest ||
                (entry->step > newest) != (pass == 1))
                continue;
            if (whole < keep->last)
                whole += is_whole(dir, entry->step);
            else if (entry->step != named && (keep->every == 0 || entry->step % keep->every != 0))
                spare[count++] = entry->step;
        }
    return count;
}

tr_status tr_dir_prune(const char *dir, const tr_dir_retention *keep, int64_t newest)
{
    tr_step_list list;
    failure first = {.status = TR_OK};
    TR_TRY(tr_step_list_read(&list, dir));
    temps_remove(&list, dir, &first);
    if (keep->last > 0) {
        int64_t *spare = TR_NEW_ARRAY(int64_t, (size_t)list.num_entries + 1);
        for (int i = spare_find(&list, dir, keep, newest, spare) - 1; i >= 0; i--)
            failure_note(&first, step_remove(dir, spare[i]));
        tr_free(spare);
    }
    tr_step_list_clear(&list);
    return failure_end(&first);
}
