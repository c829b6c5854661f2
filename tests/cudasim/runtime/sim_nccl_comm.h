/* Communicators inside the stand-in for NCCL (sim_nccl.h): their states from the call that makes one to the call that destroys it. */
#ifndef TR_TESTS_SIM_NCCL_COMM_H
#define TR_TESTS_SIM_NCCL_COMM_H

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/cudasim/runtime/sim_nccl_work.h"

enum sim_nccl_stage { STAGE_INIT, STAGE_READY, STAGE_FINALIZING, STAGE_FINALIZED };

struct ncclComm {
    std::shared_ptr<sim_nccl_link> link;
    ncclUniqueId id;
    sim_nccl_stage stage;
    ncclResult_t failed;                  /* ncclSuccess: it has not */
    int polls_left;                       /* until the last call is complete, if it can be */
    bool connecting;                      /* the last call waits until all ranks have called */
    double looked;                        /* when the other processes were looked at, seconds */
    cudaStream_t stream;                  /* of `enqueue` */
    std::function<cudaError_t()> enqueue; /* what the last call has yet to do, or none */
};

/* Ends the process unless it is alive. */
void sim_nccl_comm_check(ncclComm_t comm, const char *call);

/* That calls of operations may begin: ncclSuccess, or the error of the communicator. Ends the process while its last call is in progress. */
ncclResult_t sim_nccl_comm_enter(ncclComm_t comm, const char *call);

/* Whether a call of `bytes` from a rank needs connections that the communicator has not: those of large collectives are made by the first of them, unless the
 * variable NCCL_RUNTIME_CONNECT was 0 when the process used NCCL first. */
bool sim_nccl_comm_must_connect(ncclComm_t comm, const sim_nccl_call *call);

/* Between ncclGroupStart and ncclGroupEnd. */
bool sim_nccl_in_group();

/* Remembers what was wrong for ncclGetLastError; returns `result`. */
ncclResult_t sim_nccl_error(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
