/* Schedules as text: the lists for people, files and tests, and single actions for messages. */
#include "parallel/schedule_int.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

const char *tr_action_text(const tr_action *action, char text[TR_ACTION_TEXT])
{
    static const char *const formats[] = {
        [TR_ACTION_FORWARD] = "%dF%d",
        [TR_ACTION_BACKWARD] = "%dB%d",
        [TR_ACTION_WEIGHT] = "%dW%d",
        [TR_ACTION_SEND_FORWARD] = "the send of %dF%d",
        [TR_ACTION_RECV_FORWARD] = "the receive for %dF%d",
        [TR_ACTION_SEND_BACKWARD] = "the send of %dB%d",
        [TR_ACTION_RECV_BACKWARD] = "the receive for %dB%d",
    };
    snprintf(text, TR_ACTION_TEXT, formats[action->kind], action->chunk, action->microbatch);
    return text;
}

char *tr_schedule_text(const tr_schedule *schedule)
{
    /* Two numbers, a letter and a separator: 24 characters at most. */
    size_t capacity = 1;
    for (int r = 0; r < schedule->num_stages; r++)
        capacity += 24 * (size_t)schedule->ranks[r].num_actions + 1;
    char *text = tr_alloc(capacity, 1), *end = text;
    for (int r = 0; r < schedule->num_stages; r++) {
        const char *separator = "";
        for (int i = 0; i < schedule->ranks[r].num_actions; i++) {
            const tr_action *action = &schedule->ranks[r].actions[i];
            if (tr_action_is_send(action->kind) || tr_action_is_recv(action->kind))
                continue;
            char one[TR_ACTION_TEXT];
            end += sprintf(end, "%s%s", separator, tr_action_text(action, one));
            separator = ",";
        }
        *end++ = '\n';
    }
    return text;
}

/* ---- reading ---- */

/* Where the reader stands: a line of the text without its end. */
typedef struct cursor {
    const char *line, *at, *end;
    int number;
} cursor;

static void skip_spaces(cursor *cur)
{
    while (cur->at < cur->end && isspace((unsigned char)*cur->at))
        cur->at++;
}

/* Moves to the next line that holds a list; false when there is none. */
static bool next_list(cursor *cur)
{
    while (*cur->end != '\0' || cur->number == 0) {
        cur->line = cur->at = cur->number == 0 ? cur->end : cur->end + 1;
        cur->number++;
        cur->end = cur->line + strcspn(cur->line, "\n");
        skip_spaces(cur);
        if (cur->at < cur->end && *cur->at != '#')
            return true;
    }
    return false;
}

static cursor text_begin(const char *text)
{
    return (cursor){.line = text, .at = text, .end = text};
}

static bool read_number(cursor *cur, int *number)
{
    long long value = 0;
    const char *start = cur->at;
    for (; cur->at < cur->end && isdigit((unsigned char)*cur->at); cur->at++)
        if (value < INT_MAX)
            value = 10 * value + (*cur->at - '0');
    *number = (int)value;
    return cur->at > start && value < INT_MAX;
}

static tr_status fail_here(const cursor *cur, const char *at, const char *expected)
{
    int shown = (int)(cur->end - at) < 16 ? (int)(cur->end - at) : 16;
    return tr_fail(TR_ERR_SETTINGS, "schedule line %d, column %d: expected %s, found `%.*s`",
                   cur->number, (int)(at - cur->line) + 1, expected, shown, at);
}

/* One action and what parts it from the next; *more says whether there is one. */
static tr_status read_action(cursor *cur, tr_action *action, bool *more)
{
    static const char letters[] = "FBW";
    static const tr_action_kind kinds[] = {TR_ACTION_FORWARD, TR_ACTION_BACKWARD, TR_ACTION_WEIGHT};
    const char *start = cur->at;
    *action = (tr_action){.buffer = -1};
    const char *letter = NULL;
    if (read_number(cur, &action->chunk) && cur->at < cur->end &&
        (letter = strchr(letters, *cur->at)) != NULL)
        cur->at++;
    if (letter == NULL || !read_number(cur, &action->microbatch))
        return fail_here(cur, start, "an action such as 0F0: chunk, F, B or W, microbatch");
    action->kind = kinds[letter - letters];
    skip_spaces(cur);
    *more = cur->at < cur->end;
    if (!*more)
        return TR_OK;
    if (*cur->at != ',')
        return fail_here(cur, cur->at, "a comma between actions");
    cur->at++;
    skip_spaces(cur);
    return TR_OK;
}

/* What the lists of a text come to. */
typedef struct extent {
    int num_stages, num_chunks, num_microbatches;
    long long num_forwards;
    int pth_chunk_line; /* list that holds chunk number num_stages, the first of a second row */
    bool trains;
} extent;

static tr_status read_lists(const char *text, extent *all, tr_action_list *lists)
{
    cursor cur = text_begin(text);
    for (int r = 0; next_list(&cur); r++) {
        /* An action takes three characters at least. */
        lists[r].actions = TR_NEW_ARRAY(tr_action, (size_t)(cur.end - cur.line) / 3 + 1);
        for (bool more = true; more;) {
            tr_action *action = &lists[r].actions[lists[r].num_actions++];
            TR_TRY(read_action(&cur, action, &more));
            if (action->chunk >= all->num_chunks)
                all->num_chunks = action->chunk + 1;
            if (action->microbatch >= all->num_microbatches)
                all->num_microbatches = action->microbatch + 1;
            if (action->chunk == all->num_stages)
                all->pth_chunk_line = r;
            all->num_forwards += action->kind == TR_ACTION_FORWARD;
            all->trains |= action->kind != TR_ACTION_FORWARD;
        }
    }
    return TR_OK;
}

static tr_status check_extent(const extent *all)
{
    if (all->num_chunks % all->num_stages != 0)
        return tr_fail(TR_ERR_SETTINGS,
                       "the schedule has %d lines (stages) and %d chunks (0 to %d); each stage "
                       "holds as many chunks as the others",
                       all->num_stages, all->num_chunks, all->num_chunks - 1);
    long long needed = (long long)all->num_chunks * all->num_microbatches;
    if (needed != all->num_forwards)
        return tr_fail(TR_ERR_SETTINGS,
                       "the schedule names chunk %d and microbatch %d, so it needs %d chunks x %d "
                       "microbatches = %lld forwards, and it has %lld",
                       all->num_chunks - 1, all->num_microbatches - 1, all->num_chunks,
                       all->num_microbatches, needed, all->num_forwards);
    return TR_OK;
}

/* Whether some B is apart from its W. */
static bool lists_split(const tr_schedule *schedule)
{
    for (int r = 0; r < schedule->num_stages; r++) {
        const tr_action_list *list = &schedule->ranks[r];
        for (int i = 0; i < list->num_actions; i++)
            if (list->actions[i].kind == TR_ACTION_BACKWARD && !tr_schedule_is_pair(list, i))
                return true;
    }
    return false;
}

static tr_status prove(tr_schedule *schedule)
{
    TR_TRY(tr_schedule_check_compute(schedule));
    schedule->splits = lists_split(schedule);
    tr_schedule_place(schedule);
    return tr_schedule_check(schedule);
}

static tr_status build(tr_schedule **schedule, const extent *all, tr_action_list *lists)
{
    TR_TRY(check_extent(all));
    int num_virtual = all->num_chunks / all->num_stages;
    TR_TRY(tr_schedule_supported(TR_SCHEDULE_GPIPE, all->num_stages, num_virtual,
                                 all->num_microbatches));
    tr_schedule *made =
        tr_schedule_new(TR_SCHEDULE_LISTED, all->num_stages, num_virtual, all->num_microbatches);
    bool turns = num_virtual > 1 && all->pth_chunk_line == all->num_stages - 1;
    made->placement = turns ? TR_PLACEMENT_V : TR_PLACEMENT_LOOP;
    made->trains = all->trains;
    for (int r = 0; r < all->num_stages; r++) {
        made->ranks[r] = lists[r];
        lists[r] = (tr_action_list){0};
    }
    if (prove(made) != TR_OK) {
        /* What is an inner fault of a made list is the user's of a written one. */
        char *message = tr_strdup(tr_error_message());
        tr_status status = tr_fail(TR_ERR_SETTINGS, "%s", message);
        tr_free(message);
        tr_schedule_destroy(made);
        return status;
    }
    *schedule = made;
    return TR_OK;
}

tr_status tr_schedule_read(tr_schedule **schedule, const char *text)
{
    extent all = {0};
    cursor cur = text_begin(text);
    while (next_list(&cur))
        all.num_stages++;
    if (all.num_stages == 0)
        return tr_fail(TR_ERR_SETTINGS, "the schedule is empty; expected one line per stage, such "
                                        "as 0F0,0B0,0W0");
    tr_action_list *lists = TR_NEW_ARRAY(tr_action_list, all.num_stages);
    tr_status status = read_lists(text, &all, lists);
    if (status == TR_OK)
        status = build(schedule, &all, lists);
    for (int r = 0; r < all.num_stages; r++)
        tr_free(lists[r].actions);
    tr_free(lists);
    return status;
}
