/* Boxes: axis-parallel parts of a global tensor, the coordinates of everything that is cut, saved or moved.
 *
 * A box has 1 to TR_BOX_MAX_DIMS dimensions; dimension d covers [start[d], start[d] + extent[d]). Coordinates are elements of the
 * global, unpadded tensor. A buffer "of a box" holds its elements row-major without gaps. An extent of 0 is an empty box.
 * Unused dimensions are 0. Pure functions, thread-safe. */
#ifndef TR_MEMORY_BOX_H
#define TR_MEMORY_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TR_BOX_MAX_DIMS = 3,
    TR_BOX_MAX_PIECES = 3, /* boxes of one interval of a cut with two dimensions */
    TR_BOX_TEXT = 160      /* bytes that hold tr_box_format's text */
};

typedef struct tr_box {
    int num_dims;
    int64_t start[TR_BOX_MAX_DIMS];
    int64_t extent[TR_BOX_MAX_DIMS];
} tr_box;

/* The whole of a tensor of this shape. */
tr_box tr_box_of_shape(int num_dims, const int64_t *shape);
tr_box tr_box_1d(int64_t start, int64_t extent);
tr_box tr_box_2d(int64_t row, int64_t num_rows, int64_t column, int64_t num_columns);

/* Number of elements. Aborts where it would pass 2^63 (the caller checks shapes from files with tr_box_fits). */
int64_t tr_box_volume(const tr_box *box);
/* 1..TR_BOX_MAX_DIMS dimensions, starts and extents not negative, inside `shape` of as many dimensions, volume below 2^63. */
bool tr_box_fits(const tr_box *box, int num_dims, const int64_t *shape);
bool tr_box_equal(const tr_box *a, const tr_box *b);
/* Every element of `inner` is in `outer`; true for an empty `inner`. Same number of dimensions. */
bool tr_box_contains(const tr_box *outer, const tr_box *inner);
/* The common part; false when there is none (then *common is empty). Same number of dimensions; `common` may be a or b. */
bool tr_box_intersect(const tr_box *a, const tr_box *b, tr_box *common);

/* Row-major position in `outer`'s buffer of the first element of `inner`, which lies in it and is not empty. */
int64_t tr_box_offset(const tr_box *outer, const tr_box *inner);

/* Elements lo .. hi - 1 of the buffer of `cut` (one or two dimensions) as global boxes, in buffer order: the rest of a row,
 * whole rows, the head of a row, each where it is not empty. Returns how many: 0 (lo = hi) to TR_BOX_MAX_PIECES. The volumes sum
 * to hi - lo, and each box is a contiguous part of the buffer. 0 <= lo <= hi <= volume. */
int tr_box_from_interval(const tr_box *cut, int64_t lo, int64_t hi,
                         tr_box pieces[TR_BOX_MAX_PIECES]);

/* Copies `bytes` between the buffers; dst may be memory that the host cannot touch. */
typedef tr_status (*tr_box_run_copy)(void *context, void *dst, const void *src, size_t bytes);
tr_status tr_box_run_memcpy(void *context, void *dst, const void *src, size_t bytes);
/* Copies the common elements from src's buffer to dst's, one contiguous run after the other; ends at the first that fails. */
tr_status tr_box_copy_runs(size_t element_bytes, const tr_box *src_box, const void *src,
                           const tr_box *dst_box, void *dst, tr_box_run_copy copy, void *context);
/* Copies the common elements from src's buffer to dst's; returns how many. The buffers do not overlap. */
int64_t tr_box_copy(size_t element_bytes, const tr_box *src_box, const void *src,
                    const tr_box *dst_box, void *dst);

/* "[0:768, 128:256]", for messages. Returns `text`. */
char *tr_box_format(const tr_box *box, char text[TR_BOX_TEXT]);

#ifdef __cplusplus
}
#endif

#endif
