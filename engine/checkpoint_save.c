/* tr_run_save: this rank's part of the state to its file, and rank 0's commit (checkpoint.h). */
#include "engine/checkpoint.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint_int.h"
#include "io/dir_commit.h"
#include "io/manifest.h"
#include "kernels/device.h"

/* What a rank tells rank 0 about its file, as integers that are summed over ranks with zeros. */
enum { INFO_BYTES, INFO_HASH, INFO_TABLE_HASH = INFO_HASH + 2, INFO_COUNT = INFO_TABLE_HASH + 2 };
enum { RANKS_AT_ONCE = 512 }; /* one sum holds 4096 integers */

/* ---- this rank's part ---- */

static bool all_finite(const float *values, int64_t count)
{
    bool finite = true;
    for (int64_t i = 0; i < count; i++)
        finite &= (bool)isfinite(values[i]);
    return finite;
}

/* Whether this rank writes elements of the item: replicas over tensor ranks are written by one of
 * them, those over data ranks by shares, a tied tensor by its owner. */
static bool writes(const tr_local_param *item)
{
    return item->counted && item->param->tied_to < 0 && item->shard_begin < item->shard_end;
}

/* Appends the parts of one item and kind. */
static tr_status parts_add(const tr_run *run, const tr_local_param *item, tr_shard_kind kind,
                           tr_shard_part *parts, int *num_parts)
{
    const float *values = tr_checkpoint_state(run, kind);
    tr_box pieces[TR_BOX_MAX_PIECES];
    if (values == NULL)
        return TR_OK;
    values += item->state_offset + (item->shard_begin - item->state_begin);
    int num_pieces = tr_checkpoint_pieces(item, item->shard_begin, item->shard_end, pieces);
    for (int p = 0; p < num_pieces; p++) {
        int64_t count = tr_box_volume(&pieces[p]);
        if (!all_finite(values, count))
            return tr_fail(TR_ERR_IO, "tensor %s (%s) holds values that are not finite",
                           item->param->name, tr_shard_kind_name(kind));
        parts[(*num_parts)++] = (tr_shard_part){item->table_row, kind, pieces[p], values};
        values += count;
    }
    return TR_OK;
}

static tr_status parts_collect(const tr_run *run, tr_shard_part *parts, int *num_parts)
{
    *num_parts = 0;
    for (int i = 0; i < run->stage.local.num_items; i++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS && writes(&run->stage.local.items[i]); kind++)
            TR_TRY(
                parts_add(run, &run->stage.local.items[i], (tr_shard_kind)kind, parts, num_parts));
    return TR_OK;
}

/* A rank with nothing to write has no file: summary->bytes stays 0. */
static tr_status shard_save(const tr_run *run, tr_shard_summary *summary)
{
    size_t most = (size_t)run->stage.local.num_items * TR_SHARD_NUM_KINDS * TR_BOX_MAX_PIECES;
    tr_shard_part *parts = TR_NEW_ARRAY(tr_shard_part, most + 1);
    int num_parts;
    *summary = (tr_shard_summary){0};
    tr_status status = parts_collect(run, parts, &num_parts);
    if (status == TR_OK && num_parts > 0) {
        char name[TR_MANIFEST_FILE];
        tr_manifest_file_name(run->mesh.rank, name);
        char *folder = tr_step_temp_path(run->cfg.checkpoint.dir, run->step);
        char *path = tr_format("%s/%s", folder, name);
        status = tr_shard_write(path, parts, num_parts, (int)run->cfg.checkpoint.level,
                                TR_SHARD_CHUNK_DEFAULT, summary);
        tr_free(path);
        tr_free(folder);
    }
    tr_free(parts);
    return status;
}

/* ---- the manifest ---- */

/* Collective. files: [ranks], filled on every rank; files of 0 bytes do not exist. */
static tr_status files_gather(tr_run *run, const tr_shard_summary *mine, tr_manifest_file *files)
{
    int num_ranks = (int)run->cfg.derived.num_ranks;
    int64_t info[RANKS_AT_ONCE][INFO_COUNT];
    for (int first = 0; first < num_ranks; first += RANKS_AT_ONCE) {
        int count = num_ranks - first < RANKS_AT_ONCE ? num_ranks - first : RANKS_AT_ONCE;
        int me = run->mesh.rank - first;
        memset(info, 0, sizeof info);
        if (me >= 0 && me < count) {
            info[me][INFO_BYTES] = mine->bytes;
            memcpy(&info[me][INFO_HASH], &mine->hash, sizeof mine->hash);
            memcpy(&info[me][INFO_TABLE_HASH], &mine->table_hash, sizeof mine->table_hash);
        }
        TR_TRY(tr_run_sum(run, info[0], count * INFO_COUNT));
        for (int r = 0; r < count; r++) {
            tr_manifest_file *file = &files[first + r];
            tr_manifest_file_name(first + r, file->name);
            file->bytes = info[r][INFO_BYTES];
            memcpy(&file->hash, &info[r][INFO_HASH], sizeof file->hash);
            memcpy(&file->table_hash, &info[r][INFO_TABLE_HASH], sizeof file->table_hash);
        }
    }
    return TR_OK;
}

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

/* Rank 0. `files`: of all ranks. */
static tr_status manifest_save(const tr_run *run, tr_manifest_file *files)
{
    tr_manifest manifest = {.step = run->step,
                            .samples = (int64_t)run->samples,
                            .updates = run->optimizer.num_updates,
                            .skips_in_row = run->skips_in_row,
                            .seed = run->cfg.train.seed,
                            .scale = run->scaler.scale,
                            .good_steps = run->scaler.good_steps,
                            .loss = run->loss_known ? run->last_loss : NAN,
                            .numerics = tr_strdup(tr_cpu_device_numerics()),
                            .config = tr_config_dump(&run->cfg),
                            .params = params_list(&run->stage.table),
                            .num_params = run->stage.table.num_rows,
                            .files = files};
    for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
        manifest.kinds[kind] = tr_checkpoint_state(run, (tr_shard_kind)kind) != NULL;
    for (int r = 0; r < (int)run->cfg.derived.num_ranks; r++)
        if (files[r].bytes > 0)
            files[manifest.num_files++] = files[r];
    char *folder = tr_step_temp_path(run->cfg.checkpoint.dir, run->step);
    char *path = tr_format("%s/" TR_MANIFEST_FILE_NAME, folder);
    tr_status status = tr_manifest_write(path, &manifest);
    tr_free(path);
    tr_free(folder);
    manifest.files = NULL; /* the caller's */
    tr_manifest_clear(&manifest);
    return status;
}

/* ---- all ranks together ---- */

/* Stops at the first failure of any rank; all ranks return the same. */
static tr_status save_together(tr_run *run, tr_manifest_file *files)
{
    const char *dir = run->cfg.checkpoint.dir;
    bool first = run->mesh.rank == 0;
    tr_shard_summary summary;
    TR_TRY(tr_checkpoint_agree(run, first ? tr_dir_commit_begin(dir, run->step) : TR_OK));
    TR_TRY(tr_checkpoint_agree(run, shard_save(run, &summary)));
    TR_TRY(files_gather(run, &summary, files));
    tr_status status = TR_OK;
    if (first)
        status = manifest_save(run, files);
    if (first && status == TR_OK)
        status = tr_dir_commit_finish(dir, run->step);
    return tr_checkpoint_agree(run, status);
}

tr_status tr_run_save(tr_run *run)
{
    const char *dir = run->cfg.checkpoint.dir;
    double begin = tr_clock_seconds();
    tr_manifest_file *files = TR_NEW_ARRAY(tr_manifest_file, (size_t)run->cfg.derived.num_ranks);
    tr_status status = save_together(run, files);
    tr_free(files);
    run->save_failed = status != TR_OK;
    if (status == TR_ERR_IO) {
        if (run->mesh.rank == 0) {
            tr_dir_commit_abort(dir, run->step);
            tr_log_warning("the checkpoint of step %lld was not saved: %s; earlier checkpoints "
                           "stay as they are, and training goes on",
                           (long long)run->step, tr_error_message());
        }
        status = TR_OK;
    } else if (status == TR_OK && run->mesh.rank == 0 &&
               tr_dir_prune(dir, run->cfg.checkpoint.keep, run->step) != TR_OK) {
        tr_log_warning("%s", tr_error_message());
    }
    run->checkpoint_seconds += tr_clock_seconds() - begin;
    return status;
}

bool tr_run_save_failed(const tr_run *run)
{
    return run->save_failed;
}
