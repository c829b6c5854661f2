/* The simulated tensor-core product, matrix loads and asynchronous copies against plain loops that follow PTX's documented
 * fragments ("Matrix Fragments for mma.m16n8k16", "ldmatrix", "cp.async"). */
#include "kernels/cuda/cuda_intrinsics.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include "tests/cudasim/simt_test.h"

enum { M = 16, N = 8, K = 16 };

static uint16_t bits_of(__nv_bfloat16 value)
{
    return __bfloat16_as_ushort(value);
}

static uint16_t bits_of(__half value)
{
    return __half_as_ushort(value);
}

template <typename T> static uint32_t pair_of(T low, T high)
{
    return (uint32_t)bits_of(low) | (uint32_t)bits_of(high) << 16;
}

/* Small integers and halves: every sum is exact, in any order. */
template <typename T> static T number(int i)
{
    return tr_round<T>((float)((i * 37 + 11) % 23 - 11) / 2.0f);
}

/* PTX: row of a_i is groupID for i = 0, 1, 4, 5, else groupID + 8; column is threadID_in_group * 2 + (i & 1), plus 8 for i >= 4.
 * Row of b_i is threadID_in_group * 2 + (i & 1), plus 8 for i >= 2; column is groupID. Row of c_i is groupID for i < 2, else
 * groupID + 8; column is threadID_in_group * 2 + (i & 1). */
template <typename T> static void mma_kernel(const T (*A)[K], const T (*B)[N], float (*C)[N])
{
    int group = (int)threadIdx.x >> 2, in_group = (int)threadIdx.x % 4;
    T a[8], b[4];
    float c[4];
    for (int i = 0; i < 8; i++) {
        int row = i == 0 || i == 1 || i == 4 || i == 5 ? group : group + 8;
        a[i] = A[row][in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)];
    }
    for (int i = 0; i < 4; i++) {
        b[i] = B[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group];
        c[i] = C[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
    }
    uint32_t a_pairs[4], b_pairs[2];
    for (int i = 0; i < 4; i++)
        a_pairs[i] = pair_of(a[2 * i], a[2 * i + 1]);
    for (int i = 0; i < 2; i++)
        b_pairs[i] = pair_of(b[2 * i], b[2 * i + 1]);
    tr_mma_m16n8k16<T>(c, a_pairs, b_pairs);
    for (int i = 0; i < 4; i++)
        C[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = c[i];
}

template <typename T> static void check_mma()
{
    T A[M][K], B[K][N];
    float C[M][N], want[M][N];
    for (int i = 0; i < M * K; i++)
        A[i / K][i % K] = number<T>(i);
    for (int i = 0; i < K * N; i++)
        B[i / N][i % N] = number<T>(7 * i + 3);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            want[m][n] = C[m][n] = (float)(m - 2 * n);
            for (int k = 0; k < K; k++)
                want[m][n] += tr_load(&A[m][k]) * tr_load(&B[k][n]);
        }
    simt_run("mma", 1, 32, 0, [&] { mma_kernel<T>(A, B, C); });
    assert_memory_equal(C, want, sizeof want);
}

static void test_mma(void **state)
{
    (void)state;
    simt_test_orders([] {
        check_mma<__nv_bfloat16>();
        check_mma<__half>();
    });
}

/* Row i of matrix m begins at rows + 8 (i * 4 + m): the lanes' addresses need not follow each other. r[m] of lane l holds elements
 * (l / 4, 2 (l % 4)) and the next of matrix m, or of its transpose. */
static void ldmatrix_kernel(int count, bool transposed)
{
    TR_SHARED(uint16_t, rows, [8 * 4 * 8]);
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 8 * 4 * 8; i += 32)
        rows[i] = (uint16_t)(i + 1000);
    __syncthreads();
    const uint16_t *row = rows + 8 * (lane % 8 * 4 + lane / 8);
    uint32_t r[4] = {0, 0, 0, 0};
    if (count == 4 && transposed)
        tr_ldmatrix_x4_trans(r, row);
    else if (count == 4)
        tr_ldmatrix_x4(r, row);
    else if (transposed)
        tr_ldmatrix_x2_trans(r, row);
    else
        tr_ldmatrix_x2(r, row);
    for (int m = 0; m < 4; m++)
        for (int half = 0; half < 2; half++) {
            int i = lane / 4, j = 2 * (lane % 4) + half;
            int want = transposed ? 1000 + 8 * (j * 4 + m) + i : 1000 + 8 * (i * 4 + m) + j;
            assert_int_equal(r[m] >> 16 * half & 0xffff, m < count ? want : 0);
        }
}

static void test_ldmatrix(void **state)
{
    (void)state;
    simt_test_orders([] {
        for (int count : {2, 4})
            for (bool transposed : {false, true})
                simt_run("ldmatrix", 1, 32, 0, [=] { ldmatrix_kernel(count, transposed); });
    });
}

SIMT_TEST_UNCHECKED static bool is_poison(const uint4 &value)
{
    return (value.x & value.y & value.z & value.w) == 0xffffffffu;
}

/* Four groups of one copy each, then one that is not committed. */
SIMT_TEST_UNCHECKED static void copy_kernel(const uint4 *global)
{
    TR_SHARED(uint4, tiles, [6][32]);
    unsigned int t = threadIdx.x;
    for (int i = 0; i < 6; i++)
        tiles[i][t] = make_uint4(7, 7, 7, 7);
    for (unsigned int i = 0; i < 4; i++) {
        tr_copy_async16(&tiles[i][t], &global[i * 32 + t], i != 2);
        tr_copy_async_commit();
    }
    for (int i = 0; i < 4; i++)
        assert_true(is_poison(tiles[i][t]));
    tr_copy_async_wait<3>();
    assert_int_equal(tiles[0][t].y, 100 + t);
    assert_true(is_poison(tiles[1][t]));
    tr_copy_async_wait<1>();
    assert_int_equal(tiles[1][t].z, 100 + 32 + t);
    assert_true(tiles[2][t].x == 0 && tiles[2][t].w == 0 && is_poison(tiles[3][t]));
    tr_copy_async16(&tiles[4][t], &global[t], true);
    tr_copy_async_wait<0>();
    assert_int_equal(tiles[3][t].w, 100 + 96 + t);
    assert_true(is_poison(tiles[4][t]));
    tr_copy_async_commit();
    tr_copy_async_commit(); /* a group may be empty */
    tr_copy_async_wait<1>();
    assert_int_equal(tiles[4][t].x, 100 + t);
    assert_int_equal(tiles[5][t].x, 7);
    tr_copy_async_wait<0>();
}

static void test_copies(void **state)
{
    (void)state;
    uint4 global[128];
    for (unsigned int i = 0; i < 128; i++)
        global[i] = make_uint4(100 + i, 100 + i, 100 + i, 100 + i);
    simt_test_orders([&] { simt_run("copy", 2, 32, 0, [&] { copy_kernel(global); }); });
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_ldmatrix),
        cmocka_unit_test(test_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
