/* Who should move messages on while a rank computes: nobody until the end, the computing thread between products, or a helper thread?
 *
 *     mpiexec -n 2 progress_bench [products] [rounds]
 *
 * Each rank swaps a message with its neighbour (rank xor 1) and computes `products` matrix products of about a millisecond on one thread. Prints, by
 * message size, the fastest time of a round: products alone, the swap alone, and both together under each of
 *     end       MPI is called again when all products are done
 *     between   MPI_Testall after each product, as the engine does
 *     helper    a second thread tests every 0.2 ms, and sleeps between tests (needs MPI_THREAD_MULTIPLE)
 * What is above the products' time was not hidden. */
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/device.h"

enum { SIDE = 320 };

typedef enum variant { PRODUCTS, SWAP, AT_END, BETWEEN, HELPER, NUM_VARIANTS } variant;
static const char *const variant_names[] = {"products", "swap", "end", "between", "helper"};

typedef struct bench {
    tr_device *device;
    tr_matmul product;
    int num_products, num_rounds, peer;
    char *sent, *received;
    MPI_Request requests[2];
    _Atomic int complete; /* of the swap; set by who tests */
} bench;

static void check(tr_status status)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "error: %s\n", tr_error_message());
    MPI_Abort(MPI_COMM_WORLD, tr_status_exit_code(status));
}

static void test(bench *b)
{
    MPI_Status statuses[2];
    int complete = 0;
    if (b->complete)
        return;
    MPI_Testall(2, b->requests, &complete, statuses);
    b->complete = complete;
}

static void *help(void *context)
{
    bench *b = context;
    for (test(b); !b->complete; test(b))
        tr_clock_sleep(2e-4);
    return NULL;
}

static double round_seconds(bench *b, variant how, int bytes)
{
    pthread_t helper;
    double begin = tr_clock_seconds();
    b->complete = how == PRODUCTS;
    if (how != PRODUCTS) {
        MPI_Irecv(b->received, bytes, MPI_BYTE, b->peer, 0, MPI_COMM_WORLD, &b->requests[0]);
        MPI_Isend(b->sent, bytes, MPI_BYTE, b->peer, 0, MPI_COMM_WORLD, &b->requests[1]);
    }
    if (how == HELPER && pthread_create(&helper, NULL, help, b) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; how != SWAP && i < b->num_products; i++) {
        check(b->device->ops->matmul(b->device, &b->product));
        if (how == BETWEEN)
            test(b);
    }
    if (how == HELPER)
        pthread_join(helper, NULL);
    for (test(b); !b->complete; test(b))
        tr_clock_sleep(5e-5);
    return tr_clock_seconds() - begin;
}

/* The variants take turns, so that all meet the same neighbours. */
static void fastest_seconds(bench *b, int bytes, double fastest[NUM_VARIANTS])
{
    for (int how = 0; how < NUM_VARIANTS; how++)
        fastest[how] = HUGE_VAL;
    for (int r = 0; r < b->num_rounds; r++)
        for (int how = 0; how < NUM_VARIANTS; how++) {
            MPI_Barrier(MPI_COMM_WORLD);
            fastest[how] = fmin(fastest[how], round_seconds(b, (variant)how, bytes));
        }
}

static void product_create(bench *b)
{
    float *operands = aligned_alloc(256, 3 * SIDE * SIDE * sizeof(float));
    for (int i = 0; i < 3 * SIDE * SIDE; i++)
        operands[i] = 0.5f;
    b->product = (tr_matmul){.form = TR_MATMUL_NT,
                             .M = SIDE,
                             .N = SIDE,
                             .K = SIDE,
                             .dtype = TR_F32,
                             .c_dtype = TR_F32,
                             .A = operands,
                             .lda = SIDE,
                             .B = operands + SIDE * SIDE,
                             .ldb = SIDE,
                             .C = operands + 2 * SIDE * SIDE,
                             .ldc = SIDE};
    const tr_workspace_need need = {.dtype = TR_F32, .max_matmul = SIDE};
    size_t bytes = b->device->workspace_bytes(b->device, &need);
    void *workspace;
    check(b->device->memory_create(b->device, TR_MEMORY_DEVICE, bytes, &workspace));
    b->device->workspace_set(b->device, workspace, bytes);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1 << 14, 1 << 18, 1 << 22, 1 << 25};
    int provided, rank, size;
    bench b = {.num_products = argc > 1 ? atoi(argv[1]) : 20,
               .num_rounds = argc > 2 ? atoi(argv[2]) : 11};
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided < MPI_THREAD_MULTIPLE || size % 2 != 0 || b.num_products < 1 || b.num_rounds < 1) {
        fprintf(stderr, "usage: mpiexec -n EVEN progress_bench [products] [rounds]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    b.peer = rank ^ 1;
    check(tr_cpu_device_create(&b.device, 1));
    product_create(&b);
    b.sent = calloc(1, (size_t)sizes[3]);
    b.received = calloc(1, (size_t)sizes[3]);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double fastest[NUM_VARIANTS];
        fastest_seconds(&b, sizes[s], fastest);
        for (int how = PRODUCTS; rank == 0 && how < NUM_VARIANTS; how++)
            printf("%s%s %.2f ms", how > 0 ? ", " : "", variant_names[how], fastest[how] * 1e3);
        if (rank == 0)
            printf("  (%d KiB)\n", sizes[s] / 1024);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
