/* What a resumed run must have of the one before: masters that bf16 cannot hold, the learning rate of each step, loaded weights that the
 * first step works with; and what is said when something is missing or was changed. */
#include "tests/parallel/run_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "engine/lr.h"

static char folder[FX_FOLDER]; /* the same on all ranks */

/* A run of model G that keeps its checkpoints in FOLDER/NAME. */
static void open_run(fx_job *job, fx_run *fx, const char *name, const char *settings)
{
    char *text =
        tr_format("checkpoint.async=false checkpoint.dir=%s/%s %s", folder, name, settings);
    fx_open(job, fx, "g", text, NULL, NULL);
    tr_free(text);
}

static void resume(fx_run *fx, int64_t step)
{
    bool resumed = false;
    if (fx->run == NULL)
        return;
    fx_need(fx->job, tr_run_resume(fx->run, &resumed));
    fx_check(fx->job, resumed && tr_run_steps_done(fx->run) == step,
             "resumed %d, at step %lld, not %lld", resumed, (long long)tr_run_steps_done(fx->run),
             (long long)step);
}

static void save(fx_run *fx)
{
    if (fx->run == NULL)
        return;
    fx_need(fx->job, tr_run_save(fx->run));
    fx_need(fx->job, tr_run_save_wait(fx->run));
    fx_check(fx->job, !tr_run_save_failed(fx->run), "a save failed");
}

static bool step_equal(const tr_metrics *a, const tr_metrics *b)
{
    return a->step == b->step && a->first_sample == b->first_sample && a->loss == b->loss &&
           a->grad_norm == b->grad_norm && a->lr == b->lr;
}

/* `count` steps at a stretch, and stopped and resumed after every `leg` of them, are the same run. *state: of the first, tr_free. */
static void stop_and_go(fx_job *job, const char *name, const char *settings, int count, int leg,
                        fx_state *state)
{
    tr_metrics straight[FX_MAX_STEPS], metrics[FX_MAX_STEPS];
    fx_run fx;
    fx_state got = {0};
    open_run(job, &fx, "none", settings);
    fx_steps(&fx, count, straight);
    *state = fx_state_take(&fx);
    fx_close(&fx);
    for (int at = 0; at < count; at += leg) {
        open_run(job, &fx, name, settings);
        if (at > 0)
            resume(&fx, at);
        fx_steps(&fx, leg, metrics);
        save(&fx);
        for (int s = 0; s < leg && job->rank == 0; s++)
            fx_check(job, step_equal(&metrics[s], &straight[at + s]),
                     "%s: step %d: loss %a, at a stretch %a", name, at + s + 1, metrics[s].loss,
                     straight[at + s].loss);
        if (at + leg >= count)
            got = fx_state_take(&fx);
        fx_close(&fx);
    }
    if (job->rank == 0)
        fx_check(job, fx_state_equal(state, &got), "%s: weights or moments differ", name);
    tr_free(got.values);
}

static void test_stop_and_go(fx_job *job)
{
    static const char *const layouts[] = {"parallel.data=4 parallel.zero=1",
                                          "parallel.data=4 parallel.zero=3",
                                          "parallel.tensor=2 parallel.pipeline=2"};
    for (int i = 0; i < 3; i++) {
        char *name = tr_format("stop-%d", i);
        char *settings = tr_format("%s model.dropout=0.1 train.precision=bf16", layouts[i]);
        fx_state state;
        stop_and_go(job, name, settings, 6, 3, &state);
        tr_free(state.values);
        tr_free(settings);
        tr_free(name);
    }
}

/* ---- masters ---- */

/* Steps so small that weights in bf16 would stand still: a resumption must not round masters to them. */
static void test_small_updates(fx_job *job)
{
    const float ulp = 0x1p-8f; /* of bf16 just below 1, where norm weights begin */
    fx_run fx;
    fx_state state;
    stop_and_go(job, "small", "parallel.data=2 train.precision=bf16 train.lr=1e-5", 20, 4, &state);
    tr_free(state.values);
    open_run(job, &fx, "small", "parallel.data=2 train.precision=bf16 train.lr=1e-5");
    resume(&fx, 20);
    if (fx.run != NULL) {
        int param = fx_param(&fx, "h.2.ln_1.weight"), moved = 0;
        float *values = fx_tensor(&fx, param, TR_TENSOR_MASTER), farthest = 0;
        for (int i = 0; i < 64; i++) {
            float distance = fabsf(values[i] - 1);
            moved += distance > 0;
            farthest = fmaxf(farthest, distance);
        }
        fx_check(job, moved == 64 && farthest < ulp / 2, "%d of 64 norm weights moved, at most %g",
                 moved, (double)farthest);
        tr_free(values);
    }
    fx_close(&fx);
}

/* ---- weights only ---- */

static double evaluate(fx_run *fx)
{
    double loss = 0;
    if (fx->run != NULL)
        fx_need(fx->job, tr_run_evaluate(fx->run, &loss));
    return loss;
}

/* Masters of two states; moments are between them. */
static bool masters_equal(fx_run *fx, const fx_state *a, const fx_state *b)
{
    int64_t at = 0;
    bool equal = true;
    for (int i = 0; i < tr_run_num_params(fx->run); i++) {
        int64_t shape[2];
        tr_run_param_name(fx->run, i, shape);
        int64_t count = shape[0] * shape[1];
        equal = equal && memcmp(a->values + at, b->values + at, (size_t)count * sizeof(float)) == 0;
        at += 3 * count;
    }
    return equal;
}

/* Weights of FOLDER/NAME, a new optimizer: a step at rate 0 leaves them, others go on from their loss. */
static void weights_taken(fx_job *job, const char *name, const char *settings,
                          const fx_state *saved, double saved_loss, double first_loss)
{
    tr_metrics metrics[3];
    fx_run fx;
    char *still = tr_format("%s checkpoint.weights_only=true train.lr=0", settings);
    char *moving = tr_format("%s checkpoint.weights_only=true train.lr=3e-4", settings);
    open_run(job, &fx, name, still);
    resume(&fx, 0);
    double loss = evaluate(&fx);
    fx_steps(&fx, 1, metrics);
    double after = evaluate(&fx);
    fx_state got = fx_state_take(&fx);
    if (job->rank == 0)
        fx_check(job, loss == saved_loss && after == saved_loss && masters_equal(&fx, saved, &got),
                 "%s: loss %a was saved, %a was loaded, %a after a step at rate 0", settings,
                 saved_loss, loss, after);
    tr_free(got.values);
    fx_close(&fx);

    open_run(job, &fx, name, moving);
    resume(&fx, 0);
    fx_steps(&fx, 3, metrics);
    after = evaluate(&fx);
    if (job->rank == 0)
        fx_check(job, after < saved_loss + 0.1 * (first_loss - saved_loss),
                 "%s: loss %g before, %g three steps after, %g at the beginning", settings,
                 saved_loss, after, first_loss);
    fx_close(&fx);
    tr_free(still);
    tr_free(moving);
}

static void test_weights_only(fx_job *job)
{
    static const char *const precisions[] = {"fp16 train.loss_scale=1024", "bf16"};
    for (int p = 0; p < 2; p++) {
        tr_metrics metrics[12];
        fx_run fx;
        const char *name = p == 0 ? "weights-fp16" : "weights-bf16";
        char *base = tr_format("train.steps=100 train.precision=%s", precisions[p]);
        char *source = tr_format("%s parallel.data=2 train.lr=5e-3", base);
        open_run(job, &fx, name, source);
        double first_loss = evaluate(&fx);
        fx_steps(&fx, 12, metrics);
        double saved_loss = evaluate(&fx);
        save(&fx);
        fx_state saved = fx_state_take(&fx);
        fx_close(&fx);
        if (job->rank == 0)
            fx_check(job, saved_loss < first_loss - 0.5, "the first run has not learned: %g, %g",
                     first_loss, saved_loss);
        for (int zero = 0; zero < 4; zero++) {
            char *settings = tr_format("%s parallel.data=2 parallel.zero=%d", base, zero);
            weights_taken(job, name, settings, &saved, saved_loss, first_loss);
            tr_free(settings);
        }
        tr_free(saved.values);
        tr_free(source);
        tr_free(base);
    }
}

/* ---- the learning rate ---- */

#define RATE "train.warmup_steps=4 train.steps=12 train.lr=1e-3"

/* In the warm-up, at its edge, later, and one step before the end; three times in a row without a step between. */
static void test_rate(fx_job *job)
{
    static const int stops[] = {3, 4, 8, 11, 12};
    tr_metrics straight[12], metrics[12];
    fx_run fx;
    open_run(job, &fx, "none", RATE);
    fx_steps(&fx, 12, straight);
    fx_close(&fx);
    int at = 0;
    for (int i = 0; i < 5; i++) {
        int turns = i == 2 ? 3 : 1;
        for (int turn = 0; turn < turns; turn++) {
            open_run(job, &fx, "rate", RATE);
            if (at > 0)
                resume(&fx, at);
            if (turn < turns - 1)
                save(&fx);
            else
                fx_steps(&fx, stops[i] - at, metrics + at);
            if (turn == turns - 1)
                save(&fx);
            fx_close(&fx);
        }
        at = stops[i];
    }
    for (int s = 0; s < 12 && job->rank == 0; s++)
        fx_check(job, metrics[s].lr == straight[s].lr && metrics[s].loss == straight[s].loss,
                 "step %d: rate %.17g, in the straight run %.17g", s + 1, metrics[s].lr,
                 straight[s].lr);
}

/* The settings of now hold; that they are others than the checkpoint's is said once, with both. */
static void test_changed_rate(fx_job *job)
{
    static const struct {
        const char *settings, *said;
    } changes[] = {
        {"train.warmup_steps=4 train.steps=24 train.lr=1e-3", "train.steps: 12 / 24"},
        {"train.warmup_steps=2 train.steps=12 train.lr=1e-3", "train.warmup_steps: 4 / 2"},
        {"train.warmup_steps=4 train.steps=12 train.lr=2e-3", "train.lr: 0.001 / 0.002"},
        {RATE, NULL}};
    tr_metrics metrics[6];
    fx_run fx;
    open_run(job, &fx, "schedule", RATE);
    fx_steps(&fx, 6, metrics);
    save(&fx);
    fx_close(&fx);
    for (int i = 0; i < 4; i++) {
        char *path = tr_format("%s/log-%d", folder, i);
        open_run(job, &fx, "schedule", changes[i].settings);
        if (job->rank == 0)
            fx_check(job, tr_log_file_open(path), "cannot write %s", path);
        resume(&fx, 6);
        fx_steps(&fx, 1, metrics);
        if (job->rank == 0) {
            tr_log_file_close();
            int said = fx_lines_with(path, "the mathematics changed");
            fx_check(job, said == (changes[i].said != NULL), "%s: said %d times",
                     changes[i].settings, said);
            fx_check(job, changes[i].said == NULL || fx_lines_with(path, changes[i].said) == 1,
                     "%s: not said: %s", changes[i].settings, changes[i].said);
            fx_check(job, metrics[0].lr == tr_lr_at(&fx.cfg, 7), "%s: rate %g, not %g",
                     changes[i].settings, metrics[0].lr, tr_lr_at(&fx.cfg, 7));
        }
        fx_close(&fx);
        tr_free(path);
    }
}

/* ---- another model ---- */

/* One whose tensors have the same names and shapes is refused as others are, also where only weights are taken, and nothing is loaded. */
static void test_same_shapes(fx_job *job)
{
    static const struct {
        const char *settings, *said;
    } models[] = {{"model.heads=2", "model.heads is 4 there and 2 here"},
                  {"model.heads=8", "model.heads is 4 there and 8 here"},
                  {"model.heads=2 checkpoint.weights_only=true", "model.heads is 4"}};
    fx_run fx;
    open_run(job, &fx, "model", "parallel.data=2");
    save(&fx);
    fx_close(&fx);
    for (int i = 0; i < 3; i++) {
        bool resumed = false;
        open_run(job, &fx, "model", models[i].settings);
        if (fx.run != NULL) {
            tr_status status = tr_run_resume(fx.run, &resumed);
            fx_check(job,
                     status == TR_ERR_SETTINGS && !resumed &&
                         strstr(tr_error_message(), "another model") != NULL &&
                         strstr(tr_error_message(), models[i].said) != NULL,
                     "%s: status %d: %s", models[i].settings, (int)status, tr_error_message());
        }
        fx_close(&fx);
    }
}

/* Who takes weights only is told what makes another function of them, and nothing of the training. */
static void test_weights_of_another_function(fx_job *job)
{
    char *path = tr_format("%s/log-weights", folder);
    fx_run fx;
    open_run(job, &fx, "function", "parallel.data=2");
    save(&fx);
    fx_close(&fx);
    open_run(job, &fx, "function",
             "checkpoint.weights_only=true model.norm_eps=0.01 train.lr=2e-3");
    if (job->rank == 0)
        fx_check(job, tr_log_file_open(path), "cannot write %s", path);
    resume(&fx, 0);
    if (job->rank == 0) {
        tr_log_file_close();
        fx_check(job, fx_lines_with(path, "(old / new): model.norm_eps: 1e-05 / 0.01; ") == 1,
                 "a changed model.norm_eps is not told");
    }
    fx_close(&fx);
    tr_free(path);
}

/* ---- what is missing ---- */

/* Fewer ranks than wrote the checkpoint need the files of those who are no more, too. */
static void test_missing_file(fx_job *job)
{
    tr_metrics metrics;
    for (int gone = 0; gone < 4; gone++) {
        fx_run fx;
        bool resumed = false;
        char *name = tr_format("missing-%d", gone);
        char *file = tr_format("shard-%05d.bin", gone);
        char *path = tr_format("%s/%s/step-00000001/%s", folder, name, file);
        open_run(job, &fx, name, "parallel.data=4 parallel.zero=1");
        fx_step(&fx, &metrics);
        save(&fx);
        fx_close(&fx);
        if (job->rank == 0)
            fx_check(job, unlink(path) == 0, "there is no %s", path);
        fx_gather(job);
        open_run(job, &fx, name, "parallel.data=2");
        if (fx.run != NULL) {
            fx_state before = fx_state_take(&fx);
            tr_status status = tr_run_resume(fx.run, &resumed);
            fx_state after = fx_state_take(&fx);
            fx_check(job,
                     status == TR_ERR_CHECKPOINT && !resumed &&
                         strstr(tr_error_message(), file) != NULL,
                     "without %s: status %d: %s", file, (int)status, tr_error_message());
            fx_check(job, fx_state_equal(&before, &after), "without %s: a part was loaded", file);
            tr_free(before.values);
            tr_free(after.values);
        }
        fx_close(&fx);
        tr_free(path);
        tr_free(file);
        tr_free(name);
    }
}

int main(int argc, char **argv)
{
    static const fx_named_case cases[] = {
        {"stop_and_go", test_stop_and_go},   {"small_updates", test_small_updates},
        {"weights_only", test_weights_only}, {"rate", test_rate},
        {"changed_rate", test_changed_rate}, {"missing_file", test_missing_file},
        {"same_shapes", test_same_shapes},   {"other_function", test_weights_of_another_function},
    };
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
