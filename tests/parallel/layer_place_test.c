/* Every layer is where its number says, whatever the number of stages that saved it and that load it: the weights of layer i hold a constant
 * of i in the files and in every run that resumes them, and the model computes with them in that order.
 *
 *     mpiexec -n 4 layer_place_test */
#include "tests/parallel/run_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "io/checkpoint_read.h"

#define SUMS "train.reduction_order=blocks train.reduction_leaves=2" /* of all layouts here */

static char folder[FX_FOLDER];

/* The layer in a tensor's name, "h.2.ln_1.weight" or "model.layers.2.mlp.up_proj.weight"; -1: it is of none. */
static int layer_of(const char *name)
{
    const char *at = strncmp(name, "h.", 2) == 0 ? name + 2 : strstr(name, "layers.");
    if (at == NULL)
        return -1;
    return atoi(at + (strncmp(at, "layers.", 7) == 0 ? 7 : 0));
}

/* All values of a layer's tensors, by kind. */
static float constant_of(int layer, tr_tensor_kind kind)
{
    float part = kind == TR_TENSOR_MASTER ? 0 : kind == TR_TENSOR_M ? 0.25f : 0.5f;
    return 0.03f * ((float)layer + 1 + part);
}

static const tr_tensor_kind kinds[] = {TR_TENSOR_MASTER, TR_TENSOR_M, TR_TENSOR_V};

static size_t count_of(fx_run *fx, int param, const char **name)
{
    int64_t shape[2];
    *name = tr_run_param_name(fx->run, param, shape);
    return (size_t)(shape[0] * shape[1]);
}

/* Sets the layers' tensors; those of layer a as if they were of b, and the other way round. */
static void layers_set(fx_run *fx, int a, int b)
{
    for (int p = 0; fx->run != NULL && p < tr_run_num_params(fx->run); p++) {
        const char *name;
        size_t count = count_of(fx, p, &name);
        int layer = layer_of(name);
        if (layer < 0)
            continue;
        layer = layer == a ? b : layer == b ? a : layer;
        float *values = TR_NEW_ARRAY(float, count);
        for (int k = 0; k < TR_SHARD_NUM_KINDS; k++) {
            for (size_t i = 0; i < count; i++)
                values[i] = constant_of(layer, kinds[k]);
            fx_need(fx->job, tr_run_param_set(fx->run, p, kinds[k], values));
        }
        tr_free(values);
    }
    if (fx->run != NULL)
        fx_need(fx->job, tr_run_params_changed(fx->run));
}

static void constants_check(fx_job *job, const float *values, size_t count, const char *name,
                            int kind, const char *where)
{
    float expected = constant_of(layer_of(name), kinds[kind]);
    size_t i = 0;
    while (i < count && values[i] == expected)
        i++;
    fx_check(job, i == count, "%s: %s (%s) holds %g at %zu, expected %g", where, name,
             tr_shard_kind_name((tr_shard_kind)kind), i < count ? (double)values[i] : 0.0, i,
             (double)expected);
}

static void run_check(fx_run *fx, const char *where)
{
    int num_layered = 0;
    for (int p = 0; fx->run != NULL && p < tr_run_num_params(fx->run); p++) {
        const char *name;
        size_t count = count_of(fx, p, &name);
        for (int k = 0; layer_of(name) >= 0 && k < TR_SHARD_NUM_KINDS; k++) {
            float *values = fx_tensor(fx, p, kinds[k]);
            constants_check(fx->job, values, count, name, k, where);
            tr_free(values);
            num_layered++;
        }
    }
    if (fx->run != NULL)
        fx_check(fx->job, num_layered >= 4 * 9 * TR_SHARD_NUM_KINDS, "%s: %d tensors", where,
                 num_layered);
}

/* The files by themselves, without a run's idea of what is where. Rank 0. */
static void files_check(fx_job *job, const char *path)
{
    tr_checkpoint *checkpoint;
    if (job->rank > 0)
        return;
    fx_need(job, tr_checkpoint_open(&checkpoint, path));
    const tr_manifest *manifest = tr_checkpoint_manifest(checkpoint);
    for (int p = 0; p < manifest->num_params; p++) {
        const tr_manifest_param *param = &manifest->params[p];
        size_t count = (size_t)(param->shape[0] * param->shape[1]);
        float *values = TR_NEW_ARRAY(float, count);
        tr_box whole = tr_checkpoint_tensor_box(checkpoint, p);
        for (int k = 0; layer_of(param->name) >= 0 && k < TR_SHARD_NUM_KINDS; k++) {
            fx_need(job, tr_checkpoint_read(checkpoint, p, (tr_shard_kind)k, &whole, 1, values));
            constants_check(job, values, count, param->name, k, path);
        }
        tr_free(values);
    }
    tr_checkpoint_close(checkpoint);
}

static double loss_of(fx_run *fx)
{
    double loss = 0;
    if (fx->run != NULL)
        fx_need(fx->job, tr_run_evaluate(fx->run, &loss));
    return loss;
}

/* Saved by one layout, loaded by all. loss: of the model, the same bits in every layout; 0: not known yet. */
static void saved_case(fx_job *job, const char *model, const char *layout, const char *name,
                       double *loss)
{
    static const char *const layouts[] = {
        "parallel.pipeline=1",
        "parallel.pipeline=2",
        "parallel.pipeline=4",
        "parallel.pipeline=3",
        "parallel.pipeline=2 parallel.stages=1,3",
        "parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved",
        "parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v",
        "parallel.pipeline=2 parallel.data=2 parallel.zero=3",
    };
    char path[192], resume[320], where[320];
    fx_run fx;
    fx_open(job, &fx, model, fx_settings(folder, layout, name, SUMS), NULL, NULL);
    layers_set(&fx, -1, -1);
    double here = loss_of(&fx);
    *loss = *loss == 0 ? here : *loss; /* rank 0's */
    if (fx.run != NULL) {
        fx_need(job, tr_run_save(fx.run));
        fx_need(job, tr_run_save_wait(fx.run));
        fx_check(job, !tr_run_save_failed(fx.run) && (job->rank > 0 || here == *loss),
                 "%s: loss %a, not %a", layout, here, *loss);
    }
    layers_set(&fx, 1, 2); /* else the loss would not know where layers are */
    here = loss_of(&fx);
    fx_check(job, job->rank > 0 || here != *loss, "the order of layers has no effect");
    fx_close(&fx);
    snprintf(path, sizeof path, "%s/%s/step-00000000", folder, name);
    files_check(job, path);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        bool resumed = false;
        snprintf(resume, sizeof resume, SUMS " checkpoint.resume=%s", path);
        snprintf(where, sizeof where, "%s, then %s", layout, layouts[i]);
        fx_open(job, &fx, model, fx_settings(folder, layouts[i], "none", resume), NULL, NULL);
        if (fx.run != NULL)
            fx_need(job, tr_run_resume(fx.run, &resumed));
        run_check(&fx, where);
        here = loss_of(&fx);
        if (job->rank == 0)
            fx_check(job, resumed && here == *loss, "%s: loss %a, not %a", where, here, *loss);
        fx_close(&fx);
    }
}

static void model_case(fx_job *job, const char *model)
{
    double loss = 0;
    char name[3][32];
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof name[i], "%s-%d", model, i);
    saved_case(job, model, "parallel.pipeline=2", name[0], &loss);
    saved_case(job, model, "parallel.pipeline=4", name[1], &loss);
    saved_case(job, model, "parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v", name[2],
               &loss);
}

int main(int argc, char **argv)
{
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    if (fx_case(&job, "g"))
        model_case(&job, "g");
    if (fx_case(&job, "l"))
        model_case(&job, "l");
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
