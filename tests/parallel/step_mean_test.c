/* What a step computes, whatever the layout: the mean over the counted tokens of the global batch, fp32 sums, the same initial
 * weights, a vocabulary that no layout divides, decay of matrices only; and evaluation, which is the same mean. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

/* ---- unequal counts ---- */

/* Sample n counts (7 n) mod 33 of its 32 positions: none of sample 0, and never the same number on two ranks. */
static bool counts_unequal(int64_t step, uint64_t sample, int64_t position)
{
    (void)step;
    return position < (int64_t)(sample * 7 % 33);
}

static int64_t unequal_total(uint64_t samples)
{
    int64_t total = 0;
    for (uint64_t n = 0; n < samples; n++)
        for (int64_t t = 0; t < 32; t++)
            total += counts_unequal(0, n, t);
    return total;
}

/* The mean from logits, in double: one rank, one microbatch of all 24 samples, initial weights. */
static double mean_from_logits(fx_job *job)
{
    fx_run fx;
    fx_source source = {.counts = counts_unequal};
    double sum = 0;
    fx_open(job, &fx, "l", "train.micro_batch=24", &source, NULL);
    if (fx.run != NULL) {
        tr_metrics metrics; /* makes the batch; the learning rate is 0 */
        fx.run->cfg.train.lr = fx.run->cfg.train.min_lr = 0;
        fx_step(&fx, &metrics);
        float *logits = TR_NEW_ARRAY(float, 24 * 32 * 257);
        fx_need(job, tr_run_logits(fx.run, source.tokens, logits));
        for (int64_t r = 0; r < 24 * 32; r++) {
            double total = 0;
            for (int v = 0; v < 257; v++)
                total += exp((double)logits[r * 257 + v]);
            if (source.labels[r] >= 0)
                sum += log(total) - (double)logits[r * 257 + source.labels[r]];
        }
        tr_free(logits);
    }
    fx_close(&fx);
    return sum / (double)unequal_total(24);
}

static void mean_is_over_the_counted_tokens_of_all_ranks(fx_job *job)
{
    if (!fx_case(job, "the mean is over the counted tokens of all ranks"))
        return;
    static const char *const layouts[] = {"train.micro_batch=24",
                                          "train.micro_batch=1",
                                          "train.micro_batch=12 parallel.data=2",
                                          "train.micro_batch=1 parallel.data=2",
                                          "train.micro_batch=6 parallel.data=4",
                                          "train.micro_batch=1 parallel.data=4",
                                          "train.micro_batch=1 parallel.data=2 parallel.pipeline=2",
                                          "train.micro_batch=2 parallel.tensor=2",
                                          "train.micro_batch=2 parallel.tensor=4"};
    double expected = mean_from_logits(job);
    fx_outcome first, outcome;
    for (int i = 0; i < 9; i++) {
        fx_source source = {.counts = counts_unequal};
        fx_measure(job, "l", layouts[i], 1, &source, &outcome);
        if (i == 0)
            first = outcome;
        double difference = fx_grad_difference(job, &first, &outcome);
        if (job->rank == 0) {
            const tr_metrics *m = &outcome.metrics[0];
            fx_check(job, m->step_tokens == unequal_total(24), "%s: %lld tokens", layouts[i],
                     (long long)m->step_tokens);
            fx_check(job, fabs(m->loss - expected) <= 1e-6 * expected, "%s: loss %.9f, not %.9f",
                     layouts[i], m->loss, expected);
            fx_check(job, difference <= 1e-5, "%s: gradients differ by %g", layouts[i], difference);
            double norm = first.metrics[0].grad_norm;
            fx_check(job, fabs(m->grad_norm - norm) <= 1e-5 * norm, "%s: norm %.9f, not %.9f",
                     layouts[i], m->grad_norm, norm);
            fx_check(job, !m->skipped, "%s: skipped", layouts[i]);
        }
        if (i > 0)
            fx_outcome_clear(&outcome);
    }
    fx_outcome_clear(&first);
}

/* ---- evaluation ---- */

static void evaluation_is_the_loss_of_the_batch(fx_job *job)
{
    if (!fx_case(job, "evaluation is the loss of the batch, and leaves training alone"))
        return;
    static const char *const layouts[] = {"",
                                          "train.micro_batch=4",
                                          "parallel.data=4",
                                          "parallel.pipeline=4 train.micro_batch=12",
                                          "parallel.pipeline=2 parallel.virtual=2 "
                                          "parallel.schedule=interleaved",
                                          "parallel.pipeline=2 parallel.tensor=2",
                                          "parallel.data=4 parallel.zero=2",
                                          "parallel.data=4 parallel.zero=3 train.micro_batch=3",
                                          "parallel.data=2 parallel.pipeline=2 parallel.zero=3"};
    for (int i = 0; i < 9; i++) {
        fx_run fx;
        tr_metrics plain[3], mixed;
        double valid[4] = {0};
        char *text = tr_format("train.eval_batches=2 %s", layouts[i]);
        fx_open(job, &fx, "g", text, NULL, NULL);
        for (int s = 0; s < 3; s++)
            fx_step(&fx, &plain[s]);
        fx_close(&fx);
        fx_open(job, &fx, "g", text, NULL, NULL);
        for (int s = 0; s < 3; s++) {
            if (fx.run != NULL) {
                /* The first batch of the evaluation is that of the first step. */
                fx.run->cfg.train.eval_batches = s == 0 ? 1 : 2;
                fx_need(job, tr_run_evaluate(fx.run, &valid[s]));
                fx_need(job, tr_run_evaluate(fx.run, &valid[3]));
                fx_check(job, valid[s] == valid[3], "%s: two evaluations differ", layouts[i]);
            }
            fx_step(&fx, &mixed);
            if (fx.run == NULL)
                continue;
            fx_check(job, mixed.loss == plain[s].loss && mixed.grad_norm == plain[s].grad_norm,
                     "%s: step %d differs after an evaluation", layouts[i], s + 1);
            fx_check(job, s > 0 || valid[0] == mixed.loss, "%s: evaluation %.17g, loss %.17g",
                     layouts[i], valid[0], mixed.loss);
        }
        fx_close(&fx);
        tr_free(text);
    }
}

/* ---- initial weights, vocabulary ---- */

static void initial_weights_are_the_same_everywhere(fx_job *job)
{
    if (!fx_case(job, "initial weights are the same everywhere"))
        return;
    static const char *const layouts[] = {"",
                                          "parallel.tensor=2",
                                          "parallel.tensor=4 parallel.sequence=false",
                                          "parallel.pipeline=2",
                                          "parallel.pipeline=4",
                                          "parallel.data=4 parallel.zero=0",
                                          "parallel.data=4 parallel.zero=1",
                                          "parallel.data=2 parallel.tensor=2 train.precision=bf16"};
    float **first = NULL;
    for (int i = 0; i < 8; i++) {
        fx_run fx;
        fx_open(job, &fx, "g", layouts[i], NULL, NULL);
        int count = fx.run != NULL ? tr_run_num_params(fx.run) : 0;
        if (first == NULL)
            first = TR_NEW_ARRAY(float *, 1000);
        for (int p = 0; p < count; p++) {
            int64_t shape[2];
            const char *name = tr_run_param_name(fx.run, p, shape);
            int64_t n = shape[0] * shape[1];
            float *values = fx_tensor(&fx, p, TR_TENSOR_MASTER);
            double squares = 0;
            for (int64_t e = 0; e < n; e++)
                squares += (double)values[e] * values[e];
            bool residual = strstr(name, "c_proj") != NULL;
            double std = residual ? 0.02 / sqrt(8.0) : 0.02;
            if (i == 0 && shape[1] > 1 && job->rank == 0) {
                fx_check(job, fabs(sqrt(squares / (double)n) / std - 1) < 0.05, "%s: std %g", name,
                         sqrt(squares / (double)n));
                fx_check(job, memcmp(values, values + n / 2, 64) != 0, "%s: equal halves", name);
            }
            if (job->rank == 0 && i > 0) {
                fx_check(job, memcmp(values, first[p], (size_t)n * sizeof(float)) == 0,
                         "%s: %s differs", layouts[i], name);
                tr_free(values);
            } else if (job->rank == 0) {
                first[p] = values;
            } else {
                tr_free(values);
            }
        }
        fx_close(&fx);
    }
    for (int p = 0; p < 1000; p++)
        tr_free(first[p]);
    tr_free(first);
}

static void padding_has_no_probability(fx_job *job)
{
    if (!fx_case(job, "padding of the vocabulary has no probability and no gradient"))
        return;
    for (int tensor = 1; tensor <= 4; tensor *= 2) {
        fx_run fx;
        tr_metrics metrics;
        char *text = tr_format("parallel.tensor=%d train.precision=fp32", tensor);
        fx_open(job, &fx, "l", text, NULL, NULL);
        tr_free(text);
        if (fx.run != NULL) {
            int head = fx_param(&fx, "lm_head.weight");
            float *zeros = TR_NEW_ARRAY(float, 257 * 64);
            fx_need(job, tr_run_param_set(fx.run, head, TR_TENSOR_MASTER, zeros));
            fx_need(job, tr_run_params_changed(fx.run));
            tr_free(zeros);
            for (int step = 0; step < 2; step++) {
                fx_step(&fx, &metrics);
                fx_check(job, step > 0 || fabs(metrics.loss - log(257.0)) < 1e-6,
                         "tensor %d: uniform loss %.9f, not ln 257 = %.9f", tensor, metrics.loss,
                         log(257.0));
                const tr_stage *stage = &fx.run->stage;
                const tr_local_param *item = tr_local_param_find(&stage->local, TR_ROLE_HEAD, -1);
                const float *grad = stage->gradients.item_grads[item - stage->local.items];
                for (int64_t e = item->valid_rows * item->cols; e < item->count; e++)
                    fx_check(job, grad[e] == 0 && stage->master[item->state_offset + e] == 0,
                             "padding has a gradient or a weight");
                fx_check(job,
                         item->rows * tensor >= 257 && item->rows == (257 + tensor - 1) / tensor,
                         "%d rows", (int)item->rows);
            }
        }
        fx_close(&fx);
    }
}

/* ---- accumulation ---- */

static void accumulation_is_fp32(fx_job *job)
{
    if (!fx_case(job, "256 equal microbatches in bf16 accumulate in fp32"))
        return;
    static const char *const layouts[] = {"", "parallel.data=2", "parallel.pipeline=2"};
    fx_outcome one, many;
    fx_source source = {.same_sample = true};
    fx_measure(job, "l", "train.precision=bf16 train.global_batch=1 train.seq_len=16", 1, &source,
               &one);
    for (int i = 0; i < 3; i++) {
        source = (fx_source){.same_sample = true};
        char *text = tr_format("train.precision=bf16 train.global_batch=256 train.seq_len=16 "
                               "train.reduction_leaves=%d %s",
                               i == 1 ? 2 : 1, layouts[i]);
        fx_measure(job, "l", text, 1, &source, &many);
        tr_free(text);
        double difference = fx_grad_difference(job, &one, &many);
        fx_check(job, difference < 2e-5, "%s: the mean of 256 differs from one by %g", layouts[i],
                 difference);
        fx_outcome_clear(&many);
    }
    fx_outcome_clear(&one);
}

/* ---- decay ---- */

static bool counts_none(int64_t step, uint64_t sample, int64_t position)
{
    (void)step;
    (void)sample;
    (void)position;
    return false;
}

/* No token counts: all gradients are zero, and only decay moves weights. */
static void decay_skips_norms_and_biases(fx_job *job)
{
    if (!fx_case(job, "decay skips norms and biases, also inside shards"))
        return;
    static const char *const layouts[] = {"", "parallel.data=4 parallel.zero=0",
                                          "parallel.data=4 parallel.zero=1",
                                          "parallel.data=2 parallel.tensor=2 parallel.zero=1"};
    for (int i = 0; i < 4; i++) {
        fx_run fx;
        tr_metrics metrics;
        fx_source source = {.counts = counts_none};
        char *text =
            tr_format("train.lr=0.1 train.weight_decay=0.1 train.schedule=constant %s", layouts[i]);
        fx_open(job, &fx, "g", text, &source, NULL);
        tr_free(text);
        int count = fx.run != NULL ? tr_run_num_params(fx.run) : 0;
        float **before = TR_NEW_ARRAY(float *, (size_t)count + 1);
        for (int p = 0; p < count; p++)
            before[p] = fx_tensor(&fx, p, TR_TENSOR_MASTER);
        fx_step(&fx, &metrics);
        float kept = (float)(1.0 - (double)0.1f * (double)0.1f);
        for (int p = 0; p < count; p++) {
            int64_t shape[2], wrong = 0;
            const char *name = tr_run_param_name(fx.run, p, shape);
            float *after = fx_tensor(&fx, p, TR_TENSOR_MASTER);
            bool matrix = strstr(name, "bias") == NULL && strstr(name, "ln_") == NULL;
            for (int64_t e = 0; e < shape[0] * shape[1]; e++)
                wrong += after[e] != (matrix ? before[p][e] * kept : before[p][e]);
            fx_check(job, wrong == 0, "%s: %s: %lld elements are wrong", layouts[i], name,
                     (long long)wrong);
            tr_free(after);
            tr_free(before[p]);
        }
        tr_free(before);
        fx_check(job, !metrics.skipped && metrics.step_tokens == 0, "%lld tokens",
                 (long long)metrics.step_tokens);
        fx_close(&fx);
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    mean_is_over_the_counted_tokens_of_all_ranks(&job);
    evaluation_is_the_loss_of_the_batch(&job);
    initial_weights_are_the_same_everywhere(&job);
    padding_has_no_probability(&job);
    accumulation_is_fp32(&job);
    decay_skips_norms_and_biases(&job);
    return fx_end(&job);
}
