/* The only place that sleeps. A rank that waits looks at its doorbell, moves on what it can, and sleeps on the doorbell's value: what
 * rings in between ends the sleep at once. Where MPI is involved nobody rings, so the sleep is short, after some turns of giving
 * the processor to others. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "parallel/group_int.h"
#include "parallel/group_shm.h"

enum { NUM_YIELDS = 200, MESSAGE = 1024 };

static const double callback_interval = 0.05, longest_sleep = 0.1, shortest_sleep = 20e-6,
                    longest_polled_sleep = 1e-3;

static tr_shm_control *own_control(const tr_world *world)
{
    const tr_shm_segment *control = &world->control;
    return control->base != NULL ? (tr_shm_control *)(void *)control->base[control->own] : NULL;
}

void tr_world_ring(tr_world *world, int local_rank)
{
    tr_shm_control *control = (tr_shm_control *)(void *)world->control.base[local_rank];
    atomic_fetch_add(&control->doorbell, 1);
    /* Either this sees that the rank is about to sleep, or the rank's futex call sees the doorbell changed. */
    if (atomic_load(&control->waiting) != 0)
        syscall(SYS_futex, &control->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* False when a signal ended the sleep. */
static bool sleep_on_doorbell(tr_shm_control *control, uint32_t value, double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    if (control == NULL)
        return nanosleep(&time, NULL) == 0;
    atomic_store(&control->waiting, 1);
    long result = syscall(SYS_futex, &control->doorbell, FUTEX_WAIT, value, &time, NULL, 0);
    bool interrupted = result != 0 && errno == EINTR;
    atomic_store(&control->waiting, 0);
    return !interrupted;
}

void tr_waiter_begin(tr_waiter *waiter, tr_world *world, const char *operation, const char *group,
                     int peer, int microbatch)
{
    *waiter = (tr_waiter){.world = world,
                          .operation = operation,
                          .group = group,
                          .peer = peer,
                          .microbatch = microbatch,
                          .start = tr_clock_seconds()};
}

void tr_waiter_look(tr_waiter *waiter)
{
    tr_shm_control *control = own_control(waiter->world);
    if (control != NULL)
        waiter->doorbell = atomic_load(&control->doorbell);
}

static tr_status call_idle(tr_world *world, double now)
{
    world->last_idle = now;
    return world->idle_callback != NULL ? world->idle_callback(world->idle_context) : TR_OK;
}

tr_status tr_waiter_pause(tr_waiter *waiter, bool polled, bool *expired)
{
    tr_world *world = waiter->world;
    if (!waiter->paused)
        tr_waitpoint_begin(&world->waitpoint, waiter->operation, waiter->group, waiter->peer,
                           waiter->microbatch);
    waiter->paused = true;
    double now = tr_clock_seconds();
    double left = waiter->start + world->timeout_s - now;
    *expired = left <= 0;
    if (*expired)
        return TR_OK;
    if (now - world->last_idle >= callback_interval)
        TR_TRY(call_idle(world, now));
    double seconds = longest_sleep;
    if (polled) {
        if (++waiter->num_idle <= NUM_YIELDS) {
            sched_yield();
            return TR_OK;
        }
        seconds = shortest_sleep * (waiter->num_idle - NUM_YIELDS);
        seconds = seconds < longest_polled_sleep ? seconds : longest_polled_sleep;
    }
    seconds = seconds < left ? seconds : left;
    if (!sleep_on_doorbell(own_control(world), waiter->doorbell, seconds))
        return call_idle(world, now); /* so that a signal is acted upon without delay */
    return TR_OK;
}

double tr_waiter_end(tr_waiter *waiter)
{
    if (waiter->paused)
        tr_waitpoint_end(&waiter->world->waitpoint);
    return tr_clock_seconds() - waiter->start;
}

/* ": not posted by rank 2 (world rank 5)". */
static void append_late(const tr_group *group, const tr_op *op, char *text, size_t bytes)
{
    memset(group->late, 0, (size_t)group->size * sizeof group->late[0]);
    const char *verb = group->transport->late(group, op, group->late);
    size_t used = strlen(text);
    const char *separator = verb;
    for (int i = 0; i < group->size && used + 1 < bytes; i++) {
        if (!group->late[i])
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s rank %d (world rank %d)", separator,
                                 i, group->ranks[i]);
        separator = ",";
    }
}

static tr_status timed_out(const tr_group *group, const tr_op *op, double seconds)
{
    char late[MESSAGE] = "", pair[96] = "";
    append_late(group, op, late, sizeof late);
    for (int i = 0; late[0] == '\0' && i < group->num_active; i++)
        append_late(group, &group->ops[group->active[i]], late, sizeof late);
    if (tr_op_is_pair(op->kind))
        snprintf(pair, sizeof pair, " %s rank %d, tag %lld,",
                 op->kind == TR_OP_SEND ? "to" : "from", op->peer, (long long)op->tag);
    return tr_fail(TR_ERR_TIMEOUT,
                   "timed out after %.1f s in %s number %llu%s of group %s, at its rank %d of %d "
                   "(world rank %d): %s",
                   seconds, tr_op_name(op->kind), (unsigned long long)op->sequence, pair,
                   group->name, group->rank, group->size, group->world->rank,
                   late[0] != '\0' ? late : "all have joined");
}

/* Seconds since `start` in which the transfer was under way. */
static double transfer_part(const tr_op *op, double start)
{
    if (!tr_op_is_pair(op->kind) || op->begun == 0)
        return 0;
    double begun = op->begun > start ? op->begun : start, now = tr_clock_seconds();
    return now > begun ? now - begun : 0;
}

/* The compute stream waits in the host's place; the slot is free. */
static tr_status await(tr_group *group, tr_op *op)
{
    TR_TRY(group->transport->await(group, op));
    op->result_ready = true;
    op->active = false;
    int place = 0;
    while (group->active[place] != op->index)
        place++;
    memmove(&group->active[place], &group->active[place + 1],
            (size_t)(--group->num_active - place) * sizeof group->active[0]);
    return TR_OK;
}

tr_status tr_group_wait_op(tr_group *group, tr_op *op, bool result_only)
{
    if (group->transport->await != NULL)
        return await(group, op);
    tr_world *world = group->world;
    uint32_t generation = op->generation;
    const tr_op waited = *op; /* its slot may be taken again when the wait ends */
    tr_waiter waiter;
    tr_waiter_begin(&waiter, world, tr_op_name(op->kind), group->name,
                    op->peer >= 0 ? group->ranks[op->peer] : -1,
                    tr_op_is_pair(op->kind) ? (int)op->tag : -1);
    tr_status status = TR_OK;
    for (;;) {
        bool moved = false, expired = false;
        tr_waiter_look(&waiter);
        TR_TRY_GOTO(status, tr_world_progress(world, &moved), end);
        if (op->generation != generation || !op->active || (result_only && op->result_ready))
            break;
        if (moved) {
            waiter.num_idle = 0;
            continue;
        }
        TR_TRY_GOTO(status, tr_waiter_pause(&waiter, world->num_polled > 0, &expired), end);
        if (expired) {
            status = timed_out(group, op, tr_clock_seconds() - waiter.start);
            break;
        }
    }
end:
    group->stats.wait_seconds += tr_waiter_end(&waiter);
    group->stats.transfer_seconds += transfer_part(op, waiter.start);
    if (tr_trace_is_on(world->trace))
        tr_group_trace_add(group, &waited, TR_GROUP_LANE_WAITS, waiter.start);
    return status;
}

tr_status tr_world_wait_request(tr_world *world, MPI_Request *request, const char *what)
{
    tr_waiter waiter;
    tr_waiter_begin(&waiter, world, what, NULL, -1, -1);
    tr_status status = TR_OK;
    for (;;) {
        int complete = 0;
        bool expired = false;
        tr_waiter_look(&waiter);
        int code = MPI_Test(request, &complete, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            status = tr_mpi_fail(code, what);
        if (complete || status != TR_OK)
            break;
        TR_TRY_GOTO(status, tr_waiter_pause(&waiter, true, &expired), end);
        if (expired) {
            status = tr_fail(TR_ERR_TIMEOUT,
                             "timed out after %.1f s: %s (world rank %d): a rank has not arrived",
                             world->timeout_s, what, world->rank);
            break;
        }
    }
end:
    tr_waiter_end(&waiter);
    return status;
}
