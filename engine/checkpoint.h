/* Checkpoints of a run: what is saved of it, which one is resumed, and what a change of settings in
 * between means. The files themselves are io/'s (docs/checkpoint-format.md).
 *
 * Saving (tr_run_save): every rank writes its part of the state into step-N.tmp/, each element of
 * every global tensor once over all ranks; rank 0 writes the manifest, renames, moves `latest`, and
 * makes room. With checkpoint.async a thread of every rank does that beside the next steps, from the
 * state as it was: what an update would change before it is read is copied first, into at most
 * checkpoint.snapshot_mb; what does not fit is waited for. One line on rank 0 says at the end what it
 * came to, with the time that steps were blocked. One save is under way at most: the next one, the
 * end of the run and tr_run_save_wait wait for it.
 *
 * A rank that cannot write (disk full, say), or that finds values that are not finite, makes all
 * ranks give up this save together: the temporary folder is removed, what was there before stays,
 * one warning is printed on rank 0, and training goes on; tr_run_save_failed then says true. No
 * function fails of it; other statuses (a lost peer, a time-out) end the run.
 *
 * Resuming (tr_run_resume): rank 0 chooses a checkpoint; every rank finds its boxes, and reads and
 * checks all that it needs before any rank changes anything. With checkpoint.resume = auto a
 * damaged checkpoint is passed over with one warning, for the newest one that is whole; when some
 * are there and none is whole, or the one named by path is not, the run ends with
 * TR_ERR_CHECKPOINT, and of a named one the newest good one beside it is told. A checkpoint of another model (its
 * tensors, or what their shapes do not tell: heads, norm, position, mlp) is refused with TR_ERR_SETTINGS. Changed
 * settings: the mathematics as one warning with old and new values, the layout as one line of
 * information.
 *
 * checkpoint.weights_only takes masters only: step, position, moments and loss scale start anew. */
#ifndef TR_ENGINE_CHECKPOINT_H
#define TR_ENGINE_CHECKPOINT_H

#include "engine/trine.h"

/* Before tr_config_resolve, on any or every rank (not collective): takes train.reduction_order,
 * train.reduction_leaves and train.tensor_slices over from the checkpoint that would be resumed,
 * each where the user did not set it (they fix the run's sums, and with leaves the memory that it needs). num_ranks: as for
 * tr_config_resolve, since what fits them need not fit fewer. Changes nothing when no
 * checkpoint is there, or with checkpoint.weights_only. TR_ERR_CHECKPOINT when checkpoint.resume
 * names a path and no checkpoint is there. */
tr_status tr_checkpoint_peek(tr_config *cfg, int64_t num_ranks);

/* True when the last save that ended saved nothing (and said so). Not collective; the same on all
 * ranks. */
bool tr_run_save_failed(const tr_run *run);
/* Rank 0: why; "" where it did not fail, and on other ranks. The run's, until the next save ends. */
const char *tr_run_save_failure(const tr_run *run);

/* Which checkpoints may be resumed, in the order to be tried. */
typedef struct tr_resume_list {
    char **paths; /* folders step-N */
    int num_paths;
    bool is_named; /* checkpoint.resume is a path: an error is final */
    char *ignored; /* folders passed over because they are unfinished, "a, b"; NULL when none */
} tr_resume_list;

/* cfg: resolved. Reads folders and names only. checkpoint.resume names a checkpoint, a folder of them, or a run's folder. TR_ERR_CHECKPOINT when a named one is not there, and when all that a folder
 * holds are checkpoints without their manifests, which no run leaves behind (a copy that is not finished, say). */
tr_status tr_resume_list_find(tr_resume_list *list, const tr_config *cfg);
void tr_resume_list_clear(tr_resume_list *list);

/* The named checkpoint at `path` cannot be resumed, the thread's message says why: adds to it the newest one of
 * the same folder that is good as far as manifest and tables tell, if any is. Returns TR_ERR_CHECKPOINT. */
tr_status tr_resume_offer(const char *path);

/* Those of checkpoint.dir, by their names, that are of steps after `step`: how many, and the last of them in *last. */
int64_t tr_checkpoint_count_later(const tr_config *cfg, int64_t step, int64_t *last);

#endif
