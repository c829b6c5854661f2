/* Where attention's blocks work (cuda_attention_tile.cuh): at lengths whose keys and values fill the second-level cache, which whole
 * operations are too large for here. */
#include "kernels/cuda/cuda_attention_tile.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "tests/cudasim/simt.h"

struct grid_case {
    int64_t B, T, heads;
    int block, parts, sharing;
    int64_t bytes; /* that a head reads again and again */
};

/* The places of all blocks, in the order of their numbers. */
static std::vector<tr_attention_place> places_of(const grid_case &c, tr_attention_launch *launch)
{
    *launch = {};
    launch->args.B = c.B;
    launch->args.T = c.T;
    unsigned blocks = tr_attention_grid(launch, c.heads, c.block, c.parts, c.sharing, c.bytes);
    std::vector<tr_attention_place> places(blocks);
    simt_run("places", dim3(blocks), dim3(1), 0,
             [&] { places[blockIdx.x] = tr_attention_place_get(*launch); });
    return places;
}

/* Every block of positions of every head, in each part, once; sections one after the other, and in one all heads' first blocks before their second
 * ones; the parts of a block side by side. */
static void check_case(const grid_case &c)
{
    tr_attention_launch launch;
    const std::vector<tr_attention_place> places = places_of(c, &launch);
    const int64_t blocks = (c.T + c.block - 1) / c.block, section = launch.section;
    assert_int_equal(places.size(), c.B * c.heads * blocks * c.parts);
    assert_true(section % c.sharing == 0 || section == c.B * c.heads);
    assert_true(section == c.sharing || section * c.bytes <= (16 << 20) * c.sharing);
    std::vector<int> seen(places.size());
    int64_t before = 0;
    for (size_t i = 0; i < places.size(); i++) {
        const tr_attention_place &at = places[i];
        assert_true(at.b < c.B && at.head < c.heads && at.order < blocks && at.part < c.parts);
        assert_int_equal(at.part, i % (size_t)c.parts);
        int64_t head = at.b * c.heads + at.head, turn = head / section * blocks + at.order;
        assert_true(turn >= before);
        before = turn;
        assert_int_equal(seen[(size_t)((head * blocks + at.order) * c.parts + at.part)]++, 0);
    }
}

static void test_places(void **)
{
    static const grid_case cases[] = {
        {1, 1, 1, 64, 1, 1, 256},
        {3, 130, 5, 64, 2, 1, 1000},       /* all heads in one section */
        {4, 2048, 16, 128, 1, 1, 1 << 20}, /* sections of 16 heads */
        {2, 2048, 24, 64, 2, 1,
         3 << 20}, /* sections of 5 heads: they cross sequences, the last one is short */
        {2, 700, 32, 64, 1, 8, 1 << 22}, /* 8 query heads share keys and values: sections of 32 */
        {1, 700, 12, 64, 1, 3, 1 << 25}, /* keys and values of a head alone fill the cache */
        {1, 700, 7, 64, 1, 1, (int64_t)1 << 33},
    };
    for (const grid_case &c : cases)
        check_case(c);
}

int main(void)
{
    const CMUnitTest tests[] = {cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
