/* What several ranks hold or decide alike: parameters that tensor parallelism does not cut have whole gradients, the same on all tensor ranks, and count
 * once in the norm; the norm that clips is one for all stages. With every sharding stage, since shards are cut from these sums. Job of 4 ranks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const char *const models[] = {"g", "l"};
/* Layouts with tensor ranks. */
static const char *const layouts[] = {
    "parallel.tensor=4",
    "parallel.tensor=4 parallel.sequence=false",
    "parallel.tensor=2 parallel.data=2 parallel.zero=0",
    "parallel.tensor=2 parallel.data=2 parallel.zero=1",
    "parallel.tensor=2 parallel.data=2 parallel.zero=2",
    "parallel.tensor=2 parallel.data=2 parallel.zero=2 parallel.sequence=false",
    "parallel.tensor=2 parallel.data=2 parallel.zero=3",
    "parallel.tensor=2 parallel.pipeline=2"};
static const char math[] = "train.global_batch=4 train.reduction_leaves=2";

/* ---- gradients of what is not cut ---- */

/* Relative L2 difference of `values` from `expected`. */
static double difference_of(const float *expected, const float *values, int64_t count)
{
    double norm = 0, difference = 0;
    for (int64_t e = 0; e < count; e++) {
        double x = expected[e], y = values[e];
        norm += x * x;
        difference += (x - y) * (x - y);
    }
    return sqrt(difference / norm);
}

/* Step-1 gradients of the uncut parameters against one rank's. */
static void gradients_check(fx_run *fx, const fx_outcome *one, const char *what)
{
    const tr_param_table *table = &fx->run->stage.table;
    int num_checked = 0;
    for (int row = 0; row < table->num_rows; row++) {
        const tr_param *param = &table->rows[row];
        if (param->cut != TR_CUT_REPLICATED)
            continue;
        int index = fx_param(fx, param->name);
        float *grad = fx_tensor(fx, index, TR_TENSOR_GRAD);
        double difference =
            fx->job->rank > 0 ? 0 : difference_of(one->grads[index], grad, one->counts[index]);
        fx_check(fx->job, difference < 2e-5, "%s: gradient of %s differs by %g", what, param->name,
                 difference);
        tr_free(grad);
        num_checked++;
    }
    fx_check(fx->job, num_checked >= 9, "only %d parameters are uncut", num_checked);
}

/* This rank's interval of a flat tensor of the state against the first tensor rank's. */
static void interval_check(fx_run *fx, const float *state, const tr_local_param *item,
                           const char *what)
{
    size_t bytes = (size_t)tr_local_param_held(item) * sizeof(float);
    const float *own = state + item->state_offset;
    float *first = tr_alloc(1, bytes + 1);
    memcpy(first, own, bytes);
    fx_need(fx->job, tr_group_broadcast(fx->run->tensor, 0, first, bytes));
    fx_check(fx->job, memcmp(first, own, bytes) == 0, "%s: %s is not the same on all tensor ranks",
             what, item->param->name);
    tr_free(first);
}

static void ranks_check(fx_run *fx, const char *what)
{
    const tr_stage *stage = &fx->run->stage;
    for (int i = 0; i < stage->local.num_items; i++) {
        const tr_local_param *item = &stage->local.items[i];
        if (item->param->cut != TR_CUT_REPLICATED || item->state_offset < 0)
            continue;
        interval_check(fx, stage->master, item, what);
        interval_check(fx, stage->m, item, what);
        interval_check(fx, stage->v, item, what);
    }
}

static void uncut_gradients(fx_job *job)
{
    if (!fx_case(job, "gradients of uncut parameters are whole, and the same on tensor ranks"))
        return;
    for (int m = 0; m < COUNT(models); m++) {
        fx_outcome one;
        fx_measure(job, models[m], math, 1, NULL, &one);
        for (int l = 0; l < COUNT(layouts); l++) {
            fx_run fx;
            tr_metrics metrics;
            char *text = tr_format("%s %s", math, layouts[l]);
            fx_open(job, &fx, models[m], text, NULL, NULL);
            fx_step(&fx, &metrics);
            if (fx.run != NULL)
                gradients_check(&fx, &one, text);
            for (int step = 2; step <= 20; step++)
                fx_step(&fx, &metrics);
            if (fx.run != NULL)
                ranks_check(&fx, text);
            fx_close(&fx);
            tr_free(text);
        }
        fx_outcome_clear(&one);
    }
}

/* ---- counted once ---- */

static double squares_of_uncut(fx_run *fx)
{
    const tr_param_table *table = &fx->run->stage.table;
    double squares = 0;
    for (int row = 0; row < table->num_rows; row++) {
        const tr_param *param = &table->rows[row];
        if (param->cut != TR_CUT_REPLICATED)
            continue;
        float *grad = fx_tensor(fx, fx_param(fx, param->name), TR_TENSOR_GRAD);
        for (int64_t e = 0; e < param->shape[0] * param->shape[1]; e++)
            squares += (double)grad[e] * grad[e];
        tr_free(grad);
    }
    return squares;
}

/* The norm of the first gradient of a run whose final norm hands on next to nothing, so that gradients before and behind it are small beside its own. Checks
 * that, and returns it on rank 0. */
static double dominated_norm(fx_job *job, const char *model, const char *text)
{
    fx_run fx;
    tr_metrics metrics = {0};
    fx_open(job, &fx, model, text, NULL, NULL);
    if (fx.run != NULL) {
        int64_t shape[2];
        int index = fx_param(&fx, strcmp(model, "g") == 0 ? "ln_f.weight" : "model.norm.weight");
        tr_run_param_name(fx.run, index, shape);
        float *values = TR_NEW_ARRAY(float, (size_t)(shape[0] * shape[1]));
        for (int64_t e = 0; e < shape[0] * shape[1]; e++)
            values[e] = 0x1p-12f;
        fx_need(job, tr_run_param_set(fx.run, index, TR_TENSOR_MASTER, values));
        fx_need(job, tr_run_params_changed(fx.run));
        tr_free(values);
        fx_step(&fx, &metrics);
        double share = sqrt(squares_of_uncut(&fx)) / metrics.grad_norm;
        fx_check(job, share > 0.9, "%s: gradients of uncut parameters are %g of all", text, share);
    }
    fx_close(&fx);
    return metrics.grad_norm;
}

static void counted_once(fx_job *job)
{
    if (!fx_case(job, "what tensor ranks hold alike counts once in the norm"))
        return;
    for (int m = 0; m < COUNT(models); m++) {
        double one = dominated_norm(job, models[m], math);
        for (int l = 0; l < COUNT(layouts); l++) {
            char *text = tr_format("%s %s", math, layouts[l]);
            double norm = dominated_norm(job, models[m], text);
            fx_check(job, job->rank > 0 || fabs(norm - one) < 1e-5 * one,
                     "%s %s: norm %.9g, one rank has %.9g", models[m], text, norm, one);
            tr_free(text);
        }
    }
}

/* ---- one norm for all stages ---- */

static struct {
    const tr_ops *real;
    tr_ops ops;
    bool scales;
} head_device;

/* The head's weight gradient, known by its rows, times a power of two. No microbatch adds to another's. */
static tr_status scaled_matmul(tr_device *device, const tr_matmul *args)
{
    TR_TRY(head_device.real->matmul(device, args));
    if (!head_device.scales || args->form != TR_MATMUL_TN || args->M != 257)
        return TR_OK;
    TR_ASSERT(!args->accumulate);
    for (int64_t r = 0; r < args->M; r++)
        for (int64_t c = 0; c < args->N; c++)
            ((float *)args->C)[r * args->ldc + c] *= 128;
    return TR_OK;
}

static void scaled_install(void *context, tr_device *device)
{
    (void)context;
    head_device.real = device->ops;
    head_device.ops = *device->ops;
    head_device.ops.matmul = scaled_matmul;
    device->ops = &head_device.ops;
}

/* Three steps; the norm of the first, which all ranks must agree on, and the state after them. */
static fx_state scaled_run(fx_job *job, const char *text, double *norm)
{
    fx_run fx;
    tr_metrics metrics;
    fx_open(job, &fx, "l", text, NULL, scaled_install);
    for (int step = 0; step < 3; step++) {
        fx_step(&fx, &metrics);
        double first = metrics.grad_norm;
        MPI_Bcast(&first, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (fx.run != NULL)
            fx_check(job, metrics.grad_norm == first, "%s: norm %a, rank 0 has %a", text,
                     metrics.grad_norm, first);
        *norm = step == 0 ? first : *norm;
    }
    fx_state state = fx_state_take(&fx);
    fx_close(&fx);
    return state;
}

static void one_norm(fx_job *job)
{
    static const char *const staged[] = {
        "parallel.pipeline=2",
        "parallel.pipeline=4",
        "parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v",
        "parallel.pipeline=2 parallel.data=2 parallel.zero=0",
        "parallel.pipeline=2 parallel.data=2 parallel.zero=1",
        "parallel.pipeline=2 parallel.data=2 parallel.zero=2",
        "parallel.pipeline=2 parallel.data=2 parallel.zero=3"};
    if (!fx_case(job, "one norm clips all stages"))
        return;
    /* A leaf for each microbatch. */
    const char *leaves = "train.global_batch=8 train.reduction_leaves=8 train.clip=0.5 "
                         "train.reduction_order=blocks";
    double plain, expected, norm;
    head_device.scales = false;
    fx_state unscaled = scaled_run(job, leaves, &plain);
    head_device.scales = true;
    fx_state one = scaled_run(job, leaves, &expected);
    fx_check(job, expected > 5 * plain && expected > 5, "norm %g, unscaled %g", expected, plain);
    fx_check(job, job->rank > 0 || !fx_state_equal(&unscaled, &one), "the scale changes nothing");
    for (int l = 0; l < COUNT(staged); l++) {
        char *text = tr_format("%s %s", leaves, staged[l]);
        fx_state state = scaled_run(job, text, &norm);
        fx_check(job, norm == expected, "%s: norm %a, one rank has %a", text, norm, expected);
        fx_check(job, job->rank > 0 || fx_state_equal(&one, &state), "%s: another state", text);
        tr_free(state.values);
        tr_free(text);
    }
    tr_free(unscaled.values);
    tr_free(one.values);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    uncut_gradients(&job);
    counted_once(&job);
    one_norm(&job);
    return fx_end(&job);
}
