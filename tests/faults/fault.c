/* A library for LD_PRELOAD that lets one rank of a job fail at a place of choice, from outside the program.
 *
 * TRINE_FAULT=RANK,CALL,NUMBER,ACTION: on rank RANK (PMI_RANK, as the launcher gives it; -1: all), the NUMBER-th call (from 1)
 * of CALL does ACTION. Calls and where trine makes them: logf, once a row of attention's forward; MPI_Isend, inside collectives
 * and pipeline sends with parallel.inside=mpi; MPI_Finalize; fsync, inside a save; memcpy, only in threads that block all signals, which
 * is the data loader, twice a sequence.
 * Actions: kill, segv, exit (status 1); nan (once), nans and shift (a hundredth more), from then on, change what logf returns; sleepN
 * delays by N microseconds from then on. */
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef enum fault_call {
    CALL_NONE,
    CALL_LOGF,
    CALL_ISEND,
    CALL_FINALIZE,
    CALL_FSYNC,
    CALL_MEMCPY
} fault_call;

static struct {
    fault_call call;
    long number;
    char action[32];
} fault;
static atomic_long num_calls;
static _Thread_local int in_loader; /* -1 no, 1 yes, 0 not known yet */

static fault_call call_named(const char *name)
{
    static const char *const names[] = {"", "logf", "MPI_Isend", "MPI_Finalize", "fsync", "memcpy"};
    for (int i = CALL_LOGF; i <= CALL_MEMCPY; i++)
        if (strcmp(names[i], name) == 0)
            return (fault_call)i;
    fprintf(stderr, "TRINE_FAULT: no call %s\n", name);
    abort();
}

__attribute__((constructor)) static void fault_read(void)
{
    const char *text = getenv("TRINE_FAULT"), *rank = getenv("PMI_RANK");
    char call[32];
    int faulty;
    if (text == NULL || rank == NULL)
        return;
    if (sscanf(text, "%d,%31[^,],%ld,%31s", &faulty, call, &fault.number, fault.action) != 4) {
        fprintf(stderr, "TRINE_FAULT=%s: expected RANK,CALL,NUMBER,ACTION\n", text);
        abort();
    }
    if (faulty == -1 || faulty == atoi(rank))
        fault.call = call_named(call);
}

/* 0: nothing; < 0: before the place; > 0: how many calls since, 1 at the place. Ends the process where that is the action. */
static long fault_at(fault_call call)
{
    if (fault.call != call)
        return 0;
    long since = atomic_fetch_add(&num_calls, 1) + 2 - fault.number;
    if (since == 1 && strcmp(fault.action, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (since == 1 && strcmp(fault.action, "segv") == 0)
        kill(getpid(), SIGSEGV); /* also from a thread that blocks signals */
    if (since == 1 && strcmp(fault.action, "exit") == 0)
        _exit(1);
    if (since >= 1 && strncmp(fault.action, "sleep", 5) == 0) {
        long us = atol(fault.action + 5);
        nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
    }
    return since;
}

float logf(float x);
int fsync(int fd);

float logf(float x)
{
    static float (*real)(float);
    if (real == NULL)
        real = (float (*)(float))dlsym(RTLD_NEXT, "logf");
    long since = fault_at(CALL_LOGF);
    if ((since == 1 && strcmp(fault.action, "nan") == 0) ||
        (since >= 1 && strcmp(fault.action, "nans") == 0))
        return __builtin_nanf("");
    return since >= 1 && strcmp(fault.action, "shift") == 0 ? real(x) + 0.01f : real(x);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    fault_at(CALL_ISEND);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Finalize(void)
{
    fault_at(CALL_FINALIZE);
    return PMPI_Finalize();
}

int fsync(int fd)
{
    static int (*real)(int);
    if (real == NULL)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    fault_at(CALL_FSYNC);
    return real(fd);
}

static int loader_is(void)
{
    if (in_loader == 0) {
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, NULL, &blocked);
        in_loader =
            sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGUSR2) == 1 ? 1 : -1;
    }
    return in_loader == 1;
}

/* Compiled without the compiler's idea of memcpy, or it would call itself. */
__attribute__((visibility("default"))) void *memcpy(void *restrict dst, const void *restrict src,
                                                    size_t bytes)
{
    if (fault.call == CALL_MEMCPY && loader_is())
        fault_at(CALL_MEMCPY);
    return memmove(dst, src, bytes);
}
