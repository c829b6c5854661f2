#include "base/background.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

struct tr_background {
    tr_status (*work)(void *context);
    void *context;
    int nice;
    bool started; /* and not yet finished */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t at_end;
    bool ended;
    tr_status status;
    char *message; /* NULL unless it failed */
};

static void *worker_main(void *argument)
{
    tr_background *background = argument;
    /* Linux: of this thread alone. Where it is refused, the work is done all the same. */
    id_t thread = (id_t)syscall(SYS_gettid);
    if (background->nice > 0)
        setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + background->nice);
    tr_status status = background->work(background->context);
    char *message = status != TR_OK ? tr_strdup(tr_error_message()) : NULL;
    pthread_mutex_lock(&background->mutex);
    background->status = status;
    background->message = message;
    background->ended = true;
    pthread_cond_signal(&background->at_end);
    pthread_mutex_unlock(&background->mutex);
    return NULL;
}

tr_background *tr_background_create(void)
{
    tr_background *background = TR_NEW(tr_background);
    pthread_mutex_init(&background->mutex, NULL);
    pthread_cond_init(&background->at_end, NULL);
    background->ended = true;
    return background;
}

void tr_background_destroy(tr_background *background)
{
    if (background == NULL)
        return;
    if (background->started)
        pthread_join(background->thread, NULL);
    pthread_cond_destroy(&background->at_end);
    pthread_mutex_destroy(&background->mutex);
    tr_free(background->message);
    tr_free(background);
}

tr_status tr_background_start(tr_background *background, tr_status (*work)(void *context),
                              void *context, int nice)
{
    TR_ASSERT(!background->started);
    background->work = work;
    background->context = context;
    background->nice = nice;
    background->ended = false;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int errnum = pthread_create(&background->thread, NULL, worker_main, background);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    background->started = errnum == 0;
    if (errnum == 0)
        return TR_OK;
    background->ended = true;
    return tr_fail_errno(TR_ERR_MEMORY, errnum, "a thread could not be started");
}

bool tr_background_wait(tr_background *background, double seconds)
{
    struct timespec deadline = tr_clock_deadline(seconds);
    pthread_mutex_lock(&background->mutex);
    while (!background->ended && seconds > 0 &&
           pthread_cond_clockwait(&background->at_end, &background->mutex, CLOCK_MONOTONIC,
                                  &deadline) != ETIMEDOUT) {
    }
    bool ended = background->ended;
    pthread_mutex_unlock(&background->mutex);
    return ended;
}

tr_status tr_background_get_status(const tr_background *background)
{
    TR_ASSERT(background->ended);
    return background->status;
}

tr_status tr_background_finish(tr_background *background)
{
    if (!background->started)
        return TR_OK;
    pthread_join(background->thread, NULL);
    background->started = false;
    if (background->status == TR_OK)
        return TR_OK;
    tr_fail(background->status, "%s", background->message);
    tr_free(background->message);
    background->message = NULL;
    return background->status;
}
