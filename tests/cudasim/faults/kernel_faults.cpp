#include "tests/cudasim/faults/kernel_faults.h"

#include <memory>

#include "kernels/cuda/cuda_intrinsics.cuh"
#include "tests/cudasim/simt.h"

enum { THREADS = 64, SPAN = 4 * THREADS };

/* Memory of exactly n elements, so that AddressSanitizer guards its end. */
template <typename T> static std::unique_ptr<T[]> memory_of(int n, T (*value)(int))
{
    std::unique_ptr<T[]> memory(new T[(size_t)n]);
    for (int i = 0; i < n; i++)
        memory[(size_t)i] = value(i);
    return memory;
}

static float number(int i)
{
    return (float)(i % 13) - 5.0f;
}

/* Values whose sum depends on the order of additions. */
static float rough(int i)
{
    return (float)((unsigned int)i * 2654435761u >> 8) / (float)(7 + i % 5);
}

static uint4 quad(int i)
{
    unsigned int x = (unsigned int)i;
    return make_uint4(x, x + 1, x + 2, x + 3);
}

static bool all_equal(const float *got, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        if (!(got[i] == want[i]))
            return false;
    return true;
}

/* ---- memory */

/* y[i] = x[i + 1], 0 at the end. */
static void shift_kernel(bool planted, int n, const float *x, float *y)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        y[i] = planted || i + 1 < n ? x[i + 1] : 0.0f;
}

static bool run_read_past_end(bool planted)
{
    auto x = memory_of(SPAN, number), y = memory_of(SPAN, number);
    simt_run("shift", 4, THREADS, 0, [&] { shift_kernel(planted, SPAN, x.get(), y.get()); });
    return y[0] == number(1) && y[SPAN - 1] == 0.0f;
}

static void grid_tail_kernel(bool planted, int n, float *y)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (planted || i < n)
        y[i] = 1.0f;
}

static bool run_write_past_end(bool planted)
{
    auto y = memory_of(SPAN - 3, number);
    simt_run("grid_tail", 4, THREADS, 0, [&] { grid_tail_kernel(planted, SPAN - 3, y.get()); });
    return y[0] == 1.0f && y[SPAN - 4] == 1.0f;
}

static void shared_end_kernel(bool planted, float *y)
{
    TR_SHARED(float, first, [THREADS]);
    TR_SHARED(float, second, [THREADS]);
    unsigned int t = threadIdx.x;
    float *last = first + t;
    second[t] = 1.0f;
    last[planted ? 1 : 0] = 2.0f;
    __syncthreads();
    y[t] = second[t] + first[t];
}

static bool run_shared_end(bool planted)
{
    auto y = memory_of(THREADS, number);
    simt_run("shared_end", 1, THREADS, 0, [&] { shared_end_kernel(planted, y.get()); });
    return y[0] == 3.0f;
}

static void dynamic_end_kernel(float *y)
{
    TR_SHARED_DYNAMIC(float, values);
    values[threadIdx.x] = number((int)threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

/* The launch gives too little dynamic memory. */
static bool run_dynamic_end(bool planted)
{
    auto y = memory_of(THREADS, number);
    size_t bytes = (THREADS - (planted ? 1 : 0)) * sizeof(float);
    simt_run("dynamic_end", 1, THREADS, bytes, [&] { dynamic_end_kernel(y.get()); });
    return y[0] == number(THREADS - 1);
}

static void vector_kernel(const float *x, float *y)
{
    tr_vec<float> vec = tr_vec_load(x + threadIdx.x * 4);
    tr_vec_store(y + threadIdx.x * 4, vec);
}

static bool run_misaligned(bool planted)
{
    auto x = memory_of(SPAN + 4, number), y = memory_of(SPAN, number);
    simt_run("vector", 1, THREADS, 0, [&] { vector_kernel(x.get() + (planted ? 1 : 0), y.get()); });
    return all_equal(y.get(), x.get(), SPAN);
}

/* Lanes add up 8 values each, of which they have written 7. */
static void uninitialised_kernel(bool planted, float *y)
{
    TR_SHARED(float, values, [THREADS][8]);
    float sum = 0.0f;
    for (int i = 0; i < (planted ? 7 : 8); i++)
        values[threadIdx.x][i] = 1.0f;
    for (int i = 0; i < 8; i++)
        sum += values[threadIdx.x][i];
    y[threadIdx.x] = sum;
}

static bool run_uninitialised(bool planted)
{
    auto y = memory_of(THREADS, number);
    simt_run("uninitialised", 1, THREADS, 0, [&] { uninitialised_kernel(planted, y.get()); });
    return y[0] == 8.0f && y[THREADS - 1] == 8.0f;
}

/* What the block before has left in shared memory. */
static void carry_kernel(bool planted, float *y)
{
    TR_SHARED(float, sum, [1]);
    if (threadIdx.x == 0 && (!planted || blockIdx.x == 0))
        sum[0] = 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum[0] += 1.0f;
        y[blockIdx.x] = sum[0] - sum[0] + 1.0f;
    }
}

static bool run_carry(bool planted)
{
    auto y = memory_of(4, number);
    simt_run("carry", 4, THREADS, 0, [&] { carry_kernel(planted, y.get()); });
    return y[0] == 1.0f && y[1] == 1.0f && y[2] == 1.0f && y[3] == 1.0f;
}

/* ---- barriers that are missing */

/* The block's values in reverse. */
static void reverse_kernel(bool planted, const float *x, float *y)
{
    TR_SHARED(float, values, [THREADS]);
    values[threadIdx.x] = x[threadIdx.x];
    if (!planted)
        __syncthreads();
    y[threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

static bool run_missing_barrier(bool planted)
{
    auto x = memory_of(THREADS, number), y = memory_of(THREADS, number);
    simt_run("reverse", 1, THREADS, 0, [&] { reverse_kernel(planted, x.get(), y.get()); });
    for (int i = 0; i < THREADS; i++)
        if (y[(size_t)i] != number(THREADS - 1 - i))
            return false;
    return true;
}

/* Sums of tiles: the barrier at the end of the loop keeps a tile until all have read it. */
static void tiles_kernel(bool planted, const float *x, float *y)
{
    TR_SHARED(float, tile, [THREADS]);
    float sum = 0.0f;
    for (int i = 0; i < SPAN; i += THREADS) {
        tile[threadIdx.x] = x[i + (int)threadIdx.x];
        __syncthreads();
        for (int j = 0; j < THREADS; j++)
            sum += tile[j];
        if (!planted)
            __syncthreads();
    }
    y[threadIdx.x] = sum;
}

static bool run_missing_loop_barrier(bool planted)
{
    auto x = memory_of(SPAN, number), y = memory_of(THREADS, number);
    simt_run("tiles", 1, THREADS, 0, [&] { tiles_kernel(planted, x.get(), y.get()); });
    float sum = 0.0f;
    for (int i = 0; i < SPAN; i++)
        sum += number(i);
    for (int i = 0; i < THREADS; i++)
        if (y[(size_t)i] != sum)
            return false;
    return true;
}

/* Lanes of a warp hand values on through shared memory. */
static void warp_kernel(bool planted, const float *x, float *y)
{
    TR_SHARED(float, values, [THREADS]);
    values[threadIdx.x] = x[threadIdx.x];
    if (!planted)
        __syncwarp();
    y[threadIdx.x] = values[threadIdx.x ^ 1];
}

static bool run_missing_warp_barrier(bool planted)
{
    auto x = memory_of(THREADS, number), y = memory_of(THREADS, number);
    simt_run("warp", 1, THREADS, 0, [&] { warp_kernel(planted, x.get(), y.get()); });
    for (int i = 0; i < THREADS; i++)
        if (y[(size_t)i] != number(i ^ 1))
            return false;
    return true;
}

/* ---- barriers and exchanges that only some reach */

static void exit_kernel(bool planted)
{
    if (planted && threadIdx.x == 40)
        return;
    __syncthreads();
}

static bool run_exit_before_barrier(bool planted)
{
    simt_run("exit", 2, THREADS, 0, [=] { exit_kernel(planted); });
    return true;
}

static void split_kernel(bool planted)
{
    if (planted && threadIdx.x >= 32)
        __syncthreads();
    else
        __syncthreads();
}

static bool run_split_barrier(bool planted)
{
    simt_run("split", 1, THREADS, 0, [=] { split_kernel(planted); });
    return true;
}

static void rounds_kernel(bool planted)
{
    int rounds = planted ? 2 + (int)threadIdx.x / 32 : 3;
    for (int i = 0; i < rounds; i++)
        __syncthreads();
}

static bool run_unequal_rounds(bool planted)
{
    simt_run("rounds", 1, THREADS, 0, [=] { rounds_kernel(planted); });
    return true;
}

static void lanes_kernel(bool planted, float *y)
{
    unsigned int mask = planted ? 0x0000ffffu : TR_WARP_ALL;
    if (threadIdx.x < 16 || !planted)
        y[threadIdx.x] = __shfl_down_sync(mask, number((int)threadIdx.x), 8);
}

static bool run_absent_lane(bool planted)
{
    auto y = memory_of(32, number);
    simt_run("lanes", 1, 32, 0, [&] { lanes_kernel(planted, y.get()); });
    return y[0] == number(8) && y[15] == number(23);
}

/* The mask promises lanes that take the other branch. */
static void branch_kernel(bool planted, float *y)
{
    float value = number((int)threadIdx.x);
    if (!planted || threadIdx.x % 2 == 0)
        value = __shfl_xor_sync(TR_WARP_ALL, value, 2);
    __syncthreads();
    y[threadIdx.x] = value;
}

static bool run_branch_shuffle(bool planted)
{
    auto y = memory_of(THREADS, number);
    simt_run("branch", 1, THREADS, 0, [&] { branch_kernel(planted, y.get()); });
    return y[0] == number(2) && y[1] == number(3);
}

static void own_lane_kernel(bool planted, float *y)
{
    unsigned int mask = planted ? 0xfffffffeu : TR_WARP_ALL;
    y[threadIdx.x] = __shfl_sync(mask, 1.0f, 3);
}

static bool run_own_lane(bool planted)
{
    auto y = memory_of(32, number);
    simt_run("own_lane", 1, 32, 0, [&] { own_lane_kernel(planted, y.get()); });
    return y[0] == 1.0f;
}

/* ---- results that depend on the order of threads or blocks */

/* The block's values are listed in the order in which threads come, then added up. */
static void list_kernel(bool planted, const float *x, float *y)
{
    TR_SHARED(float, list, [THREADS]);
    TR_SHARED(int, count, [1]);
    if (threadIdx.x == 0)
        count[0] = 0;
    __syncthreads();
    int place = planted ? atomicAdd(&count[0], 1) : (int)threadIdx.x;
    list[place] = x[threadIdx.x];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < THREADS; i++)
        sum += list[i];
    y[threadIdx.x] = sum;
}

static bool run_ordered_sum(bool planted)
{
    auto x = memory_of(THREADS, rough), y = memory_of(THREADS, number);
    simt_run("list", 1, THREADS, 0, [&] { list_kernel(planted, x.get(), y.get()); });
    float sum = 0.0f;
    for (int i = 0; i < THREADS; i++)
        sum += rough(i);
    return y[0] == sum;
}

/* The last one to write wins. */
static void last_kernel(bool planted, float *y)
{
    TR_SHARED(float, winner, [1]);
    if (planted || threadIdx.x == THREADS - 1)
        winner[0] = number((int)threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = winner[0];
}

static bool run_write_race(bool planted)
{
    auto y = memory_of(THREADS, number);
    simt_run("last", 1, THREADS, 0, [&] { last_kernel(planted, y.get()); });
    return y[0] == number(THREADS - 1);
}

/* All add to one number without atomic operations. Additions are whole between barriers here, so that none is lost. */
static void update_kernel(bool planted, bool half_atomic, int *y)
{
    TR_SHARED(int, sum, [1]);
    if (threadIdx.x == 0)
        sum[0] = 0;
    __syncthreads();
    if (planted && !(half_atomic && threadIdx.x % 2 != 0))
        sum[0] += (int)threadIdx.x;
    else
        atomicAdd(&sum[0], (int)threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = sum[0];
}

static bool run_lost_update(bool planted)
{
    int y[THREADS];
    simt_run("update", 1, THREADS, 0, [&] { update_kernel(planted, false, y); });
    return y[0] == THREADS * (THREADS - 1) / 2;
}

static bool run_half_atomic(bool planted)
{
    int y[THREADS];
    simt_run("update", 1, THREADS, 0, [&] { update_kernel(planted, true, y); });
    return y[0] == THREADS * (THREADS - 1) / 2;
}

static void block_update_kernel(bool planted, int *y)
{
    if (threadIdx.x == 0 && planted)
        *y += (int)blockIdx.x;
    else if (threadIdx.x == 0)
        atomicAdd(y, (int)blockIdx.x);
}

static bool run_block_update(bool planted)
{
    std::unique_ptr<int> y(new int(0));
    simt_run("block_update", 8, 32, 0, [&] { block_update_kernel(planted, y.get()); });
    return *y == 28;
}

/* Each block reads what its neighbour writes. */
static void blocks_kernel(bool planted, const float *x, float *y)
{
    int b = (int)blockIdx.x;
    const float *from = planted ? y : x;
    if (threadIdx.x == 0)
        y[b] = b == 0 ? 1.0f : from[b - 1] + 1.0f;
}

static bool run_block_order(bool planted)
{
    auto x = memory_of(8, number), y = memory_of(8, number);
    for (int b = 0; b < 8; b++)
        x[(size_t)b] = (float)b + 1.0f;
    simt_run("blocks", 8, 32, 0, [&] { blocks_kernel(planted, x.get(), y.get()); });
    for (int b = 0; b < 8; b++)
        if (y[(size_t)b] != (float)b + 1.0f)
            return false;
    return true;
}

/* ---- asynchronous copies */

enum copy_fault { NO_WAIT, EARLY_WAIT, NO_BARRIER, NO_LOOP_BARRIER, NO_FINAL_WAIT };

/* Sums of tiles of x, each tile on its way while the one before is read. */
static void pipeline_kernel(copy_fault fault, bool planted, const uint4 *x, unsigned int *y)
{
    TR_SHARED(uint4, tiles, [2][THREADS]);
    const int num_tiles = SPAN / THREADS;
    unsigned int t = threadIdx.x, sum = 0;
    tr_copy_async16(&tiles[0][t], &x[t], true);
    tr_copy_async_commit();
    for (int i = 0; i < num_tiles; i++) {
        int next = i + 1 < num_tiles ? i + 1 : 0;
        tr_copy_async16(&tiles[(i + 1) % 2][t], &x[next * THREADS + (int)t], i + 1 < num_tiles);
        tr_copy_async_commit();
        if (planted && fault == EARLY_WAIT)
            tr_copy_async_wait<2>();
        else if (!planted || fault != NO_WAIT)
            tr_copy_async_wait<1>();
        if (!planted || fault != NO_BARRIER)
            __syncthreads();
        for (unsigned int j = 0; j < THREADS; j++)
            sum += tiles[i % 2][j].x * (j + 1);
        if (!planted || fault != NO_LOOP_BARRIER)
            __syncthreads();
    }
    if (!planted || fault != NO_FINAL_WAIT)
        tr_copy_async_wait<0>();
    y[t] = sum;
}

template <copy_fault FAULT> static bool run_copies(bool planted)
{
    auto x = memory_of(SPAN, quad);
    unsigned int y[THREADS], want = 0;
    simt_run("pipeline", 1, THREADS, 0, [&] { pipeline_kernel(FAULT, planted, x.get(), y); });
    for (int i = 0; i < SPAN; i++)
        want += quad(i).x * (unsigned int)(i % THREADS + 1);
    for (unsigned int sum : y)
        if (sum != want)
            return false;
    return true;
}

static void copy_target_kernel(bool planted, const uint4 *x, uint4 *y)
{
    TR_SHARED(uint4, tile, [THREADS]);
    uint4 *target = planted ? y : tile;
    tr_copy_async16(&target[threadIdx.x], &x[threadIdx.x], true);
    tr_copy_async_commit();
    tr_copy_async_wait<0>();
    y[threadIdx.x] = target[threadIdx.x];
}

static bool run_copy_target(bool planted)
{
    auto x = memory_of(THREADS, quad), y = memory_of(THREADS, quad);
    simt_run("copy_target", 1, THREADS, 0, [&] { copy_target_kernel(planted, x.get(), y.get()); });
    return y[1].w == 4;
}

static void copy_source_kernel(bool planted, int n, const uint4 *x, uint4 *y)
{
    TR_SHARED(uint4, tile, [THREADS]);
    int t = (int)threadIdx.x;
    tr_copy_async16(&tile[t], &x[t], planted || t < n);
    tr_copy_async_commit();
    tr_copy_async_wait<0>();
    y[t] = tile[t];
}

static bool run_copy_source(bool planted)
{
    auto x = memory_of(THREADS - 3, quad), y = memory_of(THREADS, quad);
    simt_run("copy_source", 1, THREADS, 0,
             [&] { copy_source_kernel(planted, THREADS - 3, x.get(), y.get()); });
    return y[1].w == 4 && y[THREADS - 1].w == 0;
}

/* ---- tensor cores */

static void ldmatrix_kernel(bool planted, uint32_t *y)
{
    TR_SHARED(uint16_t, rows, [33 * 8]);
    for (int i = (int)threadIdx.x; i < 33 * 8; i += 32)
        rows[i] = (uint16_t)i;
    __syncthreads();
    uint32_t r[4];
    tr_ldmatrix_x4(r, rows + 8 * threadIdx.x + (planted ? 4 : 0));
    y[threadIdx.x] = r[3];
}

static bool run_ldmatrix_row(bool planted)
{
    uint32_t y[32];
    simt_run("ldmatrix", 1, 32, 0, [&] { ldmatrix_kernel(planted, y); });
    return y[0] == (24 * 8 | (24 * 8 + 1) << 16);
}

static void mma_kernel(bool planted, float *y)
{
    uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    if (planted && threadIdx.x == 7)
        return;
    tr_mma_m16n8k16<__half>(d, a, b);
    y[threadIdx.x] = d[3];
}

static bool run_mma_lane(bool planted)
{
    auto y = memory_of(32, number);
    simt_run("mma", 1, 32, 0, [&] { mma_kernel(planted, y.get()); });
    return y[0] == 4.0f;
}

const char *const WRONG_RESULT = "a wrong result";
const char *const NOTHING = "nothing";

#define RACE "a race in shared memory"
#define GLOBAL_RACE "a race in global memory"
#define UNWRITTEN "no thread of the block has written"
#define IN_FLIGHT "has not been waited for"
/* The read before the write, or after it: which of them is seen depends on the order. */
#define AN_ERROR "shared memory"
#define OUT_OF_BOUNDS "heap-buffer-overflow"
#define BETWEEN_VARIABLES "use-after-poison"

const kernel_fault kernel_faults[] = {
    {"a read past the end of global memory", run_read_past_end, OUT_OF_BOUNDS, OUT_OF_BOUNDS},
    {"a write past the end of global memory", run_write_past_end, OUT_OF_BOUNDS, OUT_OF_BOUNDS},
    {"a write past a variable in shared memory", run_shared_end, BETWEEN_VARIABLES,
     BETWEEN_VARIABLES},
    {"too little dynamic shared memory", run_dynamic_end, BETWEEN_VARIABLES, BETWEEN_VARIABLES},
    {"a 16-byte load that is not aligned", run_misaligned, "misaligned", "misaligned"},
    {"a read of shared memory that nobody wrote", run_uninitialised, WRONG_RESULT, UNWRITTEN},
    {"shared memory expected from the block before", run_carry, WRONG_RESULT, UNWRITTEN},
    {"no barrier between writing and reading", run_missing_barrier, WRONG_RESULT, AN_ERROR},
    {"no barrier before shared memory is rewritten", run_missing_loop_barrier, WRONG_RESULT, RACE},
    {"no barrier between the lanes of a warp", run_missing_warp_barrier, WRONG_RESULT, AN_ERROR},
    {"a thread that ends before a barrier", run_exit_before_barrier, "barrier", "barrier"},
    {"barriers at two places", run_split_barrier, "is reached while", "is reached while"},
    {"unequal numbers of barriers", run_unequal_rounds, "barrier", "barrier"},
    {"a shuffle from a lane outside its mask", run_absent_lane, "takes no part", "takes no part"},
    {"a shuffle in a branch", run_branch_shuffle, "lanes that do not come", "do not come"},
    {"a mask without the calling lane", run_own_lane, "is not in its mask", "not in its mask"},
    {"a float sum in the order of threads", run_ordered_sum, WRONG_RESULT, WRONG_RESULT},
    {"many threads write one place", run_write_race, WRONG_RESULT, RACE},
    {"many threads add to one place", run_lost_update, NOTHING, RACE},
    {"atomic and plain additions to one place", run_half_atomic, NOTHING, RACE},
    {"blocks that rely on their order", run_block_order, WRONG_RESULT, GLOBAL_RACE},
    {"blocks that add to one place", run_block_update, NOTHING, GLOBAL_RACE},
    {"no wait for a copy", run_copies<NO_WAIT>, WRONG_RESULT, IN_FLIGHT},
    {"a wait that leaves the copy out", run_copies<EARLY_WAIT>, WRONG_RESULT, IN_FLIGHT},
    {"no barrier after the wait for a copy", run_copies<NO_BARRIER>, WRONG_RESULT, AN_ERROR},
    {"a copy into a tile that others read", run_copies<NO_LOOP_BARRIER>, WRONG_RESULT, AN_ERROR},
    {"a copy on its way at the thread's end", run_copies<NO_FINAL_WAIT>, "had not waited for",
     "not waited"},
    {"an asynchronous copy to global memory", run_copy_target, "not in the block's shared",
     "not in the block"},
    {"an asynchronous copy from past the end", run_copy_source, OUT_OF_BOUNDS, OUT_OF_BOUNDS},
    {"a matrix row that is not aligned", run_ldmatrix_row, "is not 16 aligned bytes", "16 aligned"},
    {"a tensor-core product without a lane", run_mma_lane, "needs all lanes", "needs all"},
};
const int num_kernel_faults = sizeof kernel_faults / sizeof *kernel_faults;
