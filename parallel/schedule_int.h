/* What the files of parallel/schedule*.c share. A schedule is made in three steps: a generator (or a
 * text) gives the compute actions of every rank, tr_schedule_place puts transfers, slots and
 * buffers in, tr_schedule_check proves the result. */
#ifndef TR_PARALLEL_SCHEDULE_INT_H
#define TR_PARALLEL_SCHEDULE_INT_H

#include "parallel/schedule.h"

static inline int tr_schedule_num_chunks(const tr_schedule *schedule)
{
    return schedule->num_stages * schedule->num_virtual;
}

/* Index of (chunk, microbatch) in tables over all chunks. */
static inline int tr_schedule_index(const tr_schedule *schedule, int chunk, int microbatch)
{
    return chunk * schedule->num_microbatches + microbatch;
}

static inline int tr_schedule_stage(const tr_schedule *schedule, int chunk)
{
    return tr_chunk_stage(schedule->placement, schedule->num_stages, chunk);
}

/* Index of (local chunk, microbatch) in tables over a rank's chunks. */
static inline int tr_schedule_local_index(const tr_schedule *schedule, const tr_action *action)
{
    return tr_schedule_index(schedule, tr_chunk_local(schedule->num_stages, action->chunk),
                             action->microbatch);
}

/* The chunk at the other end of a transfer that `chunk` takes part in. */
static inline int tr_action_peer_chunk(const tr_action *action)
{
    bool next = action->kind == TR_ACTION_SEND_FORWARD || action->kind == TR_ACTION_RECV_BACKWARD;
    return next ? action->chunk + 1 : action->chunk - 1;
}

static inline bool tr_action_is_send(tr_action_kind kind)
{
    return kind == TR_ACTION_SEND_FORWARD || kind == TR_ACTION_SEND_BACKWARD;
}

static inline bool tr_action_is_recv(tr_action_kind kind)
{
    return kind == TR_ACTION_RECV_FORWARD || kind == TR_ACTION_RECV_BACKWARD;
}

/* Whether both ends of a transfer live on one rank. */
static inline bool tr_schedule_stays(const tr_schedule *schedule, const tr_action *transfer)
{
    return tr_schedule_stage(schedule, transfer->chunk) ==
           tr_schedule_stage(schedule, tr_action_peer_chunk(transfer));
}

/* An empty schedule of the kind: lists without storage, nothing placed. */
tr_schedule *tr_schedule_new(tr_schedule_kind kind, int num_stages, int num_virtual,
                             int num_microbatches);

/* Generators: the compute actions of one rank, in order, appended to schedule->ranks[rank] (storage
 * for all of them is there). */
void tr_schedule_gpipe(tr_schedule *schedule, int rank);
void tr_schedule_1f1b(tr_schedule *schedule, int rank);
void tr_schedule_interleaved(tr_schedule *schedule, int rank);
void tr_schedule_zb_h1(tr_schedule *schedule, int rank);
void tr_schedule_zb_v(tr_schedule *schedule, int rank);
void tr_schedule_forward_only(tr_schedule *schedule, int rank);
void tr_schedule_forward_v(tr_schedule *schedule, int rank);

/* Microbatches that are not there (from num_microbatches on) are left out. */
void tr_schedule_add(tr_schedule *schedule, int rank, tr_action_kind kind, int chunk,
                     int microbatch);
/* B directly followed by its W. */
void tr_schedule_add_backward(tr_schedule *schedule, int rank, int chunk, int microbatch);

/* The k-th forward of a rank that goes through its chunks in groups of microbatches (Narayanan et
 * al. 2021, figure 4), and the k-th backward, which takes the chunks from last to first. k in
 * 0 ... num_virtual * num_microbatches - 1. Groups are as many as hold num_stages microbatches
 * each, one at least, and near-equal, the larger ones first. */
void tr_schedule_group_order(const tr_schedule *schedule, int rank, int k, bool backward,
                             int *chunk, int *microbatch);

/* What compute lists must satisfy before they can be placed: every action once, on its rank, F
 * before B before W. TR_ERR_INTERNAL as tr_schedule_check. */
tr_status tr_schedule_check_compute(const tr_schedule *schedule);

/* Replaces the compute lists by full lists, and sets num_slots, num_send_buffers and
 * num_grad_buffers. */
void tr_schedule_place(tr_schedule *schedule);
/* The second half of it: numbers slots and buffers of full lists. */
void tr_schedule_number(tr_schedule *schedule);

/* Runs all lists against each other, every action as early as the channel model allows. The lists
 * must pass the checks of single ranks and channels (schedule_check.c). costs may be NULL (all
 * zero). end: [num_stages], when each rank's actions and transfers are complete. starts: when each
 * action starts, [num_stages][num_actions], or NULL. TR_ERR_INTERNAL that names two actions when
 * the lists deadlock. */
tr_status tr_schedule_replay(const tr_schedule *schedule, const tr_schedule_costs *costs,
                             double *end, double *const *starts);
/* Cost of an action; transfers 0. */
double tr_schedule_cost(const tr_schedule_costs *costs, const tr_action *action);

/* "1F3", "send of 1F3", "receive for 1B3": into `text`, for messages. */
enum { TR_ACTION_TEXT = 64 };
const char *tr_action_text(const tr_action *action, char text[TR_ACTION_TEXT]);

#endif
