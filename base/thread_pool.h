/* The threads of a rank that share the pieces of one operation.
 *
 * A pool of n threads is the thread that runs it and n - 1 workers, which sleep (futex) between operations: ranks may share
 * cores, so nobody spins. Pieces are handed out in order, one at a time, to whoever is free. The result must not depend on who
 * takes a piece: threads per rank are layout (DESIGN section 1); `thread` is for scratch memory only.
 *
 * oneDNN splits a product over OpenMP threads, and over K on some shapes, which changes bits with the thread count. Every thread
 * of a pool therefore tells OpenMP to use one thread (omp_set_num_threads(1) holds per calling thread), so that a oneDNN call
 * inside a piece, or in the running thread outside of it, runs on its caller alone. Primitives must be created in such a thread
 * too.
 *
 * A pool is used by one thread at a time; pieces must not run the pool again. Workers block all signals. A run allocates nothing. */
#ifndef TR_BASE_THREAD_POOL_H
#define TR_BASE_THREAD_POOL_H

#include "base/status.h"

typedef struct tr_thread_pool tr_thread_pool;

/* num_threads >= 1, the caller included. Fails with TR_ERR_MEMORY when the system has no more threads. Sets OpenMP's thread
 * count of the calling thread to one. */
tr_status tr_thread_pool_create(int num_threads, tr_thread_pool **pool);
/* Not while a run is on. NULL is fine. */
void tr_thread_pool_destroy(tr_thread_pool *pool);
int tr_thread_pool_num_threads(const tr_thread_pool *pool);

/* Calls piece(context, i, thread) once for each i in [0, num_pieces), with 0 <= thread < the pool's threads, no two at once with
 * the same thread; returns when all have returned, and what they wrote is visible to the caller. */
void tr_thread_pool_run(tr_thread_pool *pool, int num_pieces,
                        void (*piece)(void *context, int piece, int thread), void *context);

#endif
