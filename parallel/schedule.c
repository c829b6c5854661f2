/* Makes and ends schedules; what kinds exist and which numbers they take. */
#include "parallel/schedule.h"

#include <limits.h>

#include "base/alloc.h"
#include "parallel/schedule_int.h"

void tr_schedule_add_forward(tr_schedule *schedule, int rank, int chunk, int microbatch)
{
    tr_action_list *list = &schedule->ranks[rank];
    list->actions[list->num_actions++] = (tr_action){
        .kind = TR_ACTION_FORWARD, .chunk = chunk, .microbatch = microbatch, .buffer = -1};
}

void tr_schedule_add_backward(tr_schedule *schedule, int rank, int chunk, int microbatch)
{
    tr_action_list *list = &schedule->ranks[rank];
    tr_action action = {.chunk = chunk, .microbatch = microbatch, .buffer = -1};
    action.kind = TR_ACTION_BACKWARD;
    list->actions[list->num_actions++] = action;
    action.kind = TR_ACTION_WEIGHT;
    list->actions[list->num_actions++] = action;
}

void tr_schedule_group_order(const tr_schedule *schedule, int rank, int k, bool backward,
                             int *chunk, int *microbatch)
{
    int num_stages = schedule->num_stages, num_virtual = schedule->num_virtual;
    int group = k / (num_stages * num_virtual);
    int within = k % (num_stages * num_virtual);
    int first = group * num_stages;
    int size = schedule->num_microbatches - first;
    if (size > num_stages)
        size = num_stages;
    int local = within / size;
    if (backward)
        local = num_virtual - 1 - local;
    *chunk = local * num_stages + rank;
    *microbatch = first + within % size;
}

static tr_status interleaved_supported(int num_stages, int num_virtual, int num_microbatches)
{
    if (num_virtual < 2)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.schedule interleaved needs parallel.virtual 2 or more, got %d; "
                       "with 1 use parallel.schedule 1f1b",
                       num_virtual);
    int rest = num_microbatches % num_stages;
    if (rest == 0)
        return TR_OK;
    int below = num_microbatches - rest, above = below + num_stages;
    char *nearest = below > 0 ? tr_format("%d or %d", below, above) : tr_format("%d", above);
    tr_status status = tr_fail(
        TR_ERR_SETTINGS,
        "parallel.schedule interleaved needs a number of microbatches (train.global_batch / "
        "(train.micro_batch x parallel.data)) that is a multiple of parallel.pipeline %d, got %d; "
        "nearest: %s",
        num_stages, num_microbatches, nearest);
    tr_free(nearest);
    return status;
}

tr_status tr_schedule_supported(tr_schedule_kind kind, int num_stages, int num_virtual,
                                int num_microbatches)
{
    if (num_stages < 1 || num_virtual < 1 || num_microbatches < 1)
        return tr_fail(TR_ERR_SETTINGS,
                       "a pipeline needs parallel.pipeline, parallel.virtual and a number of "
                       "microbatches of 1 or more, got %d, %d and %d",
                       num_stages, num_virtual, num_microbatches);
    /* Three compute actions and four transfers for each chunk and microbatch, counted in int. */
    if ((long long)num_stages * num_virtual > INT_MAX / 7 / num_microbatches)
        return tr_fail(
            TR_ERR_SETTINGS,
            "parallel.pipeline %d x parallel.virtual %d x %d microbatches is more than a "
            "schedule holds (%d); use fewer microbatches",
            num_stages, num_virtual, num_microbatches, INT_MAX / 7);
    if (kind == TR_SCHEDULE_1F1B && num_virtual > 1)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.schedule 1f1b needs parallel.virtual 1, got %d; with virtual "
                       "chunks use parallel.schedule interleaved",
                       num_virtual);
    if (kind == TR_SCHEDULE_INTERLEAVED)
        TR_TRY(interleaved_supported(num_stages, num_virtual, num_microbatches));
    return TR_OK;
}

tr_status tr_schedule_create(tr_schedule **schedule, tr_schedule_kind kind, int num_stages,
                             int num_virtual, int num_microbatches)
{
    TR_TRY(tr_schedule_supported(kind, num_stages, num_virtual, num_microbatches));
    static void (*const generators[])(tr_schedule *, int) = {
        [TR_SCHEDULE_GPIPE] = tr_schedule_gpipe,
        [TR_SCHEDULE_1F1B] = tr_schedule_1f1b,
        [TR_SCHEDULE_INTERLEAVED] = tr_schedule_interleaved,
        [TR_SCHEDULE_FORWARD_ONLY] = tr_schedule_forward_only,
    };
    tr_schedule *made = TR_NEW(tr_schedule);
    made->kind = kind;
    made->num_stages = num_stages;
    made->num_virtual = num_virtual;
    made->num_microbatches = num_microbatches;
    made->ranks = TR_NEW_ARRAY(tr_action_list, num_stages);
    made->num_slots = TR_NEW_ARRAY(int, num_stages *num_virtual);
    made->num_send_buffers = TR_NEW_ARRAY(int, num_stages);
    made->num_grad_buffers = TR_NEW_ARRAY(int, num_stages);
    size_t num_compute = (size_t)num_virtual * num_microbatches;
    if (kind != TR_SCHEDULE_FORWARD_ONLY)
        num_compute *= 3;
    for (int r = 0; r < num_stages; r++) {
        made->ranks[r].actions = TR_NEW_ARRAY(tr_action, num_compute);
        generators[kind](made, r);
    }
    tr_schedule_place(made);

    tr_status status;
    TR_TRY_GOTO(status, tr_schedule_check(made), destroy);
    *schedule = made;
    return TR_OK;
destroy:
    tr_schedule_destroy(made);
    return status;
}

void tr_schedule_destroy(tr_schedule *schedule)
{
    if (schedule == NULL)
        return;
    for (int r = 0; r < schedule->num_stages; r++)
        tr_free(schedule->ranks[r].actions);
    tr_free(schedule->ranks);
    tr_free(schedule->num_slots);
    tr_free(schedule->num_send_buffers);
    tr_free(schedule->num_grad_buffers);
    tr_free(schedule);
}
