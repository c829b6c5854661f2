/* What saving and loading share (checkpoint_int.h). */
#include "engine/checkpoint_int.h"

#include <stdio.h>

float *tr_checkpoint_state(const tr_run *run, tr_shard_kind kind)
{
    switch (kind) {
    case TR_SHARD_MASTER:
        return run->stage.master;
    case TR_SHARD_M:
        return run->stage.m;
    case TR_SHARD_V:
        break;
    }
    return run->stage.v;
}

int tr_checkpoint_pieces(const tr_local_param *item, int64_t begin, int64_t end,
                         tr_box pieces[TR_BOX_MAX_PIECES])
{
    int64_t valid = item->valid_rows * item->cols;
    end = end < valid ? end : valid;
    if (begin >= end)
        return 0;
    tr_box cut = item->param->num_dims == 2
                     ? tr_box_2d(item->row_begin, item->valid_rows, item->col_begin, item->cols)
                     : tr_box_1d(item->row_begin, item->valid_rows);
    return tr_box_from_interval(&cut, begin, end, pieces);
}

tr_status tr_checkpoint_share(tr_run *run, void *data, size_t bytes)
{
    return run->all != NULL ? tr_group_broadcast(run->all, 0, data, bytes) : TR_OK;
}

tr_status tr_checkpoint_agree(tr_run *run, tr_status status)
{
    struct {
        int status;
        char message[2000];
    } failure = {status, ""};
    int64_t failed = status != TR_OK ? run->mesh.rank : INT64_MAX;
    if (run->all == NULL)
        return status;
    if (status != TR_OK && run->mesh.rank > 0)
        snprintf(failure.message, sizeof failure.message, "rank %d: %s", run->mesh.rank,
                 tr_error_message());
    else if (status != TR_OK)
        snprintf(failure.message, sizeof failure.message, "%s", tr_error_message());
    TR_TRY(tr_run_min(run, &failed, 1));
    if (failed == INT64_MAX)
        return TR_OK;
    TR_TRY(tr_group_broadcast(run->all, (int)failed, &failure, sizeof failure));
    return tr_fail((tr_status)failure.status, "%s", failure.message);
}
