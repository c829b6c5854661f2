/* A step's tokens, labels and sample numbers on their way into the device's memory.
 *
 * Where the host shares that memory, microbatches point to the host's arrays. Elsewhere the arrays are copied to pinned memory, and from there on the compute stream to
 * the device, in front of what will read them. Laid out with the stage, on counting arenas too. One thread. */
#ifndef TR_ENGINE_UPLOAD_H
#define TR_ENGINE_UPLOAD_H

#include "engine/model/model.h"
#include "memory/arena.h"

struct tr_world;

typedef struct tr_upload {
    tr_device *device;
    struct tr_world *world; /* as in step_sums.h */
    int num_microbatches;   /* M of this rank, the most of one upload */
    int64_t R, B;           /* rows and sequences of a microbatch */
    unsigned char *memory,
        *pinned; /* tokens [M][R], labels [M][R], samples [M][B]; NULL where nothing is copied */
    tr_device_event *copied; /* the last upload has left the pinned memory */
} tr_upload;

/* device: memory of the device; host: memory that the host reads and writes (pinned). */
void tr_upload_init(tr_upload *upload, const tr_model *model, int num_microbatches,
                    tr_arena *device, tr_arena *host);
/* After init on real arenas. */
tr_status tr_upload_connect(tr_upload *upload);
void tr_upload_clear(tr_upload *upload);

/* Points microbatches [count] to tokens and labels [count][R] and samples [count][B], host arrays: they stay as they are until the next upload. */
tr_status tr_upload_make(tr_upload *upload, const int32_t *tokens, const int32_t *labels,
                         const uint64_t *samples, int count, tr_microbatch *microbatches);

#endif
