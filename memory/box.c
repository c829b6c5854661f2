#include "memory/box.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

tr_box tr_box_of_shape(int num_dims, const int64_t *shape)
{
    TR_ASSERT(num_dims >= 1 && num_dims <= TR_BOX_MAX_DIMS);
    tr_box box = {.num_dims = num_dims};
    for (int d = 0; d < num_dims; d++)
        box.extent[d] = shape[d];
    return box;
}

tr_box tr_box_1d(int64_t start, int64_t extent)
{
    return (tr_box){.num_dims = 1, .start = {start}, .extent = {extent}};
}

tr_box tr_box_2d(int64_t row, int64_t num_rows, int64_t column, int64_t num_columns)
{
    return (tr_box){.num_dims = 2, .start = {row, column}, .extent = {num_rows, num_columns}};
}

/* False when the product passes int64. */
static bool volume_of(const tr_box *box, int64_t *volume)
{
    int64_t product = 1;
    for (int d = 0; d < box->num_dims; d++)
        if (box->extent[d] == 0) {
            *volume = 0;
            return true;
        }
    for (int d = 0; d < box->num_dims; d++)
        if (__builtin_mul_overflow(product, box->extent[d], &product))
            return false;
    *volume = product;
    return true;
}

int64_t tr_box_volume(const tr_box *box)
{
    int64_t volume;
    TR_ASSERT(volume_of(box, &volume));
    return volume;
}

bool tr_box_fits(const tr_box *box, int num_dims, const int64_t *shape)
{
    if (num_dims < 1 || num_dims > TR_BOX_MAX_DIMS || box->num_dims != num_dims)
        return false;
    for (int d = 0; d < num_dims; d++)
        if (box->start[d] < 0 || box->extent[d] < 0 || box->extent[d] > shape[d] ||
            box->start[d] > shape[d] - box->extent[d])
            return false;
    int64_t volume;
    return volume_of(box, &volume);
}

bool tr_box_equal(const tr_box *a, const tr_box *b)
{
    if (a->num_dims != b->num_dims)
        return false;
    for (int d = 0; d < a->num_dims; d++)
        if (a->start[d] != b->start[d] || a->extent[d] != b->extent[d])
            return false;
    return true;
}

bool tr_box_contains(const tr_box *outer, const tr_box *inner)
{
    TR_ASSERT(outer->num_dims == inner->num_dims);
    bool inside = true;
    for (int d = 0; d < inner->num_dims; d++) {
        if (inner->extent[d] == 0)
            return true;
        if (inner->start[d] < outer->start[d] ||
            inner->start[d] + inner->extent[d] > outer->start[d] + outer->extent[d])
            inside = false;
    }
    return inside;
}

bool tr_box_intersect(const tr_box *a, const tr_box *b, tr_box *common)
{
    TR_ASSERT(a->num_dims == b->num_dims);
    tr_box result = {.num_dims = a->num_dims};
    bool any = true;
    for (int d = 0; d < a->num_dims; d++) {
        int64_t a_end = a->start[d] + a->extent[d], b_end = b->start[d] + b->extent[d];
        int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        result.start[d] = start;
        result.extent[d] = end > start ? end - start : 0;
        any = any && end > start;
    }
    *common = result;
    return any;
}

int64_t tr_box_offset(const tr_box *outer, const tr_box *inner)
{
    TR_ASSERT(tr_box_contains(outer, inner));
    int64_t offset = 0;
    for (int d = 0; d < outer->num_dims; d++)
        offset = offset * outer->extent[d] + (inner->start[d] - outer->start[d]);
    return offset;
}

int tr_box_from_interval(const tr_box *cut, int64_t lo, int64_t hi,
                         tr_box pieces[TR_BOX_MAX_PIECES])
{
    TR_ASSERT(cut->num_dims == 1 || cut->num_dims == 2);
    TR_ASSERT(0 <= lo && lo <= hi && hi <= tr_box_volume(cut));
    if (lo == hi)
        return 0;
    if (cut->num_dims == 1) {
        pieces[0] = tr_box_1d(cut->start[0] + lo, hi - lo);
        return 1;
    }
    int64_t row0 = cut->start[0], column0 = cut->start[1], width = cut->extent[1];
    int count = 0;
    if (lo % width != 0) { /* the rest of a row, or a part of it */
        int64_t row_end = (lo / width + 1) * width;
        int64_t end = hi < row_end ? hi : row_end;
        pieces[count++] = tr_box_2d(row0 + lo / width, 1, column0 + lo % width, end - lo);
        lo = end;
    }
    if (hi - lo >= width) {
        int64_t num_rows = (hi - lo) / width;
        pieces[count++] = tr_box_2d(row0 + lo / width, num_rows, column0, width);
        lo += num_rows * width;
    }
    if (lo < hi)
        pieces[count++] = tr_box_2d(row0 + lo / width, 1, column0, hi - lo);
    return count;
}

/* The three innermost dimensions with leading ones, so that one loop serves every rank. */
static tr_box as_3d(const tr_box *box)
{
    tr_box result = {.num_dims = 3, .extent = {1, 1, 1}};
    int missing = 3 - box->num_dims;
    for (int d = 0; d < box->num_dims; d++) {
        result.start[missing + d] = box->start[d];
        result.extent[missing + d] = box->extent[d];
    }
    return result;
}

tr_status tr_box_run_memcpy(void *context, void *dst, const void *src, size_t bytes)
{
    (void)context;
    memcpy(dst, src, bytes);
    return TR_OK;
}

tr_status tr_box_copy_runs(size_t element_bytes, const tr_box *src_box, const void *src,
                           const tr_box *dst_box, void *dst, tr_box_run_copy copy, void *context)
{
    tr_box common;
    if (!tr_box_intersect(src_box, dst_box, &common))
        return TR_OK;
    tr_box s = as_3d(src_box), d = as_3d(dst_box), c = as_3d(&common);
    /* Rows that are whole in both buffers follow one another there. */
    bool whole = c.extent[2] == s.extent[2] && c.extent[2] == d.extent[2];
    int64_t rows = whole ? c.extent[1] : 1;
    size_t run_bytes = (size_t)(rows * c.extent[2]) * element_bytes;
    tr_box run = c;
    run.extent[0] = run.extent[1] = 1;
    for (int64_t i = 0; i < c.extent[0]; i++)
        for (int64_t j = 0; j < c.extent[1]; j += rows) {
            run.start[0] = c.start[0] + i;
            run.start[1] = c.start[1] + j;
            TR_TRY(copy(context, (char *)dst + (size_t)tr_box_offset(&d, &run) * element_bytes,
                        (const char *)src + (size_t)tr_box_offset(&s, &run) * element_bytes,
                        run_bytes));
        }
    return TR_OK;
}

int64_t tr_box_copy(size_t element_bytes, const tr_box *src_box, const void *src,
                    const tr_box *dst_box, void *dst)
{
    tr_box common;
    if (!tr_box_intersect(src_box, dst_box, &common))
        return 0;
    (void)tr_box_copy_runs(element_bytes, src_box, src, dst_box, dst, tr_box_run_memcpy, NULL);
    return tr_box_volume(&common);
}

char *tr_box_format(const tr_box *box, char text[TR_BOX_TEXT])
{
    size_t used = 0;
    for (int d = 0; d < box->num_dims; d++)
        used +=
            (size_t)snprintf(text + used, TR_BOX_TEXT - used, "%s%" PRId64 ":%" PRId64,
                             d == 0 ? "[" : ", ", box->start[d], box->start[d] + box->extent[d]);
    snprintf(text + used, TR_BOX_TEXT - used, "]");
    return text;
}
