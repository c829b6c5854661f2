/* trine sample: text from a checkpoint, one token after the other, under any layout. */
#include "engine/cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/philox.h"
#include "engine/cli/job.h"
#include "io/tokenizer_bytes.h"

static const char usage[] =
    "usage: [mpiexec -n RANKS] trine sample CONFIG [--prompt TEXT] [--tokens N] [--temperature X]\n"
    "                    [--top-k K] [--seed S] [section.key=value ...]\n"
    "\n"
    "Loads the weights that checkpoint.resume names (auto: the newest checkpoint of the run) and\n"
    "continues the prompt by N tokens (default 200). Temperature 0 takes the likeliest token; the "
    "default\n"
    "is 0.8. --top-k K keeps the K likeliest tokens (0 = all). The same seed gives the same text. "
    "Needs\n"
    "data.tokenizer bytes. Only the last train.seq_len tokens are seen by the model.\n";

typedef struct sampling {
    const char *prompt;
    int64_t num_tokens, top_k, seed;
    double temperature;
} sampling;

typedef struct candidate {
    double weight;
    int32_t token;
} candidate;

static int by_weight(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return x->token - y->token;
}

/* One draw from softmax(logits / temperature) over the top_k likeliest. */
static int32_t token_draw(const sampling *s, const float *logits, int64_t vocab, int64_t position,
                          candidate *candidates)
{
    for (int64_t v = 0; v < vocab; v++)
        candidates[v] = (candidate){logits[v], (int32_t)v};
    qsort(candidates, (size_t)vocab, sizeof *candidates, by_weight);
    if (s->temperature <= 0)
        return candidates[0].token;
    int64_t count = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double top = candidates[0].weight, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        candidates[i].weight = exp((candidates[i].weight - top) / s->temperature);
        sum += candidates[i].weight;
    }
    uint32_t bits[4];
    tr_philox_block(tr_hash_key((uint64_t)s->seed, "sample", "text"), (uint32_t)position, 0, 0, 0,
                    bits);
    double target = tr_philox_uniform(bits[0]) * sum;
    int64_t i = 0;
    while (i + 1 < count && target >= candidates[i].weight)
        target -= candidates[i++].weight;
    return candidates[i].token;
}

static void token_print(const tr_job *job, int32_t token)
{
    if (job->rank != 0)
        return;
    if (token < TR_BYTES_EOD)
        putchar(token);
    else
        fputs("\n\n", stdout);
    fflush(stdout);
}

/* The prompt's tokens, at most the last T - 1 of them, and how many. */
static int64_t prompt_fill(const sampling *s, int64_t seq_len, int32_t *tokens)
{
    size_t length = strlen(s->prompt);
    const char *from = s->prompt;
    if ((int64_t)length > seq_len - 1) {
        from += length - (size_t)(seq_len - 1);
        length = (size_t)(seq_len - 1);
    }
    if (length == 0) {
        tokens[0] = TR_BYTES_EOD;
        return 1;
    }
    for (size_t i = 0; i < length; i++)
        tokens[i] = (unsigned char)from[i];
    return (int64_t)length;
}

static tr_status generate(tr_job *job, const sampling *s)
{
    int64_t seq_len = job->cfg.train.seq_len, vocab = job->cfg.model.vocab;
    int32_t *tokens = TR_NEW_ARRAY(int32_t, (size_t)seq_len);
    float *logits = TR_NEW_ARRAY(float, (size_t)vocab);
    candidate *candidates = TR_NEW_ARRAY(candidate, (size_t)vocab);
    int64_t length = prompt_fill(s, seq_len, tokens);
    tr_status status = TR_OK;
    if (job->rank == 0)
        fputs(s->prompt, stdout);
    for (int64_t n = 0; n < s->num_tokens && status == TR_OK; n++) {
        status = tr_run_row_logits(job->run, tokens, length - 1, logits);
        int32_t token = token_draw(s, logits, vocab, n, candidates);
        if (length == seq_len)
            memmove(tokens, tokens + 1, (size_t)(--length) * sizeof *tokens);
        tokens[length++] = token;
        if (status == TR_OK)
            token_print(job, token);
    }
    if (job->rank == 0)
        putchar('\n');
    tr_free(tokens);
    tr_free(logits);
    tr_free(candidates);
    return status;
}

static tr_status options_take(sampling *s, int *argc, char **argv)
{
    const char *temperature = "0.8";
    char *end;
    *s = (sampling){.prompt = "", .num_tokens = 200, .seed = 1};
    TR_TRY(tr_cli_value(argc, argv, "--prompt", &s->prompt));
    TR_TRY(tr_cli_int(argc, argv, "--tokens", 1, 1 << 30, &s->num_tokens));
    TR_TRY(tr_cli_int(argc, argv, "--top-k", 0, INT32_MAX, &s->top_k));
    TR_TRY(tr_cli_int(argc, argv, "--seed", 0, INT64_MAX, &s->seed));
    TR_TRY(tr_cli_value(argc, argv, "--temperature", &temperature));
    s->temperature = strtod(temperature, &end);
    if (end == temperature || *end != '\0' || !(s->temperature >= 0 && s->temperature <= 100))
        return tr_fail(TR_ERR_SETTINGS, "--temperature %s: a number from 0 to 100 is expected",
                       temperature);
    return tr_cli_words(*argc, argv, 1, -1);
}

/* One sequence at a time on every data rank, whatever the training batch was. */
static tr_status batch_shrink(tr_job *job)
{
    char text[64];
    int64_t others = job->cfg.parallel.tensor * job->cfg.parallel.pipeline;
    int64_t data =
        job->cfg.parallel.data > 0 ? job->cfg.parallel.data : job->size / (others > 0 ? others : 1);
    snprintf(text, sizeof text, "train.global_batch=%lld", (long long)(data > 0 ? data : 1));
    TR_TRY(tr_job_override(job, text));
    TR_TRY(tr_job_override(job, "train.micro_batch=1"));
    if (job->cfg.train.seq_len % job->cfg.parallel.tensor != 0) /* one sequence may not divide */
        TR_TRY(tr_job_override(job, "parallel.sequence=false"));
    /* Takes any number of chunks with one microbatch. */
    TR_TRY(tr_job_override(job, "parallel.schedule=gpipe"));
    job->cfg.train.reduction_leaves = 0;                /* nothing is reduced */
    TR_TRY(tr_job_override(job, "checkpoint.every=0")); /* and nothing saved */
    return tr_job_override(job, "checkpoint.weights_only=true");
}

static tr_status tokenizer_check(const tr_config *cfg)
{
    if (cfg->data.tokenizer != NULL && strcmp(cfg->data.tokenizer, "bytes") == 0)
        return TR_OK;
    return tr_fail(TR_ERR_SETTINGS,
                   "trine sample needs data.tokenizer bytes to turn text into tokens and back; "
                   "other tokenizers are not in this version");
}

static tr_status run(int argc, char **argv)
{
    tr_job job;
    sampling s;
    TR_TRY(tr_job_start(&job));
    tr_log_init(job.rank, false, TR_LOG_INFO); /* stdout is the text alone */
    TR_TRY(tr_job_check(&job, options_take(&s, &argc, argv)));
    TR_TRY(tr_job_read(&job, argc, argv, false));
    TR_TRY(batch_shrink(&job));
    TR_TRY(tr_job_resolve(&job));
    TR_TRY(tr_job_check(&job, tokenizer_check(&job.cfg)));
    static const tr_run_callbacks no_data = {.batch = NULL};
    tr_free(job.cfg.data.train);
    tr_free(job.cfg.data.valid);
    job.cfg.data.train = job.cfg.data.valid = NULL;
    TR_JOB_TRY(&job, tr_run_open(&job.run, &job.cfg, MPI_COMM_WORLD, &no_data));
    TR_JOB_TRY(&job, tr_job_load_weights(&job));
    TR_JOB_TRY(&job, generate(&job, &s));
    return tr_job_end(&job, TR_OK);
}

const tr_verb tr_verb_sample = {
    .name = "sample",
    .summary = "text from a checkpoint",
    .usage = usage,
    .run = run,
};
