/* The inside of saving and loading: this rank's part of the state as boxes, speaking with one
 * voice, and the end of a save. */
#ifndef TR_ENGINE_CHECKPOINT_INT_H
#define TR_ENGINE_CHECKPOINT_INT_H

#include "engine/run_int.h"
#include "io/dir_commit.h"
#include "io/manifest.h"
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

/* What this rank writes of every kind, each element of every global tensor once over all ranks; tr_free. Names and values are the run's. */
tr_shard_part *tr_checkpoint_parts(const tr_run *run, int *num_parts);

/* The manifest of a save and its way to the disk. What it says is the run's when it was made. */
typedef struct tr_commit {
    const char *dir; /* the run's */
    tr_dir_retention keep;
    int num_ranks;
    tr_manifest manifest;  /* whole on rank 0; elsewhere only the step, and the files */
    tr_trace_lanes *trace; /* of this rank's threads; NULL: nobody records */
    double begin, end;     /* of the work */
} tr_commit;

void tr_commit_init(tr_commit *commit, tr_run *run);
void tr_commit_clear(tr_commit *commit);
/* Collective: lists the files of all ranks. mine->bytes 0: this rank has none. */
tr_status tr_commit_gather(tr_commit *commit, tr_run *run, const tr_shard_summary *mine);
/* Rank 0, on any thread (`context`: the commit): writes the manifest, gives the folder its name, moves `latest`, makes room. */
tr_status tr_commit_work(void *context);

#endif
