/* How fast a training step is, against what the processor's matrix products reach in the same seconds:
 *
 *     train_bench CONFIG [--steps N] [--warmup N] [--operations] [--no-peak] [key=value ...]
 *
 * under mpiexec or alone, on random tokens. Prints a line per step, the median step time, tokens and model FLOP per second, the time split of a step; on one rank the best
 * product rate, measured between the steps, and the share of it that the model's FLOP/s are; with --operations a table of rank 0's time by operation. The
 * last line, `result key=value ...`, is for scripts. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/model/params.h"
#include "engine/peak.h"
#include "engine/trine.h"
#include "tests/bench/op_times.h"
#include "tests/bench/yardstick.h"

enum { MAX_STEPS = 1000 };

typedef struct options {
    int steps, warmup;
    bool operations, peak;
} options;

typedef struct batch_memory {
    int64_t seq_len, micro_batch, vocab;
    int32_t *tokens; /* [M][B][T], then as many labels */
    uint64_t *samples;
} batch_memory;

static tr_status batch_make(void *context, int64_t step, uint64_t first_sample,
                            const int *microbatches, int num_microbatches, tr_run_batch *batch)
{
    batch_memory *memory = context;
    (void)step;
    int64_t sequences = num_microbatches * memory->micro_batch, T = memory->seq_len;
    if (memory->tokens == NULL) {
        memory->tokens = TR_NEW_ARRAY(int32_t, (size_t)(2 * sequences * T));
        memory->samples = TR_NEW_ARRAY(uint64_t, (size_t)sequences);
    }
    int32_t *labels = memory->tokens + sequences * T;
    for (int64_t s = 0; s < sequences; s++) {
        memory->samples[s] =
            first_sample + (uint64_t)(microbatches[s / memory->micro_batch] * memory->micro_batch +
                                      s % memory->micro_batch);
        for (int64_t t = 0; t <= T; t++) {
            uint64_t noise = tr_hash_mix(memory->samples[s], (uint64_t)t);
            int32_t token = (int32_t)(noise % (uint64_t)memory->vocab);
            if (t < T)
                memory->tokens[s * T + t] = token;
            if (t > 0)
                labels[s * T + t - 1] = token;
        }
    }
    *batch = (tr_run_batch){memory->tokens, labels, memory->samples};
    return TR_OK;
}

static void check(tr_status status)
{
    if (status == TR_OK)
        return;
    fprintf(stderr, "error: %s (%s)\n", tr_error_message(), tr_error_trail());
    MPI_Abort(MPI_COMM_WORLD, tr_status_exit_code(status));
}

/* Processor time of this rank's threads so far. */
static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* The most memory that was resident, summed over ranks, in GiB; memory that ranks share counts for each. Collective. */
static double resident_gib(void)
{
    struct rusage usage;
    double mine, all = 0;
    getrusage(RUSAGE_SELF, &usage);
    mine = (double)usage.ru_maxrss / 1048576;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static int64_t num_parameters(tr_run *run)
{
    int64_t count = 0, shape[2];
    for (int i = 0; i < tr_run_num_params(run); i++) {
        tr_run_param_name(run, i, shape);
        count += shape[0] * shape[1];
    }
    return count;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 != 0 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void step_print(int step, const tr_metrics *m, double processor)
{
    printf("step %d: %.3f s, processor %.3f s, loss %.4f; compute %.3f tensor %.3f data %.3f "
           "pipeline %.3f idle %.3f s\n",
           step, m->step_seconds, processor, m->loss, m->times.compute, m->times.tensor,
           m->times.data, m->times.pipeline, m->times.idle);
    fflush(stdout);
}

static void result_print(tr_run *run, const options *o, double seconds, double processor,
                         double resident, const yardstick *y)
{
    const tr_config *cfg = tr_run_config(run);
    double tokens = (double)(cfg->train.global_batch * cfg->train.seq_len);
    double model_flops = tr_model_flops_per_token(cfg) * tokens / seconds;
    printf("result parameters=%lld dtype=%s ranks=%lld steps=%d step_s=%.4f processor_s=%.4f "
           "resident_gib=%.2f tokens_per_s=%.2f model_gflops=%.2f",
           (long long)num_parameters(run), tr_dtype_name(cfg->train.precision),
           (long long)cfg->derived.num_ranks, o->steps, seconds, processor, resident,
           tokens / seconds, model_flops * 1e-9);
    if (y != NULL) {
        yardstick_rates best = yardstick_best(y);
        double peak = best.onednn > best.onednn_f32 ? best.onednn : best.onednn_f32;
        printf(" onednn_gflops=%.1f onednn_fp32_gflops=%.1f own_product_gflops=%.1f "
               "share_of_onednn=%.3f share_of_best=%.3f",
               best.onednn * 1e-9, best.onednn_f32 * 1e-9, best.ours * 1e-9, model_flops / peak,
               model_flops / (best.ours > peak ? best.ours : peak));
    }
    printf("\n");
}

static void measure(tr_run *run, const options *o, bool speak, yardstick *y)
{
    double seconds[MAX_STEPS], processor[MAX_STEPS], total = 0;
    for (int s = 0; s < o->warmup + o->steps; s++) {
        tr_metrics metrics;
        if (s == o->warmup)
            op_times_reset();
        if (y != NULL)
            check(yardstick_run(y));
        double before = processor_seconds();
        check(tr_run_step(run, &metrics));
        double used = processor_seconds() - before;
        if (speak)
            step_print(s + 1, &metrics, used);
        if (s < o->warmup)
            continue;
        seconds[s - o->warmup] = metrics.step_seconds;
        processor[s - o->warmup] = used;
        total += metrics.step_seconds;
    }
    if (y != NULL)
        check(yardstick_run(y));
    if (speak && o->operations)
        op_times_print(stdout, o->steps, total / o->steps);
    double resident = resident_gib();
    if (speak)
        result_print(run, o, median(seconds, o->steps), median(processor, o->steps), resident, y);
}

static int number(const char *text, int least)
{
    int value = atoi(text);
    if (value < least || value > MAX_STEPS) {
        fprintf(stderr, "error: train_bench: %s is not a number of %d to %d steps\n", text, least,
                MAX_STEPS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    return value;
}

/* Takes the options out of argv; what is left from argv[2] on are overrides. Returns how many. */
static int options_read(int argc, char **argv, options *o)
{
    int kept = 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            o->steps = number(argv[++i], 1);
        else if (strcmp(argv[i], "--warmup") == 0 && i + 1 < argc)
            o->warmup = number(argv[++i], 0);
        else if (strcmp(argv[i], "--operations") == 0)
            o->operations = true;
        else if (strcmp(argv[i], "--no-peak") == 0)
            o->peak = false;
        else
            argv[2 + kept++] = argv[i];
    }
    return kept;
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    options o = {.steps = 3, .warmup = 1, .peak = size == 1};
    if (argc < 2) {
        fprintf(stderr, "usage: train_bench CONFIG [--steps N] [--warmup N] [--operations] "
                        "[--no-peak] [key=value ...]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int kept = options_read(argc, argv, &o);
    tr_config cfg;
    check(tr_config_load(&cfg, argv[1], kept, argv + 2, size));
    batch_memory memory = {cfg.train.seq_len, cfg.train.micro_batch, cfg.model.vocab, NULL, NULL};
    tr_run_callbacks callbacks = {
        .context = &memory, .batch = batch_make, .device = o.operations ? op_times_wrap : NULL};
    yardstick *y = NULL;
    tr_run *run;
    check(tr_run_open(&run, &cfg, MPI_COMM_WORLD, &callbacks));
    if (o.peak && size == 1)
        check(yardstick_create(&y, cfg.train.precision, tr_peak_threads(cfg.device.threads, 1),
                               cfg.train.micro_batch * cfg.train.seq_len, cfg.model.hidden,
                               cfg.model.ffn, cfg.model.vocab));
    measure(run, &o, rank == 0, y);
    yardstick_destroy(y);
    tr_run_close(run);
    tr_config_clear(&cfg);
    tr_free(memory.tokens);
    tr_free(memory.samples);
    MPI_Finalize();
    return 0;
}
