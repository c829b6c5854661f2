#include "base/thread_pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"

typedef struct worker {
    tr_thread_pool *pool;
    pthread_t thread;
    int index; /* from 1; the caller is 0 */
} worker;

/* The job's fields are read only after a piece was claimed: the claim proves that this run is not over, so they stand still. */
struct tr_thread_pool {
    int num_threads;
    worker *workers; /* num_threads - 1 */
    void (*piece)(void *context, int piece, int thread);
    void *context;
    int num_pieces;
    atomic_bool ending;
    _Alignas(
        64) _Atomic uint32_t posted; /* futex: changes with every run; idle workers sleep on it */
    _Alignas(64) _Atomic uint32_t unclaimed; /* pieces nobody has taken yet */
    _Alignas(64) _Atomic uint32_t
        unfinished; /* futex: pieces that have not returned; the caller sleeps on it */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void pieces_work(tr_thread_pool *pool, int thread)
{
    uint32_t left = atomic_load_explicit(&pool->unclaimed, memory_order_acquire);
    while (left > 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool->unclaimed, &left, left - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        pool->piece(pool->context, pool->num_pieces - (int)left, thread);
        if (atomic_fetch_sub_explicit(&pool->unfinished, 1, memory_order_acq_rel) == 1 &&
            thread != 0)
            futex_wake(&pool->unfinished, 1);
        left = atomic_load_explicit(&pool->unclaimed, memory_order_acquire);
    }
}

static void *worker_main(void *argument)
{
    worker *self = argument;
    tr_thread_pool *pool = self->pool;
    omp_set_num_threads(1);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->posted, memory_order_acquire);
        if (atomic_load_explicit(&pool->ending, memory_order_acquire))
            return NULL;
        pieces_work(pool, self->index);
        futex_wait(&pool->posted, seen); /* returns at once when a run was posted since */
    }
}

static void workers_end(tr_thread_pool *pool, int num_workers)
{
    atomic_store_explicit(&pool->ending, true, memory_order_release);
    atomic_fetch_add_explicit(&pool->posted, 1, memory_order_acq_rel);
    futex_wake(&pool->posted, INT_MAX);
    for (int i = 0; i < num_workers; i++)
        pthread_join(pool->workers[i].thread, NULL);
}

tr_status tr_thread_pool_create(int num_threads, tr_thread_pool **pool_out)
{
    TR_ASSERT(num_threads >= 1);
    omp_set_num_threads(1);
    tr_thread_pool *pool = TR_NEW_ALIGNED(tr_thread_pool);
    pool->num_threads = num_threads;
    pool->workers = TR_NEW_ARRAY(worker, (size_t)num_threads);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int errnum = 0, started = 0;
    for (; started < num_threads - 1; started++) {
        worker *w = &pool->workers[started];
        *w = (worker){.pool = pool, .index = started + 1};
        errnum = pthread_create(&w->thread, NULL, worker_main, w);
        if (errnum != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (errnum != 0) {
        workers_end(pool, started);
        tr_free(pool->workers);
        tr_free(pool);
        return tr_fail_errno(TR_ERR_MEMORY, errnum,
                             "thread %d of %d could not be started; use a smaller device.threads",
                             started + 2, num_threads);
    }
    *pool_out = pool;
    return TR_OK;
}

void tr_thread_pool_destroy(tr_thread_pool *pool)
{
    if (pool == NULL)
        return;
    workers_end(pool, pool->num_threads - 1);
    tr_free(pool->workers);
    tr_free(pool);
}

int tr_thread_pool_num_threads(const tr_thread_pool *pool)
{
    return pool->num_threads;
}

void tr_thread_pool_run(tr_thread_pool *pool, int num_pieces,
                        void (*piece)(void *context, int piece, int thread), void *context)
{
    omp_set_num_threads(1); /* a few instructions; this may be another thread than the creator */
    if (pool->num_threads == 1 || num_pieces <= 1) {
        for (int i = 0; i < num_pieces; i++)
            piece(context, i, 0);
        return;
    }
    pool->piece = piece;
    pool->context = context;
    pool->num_pieces = num_pieces;
    atomic_store_explicit(&pool->unfinished, (uint32_t)num_pieces, memory_order_relaxed);
    atomic_store_explicit(&pool->unclaimed, (uint32_t)num_pieces, memory_order_release);
    atomic_fetch_add_explicit(&pool->posted, 1, memory_order_acq_rel);
    int helpers = pool->num_threads - 1 < num_pieces - 1 ? pool->num_threads - 1 : num_pieces - 1;
    futex_wake(&pool->posted, helpers);
    pieces_work(pool, 0);
    uint32_t left;
    while ((left = atomic_load_explicit(&pool->unfinished, memory_order_acquire)) != 0)
        futex_wait(&pool->unfinished, left);
}
