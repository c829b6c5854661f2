#include "io/checkpoint_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/box_cover.h"
#include "io/checkpoint_read_int.h"

enum { PANEL_VALUES = 16 << 20 }; /* 64 MiB */

static int by_tensor(const void *a, const void *b)
{
    const tr_placed_box *x = a, *y = b;
    if (x->box->tensor != y->box->tensor)
        return x->box->tensor < y->box->tensor ? -1 : 1;
    if (x->box->kind != y->box->kind)
        return x->box->kind < y->box->kind ? -1 : 1;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->box->first_chunk < y->box->first_chunk ? -1 : 1;
}

static tr_status box_check(const tr_checkpoint *checkpoint, const tr_shard *shard,
                           const tr_shard_box *box)
{
    const tr_manifest *manifest = &checkpoint->manifest;
    char text[TR_BOX_TEXT];
    if (box->tensor >= manifest->num_params)
        return tr_fail(TR_ERR_CHECKPOINT, "%s: a box of tensor %d, of which the manifest has %d",
                       tr_shard_path(shard), box->tensor, manifest->num_params);
    const tr_manifest_param *param = &manifest->params[box->tensor];
    if (param->tied_to >= 0 || !manifest->kinds[box->kind])
        return tr_fail(TR_ERR_CHECKPOINT, "%s: tensor %s (%s) is not expected in it",
                       tr_shard_path(shard), param->name, tr_shard_kind_name(box->kind));
    if (!tr_box_fits(&box->box, param->num_dims, param->shape))
        return tr_fail(TR_ERR_CHECKPOINT, "%s: tensor %s: the box %s is not inside its shape",
                       tr_shard_path(shard), param->name, tr_box_format(&box->box, text));
    return TR_OK;
}

static tr_status shard_open(tr_checkpoint *checkpoint, int index)
{
    const tr_manifest_file *file = &checkpoint->manifest.files[index];
    char *path = tr_format("%s/%s", checkpoint->path, file->name);
    tr_status status = tr_shard_open(&checkpoint->shards[index], path);
    tr_free(path);
    if (status != TR_OK)
        return status;
    const tr_shard *shard = checkpoint->shards[index];
    if (tr_shard_bytes(shard) != file->bytes)
        return tr_fail(TR_ERR_CHECKPOINT, "%s: %" PRId64 " bytes, the manifest says %" PRId64,
                       tr_shard_path(shard), tr_shard_bytes(shard), file->bytes);
    if (!tr_hash128_equal(tr_shard_table_hash(shard), file->table_hash))
        return tr_fail(TR_ERR_CHECKPOINT,
                       "%s: not the file that the manifest means; it may be another rank's or "
                       "another checkpoint's",
                       tr_shard_path(shard));
    for (int i = 0; i < tr_shard_num_boxes(shard); i++)
        TR_TRY(box_check(checkpoint, shard, tr_shard_get_box(shard, i)));
    return TR_OK;
}

static void chunks_number(tr_checkpoint *checkpoint)
{
    checkpoint->num_users = TR_NEW_ARRAY(int, (size_t)checkpoint->manifest.num_files + 1);
    checkpoint->first_chunk = TR_NEW_ARRAY(int64_t, (size_t)checkpoint->manifest.num_files + 1);
    for (int s = 0; s < checkpoint->manifest.num_files; s++)
        checkpoint->first_chunk[s + 1] =
            checkpoint->first_chunk[s] + tr_shard_num_chunks(checkpoint->shards[s]);
}

static void boxes_sort(tr_checkpoint *checkpoint)
{
    size_t count = 0;
    for (int s = 0; s < checkpoint->manifest.num_files; s++)
        count += (size_t)tr_shard_num_boxes(checkpoint->shards[s]);
    checkpoint->boxes = TR_NEW_ARRAY(tr_placed_box, count + 1);
    for (int s = 0; s < checkpoint->manifest.num_files; s++)
        for (int i = 0; i < tr_shard_num_boxes(checkpoint->shards[s]); i++)
            checkpoint->boxes[checkpoint->num_boxes++] =
                (tr_placed_box){tr_shard_get_box(checkpoint->shards[s], i), s};
    qsort(checkpoint->boxes, count, sizeof checkpoint->boxes[0], by_tensor);
}

static tr_status parts_open(tr_checkpoint *checkpoint)
{
    char *path = tr_format("%s/" TR_MANIFEST_FILE_NAME, checkpoint->path);
    tr_status status = tr_manifest_read(path, &checkpoint->manifest);
    tr_free(path);
    if (status != TR_OK)
        return status;
    checkpoint->shards = TR_NEW_ARRAY(tr_shard *, (size_t)checkpoint->manifest.num_files);
    for (int s = 0; s < checkpoint->manifest.num_files; s++)
        TR_TRY(shard_open(checkpoint, s));
    chunks_number(checkpoint);
    boxes_sort(checkpoint);
    return TR_OK;
}

tr_status tr_checkpoint_open(tr_checkpoint **checkpoint, const char *path)
{
    tr_checkpoint *opened = TR_NEW(tr_checkpoint);
    opened->path = tr_strdup(path);
    pthread_mutex_init(&opened->lock, NULL);
    tr_chunk_reader_init(&opened->reader, opened);
    tr_status status = parts_open(opened);
    if (status != TR_OK)
        tr_checkpoint_close(opened);
    else
        *checkpoint = opened;
    return status;
}

void tr_checkpoint_close(tr_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    tr_chunk_reader_clear(&checkpoint->reader);
    for (int s = 0; checkpoint->shards != NULL && s < checkpoint->manifest.num_files; s++)
        tr_shard_close(checkpoint->shards[s]);
    tr_free(checkpoint->shards);
    tr_free(checkpoint->first_chunk);
    tr_free(checkpoint->num_users);
    tr_free(checkpoint->boxes);
    tr_manifest_clear(&checkpoint->manifest);
    pthread_mutex_destroy(&checkpoint->lock);
    tr_free(checkpoint->path);
    tr_free(checkpoint);
}

const char *tr_checkpoint_path(const tr_checkpoint *checkpoint)
{
    return checkpoint->path;
}

const tr_manifest *tr_checkpoint_manifest(const tr_checkpoint *checkpoint)
{
    return &checkpoint->manifest;
}

tr_shard *tr_checkpoint_shard(const tr_checkpoint *checkpoint, int index)
{
    return checkpoint->shards[index];
}

int64_t tr_checkpoint_bytes_read(const tr_checkpoint *checkpoint)
{
    return checkpoint->reader.bytes_read;
}

tr_box tr_checkpoint_tensor_box(const tr_checkpoint *checkpoint, int tensor)
{
    const tr_manifest_param *param = &checkpoint->manifest.params[tensor];
    return tr_box_of_shape(param->num_dims, param->shape);
}

int tr_checkpoint_lower_bound(const tr_checkpoint *checkpoint, int tensor, int kind)
{
    int low = 0, high = checkpoint->num_boxes;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const tr_shard_box *box = checkpoint->boxes[middle].box;
        if (box->tensor < tensor || (box->tensor == tensor && (int)box->kind < kind))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

tr_status tr_checkpoint_cover(const tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                              const tr_box *wanted)
{
    int first = tr_checkpoint_lower_bound(checkpoint, tensor, (int)kind);
    int end = tr_checkpoint_lower_bound(checkpoint, tensor, (int)kind + 1);
    tr_cover_part *parts = TR_NEW_ARRAY(tr_cover_part, (size_t)(end - first) + 1);
    const tr_cover_part *a = NULL, *b = NULL;
    int num_parts = 0;
    int64_t missing = 0;
    for (int i = first; i < end; i++) {
        parts[num_parts].source = checkpoint->boxes[i].shard;
        num_parts +=
            tr_box_intersect(&checkpoint->boxes[i].box->box, wanted, &parts[num_parts].box);
    }
    tr_cover cover = tr_box_cover(wanted, parts, num_parts, &a, &b, &missing);
    tr_status status = TR_OK;
    const char *name = checkpoint->manifest.params[tensor].name;
    char text[TR_BOX_TEXT];
    if (cover == TR_COVER_OVERLAP)
        status = tr_fail(TR_ERR_CHECKPOINT,
                         "%s: tensor %s (%s): %s and %s both hold elements of %s", checkpoint->path,
                         name, tr_shard_kind_name(kind), checkpoint->manifest.files[a->source].name,
                         checkpoint->manifest.files[b->source].name, tr_box_format(&b->box, text));
    else if (cover == TR_COVER_GAP)
        status = tr_fail(TR_ERR_CHECKPOINT,
                         "%s: tensor %s (%s): %" PRId64 " of %" PRId64
                         " elements of %s are in none of its files",
                         checkpoint->path, name, tr_shard_kind_name(kind), missing,
                         tr_box_volume(wanted), tr_box_format(wanted, text));
    tr_free(parts);
    return status;
}

/* ---- values ---- */

/* The wanted pieces and where each begins in dst. */
typedef struct request {
    const tr_box *wanted;
    int num_wanted;
    float *dst; /* NULL: check only */
} request;

bool tr_boxes_meet(const tr_box *a, int num_a, const tr_box *b, int num_b)
{
    tr_box common;
    for (int i = 0; i < num_a; i++)
        for (int j = 0; j < num_b; j++)
            if (tr_box_intersect(&a[i], &b[j], &common))
                return true;
    return false;
}

tr_status tr_boxes_copy_runs(const tr_box *src_boxes, int num_src, const float *src,
                             const tr_box *dst_boxes, int num_dst, float *dst, tr_box_run_copy copy,
                             void *context)
{
    for (int i = 0; i < num_src; i++) {
        float *at = dst;
        for (int j = 0; j < num_dst; j++) {
            TR_TRY(tr_box_copy_runs(sizeof(float), &src_boxes[i], src, &dst_boxes[j], at, copy,
                                    context));
            at += tr_box_volume(&dst_boxes[j]);
        }
        src += tr_box_volume(&src_boxes[i]);
    }
    return TR_OK;
}

void tr_boxes_copy(const tr_box *src_boxes, int num_src, const float *src, const tr_box *dst_boxes,
                   int num_dst, float *dst)
{
    (void)tr_boxes_copy_runs(src_boxes, num_src, src, dst_boxes, num_dst, dst, tr_box_run_memcpy,
                             NULL);
}

static tr_status box_read(tr_checkpoint *checkpoint, const tr_placed_box *placed,
                          const request *want)
{
    const tr_shard *tables = checkpoint->shards[placed->shard];
    for (int k = 0; k < placed->box->num_chunks; k++) {
        tr_box pieces[TR_BOX_MAX_PIECES];
        int num_pieces = tr_shard_chunk_pieces(tables, placed->box, k, pieces);
        if (!tr_boxes_meet(want->wanted, want->num_wanted, pieces, num_pieces))
            continue;
        tr_shard *shard;
        TR_TRY(tr_chunk_reader_turn(&checkpoint->reader, placed->shard, &shard));
        int chunk = placed->box->first_chunk + k;
        checkpoint->reader.bytes_read += tr_shard_get_chunk(shard, chunk)->stored_bytes;
        if (want->dst == NULL) {
            TR_TRY(tr_shard_check_chunk(shard, chunk, checkpoint->reader.scratch));
            continue;
        }
        const float *values = NULL;
        TR_TRY(tr_shard_read_chunk(shard, chunk, checkpoint->reader.scratch, &values));
        tr_boxes_copy(pieces, num_pieces, values, want->wanted, want->num_wanted, want->dst);
    }
    return TR_OK;
}

tr_status tr_checkpoint_read(tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                             const tr_box *wanted, int num_wanted, float *dst)
{
    const request want = {wanted, num_wanted, dst};
    int end = tr_checkpoint_lower_bound(checkpoint, tensor, (int)kind + 1);
    for (int i = tr_checkpoint_lower_bound(checkpoint, tensor, (int)kind); i < end; i++)
        if (tr_boxes_meet(wanted, num_wanted, &checkpoint->boxes[i].box->box, 1))
            TR_TRY(box_read(checkpoint, &checkpoint->boxes[i], &want));
    return TR_OK;
}

tr_status tr_checkpoint_hash(tr_checkpoint *checkpoint, int tensor, tr_shard_kind kind,
                             tr_hash128 *hash)
{
    tr_box whole = tr_checkpoint_tensor_box(checkpoint, tensor);
    TR_TRY(tr_checkpoint_cover(checkpoint, tensor, kind, &whole));
    int64_t volume = tr_box_volume(&whole);
    int64_t width = whole.num_dims == 2 ? whole.extent[1] : 1;
    int64_t step = width >= PANEL_VALUES ? PANEL_VALUES : PANEL_VALUES / width * width;
    float *panel = TR_NEW_ARRAY(float, (size_t)(volume < step ? volume : step));
    tr_hash_stream *stream = tr_hash_stream_create();
    tr_status status = TR_OK;
    for (int64_t at = 0; at < volume && status == TR_OK; at += step) {
        tr_box pieces[TR_BOX_MAX_PIECES];
        int64_t end = volume - at < step ? volume : at + step;
        int num_pieces = tr_box_from_interval(&whole, at, end, pieces);
        status = tr_checkpoint_read(checkpoint, tensor, kind, pieces, num_pieces, panel);
        if (status == TR_OK)
            tr_hash_stream_add(stream, panel, (size_t)(end - at) * sizeof(float));
    }
    if (status == TR_OK)
        *hash = tr_hash_stream_get(stream);
    tr_hash_stream_destroy(stream);
    tr_free(panel);
    return status;
}
