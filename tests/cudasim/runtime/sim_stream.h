/* Streams and events inside the stand-ins (sim_runtime.h): what other stand-ins enqueue, and what memory asks before it is freed. */
#ifndef TR_TESTS_SIM_STREAM_H
#define TR_TESTS_SIM_STREAM_H

#include <stddef.h>

#include <functional>
#include <mutex>

#include <cuda_runtime_api.h>

#include "tests/cudasim/runtime/sim_runtime.h"

/* Held during every call of a stand-in, and so while work runs. */
extern std::recursive_mutex sim_lock;

typedef struct sim_range {
    const void *begin;
    size_t bytes;
} sim_range;

/* Enqueues work. step runs with device memory open and returns true when the work is done. ranges: what it reads and writes; num_ranges
 * < 0: any device memory. what: for messages, and stays valid. */
cudaError_t sim_enqueue(cudaStream_t stream, const char *what, const sim_range *ranges,
                        int num_ranges, std::function<bool()> step);

/* The same for work in which processes wait for each other: step returns false when it waits for another one (it is tried again, also
 * long after). It runs also while the host of this process does something else, once sim_progress_start was called. */
cudaError_t sim_enqueue_shared(cudaStream_t stream, const char *what, const sim_range *ranges,
                               int num_ranges, std::function<bool()> step);
void sim_progress_start();

/* Called by such a step that has moved something and is not done. */
void sim_note_move();

/* Ends the process unless the stream is alive and may be used by `call`. */
void sim_stream_check(cudaStream_t stream, const char *call);

/* From now on the use of the stream ends the process with a line that names `by`; NULL: no longer. */
void sim_stream_claim(cudaStream_t stream, const char *by);

/* The queued work that may use the memory, or NULL. */
const char *sim_user_of(const void *begin, size_t bytes);

/* The error that every call returns since the device was lost, or cudaSuccess. */
cudaError_t sim_lost();

/* A number below `below`, from the seed. */
uint64_t sim_draw(uint64_t below);

/* Fills in what streams know of *counts. */
void sim_stream_count(cudasim_counts *counts);

#endif
