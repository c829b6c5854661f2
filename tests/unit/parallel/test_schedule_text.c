/* Schedules read from text: what was written reads back to the same lists, and faults are refused
 * with their place or with the two actions; and drawings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "parallel/schedule.h"

static void assert_same_lists(const tr_schedule *a, const tr_schedule *b)
{
    assert_int_equal(a->num_stages, b->num_stages);
    assert_int_equal(a->num_virtual, b->num_virtual);
    assert_int_equal(a->num_microbatches, b->num_microbatches);
    for (int r = 0; r < a->num_stages; r++) {
        assert_int_equal(a->ranks[r].num_actions, b->ranks[r].num_actions);
        assert_memory_equal(a->ranks[r].actions, b->ranks[r].actions,
                            sizeof(tr_action) * (size_t)a->ranks[r].num_actions);
    }
}

/* Transfers, slots and buffers too: they follow from the list. */
static void reads_back_what_was_written(void **state)
{
    (void)state;
    for (int kind = TR_SCHEDULE_GPIPE; kind < TR_SCHEDULE_LISTED; kind++)
        for (int p = 1; p <= 5; p++)
            for (int v = 1; v <= 3; v++)
                for (int m = 1; m <= 11; m++) {
                    tr_schedule *made, *read;
                    if (tr_schedule_create(&made, (tr_schedule_kind)kind, p, v, m) != TR_OK)
                        continue;
                    char *text = tr_schedule_text(made);
                    if (tr_schedule_read(&read, text) != TR_OK)
                        fail_msg("kind %d, %d, %d, %d: %s", kind, p, v, m, tr_error_message());
                    assert_int_equal(read->kind, TR_SCHEDULE_LISTED);
                    assert_int_equal(read->trains, made->trains);
                    /* A text does not say that gradients go ahead of W where all W come next. */
                    if (read->splits == made->splits)
                        assert_same_lists(made, read);
                    tr_free(text);
                    tr_schedule_destroy(read);
                    tr_schedule_destroy(made);
                }
}

static void spaces_comments_and_empty_lines(void **state)
{
    (void)state;
    tr_schedule *read, *made;
    const char *text = "# two stages\n\n 0F0 , 0F1,0B0,\t0W0,0B1,0W1 \r\n  # the second\n"
                       "1F0,1B0,1W0,1F1,1B1,1W1";
    assert_int_equal(tr_schedule_read(&read, text), TR_OK);
    assert_int_equal(tr_schedule_create(&made, TR_SCHEDULE_1F1B, 2, 1, 2), TR_OK);
    assert_same_lists(made, read);
    tr_schedule_destroy(made);
    tr_schedule_destroy(read);
}

static void refuses(const char *text, const char *first, const char *second)
{
    tr_schedule *read = NULL;
    assert_int_equal(tr_schedule_read(&read, text), TR_ERR_SETTINGS);
    assert_null(read);
    if (strstr(tr_error_message(), first) == NULL || strstr(tr_error_message(), second) == NULL)
        fail_msg("\"%s\" does not name \"%s\" and \"%s\"", tr_error_message(), first, second);
}

static void faults_of_writing_name_line_and_column(void **state)
{
    (void)state;
    refuses("", "empty", "one line per stage");
    refuses("# nothing\n\n", "empty", "one line per stage");
    refuses("0F0,0X0,0W0", "line 1, column 5", "found `0X0,0W0`");
    refuses("0F0\n\n0F0;0B0", "line 3, column 4", "a comma");
    refuses("0F0,", "line 1, column 5", "an action");
    refuses("0F0,,0B0", "line 1, column 5", "an action");
    refuses("0F", "line 1, column 1", "an action");
    refuses("0F99999999999999999999", "line 1, column 1", "an action");
    refuses("-1F0", "line 1, column 1", "an action");
    refuses("0F0,0B0,0W0\n1F0,1B0,1W0,2F0", "2 lines", "3 chunks");
    refuses("0F0,0B0,0W0,0F2000000000,0B2000000000", "microbatch 2000000000", "it has 2");
}

static void faults_of_order_name_two_actions(void **state)
{
    (void)state;
    refuses("0F0,0F1,0B0,0W0,0B1\n1F0,1B0,1W0,1F1,1B1,1W1", "rank 0", "0W1 is missing");
    refuses("0F0,0B0,0W0,1F0\n1B0,1W0", "rank 0: 1F0", "belongs to rank 1");
    refuses("0F0,0F0,0B0,0W0\n1F0,1F1,1B0,1W0", "0F0 stands twice", "action 0 and action 1");
    refuses("0B0,0F0,0W0", "0B0 stands before 0F0", "must come first");
    refuses("0F0,0F1,0B0,0B1,0W1,0W0", "0W1 stands before 0W0", "microbatch order");
    /* Within a stage chunk 1 runs before chunk 0 has given it anything. */
    refuses("1F0,0F0,1B0,0B0,0W0,1W0", "the receive for 1F0 stands before the send of 0F0",
            "come first");
    /* Each stage waits for the other. */
    refuses("0F0,0B0,0W0,0F1,0B1,0W1\n1F0,1F1,1B0,1W0,1B1,1W1", "0B0 waits for the send of 1B0",
            "rank 1 stands at 1F1");
}

/* A loop or a V is told from where the chunks stand. */
static void placement_follows_from_the_lines(void **state)
{
    (void)state;
    tr_schedule *read;
    assert_int_equal(tr_schedule_read(&read, "0F0,3F0\n1F0,2F0"), TR_OK);
    assert_int_equal(read->placement, TR_PLACEMENT_V);
    assert_false(read->trains);
    tr_schedule_destroy(read);
    assert_int_equal(tr_schedule_read(&read, "0F0,2F0\n1F0,3F0"), TR_OK);
    assert_int_equal(read->placement, TR_PLACEMENT_LOOP);
    tr_schedule_destroy(read);
    refuses("0F0,1F0\n2F0,3F0", "1F0", "rank");
}

static int count(const char *text, const char *part)
{
    int number = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part))
        number++;
    return number;
}

/* A box for each action, and the last one ends where the time line does. */
static void drawings_show_every_action(void **state)
{
    (void)state;
    tr_schedule *schedule;
    assert_int_equal(tr_schedule_create(&schedule, TR_SCHEDULE_ZB_V, 4, 2, 8), TR_OK);
    const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    const tr_schedule_costs costs = {.forward = ones, .backward = ones, .weight = ones};
    char *svg;
    assert_int_equal(tr_schedule_draw(schedule, &costs, "a <zb-v> & more", &svg), TR_OK);
    assert_int_equal(strncmp(svg, "<svg ", 5), 0);
    assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
    assert_int_equal(count(svg, "<rect class=\"f\"") - 1, 64); /* one in the legend */
    assert_int_equal(count(svg, "<rect class=\"b\"") - 1, 64);
    assert_int_equal(count(svg, "<rect class=\"w\"") - 1, 64);
    assert_int_equal(count(svg, ">stage "), 4);
    assert_int_equal(count(svg, "a &lt;zb-v&gt; &amp; more"), 1);
    /* 51 units on 1100 pixels: stage 3 starts at unit 3 and ends last. */
    assert_int_equal(count(svg, "x=\"74.00\" y=\"62.00\" width=\"21.57\""), 1);
    assert_int_equal(count(svg, "x=\"138.71\" y=\"164.00\" width=\"21.57\""), 1);
    assert_int_equal(count(svg, "x=\"1152.43\" y=\"164.00\" width=\"21.57\""), 1);
    tr_free(svg);
    tr_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back_what_was_written),
        cmocka_unit_test(spaces_comments_and_empty_lines),
        cmocka_unit_test(faults_of_writing_name_line_and_column),
        cmocka_unit_test(faults_of_order_name_two_actions),
        cmocka_unit_test(placement_follows_from_the_lines),
        cmocka_unit_test(drawings_show_every_action),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
