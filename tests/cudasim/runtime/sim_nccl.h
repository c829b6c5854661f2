/* The stand-in for NCCL: what tests may ask of it besides the functions of nccl.h.
 *
 * Ranks are processes, each with its own simulated GPU. A group of calls on one communicator is one work on its stream, and works of a
 * communicator run in the order of the calls. Everything is a rendezvous: a send ends when its receive has run. Queued work goes on while the
 * host does something else (sim_stream.h).
 *
 * Communicators are nonblocking (config.blocking = 0). A call may return ncclInProgress, and nothing has happened then before
 * ncclCommGetAsyncError has said ncclSuccess, after some more calls of it. What a real NCCL says by its results (arguments, two ranks on
 * one GPU, a rank whose process has ended) is a result here. What it would not see ends the process with a line "cudasim: nccl: ...": calls of
 * ranks that do not fit, a communicator or its stream used while a call is in progress, memory that is not the device's or that is used
 * twice in a group, a communicator that is left or destroyed before it was finalized, and uses of NCCL that are not simulated.
 *
 * A communicator connects its ranks for large collectives at the first of them, which is in progress until all ranks have called it; with NCCL_RUNTIME_CONNECT=0 when
 * it is made.
 *
 * CUDASIM_NCCL_VERSION: the version that is told, 22809 unless given. */
#ifndef TR_TESTS_SIM_NCCL_H
#define TR_TESTS_SIM_NCCL_H

#include <stdint.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on every communicator of this process has failed with `error`, as ncclCommGetAsyncError says, and its work does not end. */
void cudasim_nccl_fail_all(ncclResult_t error);

int64_t cudasim_nccl_count(void); /* communicators alive */
int64_t cudasim_nccl_works(void); /* groups of calls that have run in this process */

#ifdef __cplusplus
}
#endif

#endif
