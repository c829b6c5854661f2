/* One group of NCCL calls on one communicator as work of a simulated stream.
 *
 * All sends and receives of the work progress together, in any order but that of a pair's messages. A send is done when its last chunk has been
 * taken, so that nothing completes before its peer has come, and most read their source only from then on. Sums are made in the order of a ring that ends at the rank which receives them:
 * ((x[r+1] + x[r+2]) + ...) + x[r]. It is not the order of Trine's tree. */
#ifndef TR_TESTS_SIM_NCCL_WORK_H
#define TR_TESTS_SIM_NCCL_WORK_H

#include <memory>
#include <vector>

#include "tests/cudasim/runtime/sim_nccl_segment.h"
#include "tests/cudasim/runtime/sim_stream.h"

typedef enum sim_nccl_kind {
    SIM_NCCL_SEND,
    SIM_NCCL_RECV,
    SIM_NCCL_ALL_GATHER,
    SIM_NCCL_REDUCE,
    SIM_NCCL_REDUCE_SCATTER
} sim_nccl_kind;

/* One call. count: as the function's argument; dst: NULL where nothing is written. */
struct sim_nccl_call {
    sim_nccl_kind kind;
    const unsigned char *src;
    unsigned char *dst;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
};

bool sim_nccl_is_sum(sim_nccl_kind kind);

/* A rank's place among the others, as long as the communicator or work of it is there. */
struct sim_nccl_link {
    sim_nccl_segment *segment;
    int num_ranks, rank;
    uint64_t num_made, num_done; /* works, which run in the order of the calls */
    bool aborted;                /* works end at once */
    bool stuck;                  /* works do not go on */
    ~sim_nccl_link();
};

size_t sim_nccl_type_bytes(ncclDataType_t type); /* 0: no such type */

/* "ncclSend" */
const char *sim_nccl_call_name(sim_nccl_kind kind);

/* What the call reads and writes, in bytes. */
sim_range sim_nccl_reads(const sim_nccl_call *call, int num_ranks);
sim_range sim_nccl_writes(const sim_nccl_call *call, int num_ranks);

/* The step for sim_enqueue_shared. */
std::function<bool()> sim_nccl_work(std::shared_ptr<sim_nccl_link> link,
                                    const std::vector<sim_nccl_call> &calls);

#endif
