/* What the ranks of a node write for each other, in the control piece of each rank (parallel/shm_memory.h): one tr_shm_control, then a
 * mailbox for each group that the rank is in, in the order of their creation.
 *
 * Every field has one writer, its owner, except the doorbell and the boards. The board of a group lies in the mailbox of its first rank: counters
 * that the ranks add to, so that one load tells whether all have arrived, and only the last to arrive wakes the others. All have arrived at
 * collective n when counter n mod TR_GROUP_SLOTS is at least size * (n / TR_GROUP_SLOTS + 1). Data are published by a release (the addition), and
 * read after an acquiring load. No locks. */
#ifndef TR_PARALLEL_GROUP_SHM_H
#define TR_PARALLEL_GROUP_SHM_H

#include <stdatomic.h>

#include "parallel/group_int.h"

enum {
    TR_SHM_LINE = 64,    /* bytes of a cache line, apart for each writer */
    TR_SHM_GROUPS = 128, /* most groups of one rank */
    TR_SHM_SMALL_BYTES = 64 * 1024
};

typedef struct tr_shm_control {
    _Alignas(TR_SHM_LINE) _Atomic uint32_t
        doorbell;             /* added to by who has news for the rank; its futex */
    _Atomic uint32_t waiting; /* by the rank: it sleeps, or is about to */
} tr_shm_control;

/* A posted collective. */
typedef struct tr_shm_post {
    uint64_t source;      /* offset in the poster's communication memory */
    uint64_t destination; /* the same, or TR_SHM_PRIVATE */
    uint64_t signature;   /* of kind and sizes; must be equal on all ranks */
} tr_shm_post;

#define TR_SHM_PRIVATE UINT64_MAX

/* A posted send. */
typedef struct tr_shm_letter {
    uint64_t source, bytes;
    double posted; /* when */
} tr_shm_letter;

/* Between the mailbox's owner and one other rank of the group, both ways. */
typedef struct tr_shm_channel {
    _Alignas(TR_SHM_LINE) _Atomic uint64_t num_sent; /* letters posted by the owner to the other */
    _Atomic uint64_t num_received; /* letters of the other that the owner has copied */
    tr_shm_letter letters[TR_GROUP_SLOTS];
    _Atomic double wanted[TR_GROUP_SLOTS]; /* when the owner posted a receive from the other */
} tr_shm_channel;

typedef struct tr_shm_board {
    _Alignas(TR_SHM_LINE) _Atomic uint64_t posted[TR_GROUP_SLOTS]; /* sources published */
    _Atomic uint64_t finished[TR_GROUP_SLOTS]; /* sources (and shares) of the others read */
    /* Shares of a cut all-reduce written. One counter is enough: nobody writes its next share before all have written this one. */
    _Atomic uint64_t shared;
    _Atomic uint64_t small[2];
} tr_shm_board;

typedef struct tr_shm_mailbox {
    tr_shm_board board; /* used in the mailbox of the group's first rank */
    /* What the owner has done, in numbers of collectives: only to name who is late. */
    _Alignas(TR_SHM_LINE) _Atomic uint64_t num_posted, num_shared, num_finished, num_small;
    _Alignas(TR_SHM_LINE) tr_shm_post posts[TR_GROUP_SLOTS];
    /* Small operations take the two buffers in turn: who is at number k + 2 has passed k + 1, which all ranks joined after
     * they had read number k. */
    uint64_t small_signature[2];
    _Alignas(TR_SHM_LINE) char small[2][TR_SHM_SMALL_BYTES];
    tr_shm_channel channels[]; /* [size of the group] */
} tr_shm_mailbox;

/* A group's state at one rank. */
typedef struct tr_shm_state {
    tr_shm_mailbox **mailboxes; /* [size] */
    uint64_t num_read; /* collectives that this rank is done reading for: they run in order */
    uint64_t num_cut;  /* all-reduces among them that were cut into shares */
    uint64_t num_small;
} tr_shm_state;

size_t tr_shm_mailbox_bytes(int local_size);
size_t tr_shm_control_bytes(const tr_world *world);

/* Rings all other ranks of the group. */
void tr_shm_ring_group(tr_group *group);
/* Adds this rank's arrival to a counter of the board that all ranks have reached `round` times before; the last to arrive rings the
 * others. */
void tr_shm_arrive(tr_group *group, _Atomic uint64_t *counter, uint64_t round);
bool tr_shm_arrived(const tr_group *group, _Atomic uint64_t *counter, uint64_t round);

/* --- group_shm_small.c --- */

tr_status tr_shm_advance_small(tr_group *group, tr_op *op, bool *moved);
tr_status tr_shm_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op);
tr_status tr_shm_broadcast(tr_group *group, int root, void *data, size_t bytes);

#endif
