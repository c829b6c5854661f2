/* Which checkpoint is resumed, which could be instead, and what must be known of it before the run is built. */
#include "engine/checkpoint.h"

#include <dirent.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/checkpoint_read.h"
#include "io/dir_commit.h"

static void list_add(tr_resume_list *list, char *path)
{
    list->paths = tr_realloc(list->paths, (size_t)list->num_paths + 1, sizeof list->paths[0]);
    list->paths[list->num_paths++] = path;
}

static void ignored_add(tr_resume_list *list, char *path)
{
    char *longer =
        tr_format("%s%s%s", list->ignored ? list->ignored : "", list->ignored ? ", " : "", path);
    tr_free(list->ignored);
    tr_free(path);
    list->ignored = longer;
}

void tr_resume_list_clear(tr_resume_list *list)
{
    for (int i = 0; i < list->num_paths; i++)
        tr_free(list->paths[i]);
    tr_free(list->paths);
    tr_free(list->ignored);
    *list = (tr_resume_list){0};
}

/* The steps [low, high] that are whole, from the highest down. */
static void steps_add(tr_resume_list *list, const char *dir, const tr_step_list *steps, int64_t low,
                      int64_t high)
{
    for (int i = steps->num_entries - 1; i >= 0; i--) {
        const tr_step_entry *entry = &steps->entries[i];
        if (!entry->is_temp && entry->has_manifest && entry->step >= low && entry->step <= high)
            list_add(list, tr_step_path(dir, entry->step));
    }
}

static bool has_entries(const char *path)
{
    struct dirent *entry;
    bool found = false;
    DIR *folder = opendir(path);
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
        found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* Nothing can be resumed, but there was something: it is not for us to begin anew beside it. */
static tr_status bare_refuse(const char *dir, const tr_step_list *steps)
{
    tr_status status = TR_OK;
    for (int i = steps->num_entries - 1; i >= 0 && status == TR_OK; i--) {
        char *path = tr_step_path(dir, steps->entries[i].step);
        if (!steps->entries[i].is_temp && has_entries(path))
            status = tr_fail(TR_ERR_CHECKPOINT,
                             "no checkpoint of %s can be loaded: %s has lost its "
                             "" TR_MANIFEST_FILE_NAME " (is a copy of it not finished?); "
                             "checkpoint.resume=none starts anew",
                             dir, path);
        tr_free(path);
    }
    return status;
}

/* The one that `latest` names first, then those before it, and last those of higher steps: a run that
 * went back, or began anew, has left them behind. Unfinished ones are worth a word when they would
 * have come before. */
static tr_status folder_find(tr_resume_list *list, const char *dir)
{
    tr_step_list steps;
    int64_t latest = INT64_MAX;
    if (tr_step_list_read(&steps, dir) != TR_OK) {
        char *message = tr_strdup(tr_error_message());
        tr_status status = tr_fail(TR_ERR_CHECKPOINT, "%s", message);
        tr_free(message);
        return status;
    }
    if (!tr_dir_latest_read(dir, &latest))
        latest = INT64_MAX;
    steps_add(list, dir, &steps, 0, latest);
    if (latest < INT64_MAX)
        steps_add(list, dir, &steps, latest + 1, INT64_MAX);
    bool seen_whole = false;
    for (int i = steps.num_entries - 1; i >= 0; i--) {
        const tr_step_entry *entry = &steps.entries[i];
        bool whole = !entry->is_temp && entry->has_manifest;
        if (!whole && (!seen_whole || entry->step == latest))
            ignored_add(list, entry->is_temp ? tr_step_temp_path(dir, entry->step)
                                             : tr_step_path(dir, entry->step));
        seen_whole = seen_whole || whole;
    }
    tr_status status = seen_whole ? TR_OK : bare_refuse(dir, &steps);
    tr_step_list_clear(&steps);
    return status;
}

static bool is_there(const char *path, const char *name)
{
    char *inside = tr_format("%s/%s", path, name);
    bool found = access(inside, F_OK) == 0;
    tr_free(inside);
    return found;
}

/* A folder of checkpoints, or a run's: its newest one. */
static tr_status named_find(tr_resume_list *list, const char *resume)
{
    char *dir = tr_format("%s%s", resume, is_there(resume, "checkpoints") ? "/checkpoints" : "");
    tr_status status = folder_find(list, dir);
    if (status == TR_OK && list->num_paths == 0) {
        tr_fail(TR_ERR_CHECKPOINT,
                "checkpoint.resume = %s: no checkpoint is there (expected a folder with a "
                "file " TR_MANIFEST_FILE_NAME
                ", a folder of checkpoints step-NNNNNNNN, or a run's folder)",
                resume);
        status = tr_resume_offer(resume);
    }
    tr_free(dir);
    return status;
}

tr_status tr_resume_list_find(tr_resume_list *list, const tr_config *cfg)
{
    const char *resume = cfg->checkpoint.resume;
    tr_status status = TR_OK;
    *list = (tr_resume_list){0};
    if (strcmp(resume, "none") == 0)
        return TR_OK;
    list->is_named = strcmp(resume, "auto") != 0;
    if (!list->is_named)
        status = folder_find(list, cfg->checkpoint.dir);
    else if (is_there(resume, TR_MANIFEST_FILE_NAME))
        list_add(list, tr_strdup(resume));
    else
        status = named_find(list, resume);
    if (status != TR_OK)
        tr_resume_list_clear(list);
    return status;
}

/* ---- another one ---- */

static bool is_good(const char *path)
{
    tr_checkpoint *checkpoint = NULL;
    bool good = tr_checkpoint_open(&checkpoint, path) == TR_OK;
    tr_checkpoint_close(checkpoint);
    return good;
}

/* The newest good one of a folder, other than `step`; NULL. tr_free. */
static char *newest_good(const char *dir, int64_t step)
{
    tr_step_list steps;
    char *found = NULL;
    if (tr_step_list_read(&steps, dir) != TR_OK)
        return NULL;
    for (int i = steps.num_entries - 1; i >= 0 && found == NULL; i--) {
        const tr_step_entry *entry = &steps.entries[i];
        char *path = tr_step_path(dir, entry->step);
        if (!entry->is_temp && entry->has_manifest && entry->step != step && is_good(path))
            found = path;
        else
            tr_free(path);
    }
    tr_step_list_clear(&steps);
    return found;
}

tr_status tr_resume_offer(const char *path)
{
    int64_t step;
    char *message = tr_strdup(tr_error_message()), *dir = tr_strdup(path), *other = NULL;
    for (size_t end = strlen(dir); end > 0 && dir[end - 1] == '/'; end--)
        dir[end - 1] = '\0';
    char *slash = strrchr(dir, '/');
    if (tr_step_from_name(slash != NULL ? slash + 1 : dir, &step)) {
        if (slash != NULL)
            *slash = '\0';
        other = newest_good(slash == NULL ? "." : slash == dir ? "/" : dir, step);
    }
    tr_status status = tr_fail(TR_ERR_CHECKPOINT, "%s%s%s", message,
                               other != NULL ? "; the newest good one beside it is " : "",
                               other != NULL ? other : "");
    tr_free(other);
    tr_free(dir);
    tr_free(message);
    return status;
}

int64_t tr_checkpoint_count_later(const tr_config *cfg, int64_t step, int64_t *last)
{
    tr_step_list steps;
    int64_t count = 0;
    *last = step;
    if (tr_step_list_read(&steps, cfg->checkpoint.dir) != TR_OK)
        return 0;
    for (int i = 0; i < steps.num_entries; i++) {
        const tr_step_entry *entry = &steps.entries[i];
        if (entry->is_temp || !entry->has_manifest || entry->step <= step)
            continue;
        count++;
        *last = entry->step;
    }
    tr_step_list_clear(&steps);
    return count;
}

/* ---- the reduction tree ---- */

/* Takes a recorded setting over, with the checkpoint as its origin. */
static tr_status setting_take(tr_config *cfg, const tr_config *recorded, const char *origin,
                              const char *key)
{
    char *name = tr_format("train.%s", key), *value = tr_config_get(recorded, name);
    tr_status status = TR_OK;
    if (value != NULL && !tr_config_is_set(cfg, name)) {
        char *text = tr_format("train:\n  %s: %s\n", key, value);
        status = tr_config_read_text(cfg, origin, text, strlen(text));
        tr_free(text);
    }
    tr_free(value);
    tr_free(name);
    return status;
}

/* True when M of `cfg` is a multiple of the recorded leaves; otherwise the batch was changed, and
 * the tree with it. */
static bool leaves_fit(const tr_config *cfg, const tr_config *recorded)
{
    return recorded->train.reduction_leaves > 0 &&
           cfg->derived.microbatches % recorded->train.reduction_leaves == 0;
}

static tr_status manifest_peek(tr_config *cfg, const tr_config *resolved, const char *path)
{
    tr_manifest manifest;
    tr_config recorded;
    char *file = tr_format("%s/" TR_MANIFEST_FILE_NAME, path);
    tr_status status = tr_manifest_read(file, &manifest);
    if (status == TR_OK) {
        tr_config_init(&recorded);
        bool readable =
            tr_config_read_text(&recorded, file, manifest.config, strlen(manifest.config)) == TR_OK;
        if (readable)
            status = setting_take(cfg, &recorded, file, "tensor_slices");
        if (readable && status == TR_OK && leaves_fit(resolved, &recorded)) {
            status = setting_take(cfg, &recorded, file, "reduction_order");
            if (status == TR_OK && cfg->train.reduction_order != TR_REDUCTION_NATIVE)
                status = setting_take(cfg, &recorded, file, "reduction_leaves");
        }
        tr_config_clear(&recorded);
        tr_manifest_clear(&manifest);
    }
    tr_free(file);
    return status;
}

tr_status tr_checkpoint_peek(tr_config *cfg, int64_t num_ranks)
{
    tr_config resolved;
    tr_resume_list list;
    if (cfg->checkpoint.weights_only)
        return TR_OK;
    /* Where checkpoint.dir is open, the resolution knows. One that fails is reported by the
     * caller's own. */
    tr_config_copy(&resolved, cfg);
    if (tr_config_resolve(&resolved, num_ranks) != TR_OK) {
        tr_config_clear(&resolved);
        return TR_OK;
    }
    tr_status status = tr_resume_list_find(&list, &resolved);
    if (status == TR_OK) {
        tr_status peeked = TR_OK;
        for (int i = 0; i < list.num_paths; i++) {
            peeked = manifest_peek(cfg, &resolved, list.paths[i]);
            if (peeked == TR_OK)
                break; /* a damaged one is passed over here as when it is loaded, which says so */
        }
        if (list.is_named && peeked != TR_OK)
            status = peeked == TR_ERR_CHECKPOINT ? tr_resume_offer(list.paths[0]) : peeked;
        tr_resume_list_clear(&list);
    }
    tr_config_clear(&resolved);
    return status;
}
