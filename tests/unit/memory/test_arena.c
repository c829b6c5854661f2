/* memory/arena: the counting pass measures what the real one needs. */
#include "memory/arena.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Any sequence of allocations and marks. Returns the addresses relative to the first one. */
static void plan_run(tr_arena *arena, size_t offsets[5])
{
    unsigned char *first = tr_arena_alloc(arena, 1);
    offsets[0] = 0;
    offsets[1] = (size_t)((uintptr_t)tr_arena_alloc(arena, 1000) - (uintptr_t)first);
    size_t mark = tr_arena_mark(arena);
    offsets[2] = (size_t)((uintptr_t)tr_arena_alloc(arena, 5000) - (uintptr_t)first);
    tr_arena_reset(arena, mark);
    offsets[3] = (size_t)((uintptr_t)tr_arena_alloc(arena, 0) - (uintptr_t)first);
    offsets[4] = (size_t)((uintptr_t)tr_arena_alloc(arena, 256) - (uintptr_t)first);
}

static void test_counting_equals_real(void **state)
{
    (void)state;
    tr_arena counting, real;
    size_t counted[5], placed[5];
    tr_arena_init_counting(&counting, TR_MEM_GRADIENTS);
    plan_run(&counting, counted);
    assert_int_equal(counting.peak, 256 + 1024 + 5120);
    assert_int_equal(counting.used, 256 + 1024 + 256);
    void *memory = aligned_alloc(TR_ARENA_ALIGNMENT, counting.peak);
    tr_arena_init(&real, TR_MEM_GRADIENTS, memory, counting.peak);
    plan_run(&real, placed);
    assert_memory_equal(counted, placed, sizeof counted);
    assert_int_equal(real.peak, counting.peak);
    assert_int_equal(counted[2], counted[3]); /* given back and handed out again */
    for (int i = 0; i < 5; i++)
        assert_int_equal(counted[i] % TR_ARENA_ALIGNMENT, 0);
    memset((unsigned char *)memory + placed[2], 1, 5000);
    free(memory);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(tr_mem_category_name(TR_MEM_PARAMETERS), "parameters");
    assert_string_equal(tr_mem_category_name(TR_MEM_SNAPSHOT), "snapshot");
    assert_int_equal(TR_MEM_NUM, TR_MEM_SNAPSHOT + 1);
}

static void test_past_the_end_aborts(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            static _Alignas(TR_ARENA_ALIGNMENT) unsigned char memory[512];
            tr_arena arena;
            freopen("/dev/null", "w", stderr);
            signal(SIGABRT, SIG_DFL);
            tr_arena_init(&arena, TR_MEM_WORKSPACE, memory, sizeof memory);
            tr_arena_alloc(&arena, 256);
            tr_arena_alloc(&arena, i == 0 ? 257 : SIZE_MAX);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counting_equals_real),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_past_the_end_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
