/* Makes and ends schedules; what kinds exist and which numbers they take. */
#include "parallel/schedule.h"

#include "base/alloc.h"
#include "parallel/schedule_int.h"

void tr_schedule_add(tr_schedule *schedule, int rank, tr_action_kind kind, int chunk,
                     int microbatch)
{
    if (microbatch >= schedule->num_microbatches)
        return;
    tr_action_list *list = &schedule->ranks[rank];
    list->actions[list->num_actions++] =
        (tr_action){.kind = kind, .chunk = chunk, .microbatch = microbatch, .buffer = -1};
}

void tr_schedule_add_backward(tr_schedule *schedule, int rank, int chunk, int microbatch)
{
    tr_schedule_add(schedule, rank, TR_ACTION_BACKWARD, chunk, microbatch);
    tr_schedule_add(schedule, rank, TR_ACTION_WEIGHT, chunk, microbatch);
}

static int num_groups(int num_stages, int num_microbatches)
{
    int groups = num_microbatches / num_stages;
    return groups > 0 ? groups : 1;
}

int tr_schedule_group_most(int num_stages, int num_microbatches)
{
    int groups = num_groups(num_stages, num_microbatches);
    return (num_microbatches + groups - 1) / groups;
}

void tr_schedule_group_order(const tr_schedule *schedule, int rank, int k, bool backward,
                             int *chunk, int *microbatch)
{
    int num_stages = schedule->num_stages, num_virtual = schedule->num_virtual;
    int groups = num_groups(num_stages, schedule->num_microbatches);
    int size = tr_schedule_group_most(num_stages, schedule->num_microbatches);
    /* The last groups have one less where the microbatches do not divide by the groups. */
    int num_large = groups - (size * groups - schedule->num_microbatches);
    int first = 0, within = k;
    if (within >= num_large * size * num_virtual) {
        first = num_large * size;
        within -= first * num_virtual;
        size--;
    }
    first += within / (size * num_virtual) * size;
    within %= size * num_virtual;
    int local = within / size;
    if (backward)
        local = num_virtual - 1 - local;
    *chunk = tr_chunk_number(schedule->placement, num_stages, rank, local);
    *microbatch = first + within % size;
}

static bool is_forward_only(tr_schedule_kind kind)
{
    return kind == TR_SCHEDULE_FORWARD_ONLY || kind == TR_SCHEDULE_FORWARD_V;
}

/* Kinds that need a certain number of chunks. */
static tr_status check_virtual(tr_schedule_kind kind, int num_virtual)
{
    if ((kind == TR_SCHEDULE_1F1B || kind == TR_SCHEDULE_ZB_H1) && num_virtual > 1)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.schedule %s needs parallel.virtual 1, got %d; with virtual chunks "
                       "use parallel.schedule interleaved, or zb-v with 2",
                       kind == TR_SCHEDULE_1F1B ? "1f1b" : "zb-h1", num_virtual);
    if (kind == TR_SCHEDULE_INTERLEAVED && num_virtual < 2)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.schedule interleaved needs parallel.virtual 2 or more, got %d; "
                       "with 1 use parallel.schedule 1f1b",
                       num_virtual);
    if ((kind == TR_SCHEDULE_ZB_V || kind == TR_SCHEDULE_FORWARD_V) && num_virtual != 2)
        return tr_fail(TR_ERR_SETTINGS,
                       "parallel.schedule zb-v needs parallel.virtual 2, got %d; with 1 use "
                       "parallel.schedule zb-h1, with more interleaved",
                       num_virtual);
    return TR_OK;
}

tr_status tr_schedule_supported(tr_schedule_kind kind, int num_stages, int num_virtual,
                                int num_microbatches)
{
    if (num_stages < 1 || num_virtual < 1 || num_microbatches < 1)
        return tr_fail(TR_ERR_SETTINGS,
                       "a pipeline needs parallel.pipeline, parallel.virtual and a number of "
                       "microbatches of 1 or more, got %d, %d and %d",
                       num_stages, num_virtual, num_microbatches);
    if ((long long)num_stages * num_virtual > TR_SCHEDULE_MOST / num_microbatches)
        return tr_fail(
            TR_ERR_SETTINGS,
            "parallel.pipeline %d x parallel.virtual %d x %d microbatches of a data rank is more "
            "than a schedule holds (%d); use fewer microbatches (a larger train.micro_batch or a "
            "smaller train.global_batch)",
            num_stages, num_virtual, num_microbatches, TR_SCHEDULE_MOST);
    return check_virtual(kind, num_virtual);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int tr_schedule_live_limit(tr_schedule_kind kind, int num_stages, int num_virtual,
                           int num_microbatches, int stage)
{
    int all = num_virtual * num_microbatches, after = num_stages - stage;
    switch (kind) {
    case TR_SCHEDULE_GPIPE:
    case TR_SCHEDULE_LISTED:
        return all;
    case TR_SCHEDULE_1F1B:
        return smaller(all, after);
    case TR_SCHEDULE_INTERLEAVED:
        return smaller(all,
                       (num_virtual - 1) * tr_schedule_group_most(num_stages, num_microbatches) +
                           2 * after - 1);
    case TR_SCHEDULE_ZB_H1:
        return smaller(all, num_stages);
    case TR_SCHEDULE_ZB_V:
        return smaller(all, 2 * num_stages);
    case TR_SCHEDULE_FORWARD_ONLY:
    case TR_SCHEDULE_FORWARD_V:
        return num_virtual;
    }
    return 0;
}

int tr_schedule_live_peak(const tr_schedule *schedule, int stage, int chunk)
{
    const tr_action_list *list = &schedule->ranks[stage];
    int live = 0, peak = 0;
    for (int i = 0; i < list->num_actions; i++) {
        if (chunk >= 0 && list->actions[i].chunk != chunk)
            continue;
        live += list->actions[i].kind == TR_ACTION_FORWARD;
        peak = live > peak ? live : peak;
        live -= list->actions[i].kind == (schedule->trains ? TR_ACTION_WEIGHT : TR_ACTION_FORWARD);
    }
    return peak;
}

tr_schedule *tr_schedule_new(tr_schedule_kind kind, int num_stages, int num_virtual,
                             int num_microbatches)
{
    tr_schedule *made = TR_NEW(tr_schedule);
    made->kind = kind;
    made->placement = tr_schedule_placement(kind);
    made->trains = !is_forward_only(kind);
    made->splits = kind == TR_SCHEDULE_ZB_H1 || kind == TR_SCHEDULE_ZB_V;
    made->num_stages = num_stages;
    made->num_virtual = num_virtual;
    made->num_microbatches = num_microbatches;
    made->ranks = TR_NEW_ARRAY(tr_action_list, num_stages);
    made->num_slots = TR_NEW_ARRAY(int, num_stages);
    made->num_send_buffers = TR_NEW_ARRAY(int, num_stages);
    made->num_grad_buffers = TR_NEW_ARRAY(int, num_stages);
    return made;
}

tr_status tr_schedule_create(tr_schedule **schedule, tr_schedule_kind kind, int num_stages,
                             int num_virtual, int num_microbatches)
{
    TR_TRY(tr_schedule_supported(kind, num_stages, num_virtual, num_microbatches));
    static void (*const generators[])(tr_schedule *, int) = {
        [TR_SCHEDULE_GPIPE] = tr_schedule_gpipe,
        [TR_SCHEDULE_1F1B] = tr_schedule_1f1b,
        [TR_SCHEDULE_INTERLEAVED] = tr_schedule_interleaved,
        [TR_SCHEDULE_ZB_H1] = tr_schedule_zb_h1,
        [TR_SCHEDULE_ZB_V] = tr_schedule_zb_v,
        [TR_SCHEDULE_FORWARD_ONLY] = tr_schedule_forward_only,
        [TR_SCHEDULE_FORWARD_V] = tr_schedule_forward_v,
    };
    TR_ASSERT((size_t)kind < sizeof generators / sizeof *generators);
    tr_schedule *made = tr_schedule_new(kind, num_stages, num_virtual, num_microbatches);
    size_t num_compute = (size_t)num_virtual * num_microbatches * (made->trains ? 3 : 1);
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
