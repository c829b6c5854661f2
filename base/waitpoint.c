#include "base/waitpoint.h"

#include <unistd.h>

#include "base/clock.h"

enum {
    MAX_TRIES = 1000
}; /* of a reader that meets the writer; more than one or two needs a stopped writer */

void tr_waitpoint_init(tr_waitpoint *waitpoint)
{
    atomic_init(&waitpoint->version, 0);
    atomic_init(&waitpoint->operation, NULL);
    atomic_init(&waitpoint->group, NULL);
    atomic_init(&waitpoint->peer, -1);
    atomic_init(&waitpoint->microbatch, -1);
    atomic_init(&waitpoint->start, 0.0);
}

/* A sequence lock; fields are atomic, so plain sequentially consistent stores suffice (a wait is rare next to them). */
static void fields_set(tr_waitpoint *waitpoint, const tr_wait *wait, double start)
{
    uint32_t version = atomic_load(&waitpoint->version);
    atomic_store(&waitpoint->version, version + 1);
    atomic_store(&waitpoint->operation, wait->operation);
    atomic_store(&waitpoint->group, wait->group);
    atomic_store(&waitpoint->peer, wait->peer);
    atomic_store(&waitpoint->microbatch, wait->microbatch);
    atomic_store(&waitpoint->start, start);
    atomic_store(&waitpoint->version, version + 2);
}

void tr_waitpoint_begin(tr_waitpoint *waitpoint, const char *operation, const char *group, int peer,
                        int microbatch)
{
    const tr_wait wait = {
        .operation = operation, .group = group, .peer = peer, .microbatch = microbatch};
    fields_set(waitpoint, &wait, tr_clock_seconds());
}

void tr_waitpoint_end(tr_waitpoint *waitpoint)
{
    atomic_store(&waitpoint->operation, NULL);
}

bool tr_waitpoint_get(const tr_waitpoint *waitpoint, tr_wait *wait)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        uint32_t version = atomic_load(&waitpoint->version);
        tr_wait found = {
            .operation = atomic_load(&waitpoint->operation),
            .group = atomic_load(&waitpoint->group),
            .peer = atomic_load(&waitpoint->peer),
            .microbatch = atomic_load(&waitpoint->microbatch),
        };
        double start = atomic_load(&waitpoint->start);
        if (version % 2 == 0 && atomic_load(&waitpoint->version) == version) {
            if (found.operation == NULL)
                return false;
            found.seconds = tr_clock_seconds() - start;
            *wait = found;
            return true;
        }
    }
    return false;
}

/* snprintf is not safe in a signal handler; these three are all that the line needs. */
typedef struct text_end {
    char *text;
    size_t used, bytes;
} text_end;

static void put_text(text_end *out, const char *text)
{
    while (*text != '\0' && out->used + 1 < out->bytes)
        out->text[out->used++] = *text++;
}

static void put_number(text_end *out, uint64_t number)
{
    char digits[24];
    int at = (int)sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    put_text(out, digits + at);
}

size_t tr_wait_format(const tr_wait *wait, char *text, size_t bytes)
{
    text_end out = {.text = text, .bytes = bytes};
    uint64_t tenths = wait->seconds > 0 ? (uint64_t)(10 * wait->seconds) : 0;
    put_text(&out, "waiting ");
    put_number(&out, tenths / 10);
    put_text(&out, ".");
    put_number(&out, tenths % 10);
    put_text(&out, " s in ");
    put_text(&out, wait->operation);
    if (wait->group != NULL) {
        put_text(&out, ", group ");
        put_text(&out, wait->group);
    }
    if (wait->peer >= 0) {
        put_text(&out, ", for rank ");
        put_number(&out, (uint64_t)wait->peer);
    }
    if (wait->microbatch >= 0) {
        put_text(&out, ", microbatch ");
        put_number(&out, (uint64_t)wait->microbatch);
    }
    if (bytes > 0)
        text[out.used] = '\0';
    return out.used;
}

void tr_waitpoint_print(const tr_waitpoint *waitpoint, int fd, const char *prefix)
{
    tr_wait wait;
    if (!tr_waitpoint_get(waitpoint, &wait))
        return;
    char line[2 * TR_WAIT_TEXT];
    text_end out = {.text = line, .bytes = sizeof line - 1};
    put_text(&out, prefix);
    out.used += tr_wait_format(&wait, line + out.used, sizeof line - 1 - out.used);
    line[out.used++] = '\n';
    ssize_t written = write(fd, line, out.used);
    (void)written;
}
