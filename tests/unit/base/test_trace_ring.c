/* base/trace_ring: events come out as they went in, the oldest make room, nothing is kept while it is off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/trace_ring.h"

enum { CAPACITY = 4 };

static void test_events_in_order(void **state)
{
    (void)state;
    tr_trace_event memory[CAPACITY];
    tr_trace_ring ring;
    tr_trace_ring_init(&ring, memory, CAPACITY);
    assert_int_equal(tr_trace_track_add(&ring, "data"), 3);
    assert_string_equal(ring.tracks[TR_TRACE_STEP], "step");
    assert_string_equal(ring.tracks[TR_TRACE_COMPUTE], "compute");
    assert_string_equal(ring.tracks[TR_TRACE_WRITER], "writer");
    tr_trace_ring_start(&ring);
    double begin = tr_trace_now(&ring);
    assert_true(begin > 0);
    tr_clock_sleep(2e-3);
    tr_trace_add(&ring, 3, 1, "reduce_scatter", begin)->bytes = 4096;
    tr_trace_part(&ring, "a name of more than 15", begin);
    tr_trace_ring_stop(&ring);
    assert_int_equal(tr_trace_ring_count(&ring), 2);
    const tr_trace_event *first = tr_trace_ring_at(&ring, 0);
    assert_string_equal(first->name, "reduce_scatter");
    assert_int_equal(first->track, 3);
    assert_int_equal(first->lane, 1);
    assert_int_equal(first->bytes, 4096);
    assert_true(first->begin == begin && first->end >= begin + 2e-3);
    /* What nobody set is "none". */
    assert_int_equal(first->chunk, -1);
    assert_int_equal(first->microbatch, -1);
    assert_int_equal(first->number, -1);
    assert_int_equal(first->peer, -1);
    assert_int_equal(first->sequence, -1);
    assert_string_equal(first->label, "");
    assert_string_equal(tr_trace_ring_at(&ring, 1)->name, "a name of more ");
    assert_int_equal(tr_trace_ring_at(&ring, 1)->track, TR_TRACE_STEP);
}

static void test_oldest_make_room(void **state)
{
    (void)state;
    tr_trace_event memory[CAPACITY];
    tr_trace_ring ring;
    tr_trace_ring_init(&ring, memory, CAPACITY);
    tr_trace_ring_start(&ring);
    for (int i = 0; i < 3 * CAPACITY + 1; i++)
        tr_trace_add(&ring, TR_TRACE_COMPUTE, 0, "layer", 1)->number = i;
    assert_int_equal(tr_trace_ring_count(&ring), CAPACITY);
    assert_int_equal(tr_trace_ring_num_lost(&ring), 2 * CAPACITY + 1);
    for (int i = 0; i < CAPACITY; i++)
        assert_int_equal(tr_trace_ring_at(&ring, i)->number, 2 * CAPACITY + 1 + i);
    tr_trace_ring_start(&ring); /* a new step */
    assert_int_equal(tr_trace_ring_count(&ring), 0);
    assert_int_equal(tr_trace_ring_num_lost(&ring), 0);
}

static void test_off(void **state)
{
    (void)state;
    tr_trace_event memory[CAPACITY];
    tr_trace_ring ring;
    tr_trace_ring_init(&ring, memory, CAPACITY);
    assert_false(tr_trace_is_on(NULL));
    assert_false(tr_trace_is_on(&ring));
    assert_true(tr_trace_now(&ring) == 0);
    tr_trace_part(&ring, "feed", 0);
    tr_trace_ring_start(&ring);
    assert_true(tr_trace_is_on(&ring));
    tr_trace_ring_stop(&ring);
    tr_trace_part(&ring, "feed", 0);
    assert_int_equal(tr_trace_ring_count(&ring), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_in_order),
        cmocka_unit_test(test_oldest_make_room),
        cmocka_unit_test(test_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
