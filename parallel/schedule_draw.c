/* A schedule as SVG: the simulated time lines of all ranks, one under the other. */
#include "parallel/schedule_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* Pixels. The time line is as wide as gives the shortest action ROOM, for its microbatch, within
 * limits. */
enum {
    LEFT = 74,
    TOP = 62,
    ROW = 34,
    BOX = 26,
    ROOM = 20,
    NARROW = 1100,
    WIDE = 60000,
    MARGIN = 16
};

typedef struct text {
    char *bytes;
    size_t size, capacity;
} text;

static void put(text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(text *to, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    TR_ASSERT(length >= 0 && (size_t)length < sizeof line);
    if (to->size + (size_t)length + 1 > to->capacity) {
        to->capacity = 2 * to->capacity + sizeof line;
        to->bytes = tr_realloc(to->bytes, to->capacity, 1);
    }
    memcpy(to->bytes + to->size, line, (size_t)length + 1);
    to->size += (size_t)length;
}

/* Text of the user's inside an element. */
static void put_escaped(text *to, const char *plain)
{
    for (; *plain != '\0'; plain++) {
        if (*plain == '<')
            put(to, "&lt;");
        else if (*plain == '>')
            put(to, "&gt;");
        else if (*plain == '&')
            put(to, "&amp;");
        else
            put(to, "%c", *plain);
    }
}

static void put_box(text *to, const char *class, double x, double y, double width, double shade)
{
    put(to,
        "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" "
        "fill-opacity=\"%.2f\"/>",
        class, x, y, width, BOX, shade);
}

static const char *const classes[] = {"f", "b", "w"};

static double line_width(const tr_schedule *schedule, const tr_schedule_costs *costs, double total)
{
    double shortest = total;
    for (int r = 0; r < schedule->num_stages; r++)
        for (int i = 0; i < schedule->ranks[r].num_actions; i++) {
            double cost = tr_schedule_cost(costs, &schedule->ranks[r].actions[i]);
            if (cost > 0 && cost < shortest)
                shortest = cost;
        }
    double width = shortest > 0 ? ROOM * total / shortest : NARROW;
    return width < NARROW ? NARROW : width > WIDE ? WIDE : width;
}

static void put_head(text *to, const tr_schedule *schedule, const char *title,
                     const tr_schedule_times *times, double width)
{
    int height = TOP + ROW * schedule->num_stages + MARGIN;
    double whole = LEFT + width + MARGIN;
    put(to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
        "viewBox=\"0 0 %.0f %d\" font-family=\"sans-serif\" font-size=\"12\">\n",
        whole, height, whole, height);
    put(to, "<style>.f{fill:#4e79a7}.b{fill:#f28e2b}.w{fill:#59a14f}"
            "rect{stroke:#fff;stroke-width:.7}.n{font-size:10px;text-anchor:middle;fill:#fff}"
            "</style>\n");
    put(to,
        "<rect width=\"%.0f\" height=\"%d\" fill=\"#fff\"/>"
        "<text x=\"%d\" y=\"22\" font-size=\"15\">",
        whole, height, MARGIN);
    put_escaped(to, title);
    put(to, ": %d stages x %d chunks, %d microbatches, idle %.2f %%</text>\n", schedule->num_stages,
        schedule->num_virtual, schedule->num_microbatches, 100 * times->idle_share);
    static const char *const names[] = {"forward", "input gradient", "weight gradient"};
    for (int i = 0; i < (schedule->trains ? 3 : 1); i++) {
        put(to, "<rect class=\"%s\" x=\"%d\" y=\"34\" width=\"14\" height=\"14\"/>", classes[i],
            LEFT + 140 * i);
        put(to, "<text x=\"%d\" y=\"46\">%s</text>\n", LEFT + 140 * i + 20, names[i]);
    }
    if (schedule->num_virtual > 1)
        put(to, "<text x=\"%d\" y=\"46\">lighter: later chunks of the stage</text>\n", LEFT + 440);
}

/* The boxes of one rank. Neighbours are parted by their white strokes. */
static void put_rank(text *to, const tr_schedule *schedule, const tr_schedule_costs *costs,
                     int rank, const double *starts, double width, double scale)
{
    const tr_action_list *list = &schedule->ranks[rank];
    double y = TOP + ROW * rank;
    put(to, "<text x=\"%d\" y=\"%.0f\">stage %d</text>", MARGIN, y + 17, rank);
    put(to, "<rect x=\"%d\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"#eee\"/>", LEFT, y,
        width, BOX);
    for (int i = 0; i < list->num_actions; i++) {
        const tr_action *action = &list->actions[i];
        double box = tr_schedule_cost(costs, action) * scale;
        if (tr_action_is_send(action->kind) || tr_action_is_recv(action->kind) || box <= 0)
            continue;
        double x = LEFT + starts[i] * scale;
        int local = tr_chunk_local(schedule->num_stages, action->chunk);
        put_box(to, classes[action->kind], x, y, box,
                1 - 0.45 * local / (schedule->num_virtual > 1 ? schedule->num_virtual - 1 : 1));
        if (box >= 11)
            put(to, "<text class=\"n\" x=\"%.2f\" y=\"%.0f\">%d</text>", x + box / 2, y + 17,
                action->microbatch);
    }
    put(to, "\n");
}

tr_status tr_schedule_draw(const tr_schedule *schedule, const tr_schedule_costs *costs,
                           const char *title, char **svg)
{
    int num_stages = schedule->num_stages;
    double *end = TR_NEW_ARRAY(double, num_stages), *busy = TR_NEW_ARRAY(double, num_stages);
    double **starts = TR_NEW_ARRAY(double *, num_stages);
    for (int r = 0; r < num_stages; r++)
        starts[r] = TR_NEW_ARRAY(double, schedule->ranks[r].num_actions + 1);
    tr_schedule_times times = {.busy = busy};
    tr_status status;
    TR_TRY_GOTO(status, tr_schedule_simulate(schedule, costs, &times), done);
    TR_TRY_GOTO(status, tr_schedule_replay(schedule, costs, end, starts), done);

    text out = {0};
    double width = line_width(schedule, costs, times.total);
    double scale = times.total > 0 ? width / times.total : 0;
    put_head(&out, schedule, title, &times, width);
    for (int r = 0; r < num_stages; r++)
        put_rank(&out, schedule, costs, r, starts[r], width, scale);
    put(&out, "</svg>\n");
    *svg = out.bytes;
done:
    for (int r = 0; r < num_stages; r++)
        tr_free(starts[r]);
    tr_free(starts);
    tr_free(busy);
    tr_free(end);
    return status;
}
