#include "io/box_cover.h"

#include <stdlib.h>

static int by_start(const void *a, const void *b)
{
    const tr_box *x = &((const tr_cover_part *)a)->box, *y = &((const tr_cover_part *)b)->box;
    for (int d = 0; d < x->num_dims; d++)
        if (x->start[d] != y->start[d])
            return x->start[d] < y->start[d] ? -1 : 1;
    return 0;
}

/* Disjoint boxes inside the target cover it when their volumes sum to its own. A box can only meet
 * those behind it that begin before its last row ends: few, where tensors are cut by rows. */
tr_cover tr_box_cover(const tr_box *target, tr_cover_part *parts, int num_parts,
                      const tr_cover_part **a, const tr_cover_part **b, int64_t *missing)
{
    int64_t left = tr_box_volume(target);
    if (num_parts > 1)
        qsort(parts, (size_t)num_parts, sizeof parts[0], by_start);
    for (int i = 0; i < num_parts; i++) {
        int64_t end = parts[i].box.start[0] + parts[i].box.extent[0];
        for (int j = i + 1; j < num_parts && parts[j].box.start[0] < end; j++) {
            tr_box common;
            if (tr_box_intersect(&parts[i].box, &parts[j].box, &common)) {
                *a = &parts[i];
                *b = &parts[j];
                return TR_COVER_OVERLAP;
            }
        }
        left -= tr_box_volume(&parts[i].box); /* disjoint so far: not below 0 */
    }
    *missing = left;
    return left == 0 ? TR_COVER_EXACT : TR_COVER_GAP;
}
