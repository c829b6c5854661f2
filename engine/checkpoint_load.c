/* tr_run_resume: choose, check, load, compare (checkpoint.h). */
#include "engine/checkpoint.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint_int.h"
#include "engine/checkpoint_node.h"
#include "engine/peak.h"
#include "kernels/device.h"

/* ---- the same model? ---- */

static void shape_format(char text[48], int num_dims, const int64_t *shape)
{
    if (num_dims == 2)
        snprintf(text, 48, "%" PRId64 " x %" PRId64, shape[0], shape[1]);
    else
        snprintf(text, 48, "%" PRId64, shape[0]);
}

static tr_status refuse_model(const tr_checkpoint *checkpoint, const char *difference)
{
    return tr_fail(TR_ERR_SETTINGS,
                   "%s is a checkpoint of another model: %s; use its configuration, another "
                   "run.dir, or checkpoint.resume=none",
                   tr_checkpoint_path(checkpoint), difference);
}

static tr_status model_compare(const tr_run *run, const tr_checkpoint *checkpoint)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    const tr_param_table *table = &run->stage.table;
    char text[400], there[48], here[48];
    for (int i = 0; i < table->num_rows && i < manifest->num_params; i++) {
        const tr_manifest_param *saved = &manifest->params[i];
        const tr_param *row = &table->rows[i];
        shape_format(there, saved->num_dims, saved->shape);
        shape_format(here, row->num_dims, row->shape);
        if (strcmp(saved->name, row->name) != 0)
            snprintf(text, sizeof text, "its tensor %d is %s, here it is %s", i, saved->name,
                     row->name);
        else if (strcmp(there, here) != 0)
            snprintf(text, sizeof text, "%s is %s there and %s here", row->name, there, here);
        else if (saved->tied_to != row->tied_to)
            snprintf(text, sizeof text, "%s is %s there and %s here", row->name,
                     saved->tied_to >= 0 ? "tied" : "not tied",
                     row->tied_to >= 0 ? "tied" : "not tied");
        else
            continue;
        return refuse_model(checkpoint, text);
    }
    if (table->num_rows == manifest->num_params)
        return TR_OK;
    snprintf(text, sizeof text, "it has %d tensors, this configuration %d", manifest->num_params,
             table->num_rows);
    return refuse_model(checkpoint, text);
}

/* The settings that a checkpoint was saved with: tr_config_clear. False, with a message, where they cannot be read. */
static bool recorded_read(tr_config *recorded, const tr_manifest *manifest, const char *path)
{
    tr_config_init(recorded);
    if (tr_config_read_text(recorded, path, manifest->config, strlen(manifest->config)) == TR_OK)
        return true;
    tr_config_clear(recorded);
    return false;
}

/* What the shapes of tensors do not tell. Of the recorded settings those that are there. */
static tr_status structure_compare(const tr_run *run, const tr_checkpoint *checkpoint)
{
    static const char *const names[] = {"model.heads", "model.kv_heads", "model.head_dim",
                                        "model.norm",  "model.position", "model.mlp"};
    tr_config recorded;
    tr_status status = TR_OK;
    if (!recorded_read(&recorded, tr_checkpoint_manifest(checkpoint),
                       tr_checkpoint_path(checkpoint)))
        return TR_OK; /* told when it is resumed */
    for (size_t i = 0; i < sizeof names / sizeof names[0] && status == TR_OK; i++) {
        char *there = tr_config_get(&recorded, names[i]),
             *here = tr_config_get(&run->cfg, names[i]);
        if (tr_config_is_set(&recorded, names[i]) && strcmp(there, here) != 0) {
            char *text = tr_format("%s is %s there and %s here", names[i], there, here);
            status = refuse_model(checkpoint, text);
            tr_free(text);
        }
        tr_free(there);
        tr_free(here);
    }
    tr_config_clear(&recorded);
    return status;
}

/* ---- state ---- */

static bool wants_kind(const tr_run *run, tr_shard_kind kind)
{
    if (kind != TR_SHARD_MASTER && run->cfg.checkpoint.weights_only)
        return false;
    return tr_checkpoint_state(run, kind) != NULL;
}

static tr_status kinds_check(const tr_run *run, const tr_checkpoint *checkpoint)
{
    for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
        if (wants_kind(run, (tr_shard_kind)kind) &&
            !tr_checkpoint_manifest(checkpoint)->kinds[kind])
            return tr_fail(TR_ERR_SETTINGS,
                           "%s has no optimizer state of the kind that this configuration needs "
                           "(%s): set train.optimizer as it was, or "
                           "checkpoint.weights_only=true to start a new optimizer",
                           tr_checkpoint_path(checkpoint), tr_shard_kind_name((tr_shard_kind)kind));
    return TR_OK;
}

/* What this rank holds, as the wants of a reading; *num_wants of them, tr_free. */
static tr_node_want *wants_list(const tr_run *run, int *num_wants)
{
    const tr_local_params *local = &run->stage.local;
    tr_node_want *wants =
        TR_NEW_ARRAY(tr_node_want, (size_t)local->num_items * TR_SHARD_NUM_KINDS + 1);
    *num_wants = 0;
    for (int i = 0; i < local->num_items; i++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++) {
            const tr_local_param *item = &local->items[i];
            if (item->param->tied_to >= 0 || !wants_kind(run, (tr_shard_kind)kind))
                continue;
            tr_node_want *want = &wants[(*num_wants)++];
            want->tensor = item->table_row;
            want->kind = (tr_shard_kind)kind;
            want->num_pieces =
                tr_checkpoint_pieces(item, item->state_begin, item->state_end, want->pieces);
            want->dst = tr_checkpoint_state(run, (tr_shard_kind)kind) + item->state_offset;
        }
    return wants;
}

/* What this rank alone can refuse, from tables only. */
static tr_status open_and_compare(tr_run *run, const char *path, const tr_node_want *wants,
                                  int num_wants, tr_checkpoint **checkpoint)
{
    TR_TRY(tr_checkpoint_open(checkpoint, path));
    TR_TRY(model_compare(run, *checkpoint));
    TR_TRY(structure_compare(run, *checkpoint));
    TR_TRY(kinds_check(run, *checkpoint));
    for (int i = 0; i < num_wants; i++)
        for (int p = 0; p < wants[i].num_pieces; p++)
            TR_TRY(tr_checkpoint_cover(*checkpoint, wants[i].tensor, wants[i].kind,
                                       &wants[i].pieces[p]));
    return TR_OK;
}

/* A run in another precision has no loss scale to go on from: it recorded 1. */
static bool has_loss_scale(const tr_manifest *manifest)
{
    tr_config recorded;
    if (!recorded_read(&recorded, manifest, "the checkpoint"))
        return true;
    bool scaled = recorded.train.precision == TR_F16;
    tr_config_clear(&recorded);
    return scaled;
}

static tr_status position_take(tr_run *run, const tr_manifest *manifest)
{
    tr_step_state state = tr_decider_first_state(&run->cfg);
    run->step = manifest->step;
    run->samples = (uint64_t)manifest->samples;
    run->last_loss = manifest->loss;
    run->loss_known = !isnan(manifest->loss);
    state.updates = manifest->updates;
    state.skips_in_row = manifest->skips_in_row;
    if (tr_decider_is_dynamic(&run->cfg) && has_loss_scale(manifest)) {
        state.loss_scale = manifest->scale;
        state.good_steps = manifest->good_steps;
    }
    return tr_decider_set_state(&run->stage.decider, &state);
}

static tr_status position_reset(tr_run *run)
{
    size_t bytes = (size_t)run->stage.local.num_state * sizeof(float);
    run->step = 0;
    run->samples = 0;
    run->loss_known = false;
    tr_step_state first = tr_decider_first_state(&run->cfg);
    TR_TRY(tr_decider_set_state(&run->stage.decider, &first));
    for (int kind = TR_SHARD_M; kind < TR_SHARD_NUM_KINDS; kind++)
        if (tr_checkpoint_state(run, (tr_shard_kind)kind) != NULL)
            TR_TRY(run->device->ops->fill_zero(
                run->device, tr_checkpoint_state(run, (tr_shard_kind)kind), (int64_t)bytes));
    return TR_OK;
}

/* ---- what changed since ---- */

/* The lines of a tr_config_diff on one line: those of the given sections (NULL: all). */
static char *diff_line(const char *diff, const char *const *sections)
{
    char *line = NULL;
    while (diff != NULL && *diff != '\0') {
        int length = (int)strcspn(diff, "\n");
        bool shown = sections == NULL;
        for (int i = 0; !shown && sections[i] != NULL; i++)
            shown = strncmp(diff, sections[i], strlen(sections[i])) == 0;
        if (shown) {
            char *longer = tr_format("%s%s%.*s", line ? line : "", line ? ", " : "", length, diff);
            tr_free(line);
            line = longer;
        }
        diff += length + (diff[length] == '\n');
    }
    return line;
}

static void changes_print(const tr_run *run, const tr_config *recorded)
{
    static const char *const sections[] = {"parallel.", "memory.", "device.", NULL};
    static const char *const of_weights[] = {"model.norm_eps", "model.rope_theta", NULL};
    bool weights_only = run->cfg.checkpoint.weights_only; /* a new run: its training is its own */
    char *mathematics = tr_config_diff(recorded, &run->cfg, TR_HALF_MATHEMATICS);
    char *layout = tr_config_diff(recorded, &run->cfg, TR_HALF_LAYOUT);
    char *mathematics_line = diff_line(mathematics, weights_only ? of_weights : NULL);
    char *layout_line = diff_line(layout, sections);
    if (mathematics_line != NULL)
        tr_log_warning("the mathematics changed since the checkpoint (old / new): %s; the new "
                       "values hold from here on",
                       mathematics_line);
    if (layout_line != NULL)
        tr_log_info("the layout changed since the checkpoint (old / new): %s%s", layout_line,
                    run->cfg.train.reduction_order == TR_REDUCTION_NATIVE
                        ? "; with train.reduction_order = native the run goes on within rounding, "
                          "not bit for bit"
                        : "");
    tr_free(mathematics);
    tr_free(layout);
    tr_free(mathematics_line);
    tr_free(layout_line);
}

/* Both passes count, and all ranks: two times what is needed on one node, and as often more as ranks or nodes that share no memory need the same. */
static void counts_print(const tr_load_counts *counts)
{
    double seconds = counts->check_seconds + counts->read_seconds;
    double needed = (double)counts->needed, read = (double)(counts->checked + counts->read);
    tr_log_info("state loaded in %.2f s = %.3g GB/s (hashes %.2f s, then values %.2f s): %.2f MB "
                "of files needed, %.2f MB read by all ranks in both passes, amplification %.2f",
                seconds, seconds > 0 ? (double)counts->values / seconds * 1e-9 : 0.0,
                counts->check_seconds, counts->read_seconds, needed * 1e-6, read * 1e-6,
                needed > 0 ? read / needed : 1);
}

/* Rank 0. */
static void resumed_print(const tr_run *run, const tr_checkpoint *checkpoint)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    const char *path = tr_checkpoint_path(checkpoint);
    tr_config recorded;
    if (run->cfg.checkpoint.weights_only)
        tr_log_info("weights taken from %s", path);
    else
        tr_log_info("resumed from %s, after step %" PRId64, path, manifest->step);
    if (strcmp(manifest->numerics, run->numerics) != 0)
        tr_log_info("it was saved with other arithmetic (%s; here %s): the run goes on within "
                    "rounding, not bit for bit",
                    manifest->numerics, run->numerics);
    counts_print(&run->loaded);
    if (!recorded_read(&recorded, manifest, path)) {
        tr_log_warning("settings were not compared: the recorded ones cannot be read: %s",
                       tr_error_message());
        return;
    }
    changes_print(run, &recorded);
    tr_config_clear(&recorded);
}

/* ---- choosing ---- */

/* Takes over what all ranks have checked. From here on a failure is the run's end. */
static tr_status load(tr_run *run, tr_node_read *read)
{
    TR_TRY(tr_checkpoint_agree(run, tr_node_read_load(read)));
    if (run->cfg.checkpoint.weights_only)
        return position_reset(run);
    return position_take(run, tr_checkpoint_manifest(read->checkpoint));
}

/* All ranks together hold every element of the kinds that are wanted, so that they need every chunk of these. */
static void needed_count(const tr_run *run, const tr_checkpoint *checkpoint, tr_load_counts *counts)
{
    tr_numbered_chunk chunk;
    for (int64_t c = 0; c < tr_checkpoint_num_chunks(checkpoint); c++) {
        tr_checkpoint_get_chunk(checkpoint, c, &chunk);
        if (!wants_kind(run, chunk.kind))
            continue;
        counts->needed += chunk.stored_bytes;
        counts->values += chunk.raw_bytes;
    }
}

/* Collective: what this rank has read in, what all ranks have out. */
static tr_status counts_sum(tr_run *run, tr_load_counts *counts)
{
    int64_t sums[] = {counts->checked, counts->read};
    TR_TRY(tr_run_sum(run, sums, 2));
    counts->checked = sums[0];
    counts->read = sums[1];
    return TR_OK;
}

/* Everything that can be refused, before anything is changed (*whole: nothing was); then the loading. */
static tr_status check_and_load(tr_run *run, tr_node_read *read, bool *whole)
{
    tr_load_counts counts = {0};
    double begin = tr_clock_seconds();
    TR_TRY(tr_checkpoint_agree(run, tr_node_read_check(read)));
    *whole = true;
    double checked = tr_clock_seconds();
    counts.checked = tr_node_read_bytes(read);
    TR_TRY(load(run, read));
    counts.check_seconds = checked - begin;
    counts.read_seconds = tr_clock_seconds() - checked;
    counts.read = tr_node_read_bytes(read) - counts.checked;
    needed_count(run, read->checkpoint, &counts);
    TR_TRY(counts_sum(run, &counts));
    run->loaded = counts;
    return TR_OK;
}

/* The memory of reading is given back before anything else is made. */
static tr_status read_together(tr_run *run, tr_checkpoint *checkpoint, tr_node_want *wants,
                               int num_wants, bool *whole)
{
    tr_node_read read;
    int threads = tr_peak_threads(run->cfg.device.threads, tr_world_local_size(run->world));
    tr_status began = tr_node_read_begin(&read, run->world, run->node, run->device, checkpoint,
                                         wants, num_wants, threads);
    tr_status status = tr_checkpoint_agree(run, began);
    if (status == TR_OK)
        status = check_and_load(run, &read, whole);
    if (began == TR_OK)
        tr_node_read_end(&read);
    return status;
}

/* One checkpoint, by all ranks. *whole: nothing was wrong with it when the loading began. */
static tr_status checkpoint_try(tr_run *run, const char *path, bool *whole)
{
    int num_wants;
    tr_node_want *wants = wants_list(run, &num_wants);
    tr_checkpoint *checkpoint = NULL;
    tr_status status =
        tr_checkpoint_agree(run, open_and_compare(run, path, wants, num_wants, &checkpoint));
    *whole = false;
    if (status == TR_OK)
        status = read_together(run, checkpoint, wants, num_wants, whole);
    if (status == TR_OK)
        status = tr_optimizer_spread(&run->optimizer);
    if (status == TR_OK)
        status = tr_run_feed_open(run);
    if (status == TR_OK && run->mesh.rank == 0)
        resumed_print(run, checkpoint);
    tr_checkpoint_close(checkpoint);
    tr_free(wants);
    return status;
}

/* Collective: the index-th path of rank 0's list on every rank, "" behind the last. */
static tr_status path_share(tr_run *run, const tr_resume_list *list, int index, char path[PATH_MAX])
{
    path[0] = '\0';
    if (run->mesh.rank == 0 && index < list->num_paths)
        snprintf(path, PATH_MAX, "%s", list->paths[index]);
    return tr_checkpoint_share(run, path, PATH_MAX);
}

static tr_status none_whole(const tr_run *run)
{
    char *last = tr_strdup(tr_error_message());
    tr_status status = tr_fail(TR_ERR_CHECKPOINT,
                               "no checkpoint of %s can be loaded (checkpoint.resume=none starts "
                               "anew); the last one tried: %s",
                               run->cfg.checkpoint.dir, last);
    tr_free(last);
    return status;
}

/* Tries the list in order. list: rank 0's; others' is empty. */
static tr_status list_try(tr_run *run, const tr_resume_list *list, bool is_named, bool *resumed)
{
    char path[PATH_MAX];
    for (int i = 0;; i++) {
        TR_TRY(path_share(run, list, i, path));
        if (path[0] == '\0')
            return i == 0 ? TR_OK : none_whole(run);
        bool whole;
        tr_status status = checkpoint_try(run, path, &whole);
        *resumed = status == TR_OK;
        if (whole || status != TR_ERR_CHECKPOINT)
            return status;
        if (is_named) /* rank 0 looks, and all have its words */
            return tr_checkpoint_agree(run, run->mesh.rank == 0 ? tr_resume_offer(path) : status);
        if (run->mesh.rank == 0)
            tr_log_warning("the checkpoint %s is passed over: %s", path, tr_error_message());
    }
}

tr_status tr_run_resume(tr_run *run, bool *resumed)
{
    tr_resume_list list = {0};
    *resumed = false;
    TR_TRY(tr_run_save_wait(run));
    tr_status status = TR_OK;
    if (run->mesh.rank == 0)
        status = tr_resume_list_find(&list, &run->cfg);
    status = tr_checkpoint_agree(run, status);
    if (status == TR_OK && list.ignored != NULL)
        tr_log_warning(
            "unfinished checkpoints are ignored: %s (those called .tmp go away with the next save)",
            list.ignored);
    int is_named = list.is_named;
    if (status == TR_OK)
        status = tr_checkpoint_share(run, &is_named, sizeof is_named);
    if (status == TR_OK)
        status = list_try(run, &list, is_named != 0, resumed);
    tr_resume_list_clear(&list);
    return status;
}
