/* base/trace_lanes: what threads do is in the piece of the time in which they do it, cut where pieces end; nothing is kept while it is off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/trace_lanes.h"

enum { CAPACITY = 8, TRACK = 2 };

static void assert_event(const tr_trace_event *event, const char *name, int lane, int number,
                         int bytes)
{
    assert_string_equal(event->name, name);
    assert_int_equal(event->track, TRACK);
    assert_int_equal(event->lane, lane);
    assert_int_equal(event->number, number);
    assert_int_equal(event->bytes, bytes);
    assert_true(event->begin > 0 && event->end >= event->begin);
}

static void test_pieces(void **state)
{
    (void)state;
    tr_trace_event memory[2 * CAPACITY];
    tr_trace_lanes lanes;
    tr_trace_lanes_init(&lanes, TRACK, memory, CAPACITY);
    tr_trace_lane_switch(&lanes, 0, "early", 1, 10); /* ends before anything is recorded */
    tr_trace_lane_switch(&lanes, 0, "encode", 2, 20);
    tr_clock_sleep(2e-3);
    double begin = tr_clock_seconds();
    tr_trace_lanes_start(&lanes);
    tr_trace_lane_switch(&lanes, 3, "write", 5, 50);
    tr_trace_lane_switch(&lanes, 0, NULL, -1, -1);
    tr_trace_lane_switch(&lanes, 0, "flush", -1, 70);
    tr_trace_lanes_start(&lanes); /* goes on */
    const tr_trace_ring *ring = tr_trace_lanes_cut(&lanes);
    assert_int_equal(tr_trace_ring_count(ring), 3);
    assert_event(tr_trace_ring_at(ring, 0), "encode", 0, 2, 20);
    assert_true(tr_trace_ring_at(ring, 0)->begin >= begin);
    assert_event(tr_trace_ring_at(ring, 1), "flush", 0, -1, 70);
    assert_event(tr_trace_ring_at(ring, 2), "write", 3, 5, 50);
    double cut = tr_trace_ring_at(ring, 2)->end;
    /* The first piece stays as it is while the second is made. */
    tr_trace_lane_switch(&lanes, 3, "encode", 6, 60);
    tr_trace_lane_switch(&lanes, 3, NULL, -1, -1);
    assert_int_equal(tr_trace_ring_count(ring), 3);
    ring = tr_trace_lanes_cut(&lanes);
    assert_int_equal(tr_trace_ring_count(ring), 3);
    assert_event(tr_trace_ring_at(ring, 0), "write", 3, 5, 50);
    assert_true(tr_trace_ring_at(ring, 0)->begin == cut);
    assert_event(tr_trace_ring_at(ring, 1), "encode", 3, 6, 60);
    assert_event(tr_trace_ring_at(ring, 2), "flush", 0, -1, 70);
}

static void test_off(void **state)
{
    (void)state;
    tr_trace_event memory[2 * CAPACITY];
    tr_trace_lanes lanes = {0};
    tr_trace_lane_switch(NULL, 0, "encode", 1, 10);
    tr_trace_lanes_start(&lanes); /* without memory nothing is ever recorded */
    assert_int_equal(tr_trace_ring_count(tr_trace_lanes_cut(&lanes)), 0);
    tr_trace_lanes_stop(&lanes);
    tr_trace_lanes_init(&lanes, TRACK, memory, CAPACITY);
    tr_trace_lane_switch(&lanes, 0, "encode", 1, 10);
    assert_int_equal(tr_trace_ring_count(tr_trace_lanes_cut(&lanes)), 0);
    tr_trace_lanes_start(&lanes);
    tr_trace_lane_switch(&lanes, 0, "write", 1, 10);
    tr_trace_lanes_stop(&lanes);
    tr_trace_lane_switch(&lanes, 0, "flush", -1, 10);
    assert_int_equal(tr_trace_ring_count(tr_trace_lanes_cut(&lanes)), 0);
    tr_trace_lanes_start(&lanes);
    const tr_trace_ring *ring = tr_trace_lanes_cut(&lanes);
    assert_int_equal(tr_trace_ring_count(ring), 1);
    assert_event(tr_trace_ring_at(ring, 0), "flush", 0, -1, 10);
}

enum { THREADS = 4, SWITCHES = 2000 };

typedef struct worker {
    tr_trace_lanes *lanes;
    int lane;
} worker;

static tr_status work(void *context)
{
    worker *w = context;
    for (int i = 0; i < SWITCHES; i++) {
        tr_trace_lane_switch(w->lanes, w->lane, "encode", i, w->lane);
        if (i % 100 == 0)
            tr_clock_sleep(1e-4);
    }
    tr_trace_lane_switch(w->lanes, w->lane, NULL, -1, -1);
    return TR_OK;
}

/* Threads switch while pieces are cut: each lane's events are whole, in order, one after the other. */
static void test_many_threads(void **state)
{
    (void)state;
    static tr_trace_event memory[2 * THREADS * SWITCHES * 2];
    tr_trace_lanes lanes;
    worker workers[THREADS];
    tr_background *threads[THREADS];
    int numbers[THREADS] = {0}, pieces = 0, running = THREADS;
    double ends[THREADS] = {0};
    tr_trace_lanes_init(&lanes, TRACK, memory, THREADS * SWITCHES * 2);
    tr_trace_lanes_start(&lanes);
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){&lanes, t};
        threads[t] = tr_background_create();
        assert_int_equal(tr_background_start(threads[t], work, &workers[t], 0), TR_OK);
    }
    while (running > 0) { /* a piece after the last has ended too */
        running = 0;
        for (int t = 0; t < THREADS; t++)
            running += !tr_background_wait(threads[t], 1e-4);
        const tr_trace_ring *ring = tr_trace_lanes_cut(&lanes);
        pieces++;
        for (int64_t i = 0; i < tr_trace_ring_count(ring); i++) {
            const tr_trace_event *event = tr_trace_ring_at(ring, i);
            int lane = event->lane;
            assert_true(event->number == numbers[lane] || event->number == numbers[lane] + 1);
            assert_true(event->begin >= ends[lane] && event->bytes == lane);
            numbers[lane] = event->number;
            ends[lane] = event->end;
        }
    }
    assert_true(pieces > 1);
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(numbers[t], SWITCHES - 1);
        assert_int_equal(tr_background_finish(threads[t]), TR_OK);
        tr_background_destroy(threads[t]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
