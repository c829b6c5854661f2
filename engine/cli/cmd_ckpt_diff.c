/* trine ckpt diff: the states of two checkpoints compared tensor by tensor, whatever layouts saved
 * them. Both are read panel by panel, so that their size does not matter. */
#include "engine/cli/cmd_ckpt_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/cli/cli.h"
#include "io/checkpoint_read.h"

enum { PANEL_VALUES = 4 << 20 }; /* 16 MiB of each */

typedef struct comparison {
    tr_checkpoint *a, *b;
    float *panel_a, *panel_b; /* [PANEL_VALUES] */
    int64_t num_tensors; /* compared or missing on one side; a tensor of three kinds is three */
    int64_t num_different;
    bool position_differs;
} comparison;

/* What is seen of one tensor and kind. */
typedef struct difference {
    int64_t count;   /* elements whose bits differ */
    double absolute; /* largest |a - b| of them; infinite where just one is finite, or NaN */
    double relative; /* largest |a - b| / max(|a|, |b|) */
    int64_t place;   /* of the largest |a - b|, row-major */
} difference;

static void element_compare(float a, float b, int64_t place, difference *found)
{
    double larger = fmax(fabs((double)a), fabs((double)b));
    double absolute = fabs((double)a - (double)b), relative = absolute / larger;
    if (!isfinite(a) || !isfinite(b))
        absolute = relative = INFINITY;
    else if (larger == 0) /* 0 and -0 */
        relative = 0;
    if (found->count == 0 || absolute > found->absolute) {
        found->absolute = absolute;
        found->place = place;
    }
    found->relative = fmax(found->relative, relative);
    found->count++;
}

static void panel_compare(const float *a, const float *b, int64_t count, int64_t begin,
                          difference *found)
{
    if (memcmp(a, b, (size_t)count * sizeof(float)) == 0)
        return;
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            element_compare(a[i], b[i], begin + i, found);
}

/* One tensor and kind that both have in one shape. */
static tr_status values_compare(const comparison *c, int row_a, int row_b, tr_shard_kind kind,
                                difference *found)
{
    tr_box whole = tr_checkpoint_tensor_box(c->a, row_a);
    int64_t volume = tr_box_volume(&whole);
    TR_TRY(tr_checkpoint_cover(c->a, row_a, kind, &whole));
    TR_TRY(tr_checkpoint_cover(c->b, row_b, kind, &whole));
    for (int64_t at = 0; at < volume; at += PANEL_VALUES) {
        tr_box pieces[TR_BOX_MAX_PIECES];
        int64_t count = volume - at < PANEL_VALUES ? volume - at : PANEL_VALUES;
        int num_pieces = tr_box_from_interval(&whole, at, at + count, pieces);
        TR_TRY(tr_checkpoint_read(c->a, row_a, kind, pieces, num_pieces, c->panel_a));
        TR_TRY(tr_checkpoint_read(c->b, row_b, kind, pieces, num_pieces, c->panel_b));
        panel_compare(c->panel_a, c->panel_b, count, at, found);
    }
    return TR_OK;
}

static void difference_print(const char *name, tr_shard_kind kind, const tr_box *whole,
                             const difference *found)
{
    char place[48];
    if (whole->num_dims == 2)
        snprintf(place, sizeof place, "[%" PRId64 ", %" PRId64 "]", found->place / whole->extent[1],
                 found->place % whole->extent[1]);
    else
        snprintf(place, sizeof place, "[%" PRId64 "]", found->place);
    printf("%-6s %s: %" PRId64 " of %" PRId64
           " elements differ, by at most %.3g at %s; relative at most %.3g\n",
           tr_shard_kind_name(kind), name, found->count, tr_box_volume(whole), found->absolute,
           place, found->relative);
}

static bool is_stored(const tr_checkpoint *checkpoint, int row, tr_shard_kind kind)
{
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    return row >= 0 && manifest->kinds[kind] && manifest->params[row].tied_to < 0;
}

/* row_a, row_b: of the same name; -1 where a checkpoint has none. */
static tr_status tensor_compare(comparison *c, const char *name, int row_a, int row_b,
                                tr_shard_kind kind)
{
    bool in_a = is_stored(c->a, row_a, kind), in_b = is_stored(c->b, row_b, kind);
    if (!in_a && !in_b)
        return TR_OK;
    c->num_tensors++;
    if (in_a != in_b) {
        c->num_different++;
        printf("%-6s %s: only in %s\n", tr_shard_kind_name(kind), name,
               tr_checkpoint_path(in_a ? c->a : c->b));
        return TR_OK;
    }
    tr_box whole_a = tr_checkpoint_tensor_box(c->a, row_a);
    tr_box whole_b = tr_checkpoint_tensor_box(c->b, row_b);
    if (!tr_box_equal(&whole_a, &whole_b)) {
        char text_a[TR_BOX_TEXT], text_b[TR_BOX_TEXT];
        c->num_different++;
        printf("%-6s %s: %s / %s\n", tr_shard_kind_name(kind), name,
               tr_box_format(&whole_a, text_a), tr_box_format(&whole_b, text_b));
        return TR_OK;
    }
    difference found = {0};
    TR_TRY(values_compare(c, row_a, row_b, kind, &found));
    if (found.count > 0) {
        c->num_different++;
        difference_print(name, kind, &whole_a, &found);
    }
    return TR_OK;
}

static tr_status tensors_compare(comparison *c)
{
    const tr_manifest *a = tr_checkpoint_manifest(c->a), *b = tr_checkpoint_manifest(c->b);
    for (int i = 0; i < a->num_params; i++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
            TR_TRY(tensor_compare(c, a->params[i].name, i, tr_manifest_find(b, a->params[i].name),
                                  (tr_shard_kind)kind));
    for (int i = 0; i < b->num_params; i++)
        for (int kind = 0; kind < TR_SHARD_NUM_KINDS; kind++)
            if (tr_manifest_find(a, b->params[i].name) < 0)
                TR_TRY(tensor_compare(c, b->params[i].name, -1, i, (tr_shard_kind)kind));
    return TR_OK;
}

/* ---- what is no tensor ---- */

static void number_compare(comparison *c, const char *name, int64_t a, int64_t b)
{
    if (a == b)
        return;
    c->position_differs = true;
    printf("%s: %" PRId64 " / %" PRId64 "\n", name, a, b);
}

static void position_compare(comparison *c)
{
    const tr_manifest *a = tr_checkpoint_manifest(c->a), *b = tr_checkpoint_manifest(c->b);
    number_compare(c, "step", a->step, b->step);
    number_compare(c, "samples", a->samples, b->samples);
    number_compare(c, "updates", a->updates, b->updates);
    number_compare(c, "skipped in a row", a->skips_in_row, b->skips_in_row);
    number_compare(c, "finite steps since the loss scale changed", a->good_steps, b->good_steps);
    if (a->scale != b->scale) {
        c->position_differs = true;
        printf("loss scale: %.17g / %.17g\n", a->scale, b->scale);
    }
    if (a->seed != b->seed) {
        c->position_differs = true;
        printf("seed: %" PRIu64 " / %" PRIu64 "\n", a->seed, b->seed);
    }
}

static bool config_read(tr_config *cfg, const tr_manifest *manifest)
{
    tr_config_init(cfg);
    return tr_config_read_text(cfg, TR_MANIFEST_FILE_NAME, manifest->config,
                               strlen(manifest->config)) == TR_OK;
}

/* Settings are no state: they are told, and count for nothing. */
static void settings_print(const comparison *c)
{
    tr_config a, b;
    bool read_a = config_read(&a, tr_checkpoint_manifest(c->a));
    bool read_b = config_read(&b, tr_checkpoint_manifest(c->b));
    for (int half = TR_HALF_MATHEMATICS; read_a && read_b && half <= TR_HALF_LAYOUT; half++) {
        char *lines = tr_config_diff(&a, &b, (tr_half)half);
        if (lines != NULL)
            printf("settings of the %s that differ:\n%s%s",
                   half == TR_HALF_MATHEMATICS ? "mathematics" : "layout", lines,
                   lines[strlen(lines) - 1] == '\n' ? "" : "\n");
        tr_free(lines);
    }
    if (!read_a || !read_b)
        printf("settings were not compared: %s\n", tr_error_message());
    tr_config_clear(&a);
    tr_config_clear(&b);
}

/* *same: every tensor and the position. */
static tr_status checkpoints_compare(comparison *c, bool *same)
{
    printf("%s / %s\n", tr_checkpoint_path(c->a), tr_checkpoint_path(c->b));
    position_compare(c);
    TR_TRY(tensors_compare(c));
    settings_print(c);
    *same = c->num_different == 0 && !c->position_differs;
    if (*same)
        printf("the same state: %" PRId64 " tensors, bit for bit\n", c->num_tensors);
    else
        printf("%" PRId64 " of %" PRId64 " tensors differ%s\n", c->num_different, c->num_tensors,
               c->position_differs ? ", and the position" : "");
    return TR_OK;
}

tr_status tr_ckpt_diff_run(int argc, char **argv)
{
    comparison c = {0};
    bool same = false;
    TR_TRY(tr_cli_words(argc, argv, 2, 2));
    TR_TRY(tr_ckpt_open(&c.a, argv[1]));
    tr_status status = tr_ckpt_open(&c.b, argv[2]);
    if (status == TR_OK) {
        c.panel_a = TR_NEW_ARRAY(float, PANEL_VALUES);
        c.panel_b = TR_NEW_ARRAY(float, PANEL_VALUES);
        status = checkpoints_compare(&c, &same);
        tr_free(c.panel_a);
        tr_free(c.panel_b);
    }
    tr_checkpoint_close(c.a);
    tr_checkpoint_close(c.b);
    if (status != TR_OK || same)
        return status;
    tr_cli_quiet(); /* what differs has been said: as diff does, 1 and no error */
    return tr_fail(TR_ERR_INTERNAL, "the checkpoints differ");
}
