/* Numbers that go wrong on one rank only: every rank decides the same, nothing is damaged, and the way out is said.
 *
 * The damage comes from outside: the device's operation table is replaced by one that spoils a result when this rank is told to. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

/* ---- a device that damages ---- */

static struct {
    const tr_ops *real;
    tr_ops ops;
    float value;      /* what is written */
    bool in_gradient; /* the next weight gradient gets it */
    bool in_stream;   /* the next block output gets it */
} damage;

static tr_status damaged_matmul(tr_device *device, const tr_matmul *args)
{
    TR_TRY(damage.real->matmul(device, args));
    if (args->form == TR_MATMUL_TN && damage.in_gradient) {
        damage.in_gradient = false;
        ((float *)args->C)[args->M * args->N / 2] = damage.value;
    }
    return TR_OK;
}

static tr_status damaged_residual_add(tr_device *device, tr_dtype dtype, int64_t R, int64_t H,
                                      int64_t row_begin, const void *x, const float *y,
                                      const void *bias, const tr_dropout *dropout, void *out)
{
    TR_TRY(damage.real->residual_add(device, dtype, R, H, row_begin, x, y, bias, dropout, out));
    if (!damage.in_stream)
        return TR_OK;
    damage.in_stream = false;
    return damage.real->convert(device, 1, TR_F32, &damage.value, dtype, out);
}

static void damage_install(void *context, tr_device *device)
{
    (void)context;
    damage.real = device->ops;
    damage.ops = *device->ops;
    damage.ops.matmul = damaged_matmul;
    damage.ops.residual_add = damaged_residual_add;
    device->ops = &damage.ops;
}

/* ---- cases ---- */

/* All masters one after the other, on every rank of the run. */
static float **masters_take(fx_run *fx)
{
    int count = fx->run != NULL ? tr_run_num_params(fx->run) : 0;
    float **masters = TR_NEW_ARRAY(float *, (size_t)count + 1);
    for (int i = 0; i < count; i++)
        masters[i] = fx_tensor(fx, i, TR_TENSOR_MASTER);
    return masters;
}

static void masters_check_equal(fx_run *fx, float **before)
{
    float **after = masters_take(fx);
    for (int i = 0; before[i] != NULL; i++) {
        int64_t shape[2];
        const char *name = tr_run_param_name(fx->run, i, shape);
        size_t bytes = (size_t)(shape[0] * shape[1]) * sizeof(float);
        fx_check(fx->job, memcmp(before[i], after[i], bytes) == 0, "%s changed in a skipped step",
                 name);
        tr_free(before[i]);
        tr_free(after[i]);
    }
    tr_free(before);
    tr_free(after);
}

/* An infinity in one gradient of rank `bad` in the second step. */
static void overflow_case(fx_job *job, const char *model, const char *layout, int bad)
{
    fx_run fx;
    tr_metrics metrics;
    char *text = tr_format("train.precision=fp16 train.lr=0.01 train.eval_batches=1 %s", layout);
    fx_open(job, &fx, model, text, NULL, damage_install);
    tr_free(text);
    fx_step(&fx, &metrics);
    if (fx.run != NULL) {
        double scale = metrics.loss_scale, before, after;
        fx_check(job, !metrics.skipped, "a good step was skipped");
        fx_need(job, tr_run_evaluate(fx.run, &before));
        float **masters = masters_take(&fx);
        damage.value = INFINITY;
        damage.in_gradient = job->rank == bad;
        fx_step(&fx, &metrics);
        fx_check(job, !damage.in_gradient, "the damage was not done");
        fx_check(job, metrics.skipped, "%s: rank %d overflows: not skipped", layout, bad);
        fx_check(job, metrics.loss_scale == scale && metrics.skips_in_row == 1, "scale %g, row %d",
                 metrics.loss_scale, (int)metrics.skips_in_row);
        masters_check_equal(&fx, masters);
        fx_need(job, tr_run_evaluate(fx.run, &after));
        fx_check(job, before == after, "the compute copies changed in a skipped step");
        fx_step(&fx, &metrics);
        fx_check(job,
                 !metrics.skipped && metrics.loss_scale == scale / 2 && metrics.skips_in_row == 0,
                 "after the skip: skipped %d, scale %g, was %g", metrics.skipped,
                 metrics.loss_scale, scale);
    }
    fx_close(&fx);
}

static void overflow_on_one_rank_skips_all(fx_job *job)
{
    if (!fx_case(job, "overflow on one rank skips all"))
        return;
    for (int bad = 0; bad < 4; bad++) {
        overflow_case(job, "g", "parallel.data=2 parallel.tensor=2", bad);
        overflow_case(job, "l", "parallel.tensor=2 parallel.pipeline=2", bad);
    }
    overflow_case(job, "g", "parallel.data=4 parallel.zero=0", 3);
}

static void loss_scale_stops_at_its_floor(fx_job *job)
{
    if (!fx_case(job, "loss scale stops at its floor, then the run ends"))
        return;
    fx_run fx;
    tr_metrics metrics;
    fx_open(job, &fx, "l", "train.precision=fp16 train.max_skips=20 parallel.data=2", NULL,
            damage_install);
    for (int step = 1; step <= 20 && fx.run != NULL; step++) {
        damage.value = INFINITY;
        damage.in_gradient = job->rank == 1;
        tr_status status = tr_run_step(fx.run, &metrics);
        double expected = step <= 17 ? 65536.0 / exp2(step - 1) : 1;
        fx_check(job, metrics.skipped && metrics.loss_scale == expected,
                 "step %d: scale %g, expected %g", step, metrics.loss_scale, expected);
        fx_check(job, status == (step < 20 ? TR_OK : TR_ERR_NUMERICS), "step %d: status %s", step,
                 tr_status_text(status));
        if (status != TR_OK) {
            const char *message = tr_error_message();
            const char *const parts[] = {"step 20",         "20 steps in a row",
                                         "train.max_skips", "lm_head.weight",
                                         "loss scale 1",    "samples 456 to 479"};
            for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
                fx_check(job, strstr(message, parts[i]) != NULL, "'%s' is not in: %s", parts[i],
                         message);
        }
    }
    fx_close(&fx);
}

static void loss_scale_grows_back(fx_job *job)
{
    if (!fx_case(job, "loss scale grows back"))
        return;
    fx_run fx;
    tr_metrics metrics;
    fx_open(job, &fx, "g", "train.precision=fp16 train.loss_scale_growth=4 parallel.pipeline=2",
            NULL, damage_install);
    for (int step = 1; step <= 11 && fx.run != NULL; step++) {
        damage.value = -INFINITY;
        damage.in_gradient = step == 6 && job->rank == 1;
        fx_step(&fx, &metrics);
        double expected = step <= 4 ? 65536 : step <= 6 ? 131072 : step <= 10 ? 65536 : 131072;
        fx_check(job, metrics.loss_scale == expected && metrics.skipped == (step == 6),
                 "step %d: scale %g, expected %g, skipped %d", step, metrics.loss_scale, expected,
                 metrics.skipped);
    }
    fx_close(&fx);
}

/* NaN in one gradient where no loss scale is at work. */
static void bad_gradient_is_seen_in_every_precision(fx_job *job)
{
    static const char *const settings[] = {
        "train.precision=fp32 train.clip=1", "train.precision=fp32 train.clip=0",
        "train.precision=bf16 train.clip=1", "train.precision=bf16 train.clip=0"};
    if (!fx_case(job, "a bad gradient is seen in every precision"))
        return;
    for (int i = 0; i < 4; i++) {
        fx_run fx;
        tr_metrics metrics;
        char *text = tr_format("%s parallel.data=2 parallel.zero=%d", settings[i], i % 2);
        fx_open(job, &fx, "l", text, NULL, damage_install);
        tr_free(text);
        fx_step(&fx, &metrics);
        if (fx.run != NULL) {
            float **masters = masters_take(&fx);
            damage.value = NAN;
            damage.in_gradient = job->rank == 1;
            fx_step(&fx, &metrics);
            fx_check(job, metrics.skipped && isnan(metrics.grad_norm) && metrics.skips_in_row == 1,
                     "%s: skipped %d, norm %g", settings[i], metrics.skipped, metrics.grad_norm);
            fx_check(job, metrics.bad_rank == -1 && isfinite(metrics.loss), "loss %g",
                     metrics.loss);
            masters_check_equal(&fx, masters);
            fx_step(&fx, &metrics);
            fx_check(job, !metrics.skipped && metrics.skips_in_row == 0, "no step after a skip");
        }
        fx_close(&fx);
    }
}

static void bad_loss_on_one_data_rank_stops_all_together(fx_job *job)
{
    if (!fx_case(job, "a bad loss on one data rank: all act together"))
        return;
    /* mesh: rank = (pipeline * 2 + data) * tensor */
    static const struct {
        const char *layout;
        int bad, named; /* who damages its stream; whose loss that is */
    } cases[] = {{"parallel.data=4", 1, 1}, {"parallel.data=2 parallel.pipeline=2", 1, 3}};
    for (int i = 0; i < 2; i++) {
        fx_run fx;
        tr_metrics metrics;
        char *text = tr_format("train.max_skips=2 train.precision=bf16 %s", cases[i].layout);
        fx_open(job, &fx, "g", text, NULL, damage_install);
        tr_free(text);
        fx_step(&fx, &metrics);
        for (int skip = 1; skip <= 2 && fx.run != NULL; skip++) {
            damage.value = NAN;
            damage.in_stream = job->rank == cases[i].bad;
            tr_status status = tr_run_step(fx.run, &metrics);
            fx_check(job, status == (skip == 1 ? TR_OK : TR_ERR_NUMERICS), "status %s",
                     tr_status_text(status));
            fx_check(job,
                     metrics.skipped && isnan(metrics.loss) &&
                         metrics.first_sample == 24u * (unsigned)skip,
                     "skipped %d, loss %g", metrics.skipped, metrics.loss);
            fx_check(job, metrics.bad_rank == cases[i].named, "%s: rank %d named, not %d",
                     cases[i].layout, metrics.bad_rank, cases[i].named);
        }
        fx_close(&fx);
    }
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    overflow_on_one_rank_skips_all(&job);
    loss_scale_stops_at_its_floor(&job);
    loss_scale_grows_back(&job);
    bad_gradient_is_seen_in_every_precision(&job);
    bad_loss_on_one_data_rank_stops_all_together(&job);
    return fx_end(&job);
}
