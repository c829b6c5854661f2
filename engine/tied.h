/* A tied head on another pipeline stage than the embedding: its gradient goes to the embedding's stage, updated weights come back.
 *
 * Master and moments stand with the embedding. Ranks of the two stages with the same data and tensor coordinates hold the same interval [state_begin, state_end) of the
 * shared tensor; each pair exchanges it over the pipeline group. With both on one stage, or untied, nothing is exchanged: both ends are NULL. One thread. */
#ifndef TR_ENGINE_TIED_H
#define TR_ENGINE_TIED_H

#include "engine/model/local_params.h"
#include "kernels/device.h"
#include "memory/arena.h"
#include "parallel/group.h"

typedef struct tr_tied {
    const tr_local_param *embed, *head; /* this rank's end of an exchange: at most one */
    int peer;                           /* stage of the other end */
    int64_t count;                      /* elements of the interval */
    tr_group *pipeline;                 /* set after init */
    tr_device *device;                  /* copies */
    void *
        source; /* communication memory: at the head the gradient, then the weights as received where peers gather them from there; at the embedding the weights */
    float *received;           /* embedding's end: the head's gradient */
    tr_event sent;             /* from `source` */
    tr_event weights_received; /* head's end */
} tr_tied;

/* source_bytes: of an element at the embedding's end (the compute dtype's size), 0 when weights are sent from elsewhere. */
void tr_tied_init(tr_tied *tied, const tr_local_params *local, const tr_config *cfg,
                  const tr_mesh *mesh, tr_device *device, size_t source_bytes, tr_arena *comm,
                  tr_arena *workspace);

/* The head's end: sends its interval's gradient. */
tr_status tr_tied_gradient_send(tr_tied *tied, const float *grad);
/* The embedding's end: waits for it; valid until the next one. */
tr_status tr_tied_gradient_receive(tr_tied *tied, const float **grad);

/* The source buffer, free to write, for the interval's weights: at the embedding's end to be sent, at the head's to be received into. */
tr_status tr_tied_weights_source(tr_tied *tied, void **source);
/* The embedding's end: sends the interval's weights (communication memory, in the compute dtype); `bytes` of it all. */
tr_status tr_tied_weights_send(tr_tied *tied, const void *weights, size_t bytes);
/* The head's end: expects them in dst; *_wait waits for them, and returns at once where none are expected. */
tr_status tr_tied_weights_expect(tr_tied *tied, void *dst, size_t bytes);
tr_status tr_tied_weights_wait(tr_tied *tied);
/* Waits until nothing that was sent is read any more. */
tr_status tr_tied_settle(tr_tied *tied);

#endif
