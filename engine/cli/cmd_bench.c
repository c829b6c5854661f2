/* trine bench, and its verb kernels: what this machine's processor does, product by product and operation by operation.
 *
 * Every number is the median of several runs, except the fastest run, which is kept as the peak. Runs of our product and of the library's alternate, so that both meet the same
 * neighbours. `mfu` is measured against the peak of all cores (engine/peak.h). */
#include "engine/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/cli/cmd_bench_int.h"
#include "engine/peak.h"

static const char usage[] =
    "usage: trine bench kernels [--quick] [--threads N]\n"
    "       trine bench checkpoint CONFIG [section.key=value ...] [options]\n"
    "       trine bench checkpoint --state STEP_DIR [options]\n"
    "\n"
    "kernels: rates of this processor: matrix products of a 134M Llama-like model on 1 to N "
    "threads beside "
    "the\n"
    "best that oneDNN alone does, then attention, norms, element-wise operations and optimizer.\n"
    "Keeps the best product rate as the peak that mfu is measured against.\n"
    "\n"
    "  --quick      fewer runs, without the products of the vocabulary\n"
    "  --threads N  up to N threads; otherwise all cores\n"
    "\n"
    "checkpoint: how small a checkpoint is and how fast it is encoded, decoded, written and read, "
    "on a\n"
    "state from real training: of the checkpoint STEP_DIR, or of CONFIG trained here for its "
    "train.steps\n"
    "on one rank (kept in DIR/trine-bench-state). Files are written and read in turn with plain "
    "writes\n"
    "(with fsync) and reads of the same bytes.\n"
    "\n"
    "  --dir DIR    folder on the disk to be measured; otherwise the one it is started in\n"
    "  --threads N  on one thread, then on N; otherwise all cores\n"
    "  --level N    of compression; otherwise 1\n"
    "  --mb N       only the first N MB of values; otherwise 512\n"
    "  --runs N     runs of each measurement; otherwise 5\n";

static const struct {
    const char *name;
    tr_matmul_form form;
    int64_t M, N, K;
} products[] = {
    {"attention out", TR_MATMUL_NT, BENCH_ROWS, BENCH_H, BENCH_H},
    {"mlp up", TR_MATMUL_NT, BENCH_ROWS, BENCH_F, BENCH_H},
    {"mlp down", TR_MATMUL_NT, BENCH_ROWS, BENCH_H, BENCH_F},
    {"attention out, input gradient", TR_MATMUL_NN, BENCH_ROWS, BENCH_H, BENCH_H},
    {"mlp up, input gradient", TR_MATMUL_NN, BENCH_ROWS, BENCH_H, BENCH_F},
    {"mlp down, input gradient", TR_MATMUL_NN, BENCH_ROWS, BENCH_F, BENCH_H},
    {"attention out, weight gradient", TR_MATMUL_TN, BENCH_H, BENCH_H, BENCH_ROWS},
    {"mlp up, weight gradient", TR_MATMUL_TN, BENCH_F, BENCH_H, BENCH_ROWS},
    {"mlp down, weight gradient", TR_MATMUL_TN, BENCH_H, BENCH_F, BENCH_ROWS},
    {"head", TR_MATMUL_NT, BENCH_ROWS, BENCH_V, BENCH_H},
    {"head, input gradient", TR_MATMUL_NN, BENCH_ROWS, BENCH_H, BENCH_V},
    {"head, weight gradient", TR_MATMUL_TN, BENCH_V, BENCH_H, BENCH_ROWS},
};
enum { NUM_PRODUCTS = sizeof products / sizeof *products };

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, compare_seconds);
    return seconds[count / 2];
}

/* Operands of a product, in one block. */
typedef struct operands {
    void *memory;
    size_t bytes;
    tr_matmul args;
} operands;

static size_t rounded(int64_t bytes)
{
    return ((size_t)bytes + 255) & ~(size_t)255;
}

static tr_status operands_create(const bench *b, int product, tr_dtype dtype, operands *o)
{
    int64_t M = products[product].M, N = products[product].N, K = products[product].K;
    tr_matmul_form form = products[product].form;
    int64_t size = (int64_t)tr_dtype_size(dtype);
    bool weight_gradient = form == TR_MATMUL_TN; /* sums in fp32, as a step does */
    tr_dtype c_dtype = weight_gradient ? TR_F32 : dtype;
    size_t a = rounded(M * K * size), w = rounded(N * K * size);
    o->bytes = a + w + rounded(M * N * (int64_t)tr_dtype_size(c_dtype));
    TR_TRY(b->device->memory_create(b->device, TR_MEMORY_DEVICE, o->bytes, &o->memory));
    char *at = o->memory;
    /* Ones in a pattern: zeros or denormals are no fair load. */
    for (int64_t i = 0; i < (int64_t)(a + w) / size; i++) {
        if (dtype == TR_F32)
            ((float *)o->memory)[i] = (float)(i % 13) * 0.125f - 0.75f;
        else
            ((uint16_t *)o->memory)[i] = tr_bf16_from_f32((float)(i % 13) * 0.125f - 0.75f);
    }
    o->args = (tr_matmul){.form = form,
                          .M = M,
                          .N = N,
                          .K = K,
                          .dtype = dtype,
                          .c_dtype = c_dtype,
                          .A = at,
                          .lda = weight_gradient ? M : K,
                          .B = at + a,
                          .ldb = form == TR_MATMUL_NT ? K : N,
                          .C = at + a + w,
                          .ldc = N};
    return TR_OK;
}

/* Median rates in GFLOP/s of ours and of the library (0 where it has none); *best rises to the fastest run of either. */
static tr_status measure_product(const bench *b, const operands *o, double *ours, double *library,
                                 double *best)
{
    double seconds[2][BENCH_RUNS_MAX];
    tr_cpu_library_product *product;
    TR_TRY(tr_cpu_library_product_create(&product, &o->args, b->num_threads));
    tr_status status = TR_OK;
    for (int run = -1; run < b->runs && status == TR_OK; run++) { /* run -1 warms up */
        double begin = tr_clock_seconds();
        status = b->device->ops->matmul(b->device, &o->args);
        double middle = tr_clock_seconds();
        if (status == TR_OK && product != NULL)
            status = tr_cpu_library_product_run(product);
        double end = tr_clock_seconds();
        if (run >= 0) {
            seconds[0][run] = middle - begin;
            seconds[1][run] = end - middle;
        }
    }
    bool has_library = product != NULL;
    tr_cpu_library_product_destroy(product);
    TR_TRY(status);
    double work = 2e-9 * (double)o->args.M * (double)o->args.N * (double)o->args.K;
    *ours = work / bench_median(seconds[0], b->runs); /* sorted: the first is the fastest */
    *best = work / seconds[0][0] > *best ? work / seconds[0][0] : *best;
    *library = 0.0;
    if (has_library) {
        *library = work / bench_median(seconds[1], b->runs);
        *best = work / seconds[1][0] > *best ? work / seconds[1][0] : *best;
    }
    return TR_OK;
}

/* One line: name, size, then ours and the library's for fp32 and bf16. */
static tr_status product_line(const bench *b, int product, double best[2])
{
    static const tr_dtype dtypes[2] = {TR_F32, TR_BF16};
    printf("  %-31s %5lld x %5lld x %5lld", products[product].name, (long long)products[product].M,
           (long long)products[product].N, (long long)products[product].K);
    for (int d = 0; d < 2; d++) {
        operands o;
        double ours = 0.0, library = 0.0;
        TR_TRY(operands_create(b, product, dtypes[d], &o));
        tr_status status = measure_product(b, &o, &ours, &library, &best[d]);
        b->device->memory_destroy(b->device, TR_MEMORY_DEVICE, o.memory, o.bytes);
        TR_TRY(status);
        if (library > 0.0)
            printf("  %8.1f %8.1f", ours, library);
        else
            printf("  %8.1f        -", ours);
    }
    printf("\n");
    fflush(stdout);
    return TR_OK;
}

static tr_status bench_products(const bench *b, bool quick, double best[2])
{
    printf("\nmatrix products, %d thread%s, GFLOP/s\n", b->num_threads,
           b->num_threads == 1 ? "" : "s");
    printf("  %-31s %21s  %8s %8s  %8s %8s\n", "", "M x     N x     K", "fp32", "oneDNN", "bf16",
           "oneDNN");
    for (int product = 0; product < NUM_PRODUCTS; product++) {
        bool vocabulary = products[product].M == BENCH_V || products[product].N == BENCH_V ||
                          products[product].K == BENCH_V;
        if (!quick || !vocabulary)
            TR_TRY(product_line(b, product, best));
    }
    printf("  %-53s  %8.1f %17s %8.1f\n", "fastest run", best[0], "", best[1]);
    return TR_OK;
}

/* Everything on one number of threads. */
static tr_status bench_threads(int num_threads, bool quick, double best[2])
{
    const tr_workspace_need need = {.dtype = TR_F32,
                                    .B = BENCH_B,
                                    .T = BENCH_T,
                                    .H = BENCH_H,
                                    .A = BENCH_HEADS,
                                    .K = BENCH_HEADS,
                                    .D = BENCH_D,
                                    .max_matmul = BENCH_V};
    bench b = {.num_threads = num_threads, .runs = quick ? 3 : 9};
    TR_TRY(tr_cpu_device_create(&b.device, num_threads));
    size_t bytes = b.device->workspace_bytes(b.device, &need);
    void *workspace = NULL;
    tr_status status = b.device->memory_create(b.device, TR_MEMORY_DEVICE, bytes, &workspace);
    if (status == TR_OK) {
        b.device->workspace_set(b.device, workspace, bytes);
        status = bench_products(&b, quick, best);
        for (int d = 0; d < 2 && status == TR_OK; d++)
            status = bench_operations(&b, d == 0 ? TR_F32 : TR_BF16);
        b.device->memory_destroy(b.device, TR_MEMORY_DEVICE, workspace, bytes);
    }
    tr_device_destroy(b.device);
    return status;
}

static tr_status bench_kernels(bool quick, int max_threads)
{
    static const tr_dtype dtypes[2] = {TR_F32, TR_BF16};
    printf("%s, %d cores\n", tr_cpu_device_numerics(), tr_peak_num_cores());
    for (int threads = 1; threads <= max_threads; threads = threads == max_threads ? threads + 1
                                                            : 2 * threads < max_threads
                                                                ? 2 * threads
                                                                : max_threads) {
        double best[2] = {0.0, 0.0};
        TR_TRY(bench_threads(threads, quick, best));
        if (threads != tr_peak_num_cores())
            continue;
        printf("\npeak of this machine, kept for mfu: fp32 %.1f GFLOP/s, bf16 %.1f GFLOP/s\n",
               best[0], best[1]);
        for (int d = 0; d < 2; d++)
            if (!tr_peak_store(dtypes[d], best[d] * 1e9))
                tr_log_warning("cannot write the cache folder (XDG_CACHE_HOME or ~/.cache): the "
                               "peak is not kept");
    }
    return TR_OK;
}

static tr_status run_kernels(int argc, char **argv)
{
    bool quick = tr_cli_flag(&argc, argv, "--quick");
    int64_t threads = tr_peak_num_cores();
    TR_TRY(tr_cli_int(&argc, argv, "--threads", 1, 1024, &threads));
    TR_TRY(tr_cli_words(argc, argv, 1, 1));
    return bench_kernels(quick, (int)threads);
}

static tr_status run(int argc, char **argv)
{
    static const char *const later[] = {"comm", "scale", "data"};
    if (argc < 2)
        return tr_cli_words(argc, argv, 1, 1);
    if (strcmp(argv[1], "kernels") == 0)
        return run_kernels(argc, argv);
    if (strcmp(argv[1], "checkpoint") == 0)
        return bench_checkpoint(argc, argv);
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcmp(argv[1], later[i]) == 0)
            return tr_fail(TR_ERR_SETTINGS,
                           "trine bench %s: not in this version; it has: kernels, checkpoint",
                           argv[1]);
    return tr_fail(TR_ERR_SETTINGS,
                   "trine bench %s: no such benchmark; it has: kernels, checkpoint", argv[1]);
}

const tr_verb tr_verb_bench = {
    .name = "bench",
    .summary = "rates of this machine's processor; cost of checkpoints",
    .usage = usage,
    .run = run,
};
