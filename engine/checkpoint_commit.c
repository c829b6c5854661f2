/* The end of a save: what its manifest says, and the folder's way to its name (checkpoint_int.h). */
#include "engine/checkpoint_int.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/device.h"

/* What a rank tells rank 0 about its file, as integers that are summed over ranks with zeros. */
enum { INFO_BYTES, INFO_HASH, INFO_TABLE_HASH = INFO_HASH + 2, INFO_COUNT = INFO_TABLE_HASH + 2 };
enum { RANKS_AT_ONCE = 512 }; /* one sum holds 4096 integers */

static tr_manifest_param *params_list(const tr_param_table *table)
{
    tr_manifest_param *params = TR_NEW_ARRAY(tr_manifest_param, (size_t)table->num_rows);
    for (int i = 0; i < table->num_rows; i++) {
        _Static_assert(sizeof params[i].name >= sizeof table->rows[i].name, "names fit");
        strcpy(params[i].name, table->rows[i].name);
        params[i].num_dims = table->rows[i].num_dims;
        memcpy(params[i].shape, table->rows[i].shape, sizeof params[i].shape);
        params[i].tied_to = table->rows[i].tied_to;
    }
    return params;
}

void tr_commit_init(tr_commit *commit, tr_run *run)
{
    *commit = (tr_commit){.dir = run->cfg.checkpoint.dir,
                          .keep = {run->cfg.checkpoint.keep, run->cfg.checkpoint.keep_every},
                          .num_ranks = (int)run->cfg.derived.num_ranks,
                          .trace = tr_saver_get_trace(&run->saver)};
    tr_manifest *manifest = &commit->manifest;
    manifest->step = run->step;
    manifest->files = TR_NEW_ARRAY(tr_manifest_file, (size_t)commit->num_ranks);
    if (run->mesh.rank > 0)
        return;
    const tr_step_state *state = run->stage.decider.known;
    manifest->samples = (int64_t)run->samples;
    manifest->updates = state->updates;
    manifest->skips_in_row = state->skips_in_row;
    manifest->seed = run->cfg.train.seed;
    manifest->scale = state->loss_scale;
    manifest->good_steps = state->good_steps;
    manifest->loss = run->loss_known ? run->last_loss : NAN;
    manifest->numerics = tr_strdup(run->numerics);
    manifest->config = tr_config_dump(&run->cfg);
    manifest->params = params_list(&run->stage.table);
    manifest->num_params = run->stage.table.num_rows;
    for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
        manifest->kinds[kind] = tr_checkpoint_state(run, (tr_shard_kind)kind) != NULL;
}

void tr_commit_clear(tr_commit *commit)
{
    tr_manifest_clear(&commit->manifest);
    *commit = (tr_commit){0};
}

tr_status tr_commit_gather(tr_commit *commit, tr_run *run, const tr_shard_summary *mine)
{
    tr_manifest *manifest = &commit->manifest;
    int64_t info[RANKS_AT_ONCE][INFO_COUNT];
    for (int first = 0; first < commit->num_ranks; first += RANKS_AT_ONCE) {
        int left = commit->num_ranks - first, count = left < RANKS_AT_ONCE ? left : RANKS_AT_ONCE;
        int me = run->mesh.rank - first;
        memset(info, 0, sizeof info);
        if (me >= 0 && me < count) {
            info[me][INFO_BYTES] = mine->bytes;
            memcpy(&info[me][INFO_HASH], &mine->hash, sizeof mine->hash);
            memcpy(&info[me][INFO_TABLE_HASH], &mine->table_hash, sizeof mine->table_hash);
        }
        TR_TRY(tr_run_sum(run, info[0], count * INFO_COUNT));
        for (int r = 0; r < count; r++) {
            if (info[r][INFO_BYTES] == 0) /* nothing to write: no file */
                continue;
            tr_manifest_file *file = &manifest->files[manifest->num_files++];
            tr_manifest_file_name(first + r, file->name);
            file->bytes = info[r][INFO_BYTES];
            memcpy(&file->hash, &info[r][INFO_HASH], sizeof file->hash);
            memcpy(&file->table_hash, &info[r][INFO_TABLE_HASH], sizeof file->table_hash);
        }
    }
    return TR_OK;
}

/* The checkpoint is whole; something after that failed. */
static void trouble_tell(const tr_commit *commit, char *trouble)
{
    if (trouble == NULL)
        return;
    tr_log_warning("the checkpoint of step %lld is saved and whole, but `latest` could not be "
                   "moved to it, which the next save tries again: %s",
                   (long long)commit->manifest.step, trouble);
    tr_free(trouble);
}

tr_status tr_commit_work(void *context)
{
    tr_commit *commit = context;
    int64_t step = commit->manifest.step;
    commit->begin = tr_clock_seconds();
    char *folder = tr_step_temp_path(commit->dir, step);
    char *path = tr_format("%s/" TR_MANIFEST_FILE_NAME, folder);
    tr_trace_lane_switch(commit->trace, 0, "commit", -1, -1);
    char *trouble = NULL;
    tr_status status = tr_manifest_write(path, &commit->manifest);
    tr_free(path);
    tr_free(folder);
    if (status == TR_OK)
        status = tr_dir_commit_finish(commit->dir, step, &trouble);
    trouble_tell(commit, trouble);
    commit->end = tr_clock_seconds();
    tr_trace_lane_switch(commit->trace, 0, status == TR_OK ? "make room" : NULL, -1, -1);
    TR_TRY(status);
    if (tr_dir_prune(commit->dir, &commit->keep, step) != TR_OK)
        tr_log_warning("%s", tr_error_message());
    tr_trace_lane_switch(commit->trace, 0, NULL, -1, -1);
    return TR_OK;
}
