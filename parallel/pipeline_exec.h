/* The one executor of pipeline schedules: runs a rank's action list, posting transfers and calling
 * the stage functions that are handed in.
 *
 * It knows nothing of models: chunks, microbatches, slots and byte counts only. Transfers go over
 * the pipeline group (rank = stage). A B directly followed by the W of the same chunk and
 * microbatch is one call of `backward`, others are calls of their own. After a failure the transfers that were posted stay posted:
 * the buffers must outlive the group. */
#ifndef TR_PARALLEL_PIPELINE_EXEC_H
#define TR_PARALLEL_PIPELINE_EXEC_H

#include "base/trace_ring.h"
#include "kernels/device.h"
#include "parallel/group.h"
#include "parallel/schedule.h"

/* `first`/`last` of a chunk are what num_stages * num_virtual says: chunk 0 takes no input, the
 * last one gives no output. */
typedef struct tr_stage_functions {
    void *context;
    /* Input activation [bytes] of (chunk, slot): where RECV_FORWARD puts it and forward finds it
     * (any memory). Not called for chunk 0. */
    void *(*input)(void *context, int chunk, int slot);
    /* Runs the chunk forward. `output`: communication memory that takes the chunk's output (NULL
     * for the last chunk). */
    tr_status (*forward)(void *context, int chunk, int microbatch, int slot, void *output);
    /* Runs input and weight gradient. `grad_output`: gradient of the chunk's output as received
     * (NULL for the last chunk); `grad_input`: communication memory for the gradient of its input
     * (NULL for chunk 0). */
    tr_status (*backward)(void *context, int chunk, int microbatch, int slot,
                          const void *grad_output, void *grad_input);
    /* The same in two calls, where W does not directly follow B (tr_schedule_is_pair): the input
     * gradient, which keeps what the weight gradient needs (grad_output is free again after it),
     * and the weight gradient, in microbatch order for each chunk. May be NULL where no B is apart
     * from its W. */
    tr_status (*backward_input)(void *context, int chunk, int microbatch, int slot,
                                const void *grad_output, void *grad_input);
    tr_status (*backward_weight)(void *context, int chunk, int microbatch, int slot);
} tr_stage_functions;

typedef struct tr_pipeline_exec tr_pipeline_exec;

/* Bytes of communication memory that the executor needs for its send buffers, and of plain memory
 * for received gradients, given the bytes of one transfer (0 for one stage without virtual chunks).
 * Pure. */
size_t tr_pipeline_exec_send_bytes(const tr_schedule *schedule, int stage, size_t transfer_bytes);
size_t tr_pipeline_exec_recv_bytes(const tr_schedule *schedule, int stage, size_t transfer_bytes);

/* Sets used[from * num_stages + to] of each direction that transfers of the schedule take between two stages, of all ranks: the channels that a
 * group needs (tr_group_channels_open). Pure. */
void tr_pipeline_exec_channels(const tr_schedule *schedule, bool *used);

/* group: the pipeline group (NULL when num_stages is 1, and where nothing will run, as in a
 * counting pass); transfers between two chunks of the same rank are copies, which `device` makes.
 * The buffers are the caller's, of the sizes above; they may be NULL when the size is 0. Allocates
 * all it needs here; running allocates nothing. The schedule stays the caller's. */
tr_status tr_pipeline_exec_create(tr_pipeline_exec **exec, const tr_schedule *schedule, int stage,
                                  tr_group *group, tr_device *device, size_t transfer_bytes,
                                  void *send_memory, void *recv_memory,
                                  const tr_stage_functions *functions);
void tr_pipeline_exec_destroy(tr_pipeline_exec *exec);
/* Records each call of forward and backward on the compute track, while the trace is on: chunk, microbatch, and F, B or W of the schedule. A B that runs
 * its W too is one event. */
void tr_pipeline_exec_set_trace(tr_pipeline_exec *exec, tr_trace_ring *trace);
/* One whole pass over the list (a step's microbatches); returns when every transfer of it is
 * complete. Collective over the group. */
tr_status tr_pipeline_exec_run(tr_pipeline_exec *exec);
/* Largest number of forward activations, of all chunks, that were live at once in the last run, from
 * F to W (in-flight count). */
int tr_pipeline_exec_peak_live(const tr_pipeline_exec *exec);

#endif
