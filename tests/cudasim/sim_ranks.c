#include "tests/cudasim/sim_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cudasim/runtime/sim_error.h"

enum { MOST_RANKS = 8, LIMIT_S = 60, SAID_BYTES = 1 << 16 };

typedef struct job {
    int num_ranks, file; /* file: where they write */
    pid_t pids[MOST_RANKS];
    int ended[MOST_RANKS]; /* exit code, 128 + signal, or -1 while it runs */
} job;

static void nap(void)
{
    const struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

void sim_must(bool condition, const char *text, const char *file, int line)
{
    if (condition)
        return;
    fprintf(stderr, "%s:%d: not so: %s; NCCL's last error: %s\n", file, line, text,
            ncclGetLastError(NULL));
    _exit(1);
}

void sim_ranks_barrier(const sim_ranks *ranks)
{
    int n = ranks->num_ranks, turn = atomic_fetch_add(&ranks->shared->arrived, 1) / n;
    while (atomic_load(&ranks->shared->arrived) / n == turn)
        nap();
}

void sim_ranks_wait(const sim_ranks *ranks, int flag)
{
    while (atomic_load(&ranks->shared->flags[flag]) == 0)
        nap();
}

static void rank_main(sim_ranks ranks, const job *j, sim_ranks_body body)
{
    char text[16];
    dup2(j->file, STDERR_FILENO);
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would end the test here, not the process */
    snprintf(text, sizeof text, "%d", ranks.rank);
    setenv("PMI_RANK", text, 1);
    for (int i = 0; ranks.rank == 0 && i < SIM_RANKS_IDS; i++)
        SIM_MUST(ncclGetUniqueId(&ranks.shared->ids[i]) == ncclSuccess);
    sim_ranks_barrier(&ranks);
    body(&ranks);
    exit(0);
}

static void job_begin(job *j, int num_ranks, sim_ranks_body body)
{
    sim_ranks ranks = {.num_ranks = num_ranks};
    ranks.shared =
        mmap(NULL, sizeof *ranks.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(ranks.shared != MAP_FAILED);
    j->num_ranks = num_ranks;
    j->file = memfd_create("said", 0);
    assert_true(j->file >= 0);
    fflush(NULL);
    for (ranks.rank = 0; ranks.rank < num_ranks; ranks.rank++) {
        j->ended[ranks.rank] = -1;
        j->pids[ranks.rank] = fork();
        assert_true(j->pids[ranks.rank] >= 0);
        if (j->pids[ranks.rank] == 0)
            rank_main(ranks, j, body);
    }
    munmap(ranks.shared, sizeof *ranks.shared);
}

/* Notes who has ended; whether all have, or one of them as it is looked for: with `code`, or badly for 0. */
static bool job_look(job *j, int code)
{
    bool all = true, found = false;
    for (int r = 0; r < j->num_ranks; r++) {
        int status;
        if (j->ended[r] < 0 && waitpid(j->pids[r], &status, WNOHANG) == j->pids[r])
            j->ended[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        all = all && j->ended[r] >= 0;
        found = found || (code == 0 ? j->ended[r] > 0 : j->ended[r] == code);
    }
    return all || found;
}

/* Until job_look says so or the time is over; who still runs is killed. */
static void job_end(job *j, int code, char *said, size_t size)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (now = begin; !job_look(j, code) && now.tv_sec - begin.tv_sec < LIMIT_S;
         clock_gettime(CLOCK_MONOTONIC, &now))
        nap();
    for (int r = 0; r < j->num_ranks; r++)
        if (j->ended[r] < 0) {
            kill(j->pids[r], SIGKILL);
            waitpid(j->pids[r], NULL, 0);
        }
    ssize_t got = pread(j->file, said, size - 1, 0);
    said[got > 0 ? got : 0] = '\0';
    close(j->file);
}

void sim_ranks_run(const char *name, int num_ranks, sim_ranks_body body)
{
    static char said[SAID_BYTES];
    job j;
    job_begin(&j, num_ranks, body);
    job_end(&j, 0, said, sizeof said);
    for (int r = 0; r < num_ranks; r++)
        if (j.ended[r] != 0)
            fail_msg("%s: rank %d ended with %d (-1: it did not end)\n%s", name, r, j.ended[r],
                     said);
}

void sim_ranks_expect(const char *name, int num_ranks, sim_ranks_body body, const char *words)
{
    static char said[SAID_BYTES];
    bool found = false;
    job j;
    job_begin(&j, num_ranks, body);
    job_end(&j, CUDASIM_EXIT, said, sizeof said);
    for (int r = 0; r < num_ranks; r++)
        found = found || j.ended[r] == CUDASIM_EXIT;
    if (!found || strstr(said, words) == NULL)
        fail_msg("%s: no rank ended with %d, or none said \"%s\":\n%s", name, (int)CUDASIM_EXIT,
                 words, said);
}
