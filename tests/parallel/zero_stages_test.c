/* ZeRO stages 0 to 3 are one run: the same bits under accumulation, and a checkpoint of any stage goes on under any other at any data size. It
 * is one copy of the state, of which each rank writes its share. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "tests/parallel/run_fixture.h"

static char folder[FX_FOLDER];

/* Three microbatches on each of four data ranks, in both orders of summation. */
static void accumulation(fx_job *job)
{
    static const char *const orders[] = {"train.reduction_order=blocks train.reduction_leaves=4",
                                         "train.reduction_order=rounds train.reduction_leaves=4"};
    static const char *const precisions[] = {"fp32", "bf16"};
    if (!fx_case(job, "stages agree under accumulation"))
        return;
    for (int p = 0; p < 2; p++) {
        fx_outcome of_order[2];
        for (int o = 0; o < 2; o++) {
            char *math = tr_format("train.global_batch=12 train.precision=%s train.clip=0.5 %s",
                                   precisions[p], orders[o]);
            fx_measure(job, "g", math, 2, NULL, &of_order[o]);
            for (int zero = 0; zero < 4; zero++) {
                fx_outcome outcome;
                char *text = tr_format("%s parallel.data=4 parallel.zero=%d", math, zero);
                fx_measure(job, "g", text, 2, NULL, &outcome);
                fx_check_equal(job, &of_order[o], &outcome, text);
                fx_outcome_clear(&outcome);
                tr_free(text);
            }
            tr_free(math);
        }
        /* The orders are two: else the stages could ignore the setting. */
        fx_check(job,
                 job->rank != 0 || of_order[0].metrics[1].loss != of_order[1].metrics[1].loss ||
                     of_order[0].metrics[1].grad_norm != of_order[1].metrics[1].grad_norm,
                 "%s: blocks and rounds have the same bits", precisions[p]);
        fx_outcome_clear(&of_order[0]);
        fx_outcome_clear(&of_order[1]);
    }
}

static void open_and_resume(fx_job *job, fx_run *fx, const char *model, const char *text, int step)
{
    bool resumed = false;
    fx_open(job, fx, model, text, NULL, NULL);
    if (fx->run == NULL)
        return;
    fx_need(job, tr_run_resume(fx->run, &resumed));
    fx_check(job, resumed && tr_run_steps_done(fx->run) == step, "%s: did not go on from step %d",
             text, step);
}

static void metrics_check(fx_run *fx, const tr_metrics *expected, const char *what)
{
    tr_metrics metrics;
    fx_step(fx, &metrics);
    if (fx->run != NULL)
        fx_check(fx->job,
                 metrics.loss == expected->loss && metrics.grad_norm == expected->grad_norm,
                 "%s: step %lld: loss %a, expected %a; norm %a, expected %a", what,
                 (long long)expected->step, metrics.loss, expected->loss, metrics.grad_norm,
                 expected->grad_norm);
}

/* Saved at data 4 under each stage, resumed at 2 and 8 under each: the state has the same bits at once, and so has the next step. */
static void stage_moves(fx_job *job, const char *order)
{
    static const struct {
        int data, zero;
    } to[] = {{2, 3}, {8, 2}, {2, 1}, {8, 0}, {8, 3}, {4, 3}, {4, 1}};
    for (int zero = 1; zero < 4; zero++) {
        fx_run fx;
        tr_metrics metrics[3];
        char *math = tr_format("train.reduction_order=%s train.reduction_leaves=8 "
                               "train.precision=bf16 checkpoint.dir=%s/%s-%d",
                               order, folder, order, zero);
        char *text = tr_format("%s parallel.data=4 parallel.zero=%d", math, zero);
        fx_open(job, &fx, "g", text, NULL, NULL);
        for (int s = 0; s < 2; s++)
            fx_step(&fx, &metrics[s]);
        if (fx.run != NULL)
            fx_need(job, tr_run_save(fx.run));
        fx_state saved = fx_state_take(&fx);
        fx_step(&fx, &metrics[2]);
        fx_close(&fx);
        tr_free(text);
        MPI_Bcast(metrics, sizeof metrics, MPI_BYTE, 0, MPI_COMM_WORLD);
        for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
            text = tr_format("%s parallel.data=%d parallel.zero=%d", math, to[i].data, to[i].zero);
            open_and_resume(job, &fx, "g", text, 2);
            fx_state loaded = fx_state_take(&fx);
            fx_check(job, job->rank != 0 || fx_state_equal(&saved, &loaded),
                     "from stage %d: %s: the state differs", zero, text);
            metrics_check(&fx, &metrics[2], text);
            tr_free(loaded.values);
            fx_close(&fx);
            tr_free(text);
        }
        tr_free(saved.values);
        tr_free(math);
    }
}

/* Saved after one step, read at once and saved again: the same state, and a second step (with its bias correction) as if nothing had been. */
static void read_at_once(fx_job *job, const char *model, const char *precision, int zero)
{
    fx_run fx;
    tr_metrics first, second;
    char *base = tr_format("parallel.data=2 parallel.zero=%d train.precision=%s", zero, precision);
    char *from =
        tr_format("%s checkpoint.dir=%s/once-%s-%s-%d", base, folder, model, precision, zero);
    char *to = tr_format("%s/again-%s-%s-%d", folder, model, precision, zero);
    char *again = tr_format("%s checkpoint.dir=%s", base, to);
    fx_open(job, &fx, model, from, NULL, NULL);
    fx_step(&fx, &first);
    if (fx.run != NULL)
        fx_need(job, tr_run_save(fx.run));
    fx_state saved = fx_state_take(&fx);
    fx_step(&fx, &second);
    fx_state stepped = fx_state_take(&fx);
    fx_close(&fx);
    MPI_Bcast(&second, sizeof second, MPI_BYTE, 0, MPI_COMM_WORLD);

    open_and_resume(job, &fx, model, from, 1);
    fx_close(&fx);
    char *moved = tr_format("%s checkpoint.dir=%s checkpoint.resume=%s/once-%s-%s-%d", base, to,
                            folder, model, precision, zero);
    open_and_resume(job, &fx, model, moved, 1);
    if (fx.run != NULL)
        fx_need(job, tr_run_save(fx.run));
    fx_close(&fx);
    open_and_resume(job, &fx, model, again, 1);
    fx_state loaded = fx_state_take(&fx);
    metrics_check(&fx, &second, again);
    fx_state after = fx_state_take(&fx);
    fx_check(job, job->rank != 0 || fx_state_equal(&saved, &loaded), "%s: saved again, differs",
             again);
    fx_check(job, job->rank != 0 || fx_state_equal(&stepped, &after), "%s: second step differs",
             again);
    fx_close(&fx);
    tr_free(saved.values);
    tr_free(stepped.values);
    tr_free(loaded.values);
    tr_free(after.values);
    tr_free(moved);
    tr_free(again);
    tr_free(to);
    tr_free(from);
    tr_free(base);
}

/* Bytes of a file of a checkpoint after one step; 0 where there is none. Rank 0. */
static int64_t file_bytes(const char *name, const char *file)
{
    struct stat about;
    char *path = tr_format("%s/%s/step-00000001/%s", folder, name, file);
    int64_t bytes = stat(path, &about) == 0 ? (int64_t)about.st_size : 0;
    tr_free(path);
    return bytes;
}

/* What data and tensor ranks hold alike is stored once; uncompressed, so that bytes are those of the elements. */
static void stored_once(fx_job *job, const char *model, int zero)
{
    fx_run fx;
    tr_metrics metrics;
    char *name = tr_format("bytes-%s-%d", model, zero);
    /* Positions, and key/value heads that tensor ranks share, are a tenth of all. */
    char *text = tr_format("model.layers=2 model.hidden=128 model.heads=2 model.kv_heads=%d "
                           "train.seq_len=256 train.global_batch=4 parallel.data=4 "
                           "parallel.tensor=2 parallel.zero=%d checkpoint.level=0 "
                           "checkpoint.dir=%s/%s",
                           model[0] == 'g' ? 2 : 1, zero, folder, name);
    double copy = 0, sum = 0, most = 0;
    fx_open(job, &fx, model, text, NULL, NULL);
    fx_step(&fx, &metrics);
    for (int i = 0; i < tr_run_num_params(fx.run); i++) {
        int64_t shape[2];
        tr_run_param_name(fx.run, i, shape);
        copy += 3.0 * sizeof(float) * (double)(shape[0] * shape[1]); /* master and two moments */
    }
    fx_need(job, tr_run_save(fx.run));
    fx_need(job, tr_run_save_wait(fx.run));
    sum = job->rank == 0 ? (double)file_bytes(name, "manifest.json") : 0;
    for (int r = 0; r < 8 && job->rank == 0; r++) {
        char file[32];
        snprintf(file, sizeof file, "shard-%05d.bin", r);
        double bytes = (double)file_bytes(name, file);
        sum += bytes;
        most = bytes > most ? bytes : most;
    }
    fx_check(job, job->rank > 0 || (sum >= copy && sum < 1.05 * copy),
             "%s %s: %.0f bytes, one copy has %.0f", model, text, sum, copy);
    fx_check(job, job->rank > 0 || most < 1.5 * copy / 8, "%s %s: a rank writes %.0f bytes of %.0f",
             model, text, most, copy);
    fx_close(&fx);
    tr_free(text);
    tr_free(name);
}

int main(int argc, char **argv)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    accumulation(&job);
    if (fx_case(&job, "blocks saved under one stage, resumed under another"))
        stage_moves(&job, "blocks");
    if (fx_case(&job, "rounds saved under one stage, resumed under another"))
        stage_moves(&job, "rounds");
    if (fx_case(&job, "what was saved is read at once"))
        for (int p = 0; p < 3; p++)
            for (int zero = 0; zero < 4; zero++) {
                read_at_once(&job, "g", precisions[p], zero);
                read_at_once(&job, "l", precisions[p], zero);
            }
    if (fx_case(&job, "a checkpoint is one copy, in equal shares"))
        for (int zero = 0; zero < 4; zero++) {
            stored_once(&job, "g", zero);
            stored_once(&job, "l", zero);
        }
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
