/* Whether boxes cover a target exactly once: the check behind "nothing missing, nothing twice".
 *
 * Pure, thread-safe; set-up memory only for sorting in place. */
#ifndef TR_IO_BOX_COVER_H
#define TR_IO_BOX_COVER_H

#include "memory/box.h"

typedef struct tr_cover_part {
    tr_box box; /* inside the target, not empty */
    int source; /* whose it is, for messages */
} tr_cover_part;

typedef enum tr_cover { TR_COVER_EXACT, TR_COVER_OVERLAP, TR_COVER_GAP } tr_cover;

/* Sorts the parts. OVERLAP: *a and *b are parts with a common element. GAP: *missing elements of
 * the target are in no part. */
tr_cover tr_box_cover(const tr_box *target, tr_cover_part *parts, int num_parts,
                      const tr_cover_part **a, const tr_cover_part **b, int64_t *missing);

#endif
