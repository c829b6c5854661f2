/* What the ranks of a simulated communicator share: who they are, and for each ordered pair of them a ring of chunks.
 *
 * The memory has no name. It is a file descriptor of the process that made the unique id, which the others open through /proc, so that
 * nothing is left behind however the processes end. All pages are taken when they are first used. */
#ifndef TR_TESTS_SIM_NCCL_SEGMENT_H
#define TR_TESTS_SIM_NCCL_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include <nccl.h>

enum { SIM_NCCL_RANKS = 64, SIM_NCCL_SLOTS = 8, SIM_NCCL_CHUNK = 32 << 10 };

/* What one rank says of its operation to another, which checks it against its own. */
typedef struct sim_nccl_message {
    int32_t kind; /* sim_nccl_kind */
    int32_t type, op;
    uint64_t count; /* elements */
} sim_nccl_message;

struct sim_nccl_chunk {
    sim_nccl_message message; /* that it belongs to */
    uint32_t bytes;
    unsigned char data[SIM_NCCL_CHUNK];
};

/* Filled by one process, emptied by one. */
struct sim_nccl_ring {
    std::atomic<uint64_t> put, taken; /* chunks so far */
    std::atomic<uint64_t> asked;      /* messages that the receiver has begun to wait for */
    uint64_t begun;                   /* messages that the sender has begun */
    sim_nccl_chunk slots[SIM_NCCL_SLOTS];
};

struct sim_nccl_rank {
    std::atomic<int32_t> pid;   /* 0: has not come */
    std::atomic<bool> ready;    /* the members below are filled in */
    std::atomic<bool> connects; /* has called what needs connections of all ranks */
    std::atomic<bool> finalized;
    int32_t device;
    char host[64]; /* processes of one host share its GPUs */
};

struct sim_nccl_segment {
    uint64_t nonce;
    std::atomic<int32_t> num_ranks; /* 0: no rank has come */
    sim_nccl_rank ranks[SIM_NCCL_RANKS];
    sim_nccl_ring rings[]; /* [from][to] */
};

size_t sim_nccl_segment_bytes(int num_ranks);

/* A new id, whose memory this process holds. False with errno when the system has none. */
bool sim_nccl_id_make(ncclUniqueId *id);

/* Maps the id's memory, large enough for num_ranks. NULL: its process has ended. */
sim_nccl_segment *sim_nccl_segment_map(const ncclUniqueId *id, int num_ranks);
void sim_nccl_segment_unmap(sim_nccl_segment *segment, int num_ranks);

/* All have mapped it: who made the id need not hold it any more. */
void sim_nccl_id_release(const ncclUniqueId *id);

/* Whether the process runs: it is neither gone nor a zombie. */
bool sim_process_is_alive(int pid);

#endif
