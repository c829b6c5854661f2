/* Sharded tensors, gathered over a group in a known order, a little ahead of their use (ZeRO, Rajbhandari et al. 2020; FSDP, Zhao et al. 2023).
 *
 * A piece is some tensors that one operation gathers: each rank sends its intervals of them (parallel/shard_map.h), one behind the other, and what arrives is
 * copied to where the tensors belong. A sequence of pieces is begun, its pieces are taken one by one, and it is ended. While the caller works with what it took,
 * the gathers of the next TR_GATHER_AHEAD pieces are under way; not ahead, a piece is gathered when it is taken. Sources are the caller's, or made by it in a
 * buffer of this module when the gather is posted. Knows nothing of models. Nothing is allocated after init. One thread; all ranks of the group make the same calls
 * in the same order. */
#ifndef TR_PARALLEL_PARAM_GATHER_H
#define TR_PARALLEL_PARAM_GATHER_H

#include <stdbool.h>

#include "kernels/device.h"
#include "memory/arena.h"
#include "parallel/group.h"

enum {
    TR_GATHER_AHEAD = 2,
    /* One more than the gathers ahead, so that a post waits for peers to have read the source of the use before last, not of this one. */
    TR_GATHER_SOURCES = TR_GATHER_AHEAD + 1
};

typedef struct tr_gather_tensor {
    int64_t count; /* elements */
    void *dst;     /* where all of it belongs; may be any memory */
} tr_gather_tensor;

/* Tells where this rank's intervals of a piece lie (communication memory) when its gather is posted. buffer: memory for them, NULL when
 * init was told that sources are the caller's. They stay as they are until the sequence's end. */
typedef tr_status (*tr_gather_source)(void *context, int piece, void *buffer, const void **source);

typedef struct tr_param_gather {
    tr_group *group; /* set after init; NULL in the counting pass */
    tr_gather_source source;
    void *context;
    tr_device *device; /* copies */
    int size, rank;
    size_t item_bytes;
    int num_pieces;
    int *piece_first; /* [num_pieces + 1] tensor numbers */
    tr_gather_tensor *tensors;
    int64_t *counts; /* [num_pieces][size] elements of each rank's intervals */
    void *sources[TR_GATHER_SOURCES];
    tr_event events[TR_GATHER_SOURCES];
    void *gathered[TR_GATHER_AHEAD]; /* all ranks' intervals of a piece */
    /* of the current sequence */
    const int *sequence;
    int length, num_posted, num_taken;
    bool ahead;
    int most_in_flight; /* gathers posted and not taken, ever */
} tr_param_gather;

/* tensors: those of piece 0, then of piece 1, ...; piece_first [num_pieces + 1] says where a piece's begin. item_bytes: of
 * an element. own_sources: whether buffers for sources are laid out in `comm`; the rest lies in `workspace`. */
void tr_param_gather_init(tr_param_gather *gather, const tr_gather_tensor *tensors,
                          const int *piece_first, int num_pieces, int size, int rank,
                          size_t item_bytes, bool own_sources, tr_device *device, tr_arena *comm,
                          tr_arena *workspace);
void tr_param_gather_clear(tr_param_gather *gather);

/* The pieces that will be taken, in this order; kept by the caller until the end. The last sequence has ended. */
tr_status tr_param_gather_begin(tr_param_gather *gather, const int *sequence, int length,
                                bool ahead);
/* Waits for the next piece of the sequence and puts its tensors together. TR_ERR_INTERNAL when that is not `piece`. */
tr_status tr_param_gather_take(tr_param_gather *gather, int piece);
/* After the last piece: waits until no peer reads this rank's sources. TR_ERR_INTERNAL when pieces are left. */
tr_status tr_param_gather_end(tr_param_gather *gather);

/* Bytes that this rank sends for one gather of a piece. */
int64_t tr_param_gather_bytes_sent(const tr_param_gather *gather, int piece);

#endif
