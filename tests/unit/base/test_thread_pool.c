/* base/thread_pool: every piece once, on threads of its own, visible after the run, asleep in between. */
#include "base/thread_pool.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"

enum { MAX_PIECES = 1000, MAX_THREADS = 8 };

typedef struct job {
    int runs[MAX_PIECES];
    atomic_int inside[MAX_THREADS];
    atomic_int bad;
    int openmp_threads[MAX_THREADS];
    atomic_int threads_seen;
} job;

static void piece_count(void *context, int piece, int thread)
{
    job *j = context;
    if (piece < 0 || piece >= MAX_PIECES || thread < 0 || thread >= MAX_THREADS) {
        atomic_fetch_add(&j->bad, 1);
        return;
    }
    if (atomic_fetch_add(&j->inside[thread], 1) != 0)
        atomic_fetch_add(&j->bad, 1);
    j->runs[piece]++;
    atomic_fetch_or(&j->threads_seen, 1 << thread);
    j->openmp_threads[thread] = omp_get_max_threads();
    atomic_fetch_sub(&j->inside[thread], 1);
}

static void test_every_piece_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= MAX_THREADS; threads += threads < 4 ? 1 : 4) {
        tr_thread_pool *pool;
        assert_int_equal(tr_thread_pool_create(threads, &pool), TR_OK);
        assert_int_equal(tr_thread_pool_num_threads(pool), threads);
        for (int round = 0; round < 300; round++) {
            static job j;
            memset(&j, 0, sizeof j);
            int pieces = round % 3 == 0 ? round : round % 17;
            tr_thread_pool_run(pool, pieces, piece_count, &j);
            for (int i = 0; i < MAX_PIECES; i++)
                assert_int_equal(j.runs[i], i < pieces);
            assert_int_equal(j.bad, 0);
            assert_true(j.threads_seen < 1 << threads);
        }
        tr_thread_pool_destroy(pool);
    }
    tr_thread_pool_destroy(NULL);
}

static void piece_slow(void *context, int piece, int thread)
{
    tr_clock_sleep(0.02);
    piece_count(context, piece, thread);
}

static void test_threads_share_the_work(void **state)
{
    (void)state;
    tr_thread_pool *pool;
    omp_set_num_threads(5);
    assert_int_equal(tr_thread_pool_create(4, &pool), TR_OK);
    static job j;
    tr_clock_sleep(0.05); /* all workers are asleep */
    double start = tr_clock_seconds();
    tr_thread_pool_run(pool, 16, piece_slow, &j);
    double seconds = tr_clock_seconds() - start;
    assert_int_equal(j.threads_seen, 15);
    assert_true(seconds < 16 * 0.02 * 0.75); /* four rounds of 20 ms where sixteen would be alone */
    for (int t = 0; t < 4; t++)
        assert_int_equal(j.openmp_threads[t], 1);
    tr_thread_pool_destroy(pool);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Two pieces on two threads; the caller's ends first. */
static void piece_long_on_workers(void *context, int piece, int thread)
{
    (void)piece;
    atomic_int *entered = context;
    atomic_fetch_add(entered, 1);
    while (atomic_load(entered) < 2)
        tr_clock_sleep(0.001);
    if (thread != 0)
        tr_clock_sleep(0.3);
}

static void test_nobody_spins(void **state)
{
    (void)state;
    tr_thread_pool *pool;
    assert_int_equal(tr_thread_pool_create(4, &pool), TR_OK);
    atomic_int entered = 0;
    double start = cpu_seconds();
    tr_clock_sleep(0.15); /* idle workers */
    tr_thread_pool_run(pool, 2, piece_long_on_workers,
                       &entered); /* and whoever waits for the last piece */
    assert_true(cpu_seconds() - start < 0.02);
    tr_thread_pool_destroy(pool);
}

static void *other_thread(void *context)
{
    static job j;
    omp_set_num_threads(3);
    tr_thread_pool_run(context, 1, piece_count, &j);
    return (void *)(intptr_t)j.openmp_threads[0];
}

/* A pool may be made by one thread and run by another, which then has one OpenMP thread as well. */
static void test_run_from_another_thread(void **state)
{
    (void)state;
    tr_thread_pool *pool;
    assert_int_equal(tr_thread_pool_create(2, &pool), TR_OK);
    pthread_t thread;
    void *openmp_threads;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, pool), 0);
    pthread_join(thread, &openmp_threads);
    assert_int_equal((intptr_t)openmp_threads, 1);
    tr_thread_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_from_another_thread),
        cmocka_unit_test(test_threads_share_the_work),
        cmocka_unit_test(test_every_piece_once),
        cmocka_unit_test(test_nobody_spins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
