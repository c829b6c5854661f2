/* What saving and loading share: this rank's part of the state as boxes, and speaking with one
 * voice. */
#ifndef TR_ENGINE_CHECKPOINT_INT_H
#define TR_ENGINE_CHECKPOINT_INT_H

#include "engine/run_int.h"
#include "io/shard_write.h"

/* The array of a kind of this rank's state (stage.master, m, v), or NULL when it has none. */
float *tr_checkpoint_state(const tr_run *run, tr_shard_kind kind);

/* Elements [begin, end) of an item's local cut as boxes of the global tensor, without the rows of
 * padding. How many; they are one contiguous part of the cut, from `begin` on. */
int tr_checkpoint_pieces(const tr_local_param *item, int64_t begin, int64_t end,
                         tr_box pieces[TR_BOX_MAX_PIECES]);

/* Collective: TR_OK where every rank brings TR_OK. Else every rank gets the status and the message
 * of the lowest rank that failed. A status of the communication itself comes first. */
tr_status tr_checkpoint_agree(tr_run *run, tr_status status);
/* Collective: rank 0's bytes on every rank. */
tr_status tr_checkpoint_share(tr_run *run, void *data, size_t bytes);

#endif
