/* Tests of what several ranks do: runs a function in several child processes at once, without MPI, and looks at how they ended and what they said. */
#ifndef TR_TESTS_SIM_RANKS_H
#define TR_TESTS_SIM_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include <nccl.h>

enum { SIM_RANKS_IDS = 8, SIM_RANKS_FLAGS = 8 };

/* What the processes of a job share. */
typedef struct sim_ranks {
    int num_ranks;
    int rank; /* of this process; the one member that they do not share */
    struct sim_ranks_shared {
        ncclUniqueId ids[SIM_RANKS_IDS]; /* made by rank 0 before the others begin */
        atomic_int arrived;
        atomic_int flags[SIM_RANKS_FLAGS]; /* for the test, zero at first */
    } * shared;
} sim_ranks;

typedef void (*sim_ranks_body)(const sim_ranks *ranks);

/* Ends the process with a line on stderr unless the condition holds. */
#define SIM_MUST(condition) sim_must(condition, #condition, __FILE__, __LINE__)
void sim_must(bool condition, const char *text, const char *file, int line);

/* Sleeps until all ranks have come here. */
void sim_ranks_barrier(const sim_ranks *ranks);
/* Sleeps until the flag is not zero. */
void sim_ranks_wait(const sim_ranks *ranks, int flag);

/* Fails the cmocka test unless body returns on all ranks within a minute. */
void sim_ranks_run(const char *name, int num_ranks, sim_ranks_body body);

/* Fails it unless one of the processes ends with CUDASIM_EXIT and says `words`; the others are killed then. */
void sim_ranks_expect(const char *name, int num_ranks, sim_ranks_body body, const char *words);

#endif
