/* A group: an ordered set of ranks and the collectives between them, each posted and completed by an event.
 *
 * Channel model (DESIGN section 8). A channel is (group, from, to): in order, rendezvous, nothing is buffered, posting never blocks. A
 * buffer belongs to the operation from the post until its event is complete. All ranks of a group post the same operations in the same
 * order; where a process posts on several groups, the global order of posts is the same on all ranks that share them.
 *
 * Every source buffer lies in communication memory (tr_world_comm_memory), which peers of a node can read in place; destinations lie
 * anywhere. The rule is checked on every transport, so that a program that works on one works on all.
 *
 * Sums. All floating-point sums go through one ordered primitive: element i of the result is the tree sum of the ranks' elements i, the tree over
 * n things splitting at the largest power of two below n (DESIGN section 1), in fp32. reduce_scatter, all_reduce and hand-made exchanges therefore agree
 * bit for bit on every transport. Only tr_group_native_set gives this up.
 *
 * Waiting sleeps (futex) where all peers share a node, else tests, yields and sleeps briefly; always against the world's deadline. A wait
 * that passes it returns TR_ERR_TIMEOUT with one line that names operation, group, peer and tag. One thread per process calls these functions. No call allocates after the
 * group was created and tr_group_reserve called. Bytes sent are counted in tr_group_stats. */
#ifndef TR_PARALLEL_GROUP_H
#define TR_PARALLEL_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tr_group tr_group;

/* A posted operation; storage of the caller, reusable once complete. Zero-initialised = complete. */
typedef struct tr_event {
    tr_group *group; /* NULL when complete */
    uint32_t slot;
    uint32_t generation;
} tr_event;

/* bytes_sent is what a network would carry away from this rank, by the same formulas on every transport; s ranks, me = this one:
 *     reduce_scatter        4 * (sum of counts - counts[me])
 *     all_gather            item_bytes * counts[me] * (s - 1)
 *     all_reduce(_max)      4 * (n - share + share * (s - 1)); share: elements of this rank's of s near-equal parts of n
 *     send                  bytes
 *     all_reduce_i64        8 * n * (s - 1)
 *     broadcast             bytes * (s - 1) at the root */
typedef struct tr_group_stats {
    uint64_t num_operations;
    uint64_t bytes_sent;
    double wait_seconds; /* inside waits of this group, with the adding and copying done there */
    double
        transfer_seconds; /* of them, waits for sends and receives from when both ranks had posted: the transfer itself */
    double move_seconds; /* adding, and copying to where results belong, wherever it was done */
} tr_group_stats;

int tr_group_size(const tr_group *group);
int tr_group_rank(const tr_group *group); /* this process's place in the group */
const char *tr_group_name(const tr_group *group);
const tr_group_stats *tr_group_get_stats(const tr_group *group);

/* At set-up: memory for up to `num_ops` (<= 64) sums in flight at once that each receive up to `bytes` before they add (a sum over s ranks with m
 * elements of result per rank: (s - 1) * m * 4). Without it that memory grows on first use. Nothing is needed in shared memory. */
void tr_group_reserve(tr_group *group, size_t bytes, int num_ops);

/* Bytes that rank `rank` of `size` sends in an all-reduce of n floats: the others' shares of its source to them, its share of the result to all. */
int64_t tr_group_all_reduce_bytes(int size, int rank, int64_t n);

/* The most elements that a rank of `size` adds of an all-reduce of n. */
int64_t tr_group_largest_share(int size, int64_t n);

/* Groups of a device with its own memory (tr_world_device_group_create) receive what they add into device memory that the caller lays out: bytes for
 * sums of which a rank adds up to `elements`, over `size` ranks. One scratch serves all sums of one stream, one after the other. */
size_t tr_group_scratch_bytes(int size, int64_t elements);
/* At set-up. Stays the caller's, 256-byte aligned; other groups of the same stream may have the same. Nothing on host transports. */
void tr_group_scratch_set(tr_group *group, void *scratch, size_t bytes);

/* At set-up, collective over the group: from now on reduce_scatter sums as the transport itself does it fastest, in an order of its own that is the same
 * each time, where it has such sums (NCCL); elsewhere, and in all other operations, as before. */
tr_status tr_group_native_set(tr_group *group);

/* One direction between two ranks of a group. */
typedef struct tr_channel {
    int from, to;
} tr_channel;

/* At set-up, collective over the group, the same list on all: opens the channels that sends and receives will use, so that none waits for another.
 * Nothing on host transports, whose channels need no opening. */
tr_status tr_group_channels_open(tr_group *group, const tr_channel *channels, int count);

/* dst[counts[me]] = tree sum over ranks p of (p's src segment for me). src: fp32, the segments for rank 0, 1, ... one after the other
 * (sum of counts elements). counts (elements, same on all ranks, kept by the caller until completion) may hold zeros. dst may be this rank's own segment of src. */
tr_status tr_group_reduce_scatter(tr_group *group, const float *src, const int64_t *counts,
                                  float *dst, tr_event *event);
/* dst[n] = tree sum over ranks of src[n], fp32. dst and src may not overlap: peers read src while dst is written. */
tr_status tr_group_all_reduce(tr_group *group, const float *src, float *dst, int64_t n,
                              tr_event *event);
/* dst = the ranks' segments one after the other; src: counts[me] items of item_bytes. dst may contain src at its place. */
tr_status tr_group_all_gather(tr_group *group, const void *src, const int64_t *counts,
                              size_t item_bytes, void *dst, tr_event *event);
/* src: communication memory at the sender; dst anywhere at the receiver; both give the same byte count. `tag` only names the wait. */
tr_status tr_group_send(tr_group *group, int to, const void *src, size_t bytes, int64_t tag,
                        tr_event *event);
tr_status tr_group_recv(tr_group *group, int from, void *dst, size_t bytes, int64_t tag,
                        tr_event *event);

/* Names the next operation that is posted on the group in a trace: "bucket" 3. The text is kept, not copied. */
void tr_group_label(tr_group *group, const char *text, int number);

/* Below, on a group of a device with its own memory (tr_world_device_group_create): a post enqueues behind all work that the compute stream has at that
 * moment, and returns; the waits make the compute stream wait in the host's place, and return at once: later work of the compute stream sees the result and
 * may write the source. The host learns of what went wrong on the way at tr_world_wait_device. */

/* True when complete; moves all of this process's posted operations on. Never blocks. */
tr_status tr_event_test(tr_event *event, bool *complete);
/* Waits, moving all posted operations of this process on. */
tr_status tr_event_wait(tr_event *event);
/* Waits until this process's result (dst) is valid; peers may still read its source, which stays with the operation until tr_event_wait or
 * tr_event_test says complete. For a send: the same as tr_event_wait. */
tr_status tr_event_wait_result(tr_event *event);
/* Moves posted operations on without waiting for any; called between operations of the compute stream. */
tr_status tr_group_progress(tr_group *group);

/* Small host-memory collectives that finish before they return; n up to 4096. Any memory. Integer sums know no order. Groups of a device have none of them. */
typedef enum tr_int_op { TR_INT_SUM, TR_INT_MAX, TR_INT_MIN } tr_int_op;
tr_status tr_group_all_reduce_i64(tr_group *group, int64_t *values, int n, tr_int_op op);
/* Maximum of floats (order does not matter). src in communication memory as above; posted. */
tr_status tr_group_all_reduce_max(tr_group *group, const float *src, float *dst, int64_t n,
                                  tr_event *event);
/* Any memory, any size, small or at set-up; finishes before it returns. */
tr_status tr_group_broadcast(tr_group *group, int root, void *data, size_t bytes);
tr_status tr_group_barrier(tr_group *group);

#endif
