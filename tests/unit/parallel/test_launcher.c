/* Singletons by mistake are refused with what to run instead; good launches and plain single processes are not. A rank
 * ends with Hydra's proxy, and only with that launcher's. */
#include <poll.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "parallel/launcher.h"

static int clear_environment(void **state)
{
    (void)state;
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",     "SLURM_STEP_ID",
                                        "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "HYDI_CONTROL_FD"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

static void expect_refused(int world_size, const char *remedy)
{
    assert_int_equal(tr_launcher_check(world_size), TR_ERR_TRANSPORT);
    assert_non_null(strstr(tr_error_message(), remedy));
}

static void test_plain_process(void **state)
{
    (void)state;
    assert_int_equal(tr_launcher_check(1), TR_OK);
}

static void test_srun_singletons(void **state)
{
    (void)state;
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    expect_refused(1, "srun -K --mpi=pmi2 -n 4");
    assert_int_equal(tr_launcher_check(4), TR_OK);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1); /* srun -n 1 inside an allocation of four */
    assert_int_equal(tr_launcher_check(1), TR_OK);
}

static void test_batch_script(void **state)
{
    (void)state;
    setenv("SLURM_NTASKS", "4", 1);
    assert_int_equal(tr_launcher_check(1), TR_OK);
}

static void test_mpiexec_under_slurm(void **state)
{
    (void)state;
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1); /* hydra's proxies, one a node */
    setenv("PMI_SIZE", "1", 1);
    assert_int_equal(tr_launcher_check(1), TR_OK);
}

static void test_pmi_mismatch(void **state)
{
    (void)state;
    setenv("PMI_SIZE", "8", 1);
    expect_refused(1, "mpiexec of the MPI it was built with");
    assert_int_equal(tr_launcher_check(8), TR_OK);
}

static void test_open_mpi(void **state)
{
    (void)state;
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    expect_refused(1, "Open MPI");
    assert_int_equal(tr_launcher_check(2), TR_OK);
}

/* True when a process that follows its launcher is gone within `ms` of the launcher's end. */
static bool follower_ends(int ms)
{
    int alive[2], ready[2]; /* the follower alone holds alive[1]: its end closes it */
    char byte = 0;
    assert_int_equal(pipe(alive), 0);
    assert_int_equal(pipe(ready), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
        if (fork() == 0) {
            tr_launcher_follow();
            if (write(ready[1], &byte, 1) != 1)
                _exit(1);
            sleep(10);
            _exit(0);
        }
        _exit(read(ready[0], &byte, 1) == 1 ? 0 : 1);
    }
    close(alive[1]);
    int status;
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    assert_int_equal(status, 0);
    struct pollfd end = {.fd = alive[0]};
    bool ended = poll(&end, 1, ms) == 1;
    close(alive[0]);
    close(ready[0]);
    close(ready[1]);
    return ended;
}

static void test_a_rank_ends_with_hydras_proxy(void **state)
{
    (void)state;
    setenv("HYDI_CONTROL_FD", "7", 1);
    assert_true(follower_ends(5000));
}

static void test_a_rank_outlives_other_parents(void **state)
{
    (void)state;
    assert_false(follower_ends(500));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(test_plain_process),
        TEST(test_srun_singletons),
        TEST(test_batch_script),
        TEST(test_mpiexec_under_slurm),
        TEST(test_pmi_mismatch),
        TEST(test_open_mpi),
        TEST(test_a_rank_ends_with_hydras_proxy),
        TEST(test_a_rank_outlives_other_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
