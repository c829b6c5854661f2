/* A run that is saved, and goes on with other data sizes, stage counts and settings, has the bits of the run that never moved (E3); with
 * train.tensor_slices also with other tensor sizes (E4). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

enum { STEPS = 12, MOVES = 4 };

/* `name`: of the folder of its checkpoints. */
static void moved_run(fx_job *job, const char *folder, const char *name, const char *model,
                      const char *math, const char *const layouts[MOVES])
{
    tr_metrics straight[STEPS], metrics;
    fx_run fx;
    fx_state moved = {0};
    char *text = tr_format("%s %s", math, layouts[0]);
    fx_open(job, &fx, model, text, NULL, NULL);
    for (int s = 0; s < STEPS; s++)
        fx_step(&fx, &straight[s]);
    fx_state state = fx_state_take(&fx);
    fx_close(&fx);
    tr_free(text);
    for (int m = 0, step = 0; m < MOVES; m++) {
        bool resumed = m == 0;
        text = tr_format("%s %s checkpoint.dir=%s/%s", math, layouts[m], folder, name);
        fx_open(job, &fx, model, text, NULL, NULL);
        if (fx.run != NULL && m > 0)
            fx_need(job, tr_run_resume(fx.run, &resumed));
        fx_check(job, fx.run == NULL || (resumed && tr_run_steps_done(fx.run) == step),
                 "%s: did not go on from step %d", layouts[m], step);
        for (int s = 0; s < STEPS / MOVES; s++, step++) {
            fx_step(&fx, &metrics);
            if (job->rank == 0)
                fx_check(job,
                         metrics.loss == straight[step].loss &&
                             metrics.grad_norm == straight[step].grad_norm &&
                             metrics.lr == straight[step].lr &&
                             metrics.first_sample == straight[step].first_sample,
                         "%s: step %d: loss %a, expected %a; norm %a, expected %a", layouts[m],
                         step + 1, metrics.loss, straight[step].loss, metrics.grad_norm,
                         straight[step].grad_norm);
        }
        if (fx.run != NULL)
            fx_need(job, tr_run_save(fx.run));
        if (m == MOVES - 1)
            moved = fx_state_take(&fx);
        fx_close(&fx);
        tr_free(text);
    }
    if (job->rank == 0)
        fx_check(job, fx_state_equal(&state, &moved),
                 "%s: weights or moments differ after %d steps", model, STEPS);
    tr_free(state.values);
    tr_free(moved.values);
}

int main(int argc, char **argv)
{
    static const char *const data_only[MOVES] = {
        "parallel.data=8", "parallel.data=4", "parallel.data=2 parallel.zero=0", "parallel.data=1"};
    static const char *const mixed[MOVES] = {
        "parallel.data=8 parallel.zero=0", "parallel.data=4 parallel.pipeline=2",
        "parallel.data=2 parallel.pipeline=4 memory.recompute=full parallel.bucket_mb=0.01",
        "parallel.data=1 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved"};
    static const char *const sharded[MOVES] = {
        "parallel.data=8 parallel.zero=2",
        "parallel.data=4 parallel.zero=2 parallel.shard_ranks=2 parallel.bucket_mb=0.01",
        "parallel.data=2 parallel.zero=1", "parallel.data=1 parallel.zero=2"};
    static const char *const sharded_mixed[MOVES] = {
        "parallel.data=8 parallel.zero=1",
        "parallel.data=4 parallel.pipeline=2 parallel.zero=3 memory.recompute=selective",
        "parallel.data=2 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved "
        "parallel.zero=2",
        "parallel.data=1 parallel.zero=0 parallel.pipeline=4"};
    static const char *const tensor[MOVES] = {
        "parallel.tensor=4 parallel.data=2", "parallel.tensor=2 parallel.sequence=false",
        "parallel.data=4 parallel.pipeline=2 parallel.schedule=zb-h1 parallel.zero=2",
        "parallel.tensor=2 parallel.pipeline=4 memory.recompute=full"};
    fx_job job = fx_begin(&argc, &argv);
    char folder[FX_FOLDER];
    fx_folder_make(&job, folder);
    if (fx_case(&job, "a run moved over data sizes 8, 4, 2, 1"))
        moved_run(&job, folder, "blocks", "g",
                  "model.dropout=0.1 train.reduction_leaves=8 train.steps=12 train.warmup_steps=3",
                  data_only);
    if (fx_case(&job, "a run moved over data and pipeline sizes"))
        moved_run(&job, folder, "mixed", "l",
                  "train.precision=bf16 train.reduction_leaves=8 train.steps=12", mixed);
    if (fx_case(&job, "a run in rounds moved over data sizes 8, 4, 2, 1, sharded"))
        moved_run(&job, folder, "rounds", "g",
                  "model.dropout=0.1 train.reduction_order=rounds train.reduction_leaves=8 "
                  "train.global_batch=16 train.steps=12 train.warmup_steps=3",
                  sharded);
    if (fx_case(&job, "a run in rounds moved over data and pipeline sizes, sharded"))
        moved_run(&job, folder, "rounds-mixed", "l",
                  "train.precision=bf16 train.reduction_order=rounds train.reduction_leaves=8 "
                  "train.global_batch=16 train.steps=12",
                  sharded_mixed);
    if (fx_case(&job, "a run in tensor slices moved over tensor, data and pipeline sizes"))
        moved_run(&job, folder, "slices", "l",
                  "model.dropout=0.1 train.precision=bf16 train.tensor_slices=4 "
                  "train.reduction_order=blocks train.reduction_leaves=4 train.global_batch=8 "
                  "train.steps=12",
                  tensor);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
