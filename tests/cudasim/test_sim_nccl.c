/* The stand-in for NCCL: every operation gives what it should whatever the seed, waits as NCCL's do, and goes on without the host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cudasim/sim_nccl_use.h"

enum { RANKS = 4, SEEDS = 6, BIG = 200001 };

/* ---- values ---- */

/* A rank's element i; sums of them depend on their order. */
static float value_of(int rank, size_t i)
{
    uint32_t h = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank + 1) * 40503u;
    return (float)(h % 10007) / 10007.0f * (rank % 2 == 0 ? 1.0f : -1000.0f);
}

/* In the order of the ring that ends at `owner`. */
static float ring_sum(int owner, int n, size_t i)
{
    float sum = value_of((owner + 1) % n, i);
    for (int step = 2; step <= n && n > 1; step++)
        sum += value_of((owner + step) % n, i);
    return sum;
}

static float tree_sum(size_t i)
{
    return (value_of(0, i) + value_of(1, i)) + (value_of(2, i) + value_of(3, i));
}

static float largest(int n, size_t i)
{
    float most = value_of(0, i);
    for (int r = 1; r < n; r++)
        most = value_of(r, i) > most ? value_of(r, i) : most;
    return most;
}

/* memory[n] = the rank's elements from `first` on. */
static void upload(const use_memory *m, float *device, int rank, size_t first, size_t n)
{
    use_finish(m->stream);
    for (size_t i = 0; i < n; i++)
        m->host[i] = value_of(rank, first + i);
    use_copy(device, m->host, n, m->stream);
    use_finish(m->stream);
}

/* host = device[n], at last. */
static const float *fetch(const use_memory *m, const float *device, size_t n)
{
    use_copy(m->host, device, n, m->stream);
    use_finish(m->stream);
    return m->host;
}

/* ---- operations ---- */

static void all_gather(const sim_ranks *ranks, ncclComm_t comm, const use_memory *m, size_t count,
                       bool in_place)
{
    float *own = in_place ? m->dst + (size_t)ranks->rank * count : m->src;
    upload(m, own, ranks->rank, 0, count);
    use_called(comm, ncclAllGather(own, m->dst, count, ncclFloat32, comm, m->stream));
    const float *got = fetch(m, m->dst, count * (size_t)ranks->num_ranks);
    for (int r = 0; r < ranks->num_ranks; r++)
        for (size_t i = 0; i < count; i++)
            SIM_MUST(got[(size_t)r * count + i] == value_of(r, i));
}

static void reduce_scatter(const sim_ranks *ranks, ncclComm_t comm, const use_memory *m,
                           size_t count, bool in_place)
{
    size_t first = (size_t)ranks->rank * count;
    float *dst = in_place ? m->src + first : m->dst;
    upload(m, m->src, ranks->rank, 0, count * (size_t)ranks->num_ranks);
    use_called(comm, ncclReduceScatter(m->src, dst, count, ncclFloat32, ncclSum, comm, m->stream));
    const float *got = fetch(m, dst, count);
    size_t unlike_tree = 0;
    for (size_t i = 0; i < count; i++) {
        SIM_MUST(got[i] == ring_sum(ranks->rank, ranks->num_ranks, first + i));
        unlike_tree += ranks->num_ranks == RANKS && got[i] != tree_sum(first + i);
    }
    SIM_MUST(ranks->num_ranks < RANKS || count < 100 || unlike_tree > 0);
}

/* To each root in turn, in one group; root r has count - r elements, if there are so many. */
static void reduce(const sim_ranks *ranks, ncclComm_t comm, const use_memory *m, size_t count,
                   ncclRedOp_t op, bool in_place)
{
    size_t n = (size_t)ranks->num_ranks, me = (size_t)ranks->rank, first = me * count;
    float *dst = in_place ? m->src + first : m->dst;
    upload(m, m->src, ranks->rank, 0, n * count);
    SIM_MUST(ncclGroupStart() == ncclSuccess);
    for (size_t root = 0; root < n; root++)
        SIM_MUST(ncclReduce(m->src + root * count, root == me ? dst : NULL,
                            count > root ? count - root : 0, ncclFloat32, op, (int)root, comm,
                            m->stream) == ncclSuccess);
    use_called(comm, ncclGroupEnd());
    const float *got = fetch(m, dst, count > me ? count - me : 0);
    for (size_t i = 0; i + me < count; i++)
        SIM_MUST(got[i] == (op == ncclSum ? ring_sum((int)me, (int)n, first + i)
                                          : largest((int)n, first + i)));
}

/* Every rank sends to every one, itself too, in messages of different lengths, of which some are empty; twice in one group. */
static void exchange(const sim_ranks *ranks, ncclComm_t comm, const use_memory *m, size_t count)
{
    int n = ranks->num_ranks, me = ranks->rank;
    size_t at = 0, room = count / 2;
    upload(m, m->src, me, 0, (size_t)n * count);
    SIM_MUST(ncclGroupStart() == ncclSuccess);
    for (int half = 0; half < 2; half++)
        for (int peer = 0; peer < n; peer++) {
            size_t sent = (me + peer) % 3 == 0 ? 0 : room - room / 3 * (size_t)half;
            SIM_MUST(ncclSend(m->src + (size_t)peer * count + (size_t)half * room,
                              sent * sizeof(float), ncclChar, peer, comm,
                              m->stream) == ncclSuccess);
            SIM_MUST(ncclRecv(m->dst + at, sent * sizeof(float), ncclChar, peer, comm, m->stream) ==
                     ncclSuccess);
            at += sent;
        }
    use_called(comm, ncclGroupEnd());
    const float *got = fetch(m, m->dst, at);
    for (int half = 0; half < 2; half++)
        for (int peer = 0; peer < n; peer++) {
            size_t sent = (me + peer) % 3 == 0 ? 0 : room - room / 3 * (size_t)half;
            for (size_t i = 0; i < sent; i++)
                SIM_MUST(*got++ == value_of(peer, (size_t)me * count + (size_t)half * room + i));
        }
}

static void operations(const sim_ranks *ranks)
{
    static const size_t counts[] = {0, 1, 7, 1000, 8193, BIG / 4};
    use_memory m = use_memory_make(BIG);
    for (int seed = 0; seed < SEEDS; seed++) {
        cudasim_seed_set((uint64_t)(seed * ranks->num_ranks + ranks->rank));
        ncclComm_t comm = use_comm_make(ranks, seed);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (int in_place = 0; in_place < 2; in_place++) {
                all_gather(ranks, comm, &m, counts[i], in_place);
                reduce_scatter(ranks, comm, &m, counts[i], in_place);
                reduce(ranks, comm, &m, counts[i], ncclSum, in_place);
                reduce(ranks, comm, &m, counts[i], ncclMax, in_place);
                exchange(ranks, comm, &m, counts[i]);
            }
        use_comm_end(comm);
    }
    use_memory_end(&m);
}

static void test_operations(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS; n++)
        sim_ranks_run("operations", n, operations);
}

/* ---- order and waiting ---- */

/* Two communicators in opposite order on two streams, many times: their works do not wait for each other. */
static void opposite(const sim_ranks *ranks)
{
    ncclComm_t comms[2] = {use_comm_make(ranks, 0), use_comm_make(ranks, 1)};
    use_memory m[2] = {use_memory_make(RANKS), use_memory_make(RANKS)};
    for (int turn = 0; turn < 30; turn++) {
        for (int k = 0; k < 2; k++) {
            int which = (k + ranks->rank) % 2;
            upload(&m[which], m[which].src, ranks->rank, (size_t)(turn + which), 1);
            use_called(comms[which], ncclAllGather(m[which].src, m[which].dst, 1, ncclFloat32,
                                                   comms[which], m[which].stream));
        }
        for (int k = 0; k < 2; k++) {
            const float *got = fetch(&m[k], m[k].dst, (size_t)ranks->num_ranks);
            for (int r = 0; r < ranks->num_ranks; r++)
                SIM_MUST(got[r] == value_of(r, (size_t)(turn + k)));
        }
    }
    for (int k = 0; k < 2; k++) {
        use_comm_end(comms[k]);
        use_memory_end(&m[k]);
    }
}

static void test_opposite(void **state)
{
    (void)state;
    sim_ranks_run("opposite order", RANKS, opposite);
}

static bool is_reached(cudaEvent_t event)
{
    cudaError_t error = cudaEventQuery(event);
    SIM_MUST(error == cudaSuccess || error == cudaErrorNotReady);
    cudaGetLastError();
    return error == cudaSuccess;
}

/* A send, also of nothing, is not complete before its receive runs, which a copy before it holds back. */
static void rendezvous(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(8);
    for (size_t n = 0; n < 3; n++) {
        upload(&m, m.src, ranks->rank, n, n);
        if (ranks->rank == 0) {
            use_called(comm, ncclSend(m.src, n, ncclFloat32, 1, comm, m.stream));
            cudaEvent_t sent = use_mark(m.stream);
            for (int tries = 0; tries < 30; tries++, use_nap_ms(1))
                SIM_MUST(!is_reached(sent));
            atomic_store(&ranks->shared->flags[n], 1);
            while (!is_reached(sent))
                use_nap_ms(1);
            cudaEventDestroy(sent);
        } else {
            sim_ranks_wait(ranks, (int)n);
            use_called(comm, ncclRecv(m.dst, n, ncclFloat32, 0, comm, m.stream));
            const float *got = fetch(&m, m.dst, n);
            for (size_t i = 0; i < n; i++)
                SIM_MUST(got[i] == value_of(0, n + i));
        }
    }
    use_comm_end(comm);
    use_memory_end(&m);
}

/* Most sends read their source only when their receive has begun, some before. */
static void late_read(const sim_ranks *ranks)
{
    enum { LEAST = 20, MOST = 1000, SEEN = 0 };
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(1), other = use_memory_make(1);
    int turns = 0, early = 0, late = 0;
    for (; turns < MOST && atomic_load(&ranks->shared->flags[SEEN]) == 0; turns++) {
        if (ranks->rank == 0) {
            upload(&m, m.src, 0, (size_t)turns, 1);
            use_called(comm, ncclSend(m.src, 1, ncclFloat32, 1, comm, m.stream));
            use_nap_ms(5); /* so that it begins */
            upload(&other, m.src, 0, (size_t)turns + 1, 1);
        }
        sim_ranks_barrier(ranks);
        if (ranks->rank == 1) {
            use_called(comm, ncclRecv(m.dst, 1, ncclFloat32, 0, comm, m.stream));
            float got = fetch(&m, m.dst, 1)[0];
            early += got == value_of(0, (size_t)turns);
            late += got == value_of(0, (size_t)turns + 1);
            atomic_store(&ranks->shared->flags[SEEN], early > 0 && turns + 1 >= LEAST);
        }
        use_finish(m.stream);
        sim_ranks_barrier(ranks);
    }
    SIM_MUST(ranks->rank == 0 || (early > 0 && late > turns / 3 && early + late == turns));
    use_comm_end(comm);
    use_memory_end(&m);
    use_memory_end(&other);
}

/* A send whose receive never comes ends by the abort, and what stands behind it on the stream runs. */
static void aborted(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(8);
    ncclResult_t state;
    if (ranks->rank == 0) {
        use_called(comm, ncclSend(m.src, 8, ncclFloat32, 1, comm, m.stream));
        cudaEvent_t sent = use_mark(m.stream);
        for (int tries = 0; tries < 30; tries++, use_nap_ms(1)) {
            SIM_MUST(!is_reached(sent));
            SIM_MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
        }
        SIM_MUST(ncclCommAbort(comm) == ncclSuccess);
        use_finish(m.stream);
        SIM_MUST(is_reached(sent));
        cudaEventDestroy(sent);
    }
    sim_ranks_barrier(ranks);
    if (ranks->rank == 1)
        SIM_MUST(ncclCommAbort(comm) == ncclSuccess);
    use_memory_end(&m);
}

/* What a rank has posted reaches the others while its host waits for something else, with the copy and the event that the send waits for. */
static void without_host(const sim_ranks *ranks)
{
    enum { N = 100000 };
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(N);
    cudaStream_t first = use_stream_make();
    upload(&m, m.src, ranks->rank, 0, N);
    for (int turn = 0; turn < 10; turn++) {
        if (ranks->rank == 0) {
            use_copy(m.dst, m.src, N, first);
            cudaEvent_t copied = use_mark(first);
            SIM_MUST(cudaStreamWaitEvent(m.stream, copied, 0) == cudaSuccess);
            cudaEventDestroy(copied);
            use_called(comm, ncclSend(m.dst, N, ncclFloat32, 1, comm, m.stream));
        } else {
            use_called(comm, ncclRecv(m.dst, N, ncclFloat32, 0, comm, m.stream));
            SIM_MUST(fetch(&m, m.dst, N)[N - 1] == value_of(0, N - 1));
        }
        sim_ranks_barrier(ranks);
        use_finish(m.stream);
    }
    cudaStreamDestroy(first);
    use_comm_end(comm);
    use_memory_end(&m);
}

/* A communicator's works run in the order of the calls, also on two streams; each stream holds back its own. */
static void calls_order(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory a = use_memory_make(8), b = use_memory_make(8);
    for (int turn = 0; turn < 20; turn++) {
        if (ranks->rank == 0) {
            upload(&a, a.src, turn, 0, 1);
            upload(&b, b.src, turn, 1, 1);
            use_called(comm, ncclSend(a.src, 1, ncclFloat32, 1, comm, a.stream));
            use_called(comm, ncclSend(b.src, 1, ncclFloat32, 1, comm, b.stream));
            use_finish(b.stream);
            use_finish(a.stream);
        } else {
            use_called(comm, ncclRecv(a.dst, 1, ncclFloat32, 0, comm, a.stream));
            use_called(comm, ncclRecv(b.dst, 1, ncclFloat32, 0, comm, b.stream));
            SIM_MUST(fetch(&b, b.dst, 1)[0] == value_of(turn, 1));
            SIM_MUST(fetch(&a, a.dst, 1)[0] == value_of(turn, 0));
        }
    }
    use_comm_end(comm);
    use_memory_end(&a);
    use_memory_end(&b);
}

/* What a child process of fork enqueues goes on there too. */
static void forked(const sim_ranks *ranks)
{
    ncclComm_t comm = use_comm_make(ranks, 0);
    for (uint64_t seed = 0; seed < 10; seed++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            cudasim_seed_set(seed);
            ncclUniqueId id;
            SIM_MUST(ncclGetUniqueId(&id) == ncclSuccess);
            ranks->shared->ids[1] = id;
            ncclComm_t own = use_comm_make(ranks, 1);
            use_memory m = use_memory_make(1);
            use_called(own, ncclAllGather(m.src, m.dst, 1, ncclFloat32, own, m.stream));
            use_comm_end(own); /* ends when its work has run */
            _exit(0);
        }
        SIM_MUST(waitpid(child, &status, 0) == child && status == 0);
    }
    use_comm_end(comm);
}

/* The first large collective waits until all ranks have called it, later ones and small ones do not. */
static void connections(const sim_ranks *ranks, bool at_once)
{
    enum { LARGE = 1000, CALLED = 0 };
    ncclComm_t comm = use_comm_make(ranks, 0);
    use_memory m = use_memory_make(2 * LARGE);
    for (int turn = 0; turn < 3; turn++) {
        size_t n = turn == 0 ? 1 : LARGE;
        bool waits = turn == 1 && !at_once;
        if (ranks->rank == 1)
            sim_ranks_wait(ranks, CALLED + turn);
        ncclResult_t state = ncclAllGather(m.src, m.dst, n, ncclFloat32, comm, m.stream);
        for (int tries = 0; state == ncclInProgress && tries < (ranks->rank == 0 ? 50 : 60000);
             tries++, use_nap_ms(1))
            SIM_MUST(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
        SIM_MUST(state == (waits && ranks->rank == 0 ? ncclInProgress : ncclSuccess));
        atomic_store(&ranks->shared->flags[CALLED + turn], 1);
        use_called(comm, state);
        use_finish(m.stream);
    }
    use_comm_end(comm);
    use_memory_end(&m);
}

static void connections_late(const sim_ranks *ranks)
{
    connections(ranks, false);
}

static void connections_at_once(const sim_ranks *ranks)
{
    connections(ranks, true);
}

static void test_waiting(void **state)
{
    (void)state;
    sim_ranks_run("rendezvous", 2, rendezvous);
    sim_ranks_run("late reads", 2, late_read);
    sim_ranks_run("connections at the first use", 2, connections_late);
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    sim_ranks_run("connections at once", 2, connections_at_once);
    unsetenv("NCCL_RUNTIME_CONNECT");
    sim_ranks_run("abort", 2, aborted);
    sim_ranks_run("without the host", 2, without_host);
    sim_ranks_run("order of calls", 2, calls_order);
    sim_ranks_run("after fork", 1, forked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operations),
                                       cmocka_unit_test(test_opposite),
                                       cmocka_unit_test(test_waiting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
