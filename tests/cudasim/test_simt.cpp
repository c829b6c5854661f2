/* The emulator: grids, barriers, exchanges of a warp, shared memory, reductions, conversions; each in several orders of the threads. */
#include "kernels/cuda/cuda_kernel.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "tests/cudasim/simt_test.h"

/* ---- grids */

struct thread_record {
    uint3 thread, block;
    int count;
};

static void record_kernel(thread_record *records)
{
    unsigned int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    thread_record *record = &records[b * blockDim.x * blockDim.y * blockDim.z + t];
    record->thread = threadIdx;
    record->block = blockIdx;
    record->count++;
}

static void check_grid(dim3 grid, dim3 block)
{
    std::vector<thread_record> records(grid.x * grid.y * grid.z * block.x * block.y * block.z);
    simt_run("record", grid, block, 0, [&] { record_kernel(records.data()); });
    size_t i = 0;
    for (unsigned int b = 0; b < grid.x * grid.y * grid.z; b++)
        for (unsigned int t = 0; t < block.x * block.y * block.z; t++, i++) {
            assert_int_equal(records[i].count, 1);
            assert_int_equal(records[i].block.x, b % grid.x);
            assert_int_equal(records[i].block.y, b / grid.x % grid.y);
            assert_int_equal(records[i].block.z, b / grid.x / grid.y);
            assert_int_equal(records[i].thread.x, t % block.x);
            assert_int_equal(records[i].thread.y, t / block.x % block.y);
            assert_int_equal(records[i].thread.z, t / block.x / block.y);
        }
}

static void test_grid(void **state)
{
    (void)state;
    simt_test_orders([] {
        check_grid(1, 1);
        check_grid(dim3(3, 2, 4), dim3(5, 3, 2));
        check_grid(dim3(1, 7), dim3(32, 32));
        check_grid(64, 1024);
    });
}

static void test_launch_valid(void **state)
{
    (void)state;
    assert_true(simt_launch_valid(dim3(0x7fffffff, 65535, 65535), dim3(16, 1, 64), 163 * 1024));
    assert_false(simt_launch_valid(1, 1025, 0));
    assert_false(simt_launch_valid(1, dim3(33, 32), 0));
    assert_false(simt_launch_valid(1, dim3(1, 1, 65), 0));
    assert_false(simt_launch_valid(1, 0, 0));
    assert_false(simt_launch_valid(dim3(1, 65536), 1, 0));
    assert_false(simt_launch_valid(dim3(1, 1, 65536), 1, 0));
    assert_false(simt_launch_valid(1, 1, 163 * 1024 + 1));
}

/* Blocks run in every order, so that what one leaves for the next is found out. */
static void test_block_orders(void **state)
{
    (void)state;
    enum { BLOCKS = 12 };
    unsigned int seen[SIMT_TEST_ORDERS][BLOCKS], order = 0;
    simt_test_orders([&] {
        int count = 0;
        simt_run("blocks", BLOCKS, 1, 0,
                 [&]() SIMT_TEST_UNCHECKED { seen[order][count++] = blockIdx.x; });
        order++;
    });
    for (unsigned int b = 0; b < BLOCKS; b++) {
        assert_int_equal(seen[0][b], b);
        assert_int_equal(seen[1][b], BLOCKS - 1 - b);
    }
    for (int i = 2; i < 4; i++)
        for (int before = 0; before < i; before++)
            assert_memory_not_equal(seen[i], seen[before], sizeof seen[i]);
}

/* ---- exchanges of a warp */

static void shuffle_kernel(int *out)
{
    int lane = (int)threadIdx.x;
    int *row = out + 8 * lane;
    row[0] = __shfl_xor_sync(TR_WARP_ALL, lane, 5);
    row[1] = __shfl_down_sync(TR_WARP_ALL, lane, 3);
    row[2] = __shfl_up_sync(TR_WARP_ALL, lane, 3);
    row[3] = __shfl_sync(TR_WARP_ALL, lane, lane * 7);
    row[4] = __shfl_xor_sync(TR_WARP_ALL, lane, 1, 4);
    row[5] = __shfl_down_sync(TR_WARP_ALL, lane, 2, 8);
    row[6] = __shfl_up_sync(TR_WARP_ALL, lane, 2, 8);
    row[7] = __shfl_sync(TR_WARP_ALL, lane, 9, 8);
}

static void test_shuffles(void **state)
{
    (void)state;
    simt_test_orders([] {
        int out[32 * 8];
        simt_run("shuffle", 1, 32, 0, [&] { shuffle_kernel(out); });
        for (int lane = 0; lane < 32; lane++) {
            const int *row = out + 8 * lane;
            assert_int_equal(row[0], lane ^ 5);
            assert_int_equal(row[1], lane + 3 < 32 ? lane + 3 : lane);
            assert_int_equal(row[2], lane >= 3 ? lane - 3 : lane);
            assert_int_equal(row[3], lane * 7 % 32);
            assert_int_equal(row[4], lane ^ 1);
            assert_int_equal(row[5], lane % 8 + 2 < 8 ? lane + 2 : lane);
            assert_int_equal(row[6], lane % 8 >= 2 ? lane - 2 : lane);
            assert_int_equal(row[7], lane / 8 * 8 + 1);
        }
    });
}

static void test_shuffle_types(void **state)
{
    (void)state;
    simt_run("types", 1, 32, 0, [] {
        int lane = (int)threadIdx.x;
        assert_float_equal(__shfl_xor_sync(TR_WARP_ALL, (float)lane + 0.5f, 1), (lane ^ 1) + 0.5f,
                           0);
        int64_t wide = __shfl_xor_sync(TR_WARP_ALL, (int64_t)lane << 40, 2);
        assert_true(wide == (int64_t)(lane ^ 2) << 40);
        double real = __shfl_sync(TR_WARP_ALL, lane / 3.0, 31);
        assert_true(real == 31 / 3.0);
    });
}

static void test_votes(void **state)
{
    (void)state;
    simt_test_orders([] {
        simt_run("vote", 1, 64, 0, [] {
            int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
            assert_true(__ballot_sync(TR_WARP_ALL, lane % 3 == warp) ==
                        (warp == 0 ? 0x49249249u : 0x92492492u));
            assert_true(__any_sync(TR_WARP_ALL, lane == 31) && !__any_sync(TR_WARP_ALL, 0));
            assert_true(__all_sync(TR_WARP_ALL, 1) && !__all_sync(TR_WARP_ALL, lane != 7));
        });
    });
}

/* Lanes of a warp that part ways exchange among themselves; lanes that ended are not waited for. */
static void test_masks(void **state)
{
    (void)state;
    simt_test_orders([] {
        int out[40];
        simt_run("masks", 1, 40, 0, [&] {
            int i = (int)threadIdx.x;
            if (i >= 32) {
                out[i] = __shfl_xor_sync(0xffu, i, 7);
                return;
            }
            if (i == 5)
                return;
            unsigned int odd = 0xaaaaaaaau & ~(1u << 5), even = 0x55555555u;
            if (i % 2 != 0)
                out[i] = (int)__ballot_sync(odd, 1);
            else
                out[i] = __shfl_sync(even, i, 30);
            __syncwarp(TR_WARP_ALL);
        });
        for (int i = 0; i < 32; i++)
            if (i != 5)
                assert_int_equal(out[i], i % 2 != 0 ? (int)0xaaaaaa8a : 30);
        for (int i = 32; i < 40; i++)
            assert_int_equal(out[i], i ^ 7);
    });
}

/* ---- barriers and shared memory */

enum { CELLS = 96, ROUNDS = 20 };

/* Each round every cell becomes the sum of its neighbours, in place, with two barriers. */
static void cells_kernel(const unsigned int *in, unsigned int *out)
{
    TR_SHARED(unsigned int, cells, [CELLS]);
    unsigned int t = threadIdx.x;
    cells[t] = in[t];
    for (int round = 0; round < ROUNDS; round++) {
        __syncthreads();
        unsigned int sum = cells[(t + 1) % CELLS] + cells[(t + CELLS - 1) % CELLS];
        __syncthreads();
        cells[t] = sum;
    }
    out[t] = cells[t];
}

static void test_barriers(void **state)
{
    (void)state;
    unsigned int in[CELLS], want[CELLS], next[CELLS];
    for (unsigned int i = 0; i < CELLS; i++)
        want[i] = in[i] = i * i + 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CELLS; i++)
            next[i] = want[(i + 1) % CELLS] + want[(i + CELLS - 1) % CELLS];
        memcpy(want, next, sizeof want);
    }
    simt_test_orders([&] {
        unsigned int out[CELLS];
        simt_run("cells", 1, CELLS, 0, [&] { cells_kernel(in, out); });
        assert_memory_equal(out, want, sizeof want);
    });
}

SIMT_TEST_UNCHECKED static bool holds(const void *memory, size_t bytes, unsigned char value)
{
    const unsigned char *p = (const unsigned char *)memory;
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != value)
            return false;
    return true;
}

template <typename T> SIMT_TEST_UNCHECKED static void poison_kernel(int *num_clean)
{
    TR_SHARED(T, one, );
    TR_SHARED(T, table, [3][5]);
    TR_SHARED_DYNAMIC(T, rest);
    assert_true(sizeof table == 15 * sizeof(T) && (uintptr_t)rest % 128 == 0);
    if (threadIdx.x == 0)
        *num_clean += holds(&one, sizeof one, 0xff) && holds(table, sizeof table, 0xff) &&
                      holds(rest, 9 * sizeof(T), 0xff);
    __syncthreads();
    if (threadIdx.x < 15)
        table[threadIdx.x / 5][threadIdx.x % 5] = T();
    if (threadIdx.x == 15)
        one = T();
    if (threadIdx.x < 9)
        rest[threadIdx.x] = T();
    __syncthreads();
    if (threadIdx.x == 31)
        *num_clean += holds(&one, sizeof one, 0) && holds(table, sizeof table, 0) &&
                      holds(rest, 9 * sizeof(T), 0);
}

/* Shared memory is poison at the start of every block, and one memory for all threads of a block. */
static void test_shared(void **state)
{
    (void)state;
    simt_test_orders([] {
        int num_clean = 0;
        simt_run("poison", 5, 32, 9 * sizeof(double), [&] { poison_kernel<double>(&num_clean); });
        simt_run("poison", 5, 32, 9 * sizeof(short), [&] { poison_kernel<short>(&num_clean); });
        assert_int_equal(num_clean, 20);
    });
}

static void test_atomics(void **state)
{
    (void)state;
    simt_test_orders([] {
        int count = 0, most = -1, first = -1;
        unsigned int bits = 0;
        unsigned long long total = 0;
        simt_run("atomics", 3, 100, 0, [&] {
            int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
            atomicAdd(&count, 2);
            atomicMax(&most, i);
            atomicOr(&bits, 1u << i % 32);
            atomicAdd(&total, 1ull << 33);
            if (i == 17)
                assert_int_equal(atomicCAS(&first, -1, i), -1);
        });
        assert_int_equal(count, 600);
        assert_int_equal(most, 299);
        assert_int_equal(first, 17);
        assert_true(bits == 0xffffffffu && total == 300ull << 33);
    });
}

/* ---- what kernels share: reductions, elements, vectors */

/* The tree of tr_block_sum, by arithmetic on arrays. */
static float reference_warp_sum(const float *values, int count)
{
    float lanes[32] = {0}, next[32];
    memcpy(lanes, values, (size_t)count * sizeof *values);
    for (int offset = 16; offset > 0; offset /= 2) {
        for (int i = 0; i < 32; i++)
            next[i] = lanes[i] + lanes[i ^ offset];
        memcpy(lanes, next, sizeof lanes);
    }
    return lanes[0];
}

static void reduce_kernel(const float *in, float *sums, float *maxima)
{
    TR_SHARED(float, shared, [32]);
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    sums[i] = tr_block_sum(in[i], shared);
    maxima[i] = tr_block_max(in[i], shared);
}

static void test_block_reductions(void **state)
{
    (void)state;
    for (int threads : {32, 96, 256, 1024})
        simt_test_orders([=] {
            size_t n = 3 * (size_t)threads;
            std::vector<float> in(n), sums(n), maxima(n);
            for (size_t i = 0; i < n; i++)
                in[i] = -1.0f - (float)(i * 2654435761u % 1000) / 7.0f;
            simt_run("reduce", 3, (unsigned int)threads, 0,
                     [&] { reduce_kernel(in.data(), sums.data(), maxima.data()); });
            for (int block = 0; block < 3; block++) {
                const float *values = &in[(size_t)(block * threads)];
                float warps[32], most = -1e30f;
                for (int w = 0; w < threads / 32; w++)
                    warps[w] = reference_warp_sum(values + 32 * w, 32);
                for (int t = 0; t < threads; t++)
                    most = fmaxf(most, values[t]);
                float sum = reference_warp_sum(warps, threads / 32);
                for (int t = 0; t < threads; t++) {
                    assert_true(sums[(size_t)(block * threads + t)] == sum);
                    assert_true(maxima[(size_t)(block * threads + t)] == most);
                }
            }
        });
}

static void test_fp16(void **state)
{
    (void)state;
    for (unsigned int bits = 0; bits < 65536; bits++) {
        float value = tr_f32_from_f16((uint16_t)bits);
        float got = __half2float(__ushort_as_half((unsigned short)bits));
        assert_true(memcmp(&value, &got, sizeof value) == 0 || (isnan(value) && isnan(got)));
    }
    uint32_t bits = 1;
    for (int i = 0; i < 1 << 20; i++) {
        bits = bits * 1664525u + 1013904223u;
        float value = __uint_as_float(bits);
        /* halves of fp16's last place and what is next to them */
        float near_half = __uint_as_float((bits & 0xffffe000u) + 0x1000u + (bits & 3u) - 1u);
        for (float x : {value, near_half, value * 0x1p-100f, ldexpf(near_half, -8)})
            if (!isnan(x))
                assert_int_equal(__half_as_ushort(__float2half_rn(x)), tr_f16_from_f32(x));
    }
    for (float x : {65504.0f, 65519.996f, 65520.0f, -65520.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f,
                    0x1p-14f, 0x1.ffep-15f, 0x1.fffp-15f, 0.0f, -0.0f, INFINITY, -INFINITY})
        assert_int_equal(__half_as_ushort(__float2half_rn(x)), tr_f16_from_f32(x));
    assert_int_equal(__half_as_ushort(__float2half_rn(-NAN)), 0x7fff);
}

static void test_bf16(void **state)
{
    (void)state;
    uint32_t bits = 1;
    for (int i = 0; i < 1 << 20; i++) {
        bits = bits * 1664525u + 1013904223u;
        float value = __uint_as_float(bits);
        float near_half = __uint_as_float((bits & 0xffff0000u) + 0x8000u + (bits & 3u) - 1u);
        for (float x : {value, near_half})
            if (!isnan(x))
                assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(x)), tr_bf16_from_f32(x));
    }
    for (unsigned int i = 0; i < 65536; i++) {
        float value = tr_f32_from_bf16((uint16_t)i);
        float got = __bfloat162float(__ushort_as_bfloat16((unsigned short)i));
        assert_memory_equal(&value, &got, sizeof value);
    }
    assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(INFINITY)), 0x7f80);
    assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(-NAN)), 0x7fff);
}

template <typename T> static void check_vec()
{
    alignas(16) T in[16], out[16] = {};
    for (int i = 0; i < 16; i++)
        tr_store(&in[i], (float)i - 3.5f);
    tr_vec<T> vec = tr_vec_load(in);
    for (int i = 0; i < tr_vec<T>::N; i++) {
        assert_true(vec.get(i) == (float)i - 3.5f && tr_load(&in[i]) == (float)i - 3.5f);
        vec.set(i, 2 * vec.get(i));
    }
    tr_vec_store(out, vec);
    for (int i = 0; i < tr_vec<T>::N; i++)
        assert_true(tr_load(&out[i]) == 2 * (float)i - 7.0f);
    assert_true(tr_vec_aligned(in) && !tr_vec_aligned(in + 1));
    assert_true(tr_vec<T>::N * sizeof(T) == 16 && sizeof vec == 16);
}

static void test_vec(void **state)
{
    (void)state;
    check_vec<float>();
    check_vec<__nv_bfloat16>();
    check_vec<__half>();
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_launch_valid),
        cmocka_unit_test(test_block_orders),
        cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_shuffle_types),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_block_reductions),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_vec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
