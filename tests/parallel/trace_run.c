/* Runs a configuration under mpiexec on hand-made tokens and prints what a comparison of layouts needs:
 *
 *     trace_run CONFIG [--steps N] [--grads] [key=value ...]
 *
 * one line per step with loss and gradient norm as hexadecimal floats, then one line per global tensor with the hash of its fp32 bytes: the
 * step-1 gradients (--grads: their values' norms too), final masters and moments. Equal output means equal bits. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/trine.h"

typedef struct tokens {
    int64_t seq_len, micro_batch, vocab, count;
    int32_t *tokens, *labels;
    uint64_t *samples;
} tokens;

/* Token t of sample n: text with structure, so that losses move: a walk whose stride depends on the sample. */
static int32_t token_at(uint64_t sample, int64_t t, int64_t vocab)
{
    uint64_t noise = tr_hash_mix(sample, (uint64_t)t);
    uint64_t walk = sample * 7 + (uint64_t)t * (1 + sample % 3);
    return (int32_t)((noise % 8 == 0 ? noise >> 8 : walk) % (uint64_t)vocab);
}

static tr_status batch_make(void *context, int64_t step, uint64_t first_sample,
                            const int *microbatches, int num_microbatches, tr_run_batch *batch)
{
    tokens *t = context;
    int64_t sequences = num_microbatches * t->micro_batch;
    (void)step;
    if (t->count < sequences) {
        t->tokens = tr_realloc(t->tokens, (size_t)(sequences * t->seq_len), sizeof(int32_t));
        t->labels = tr_realloc(t->labels, (size_t)(sequences * t->seq_len), sizeof(int32_t));
        t->samples = tr_realloc(t->samples, (size_t)sequences, sizeof(uint64_t));
        t->count = sequences;
    }
    for (int64_t s = 0; s < sequences; s++) {
        uint64_t sample =
            first_sample +
            (uint64_t)(microbatches[s / t->micro_batch] * t->micro_batch + s % t->micro_batch);
        t->samples[s] = sample;
        for (int64_t i = 0; i < t->seq_len; i++) {
            t->tokens[s * t->seq_len + i] = token_at(sample, i, t->vocab);
            t->labels[s * t->seq_len + i] = token_at(sample, i + 1, t->vocab);
        }
    }
    *batch = (tr_run_batch){t->tokens, t->labels, t->samples};
    return TR_OK;
}

static void fail(tr_status status)
{
    fprintf(stderr, "error: %s (%s)\n", tr_error_message(), tr_error_trail());
    MPI_Abort(MPI_COMM_WORLD, tr_status_exit_code(status));
}

static void check(tr_status status)
{
    if (status != TR_OK)
        fail(status);
}

static void tensors_print(tr_run *run, tr_tensor_kind kind, const char *label, bool values,
                          bool speak)
{
    for (int i = 0; i < tr_run_num_params(run); i++) {
        int64_t shape[2];
        char hash[TR_HASH128_TEXT];
        const char *name = tr_run_param_name(run, i, shape);
        size_t count = (size_t)(shape[0] * shape[1]);
        float *tensor = TR_NEW_ARRAY(float, count);
        check(tr_run_param_get(run, i, kind, tensor));
        tr_hash128_to_text(tr_hash128_compute(tensor, count * sizeof(float)), hash);
        if (speak && !values)
            printf("%s %s %s\n", label, name, hash);
        for (size_t e = 0; speak && values && e < count; e++)
            printf("%s %s %zu %a\n", label, name, e, (double)tensor[e]);
        tr_free(tensor);
    }
}

int main(int argc, char **argv)
{
    int rank, size, steps = 3, kept = 0;
    bool grads = false;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--grads") == 0)
            grads = true;
        else
            argv[2 + kept++] = argv[i];
    }
    tr_config cfg;
    check(tr_config_load(&cfg, argv[1], kept, argv + 2, size));
    tokens data = {cfg.train.seq_len, cfg.train.micro_batch, cfg.model.vocab, 0, NULL, NULL, NULL};
    tr_run_callbacks callbacks = {.context = &data, .batch = batch_make};
    tr_run *run;
    check(tr_run_open(&run, &cfg, MPI_COMM_WORLD, &callbacks));
    for (int s = 0; s < steps; s++) {
        tr_metrics metrics;
        check(tr_run_step(run, &metrics));
        if (rank == 0)
            printf("step %lld loss %a grad_norm %a\n", (long long)metrics.step, metrics.loss,
                   metrics.grad_norm);
        if (s == 0)
            tensors_print(run, TR_TENSOR_GRAD, "grad", grads, rank == 0);
    }
    double loss;
    check(tr_run_evaluate(run, &loss));
    if (rank == 0)
        printf("valid %a\n", loss);
    tensors_print(run, TR_TENSOR_MASTER, "master", false, rank == 0);
    if (cfg.train.optimizer == TR_OPTIMIZER_ADAMW)
        tensors_print(run, TR_TENSOR_V, "v", false, rank == 0);
    tr_run_close(run);
    tr_config_clear(&cfg);
    tr_free(data.tokens);
    tr_free(data.labels);
    tr_free(data.samples);
    MPI_Finalize();
    return 0;
}
