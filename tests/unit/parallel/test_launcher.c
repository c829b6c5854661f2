/* Singletons by mistake are refused with what to run instead; good launches and plain single processes are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/launcher.h"

static int clear_environment(void **state)
{
    (void)state;
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_ID",
                                        "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(test_plain_process),       TEST(test_srun_singletons), TEST(test_batch_script),
        TEST(test_mpiexec_under_slurm), TEST(test_pmi_mismatch),    TEST(test_open_mpi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
