/* A library for LD_PRELOAD that lets one rank of a job fail at a place of choice, from outside the program.
 *
 * TRINE_FAULT=RANK,CALL,NUMBER,ACTION: on rank RANK (PMI_RANK, as the launcher gives it; -1: all), the NUMBER-th call (from 1)
 * of CALL does ACTION. Calls and where trine makes them: logf, once a row of attention's forward; MPI_Isend, inside collectives
 * and pipeline sends with parallel.inside=mpi; MPI_Finalize; fsync, inside a save; memcpy, only in threads that block all signals, which
 * is the data loader, twice a sequence; write, pread, rename, flush (fsync) and unlinkat, of checkpoints and their files; save, all that changes
 * the folder of checkpoints: write, fsync, rename, mkdir, rmdir, unlinkat.
 * Actions: kill, segv, exit (status 1); nan (once), nans and shift (a hundredth more), from then on, change what logf returns; sleepN
 * delays by N microseconds from then on; full and eio: from then on calls on files fail with ENOSPC, EIO; glitch: that call fails with EIO;
 * short: from then on a write or a read takes half of its bytes. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef enum fault_call {
    CALL_NONE,
    CALL_LOGF,
    CALL_ISEND,
    CALL_FINALIZE,
    CALL_FSYNC,
    CALL_MEMCPY,
    CALL_WRITE,
    CALL_PREAD,
    CALL_RENAME,
    CALL_FLUSH,
    CALL_UNLINKAT,
    CALL_SAVE
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
    static const char *const names[] = {"",       "logf",   "MPI_Isend", "MPI_Finalize",
                                        "fsync",  "memcpy", "write",     "pread",
                                        "rename", "flush",  "unlinkat",  "save"};
    for (int i = CALL_LOGF; i <= CALL_SAVE; i++)
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

/* ---- files of checkpoints ---- */

/* A folder step-N, what is in it, or `latest`. */
static int is_checkpoint(const char *path)
{
    return strstr(path, "/step-") != NULL || strstr(path, "/latest") != NULL;
}

/* As fault_at, of a call on an open file of a checkpoint; `save` stands for all that change it. */
static long file_at(fault_call call, int fd)
{
    char link[64], path[4096];
    if (fault.call != call && (fault.call != CALL_SAVE || call == CALL_PREAD))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return is_checkpoint(path) ? fault_at(fault.call) : 0;
}

/* Whether the call is to fail, with errno set. */
static int fails(long since)
{
    int full = strcmp(fault.action, "full") == 0, once = strcmp(fault.action, "glitch") == 0;
    if (since < 1 || !(full || (once && since == 1) || strcmp(fault.action, "eio") == 0))
        return 0;
    errno = full ? ENOSPC : EIO;
    return 1;
}

static size_t part_of(size_t size, long since)
{
    return since >= 1 && size > 1 && strcmp(fault.action, "short") == 0 ? size / 2 : size;
}

ssize_t write(int fd, const void *bytes, size_t size);
ssize_t pread(int fd, void *bytes, size_t size, off_t offset);

ssize_t write(int fd, const void *bytes, size_t size)
{
    static ssize_t (*real)(int, const void *, size_t);
    if (real == NULL)
        real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    long since = file_at(CALL_WRITE, fd);
    return fails(since) ? -1 : real(fd, bytes, part_of(size, since));
}

ssize_t pread(int fd, void *bytes, size_t size, off_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (real == NULL)
        real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    long since = file_at(CALL_PREAD, fd);
    return fails(since) ? -1 : real(fd, bytes, part_of(size, since), offset);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (real == NULL)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fails(fault_at(CALL_FSYNC)) || fails(file_at(CALL_FLUSH, fd)) ? -1 : real(fd);
}

int rename(const char *from, const char *to)
{
    static int (*real)(const char *, const char *);
    if (real == NULL)
        real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    long since = 0;
    if (is_checkpoint(to) && (fault.call == CALL_SAVE || fault.call == CALL_RENAME))
        since = fault_at(fault.call);
    return fails(since) ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    static int (*real)(const char *, mode_t);
    if (real == NULL)
        real = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    return is_checkpoint(path) && fails(fault_at(CALL_SAVE)) ? -1 : real(path, mode);
}

int rmdir(const char *path)
{
    static int (*real)(const char *);
    if (real == NULL)
        real = (int (*)(const char *))dlsym(RTLD_NEXT, "rmdir");
    return is_checkpoint(path) && fails(fault_at(CALL_SAVE)) ? -1 : real(path);
}

/* Only checkpoints are removed in this way. */
int unlinkat(int folder, const char *name, int flags)
{
    static int (*real)(int, const char *, int);
    if (real == NULL)
        real = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    return fails(fault_at(CALL_SAVE)) || fails(fault_at(CALL_UNLINKAT)) ? -1
                                                                        : real(folder, name, flags);
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
