/* Schedules as text: the lists for people and tests, and single actions for messages. */
#include "parallel/schedule_int.h"

#include <stdio.h>

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
