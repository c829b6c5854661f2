/* Accumulators of shards add what the exchanges bring in exactly the order of the plan, in any pieces, and take log2(parts) shares more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/philox.h"
#include "parallel/shard_sums.h"

enum { N = 640, MAX_EXCHANGES = 24 };

static float values[MAX_EXCHANGES][N];

/* Of very different sizes, so that another order gives other bits. */
static void values_make(void)
{
    for (int e = 0; e < MAX_EXCHANGES; e++)
        tr_philox_normal_fill((uint64_t)e, 0, N, e % 3 ? 1.0 : 1e3, values[e]);
}

static void expected_make(const tr_reduce_plan *plan, float *expected)
{
    for (int j = 0; j < plan->rounds; j++) {
        const float *parts[MAX_EXCHANGES];
        float round[N];
        for (int k = 0; k < plan->parts; k++)
            parts[k] = values[j * plan->parts + k];
        tr_tree_sum(N, plan->parts, parts, round);
        for (int i = 0; i < N; i++)
            expected[i] = j == 0 ? round[i] : expected[i] + round[i];
    }
}

static void plan_try(const tr_reduce_plan *plan)
{
    tr_device *device;
    assert_int_equal(tr_cpu_device_create(&device, 1), TR_OK);
    tr_arena counting, arena;
    tr_shard_sums sums;
    tr_arena_init_counting(&counting, TR_MEM_GRADIENTS);
    tr_shard_sums_init(&sums, plan, N, device, &counting);
    tr_shard_sums_clear(&sums);
    assert_int_equal(counting.peak, (size_t)(1 + tr_leaf_num_kept(plan->parts)) * N * 4);
    void *memory = tr_alloc_aligned(counting.peak, 1, TR_ARENA_ALIGNMENT);
    memset(memory, 0xff, counting.peak); /* NaN: nothing may be taken for zero */
    tr_arena_init(&arena, TR_MEM_GRADIENTS, memory, counting.peak);
    tr_shard_sums_init(&sums, plan, N, device, &arena);
    for (int e = 0; e < tr_reduce_num_exchanges(plan); e++)
        for (int64_t at = 0, count; at < N; at += count) {
            float piece[N];
            count = at % 128 == 0 ? 64 : 192;
            if (count > N - at)
                count = N - at;
            memcpy(piece, values[e] + at, (size_t)count * sizeof(float));
            assert_int_equal(tr_shard_sums_take(&sums, e, at, count, piece), TR_OK);
        }
    float expected[N];
    expected_make(plan, expected);
    assert_memory_equal(sums.total, expected, sizeof expected);
    tr_shard_sums_clear(&sums);
    tr_device_destroy(device);
    tr_free(memory);
}

static void test_order_and_memory(void **state)
{
    (void)state;
    values_make();
    for (int parts = 1; parts <= 12; parts++)
        for (int rounds = 1; parts * rounds <= MAX_EXCHANGES; rounds++)
            plan_try(&(tr_reduce_plan){.data_size = 2,
                                       .per_leaf = 1,
                                       .local_leaves = 1,
                                       .parts = parts,
                                       .rounds = rounds});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order_and_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
