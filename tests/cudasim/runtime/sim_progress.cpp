/* The thread by which shared work goes on while the host does something else, as on a GPU: it takes the lock now and then and runs what other processes
 * may wait for. It sleeps between, longer while nothing moves, and until it is woken while there is no such work. */
#include <condition_variable>
#include <new>
#include <thread>

#include <pthread.h>
#include <time.h>

#include "tests/cudasim/runtime/sim_queue.h"

enum { LEAST_PAUSE_US = 100, MOST_PAUSE_US = 1000 };

static bool started;

static std::condition_variable_any &woken()
{
    static std::condition_variable_any *the_condition = new std::condition_variable_any();
    return *the_condition;
}

static void pause_us(int us)
{
    const struct timespec pause = {0, us * 1000L};
    nanosleep(&pause, NULL);
}

static void progress_loop()
{
    for (int us = LEAST_PAUSE_US;;) {
        pause_us(us);
        std::unique_lock<std::recursive_mutex> hold(sim_lock);
        sim_progress progress = sim_run_shared();
        us = progress == SIM_WAITS && us < MOST_PAUSE_US ? 2 * us : LEAST_PAUSE_US;
        if (progress == SIM_IDLE)
            woken().wait(hold);
    }
}

/* A child process of fork has no such thread, and the lock is free in it. */
static void fork_prepare()
{
    sim_lock.lock();
}

static void fork_parent()
{
    sim_lock.unlock();
}

static void fork_child()
{
    new (&sim_lock) std::recursive_mutex();
    started = false;
}

void sim_progress_start()
{
    static bool registered;
    if (!registered)
        pthread_atfork(fork_prepare, fork_parent, fork_child);
    registered = true;
    if (!started)
        std::thread(progress_loop).detach();
    started = true;
}

void sim_progress_wake()
{
    woken().notify_all();
}
