/* trine ckpt: what checkpoints are there, what one holds, whether it is whole, how two differ. No
 * MPI. */
#include "engine/cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/cli/cmd_ckpt_int.h"
#include "io/dir_commit.h"
#include "io/manifest.h"

static const char usage[] =
    "usage: trine ckpt ls DIR\n"
    "       trine ckpt show STEP_DIR [--hash]\n"
    "       trine ckpt verify STEP_DIR [--threads N]\n"
    "       trine ckpt diff STEP_DIR STEP_DIR\n"
    "\n"
    "ls: the checkpoints of a folder (a run's folder, or its checkpoints/): step, size, loss of "
    "that\n"
    "  step, age, whether it is complete (all files with their sizes; verify looks inside)\n"
    "show: what a checkpoint (a folder like step-00001000) holds\n"
    "  --hash  instead, a line KIND NAME HASH for each stored tensor, sorted: the XXH3-128 of the\n"
    "          whole tensor's fp32 values in row order, the same whatever layout saved it\n"
    "verify: reads everything: every hash, and that every element of every tensor is there "
    "exactly\n"
    "  once; exit code 4 and the names of the files when something is wrong\n"
    "  --threads N  otherwise all cores, at most 16; some 24 MB of memory each\n"
    "diff: which tensors of two checkpoints differ, whatever layouts saved them: how many elements "
    "(bits\n"
    "  are compared), by how much at most and where, and relative to the larger of the two; step, "
    "samples,\n"
    "  loss scale and seed; settings, for information. Exit code 0 when the states are the same, 1 "
    "when\n"
    "  they differ\n";

void tr_ckpt_size_format(char text[24], double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit = 0;
    while (bytes >= 999.5 && unit < 5) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, 24, "%.*f %s",
             unit == 0 || bytes >= 99.5 ? 0
             : bytes >= 9.95            ? 1
                                        : 2,
             bytes, units[unit]);
}

static void age_format(char text[24], double seconds)
{
    if (seconds < 120)
        snprintf(text, 24, "%.0f s", seconds > 0 ? seconds : 0);
    else if (seconds < 7200)
        snprintf(text, 24, "%.0f min", seconds / 60);
    else if (seconds < 2 * 86400)
        snprintf(text, 24, "%.0f h", seconds / 3600);
    else
        snprintf(text, 24, "%.0f days", seconds / 86400);
}

static bool has_manifest(const char *path)
{
    struct stat about;
    char *file = tr_format("%s/" TR_MANIFEST_FILE_NAME, path);
    bool found = stat(file, &about) == 0;
    tr_free(file);
    return found;
}

/* Where the checkpoints of `path` are: its checkpoints/ where it is a run's folder, else itself. tr_free. */
static char *folder_of(const char *path)
{
    struct stat about;
    char *inside = tr_format("%s/checkpoints", path);
    if (stat(inside, &about) == 0 && S_ISDIR(about.st_mode))
        return inside;
    tr_free(inside);
    return tr_strdup(path);
}

/* The newest one of a folder that has a manifest, or NULL. tr_free. */
static char *newest_find(const char *dir)
{
    tr_step_list list;
    char *newest = NULL;
    if (tr_step_list_read(&list, dir) != TR_OK)
        return NULL;
    for (int i = list.num_entries - 1; i >= 0 && newest == NULL; i--)
        if (!list.entries[i].is_temp && list.entries[i].has_manifest)
            newest = tr_step_path(dir, list.entries[i].step);
    tr_step_list_clear(&list);
    return newest;
}

tr_status tr_ckpt_open(tr_checkpoint **checkpoint, const char *path)
{
    if (has_manifest(path))
        return tr_checkpoint_open(checkpoint, path);
    char *dir = folder_of(path), *newest = newest_find(dir);
    tr_status status =
        newest != NULL
            ? tr_fail(TR_ERR_CHECKPOINT,
                      "%s is a folder of checkpoints; name one of them, such as %s (trine ckpt ls "
                      "%s lists them)",
                      path, newest, path)
            : tr_fail(TR_ERR_CHECKPOINT,
                      "%s: no checkpoint is there (expected a folder with a "
                      "file " TR_MANIFEST_FILE_NAME ")",
                      path);
    tr_free(newest);
    tr_free(dir);
    return status;
}

/* One row; `path` is the folder. */
static void row_print(const char *path, const char *name, bool is_temp, bool is_latest)
{
    tr_manifest manifest;
    struct stat about;
    char age[24] = "-", size[24] = "-", loss[24] = "-";
    char *file = tr_format("%s/" TR_MANIFEST_FILE_NAME, path), *wrong = NULL;
    size_t prefix = strlen(path) + 1; /* the row names the folder */
    if (stat(path, &about) == 0)
        age_format(age, difftime(time(NULL), about.st_mtime));
    if (is_temp) {
        wrong = tr_strdup("being written, or left by a run that was killed");
    } else if (!has_manifest(path)) {
        wrong = tr_strdup(TR_MANIFEST_FILE_NAME " is missing");
    } else if (tr_manifest_read(file, &manifest) != TR_OK) {
        const char *message = tr_error_message();
        wrong = tr_strdup(message + (strncmp(message, file, prefix) == 0 ? prefix : 0));
    } else {
        wrong = tr_manifest_find_incomplete(&manifest, path);
        tr_ckpt_size_format(size, (double)tr_manifest_bytes(&manifest));
        if (!isnan(manifest.loss))
            snprintf(loss, sizeof loss, "%.4f", manifest.loss);
        tr_manifest_clear(&manifest);
    }
    printf("%-20s %10s %10s %10s  %s%s%s\n", name, size, loss, age,
           wrong ? "incomplete: " : "complete", wrong ? wrong : "", is_latest ? ", latest" : "");
    tr_free(wrong);
    tr_free(file);
}

static tr_status folder_print(const char *dir, const tr_step_list *list)
{
    int64_t latest = -1;
    if (!tr_dir_latest_read(dir, &latest))
        latest = -1;
    if (list->num_entries == 0 && has_manifest(dir))
        return tr_fail(
            TR_ERR_CHECKPOINT,
            "%s is a checkpoint itself: trine ckpt show and verify take it, ls the folder "
            "that it is in",
            dir);
    if (list->num_entries == 0)
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: no checkpoint is there (expected folders like step-00001000; show and "
                       "verify take a folder of any name)",
                       dir);
    printf("%-20s %10s %10s %10s  %s\n", "checkpoint", "size", "loss", "age", "state");
    for (int i = 0; i < list->num_entries; i++) {
        const tr_step_entry *entry = &list->entries[i];
        char *path =
            entry->is_temp ? tr_step_temp_path(dir, entry->step) : tr_step_path(dir, entry->step);
        row_print(path, strrchr(path, '/') + 1, entry->is_temp,
                  !entry->is_temp && entry->step == latest);
        tr_free(path);
    }
    return TR_OK;
}

tr_status tr_ckpt_ls_run(int argc, char **argv)
{
    tr_step_list list;
    TR_TRY(tr_cli_words(argc, argv, 1, 1));
    char *dir = folder_of(argv[1]);
    tr_status status = tr_step_list_read(&list, dir);
    if (status == TR_OK) {
        status = folder_print(dir, &list);
        tr_step_list_clear(&list);
    }
    tr_free(dir);
    return status;
}

static tr_status run(int argc, char **argv)
{
    static const char *const later[] = {"import", "export"};
    static char ls[] = "ckpt ls", show[] = "ckpt show", verify[] = "ckpt verify",
                diff[] = "ckpt diff";
    static const struct {
        const char *name;
        char *full_name; /* as messages give it */
        tr_status (*run)(int argc, char **argv);
    } verbs[] = {{"ls", ls, tr_ckpt_ls_run},
                 {"show", show, tr_ckpt_show_run},
                 {"verify", verify, tr_ckpt_verify_run},
                 {"diff", diff, tr_ckpt_diff_run}};
    if (argc < 2)
        return tr_fail(TR_ERR_SETTINGS,
                       "trine ckpt needs ls, show, verify or diff; see trine ckpt --help");
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) {
            argv[1] = verbs[i].full_name;
            return verbs[i].run(argc - 1, argv + 1);
        }
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (strcmp(argv[1], later[i]) == 0)
            return tr_fail(TR_ERR_SETTINGS,
                           "trine ckpt %s is not in this version; see trine ckpt --help", argv[1]);
    return tr_fail(TR_ERR_SETTINGS, "trine ckpt has no %s; it has ls, show, verify and diff",
                   argv[1]);
}

const tr_verb tr_verb_ckpt = {
    .name = "ckpt",
    .summary = "list checkpoints; show or verify one, compare two",
    .usage = usage,
    .run = run,
};
