/* Short forms of what tests of the stand-in for NCCL do with it and with the runtime. Each ends the process where it is refused. */
#ifndef TR_TESTS_SIM_NCCL_USE_H
#define TR_TESTS_SIM_NCCL_USE_H

#include <stddef.h>

#include "tests/cudasim/runtime/sim_nccl.h"
#include "tests/cudasim/runtime/sim_runtime.h"
#include "tests/cudasim/sim_ranks.h"

void use_nap_ms(int ms);

/* Asks until the communicator's last call is complete. */
ncclResult_t use_settle(ncclComm_t comm);
/* The same after a call, which has to succeed. */
void use_called(ncclComm_t comm, ncclResult_t result);

/* This rank's communicator of all ranks by the job's id number `id`, on GPU `rank`: begun, or ready. */
ncclComm_t use_comm_begin(const sim_ranks *ranks, int id);
ncclComm_t use_comm_make(const sim_ranks *ranks, int id);
void use_comm_end(ncclComm_t comm);

cudaStream_t use_stream_make(void);
void use_copy(float *dst, const float *src, size_t n, cudaStream_t stream);
void use_finish(cudaStream_t stream);
cudaEvent_t use_mark(cudaStream_t stream); /* a new event, recorded */

/* Memory of n elements (and one) each on the device and on the host, and a stream. */
typedef struct use_memory {
    size_t n; /* elements of each */
    float *src, *dst, *host;
    cudaStream_t stream;
} use_memory;
use_memory use_memory_make(size_t n);
void use_memory_end(use_memory *m);

#endif
