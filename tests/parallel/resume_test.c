/* Saving and resuming whole runs on 8 ranks: bit for bit in the same layout, equal state in any
 * other, nothing believed that is damaged, nothing lost when a save fails. */
#include "tests/parallel/run_fixture.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/checkpoint.h"
#include "io/checkpoint_read.h"
#include "io/dir_commit.h"

static char folder[FX_FOLDER]; /* of the whole test, the same on all ranks */

static void save(fx_run *fx)
{
    if (fx->run == NULL)
        return;
    fx_need(fx->job, tr_run_save(fx->run));
    fx_need(fx->job, tr_run_save_wait(fx->run));
    fx_check(fx->job, !tr_run_save_failed(fx->run), "a save failed");
}

/* TR_OK with `step` expected: resumed at that step (-1: nothing was there). */
static tr_status resume(fx_run *fx, int64_t step)
{
    bool resumed = false;
    if (fx->run == NULL)
        return TR_OK;
    tr_status status = tr_run_resume(fx->run, &resumed);
    if (status == TR_OK) {
        fx_check(fx->job, resumed == (step >= 0), "resumed: %d", resumed);
        fx_check(fx->job, tr_run_steps_done(fx->run) == (step >= 0 ? step : 0),
                 "resumed at step %lld, not %lld", (long long)tr_run_steps_done(fx->run),
                 (long long)step);
    }
    return status;
}

/* ---- the same layout ---- */

static void same_layout(fx_job *job, const char *model, const char *base, const char *name)
{
    tr_metrics straight[10], again[5];
    fx_run fx;
    fx_open(job, &fx, model, fx_settings(folder, base, name, ""), NULL, NULL);
    fx_steps(&fx, 5, straight);
    save(&fx);
    fx_steps(&fx, 5, straight + 5);
    fx_state expected = fx_state_take(&fx);
    tr_step_state known = {0};
    if (fx.run != NULL)
        known = *fx.run->stage.decider.known;
    fx_close(&fx);

    fx_open(job, &fx, model, fx_settings(folder, base, name, ""), NULL, NULL);
    fx_need(job, resume(&fx, 5));
    fx_steps(&fx, 5, again);
    fx_state got = fx_state_take(&fx);
    if (fx.run != NULL) {
        for (int i = 0; i < 5; i++) {
            const tr_metrics *a = &straight[5 + i], *b = &again[i];
            fx_check(job,
                     a->step == b->step && a->samples == b->samples && a->loss == b->loss &&
                         a->grad_norm == b->grad_norm && a->lr == b->lr &&
                         a->loss_scale == b->loss_scale && a->skipped == b->skipped,
                     "%s: step %d differs after a resume: loss %.17g and %.17g", name, 6 + i,
                     a->loss, b->loss);
        }
        fx_check(job, fx_state_equal(&expected, &got), "%s: state after step 10 differs", name);
        const tr_step_state *state = fx.run->stage.decider.known;
        fx_check(job,
                 state->loss_scale == known.loss_scale && state->good_steps == known.good_steps &&
                     state->updates == known.updates && state->skips_in_row == known.skips_in_row,
                 "%s: the loss scale is %g after %lld steps, %lld updates", name, state->loss_scale,
                 (long long)state->good_steps, (long long)state->updates);
    }
    fx_close(&fx);
    tr_free(expected.values);
    tr_free(got.values);
}

static void test_same_layout(fx_job *job)
{
    same_layout(job, "g",
                "parallel.data=2 parallel.tensor=2 parallel.pipeline=2 train.precision=bf16 "
                "model.dropout=0.1",
                "same-g");
    same_layout(job, "l", "parallel.data=4 parallel.zero=0", "same-l");
    same_layout(job, "l",
                "parallel.data=2 parallel.pipeline=2 parallel.virtual=2 "
                "parallel.schedule=interleaved train.precision=fp16 train.loss_scale_growth=4",
                "same-fp16");
}

/* ---- other layouts ---- */

/* Global tensors of two checkpoints have the same hashes. Rank 0. */
static void check_hashes(fx_job *job, const char *a_path, const char *b_path)
{
    tr_checkpoint *a = NULL, *b = NULL;
    if (job->rank != 0)
        return;
    fx_need(job, tr_checkpoint_open(&a, a_path));
    fx_need(job, tr_checkpoint_open(&b, b_path));
    const tr_manifest *manifest = tr_checkpoint_manifest(a);
    for (int i = 0; i < manifest->num_params; i++)
        for (int k = 0; k < TR_SHARD_NUM_KINDS && manifest->params[i].tied_to < 0; k++) {
            tr_hash128 hash_a, hash_b;
            fx_need(job, tr_checkpoint_hash(a, i, (tr_shard_kind)k, &hash_a));
            fx_need(job, tr_checkpoint_hash(b, i, (tr_shard_kind)k, &hash_b));
            fx_check(job, tr_hash128_equal(hash_a, hash_b), "%s: %s (%s) differs", b_path,
                     manifest->params[i].name, tr_shard_kind_name((tr_shard_kind)k));
        }
    tr_checkpoint_close(a);
    tr_checkpoint_close(b);
}

static void other_layouts(fx_job *job, const char *model)
{
    static const char *const layouts[] = {
        "parallel.data=1",
        "parallel.data=3",
        "parallel.tensor=2 parallel.pipeline=2 parallel.sequence=true",
        "parallel.pipeline=4",
        "parallel.data=8",
        "parallel.data=5 train.global_batch=40", /* intervals of other sizes, another batch */
        "parallel.tensor=4 parallel.zero=0",
        "parallel.data=2 parallel.zero=0 parallel.pipeline=2 parallel.virtual=2 "
        "parallel.schedule=interleaved",
    };
    const char *base = "parallel.data=2 parallel.tensor=2 parallel.pipeline=2";
    char from[64], to[64], from_path[192], to_path[192];
    tr_metrics straight[8], again[3];
    fx_run fx;
    snprintf(from, sizeof from, "from-%s", model);
    fx_open(job, &fx, model, fx_settings(folder, base, from, "train.reduction_leaves=2"), NULL,
            NULL);
    fx_steps(&fx, 5, straight);
    save(&fx);
    fx_steps(&fx, 3, straight + 5);
    fx_close(&fx);
    snprintf(from_path, sizeof from_path, "%s/%s/step-00000005", folder, from);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        char resume_text[256];
        snprintf(to, sizeof to, "to-%s-%zu", model, i);
        snprintf(to_path, sizeof to_path, "%s/%s/step-00000005", folder, to);
        snprintf(resume_text, sizeof resume_text, "checkpoint.resume=%s checkpoint.level=%zu",
                 from_path, i % 3);
        fx_open(job, &fx, model, fx_settings(folder, layouts[i], to, resume_text), NULL, NULL);
        fx_need(job, resume(&fx, 5));
        save(&fx); /* at once: the same state, cut in another way */
        fx_gather(job);
        check_hashes(job, from_path, to_path);
        fx_steps(&fx, 3, again);
        for (int s = 0; s < 3 && fx.run != NULL && fx.cfg.train.global_batch == 24; s++)
            fx_check(job, fabs(again[s].loss - straight[5 + s].loss) < 1e-5 * straight[5 + s].loss,
                     "%s: loss of step %d is %.9f, not %.9f", layouts[i], 6 + s, again[s].loss,
                     straight[5 + s].loss);
        fx_close(&fx);
    }
}

static void test_other_layouts(fx_job *job)
{
    other_layouts(job, "g");
    other_layouts(job, "l");
}

/* ---- damage ---- */

enum { NUM_DAMAGES = 6 };

/* Damages the checkpoint of step 4 in one way; the name that the message must hold. Rank 0. */
static const char *damage(int kind, const char *path)
{
    char a[256], b[256], aside[256];
    snprintf(a, sizeof a, "%s/shard-00002.bin", path);
    snprintf(b, sizeof b, "%s/shard-00003.bin", path);
    snprintf(aside, sizeof aside, "%s/aside", path);
    struct stat about;
    unsigned char byte;
    int fd;
    switch (kind) {
    case 0: /* a flipped byte of the values */
    case 1: /* and of the tables */
        fd = open(a, O_RDWR);
        fstat(fd, &about);
        off_t at = kind == 0 ? about.st_size / 3 : about.st_size - 100;
        if (fd < 0 || pread(fd, &byte, 1, at) != 1)
            abort();
        byte ^= 16;
        if (pwrite(fd, &byte, 1, at) != 1)
            abort();
        close(fd);
        return "shard-00002.bin";
    case 2: /* cut short */
        if (stat(a, &about) != 0 || truncate(a, about.st_size - 1000) != 0)
            abort();
        return "shard-00002.bin";
    case 3: /* two exchanged */
        if (rename(a, aside) != 0 || rename(b, a) != 0 || rename(aside, b) != 0)
            abort();
        return "shard-00002.bin";
    case 4: /* missing */
        unlink(a);
        return "shard-00002.bin";
    default: /* another run's manifest, in a way: one of its bytes changed */
        snprintf(a, sizeof a, "%s/manifest.json", path);
        fd = open(a, O_RDWR);
        if (fd < 0 || pread(fd, &byte, 1, 200) != 1)
            abort();
        byte ^= 1;
        if (pwrite(fd, &byte, 1, 200) != 1)
            abort();
        close(fd);
        return "manifest.json";
    }
}

static void test_damage(fx_job *job)
{
    static const char *const base = "parallel.data=2 parallel.tensor=2";
    tr_metrics metrics[4];
    fx_run fx;
    for (int kind = 0; kind < NUM_DAMAGES; kind++) {
        char name[32], path[192], more[256];
        const char *file = "";
        snprintf(name, sizeof name, "damage-%d", kind);
        snprintf(path, sizeof path, "%s/%s/step-00000004", folder, name);
        fx_open(job, &fx, "g", fx_settings(folder, base, name, ""), NULL, NULL);
        fx_steps(&fx, 2, metrics);
        save(&fx);
        fx_state older = fx_state_take(&fx);
        fx_steps(&fx, 2, metrics + 2);
        save(&fx);
        fx_close(&fx);
        if (job->rank == 0)
            file = damage(kind, path);
        fx_gather(job);

        /* By name: every rank refuses, and no rank has changed anything. */
        snprintf(more, sizeof more, "checkpoint.resume=%s", path);
        fx_open(job, &fx, "g", fx_settings(folder, base, "none", more), NULL, NULL);
        fx_state before = fx_state_take(&fx);
        tr_status status = resume(&fx, 4);
        fx_state after = fx_state_take(&fx);
        if (fx.run != NULL) {
            fx_check(job, status == TR_ERR_CHECKPOINT, "damage %d: status %d", kind, (int)status);
            fx_check(job,
                     strstr(tr_error_message(), job->rank == 0 ? file : "step-00000004") != NULL,
                     "damage %d: the message does not name %s: %s", kind, file, tr_error_message());
            fx_check(job,
                     strstr(tr_error_message(), "the newest good one beside it is ") != NULL &&
                         strstr(tr_error_message(), "step-00000002") != NULL,
                     "damage %d: the one before is not offered: %s", kind, tr_error_message());
            fx_check(job, fx_state_equal(&before, &after) && tr_run_steps_done(fx.run) == 0,
                     "damage %d: the state changed", kind);
        }
        fx_close(&fx);

        /* auto: the older one. */
        fx_open(job, &fx, "g", fx_settings(folder, base, name, ""), NULL, NULL);
        fx_need(job, resume(&fx, 2));
        fx_state loaded = fx_state_take(&fx);
        if (fx.run != NULL)
            fx_check(job, fx_state_equal(&older, &loaded), "damage %d: not the older state", kind);
        fx_close(&fx);
        tr_free(older.values);
        tr_free(before.values);
        tr_free(after.values);
        tr_free(loaded.values);
    }
}

/* What a killed run leaves is passed over; with nothing whole there, the run starts anew, but never
 * where a damaged checkpoint is all there is. */
static void test_unfinished(fx_job *job)
{
    static const char *const base = "parallel.data=2";
    tr_metrics metrics[2];
    fx_run fx;
    if (job->rank == 0 && (mkdir(fx_in_folder(folder, "unfinished"), 0777) != 0 ||
                           mkdir(fx_in_folder(folder, "unfinished/step-00000007.tmp"), 0777) != 0 ||
                           mkdir(fx_in_folder(folder, "unfinished/step-00000009"), 0777) != 0))
        abort();
    fx_gather(job);
    fx_open(job, &fx, "g", fx_settings(folder, base, "unfinished", ""), NULL, NULL);
    fx_need(job, resume(&fx, -1));
    fx_steps(&fx, 2, metrics);
    save(&fx);
    fx_close(&fx);
    fx_open(job, &fx, "g", fx_settings(folder, base, "unfinished", ""), NULL, NULL);
    fx_need(job, resume(&fx, 2));
    fx_close(&fx);
    if (job->rank == 0) {
        fx_check(job, access(fx_in_folder(folder, "unfinished/step-00000007.tmp"), F_OK) != 0,
                 "what the killed run left is still there");
        fx_check(job, access(fx_in_folder(folder, "unfinished/step-00000009"), F_OK) == 0,
                 "a folder that is not ours was removed");
        unlink(fx_in_folder(folder, "unfinished/step-00000002/shard-00001.bin"));
    }
    fx_gather(job);
    fx_open(job, &fx, "g", fx_settings(folder, base, "unfinished", ""), NULL, NULL);
    tr_status status = resume(&fx, 2);
    if (fx.run != NULL)
        fx_check(job,
                 status == TR_ERR_CHECKPOINT &&
                     strstr(tr_error_message(), "shard-00001.bin") != NULL,
                 "status %d: %s", (int)status, tr_error_message());
    fx_close(&fx);
    fx_open(job, &fx, "g", fx_settings(folder, base, "unfinished", "checkpoint.resume=none"), NULL,
            NULL);
    fx_need(job, resume(&fx, -1));
    fx_close(&fx);
}

/* ---- a save that fails ---- */

static void files_limit(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* One rank's disk is full: all give up together, what was there stays, training goes on. */
static void test_disk_full(fx_job *job)
{
    static const char *const base = "parallel.data=2 parallel.tensor=2 parallel.pipeline=2";
    tr_metrics metrics[4];
    int64_t latest = 0;
    fx_run fx;
    signal(SIGXFSZ, SIG_IGN);
    fx_open(job, &fx, "g", fx_settings(folder, base, "full", ""), NULL, NULL);
    fx_steps(&fx, 1, metrics);
    save(&fx);
    fx_steps(&fx, 1, metrics);
    for (int culprit = 0; culprit < 8; culprit += 5) { /* the manifest's writer and another */
        if (job->rank == culprit)
            files_limit(20000);
        fx_need(job, tr_run_save(fx.run));
        fx_need(job, tr_run_save_wait(fx.run));
        files_limit(RLIM_INFINITY);
        fx_check(job, tr_run_save_failed(fx.run), "rank %d could not write, and nobody knows",
                 culprit);
        if (job->rank == 0) {
            fx_check(job, tr_dir_latest_read(fx_in_folder(folder, "full"), &latest) && latest == 1,
                     "latest moved to %lld", (long long)latest);
            fx_check(job,
                     access(fx_in_folder(folder, "full/step-00000002"), F_OK) != 0 &&
                         access(fx_in_folder(folder, "full/step-00000002.tmp"), F_OK) != 0,
                     "a part of the checkpoint is there");
        }
    }
    fx_steps(&fx, 1, metrics);
    save(&fx);
    fx_close(&fx);
    fx_open(job, &fx, "g", fx_settings(folder, base, "full", ""), NULL, NULL);
    fx_need(job, resume(&fx, 3));
    fx_close(&fx);
}

/* Values that are not finite are never saved over healthy ones. */
static void test_not_finite(fx_job *job)
{
    tr_metrics metrics[2];
    fx_run fx;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=2", "finite", "checkpoint.keep=1"),
            NULL, NULL);
    fx_steps(&fx, 1, metrics);
    save(&fx);
    fx_steps(&fx, 1, metrics);
    if (fx.run != NULL) {
        float *values = fx_tensor(&fx, 0, TR_TENSOR_MASTER);
        values[1] = NAN;
        fx_need(job, tr_run_param_set(fx.run, 0, TR_TENSOR_MASTER, values));
        tr_free(values);
        fx_need(job, tr_run_save(fx.run));
        fx_need(job, tr_run_save_wait(fx.run));
        fx_check(job, tr_run_save_failed(fx.run), "NaN was saved");
    }
    fx_close(&fx);
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=2", "finite", ""), NULL, NULL);
    fx_need(job, resume(&fx, 1));
    fx_close(&fx);
}

/* ---- other settings ---- */

static void expect_refused(fx_job *job, const char *model, const char *text, const char *part)
{
    fx_run fx;
    fx_open(job, &fx, model, text, NULL, NULL);
    tr_status status = resume(&fx, 2);
    if (fx.run != NULL)
        fx_check(job, status == TR_ERR_SETTINGS && strstr(tr_error_message(), part) != NULL,
                 "status %d, expected \"%s\": %s", (int)status, part, tr_error_message());
    fx_close(&fx);
}

static void test_another_model(fx_job *job)
{
    tr_metrics metrics[2];
    fx_run fx;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=2 train.optimizer=sgd", "model", ""),
            NULL, NULL);
    fx_steps(&fx, 2, metrics);
    save(&fx);
    fx_close(&fx);
    const char *sgd = "train.optimizer=sgd";
    expect_refused(job, "l",
                   fx_settings(folder, "parallel.tensor=2 train.optimizer=sgd", "model", ""),
                   "wte.weight");
    expect_refused(job, "g", fx_settings(folder, sgd, "model", "model.ffn=128"),
                   "c_fc.weight is 256 x 64");
    expect_refused(job, "g", fx_settings(folder, sgd, "model", "model.layers=5"), "h.4.");
    expect_refused(job, "g", fx_settings(folder, sgd, "model", "model.tied=false"),
                   "lm_head.weight is tied");
    expect_refused(job, "g", fx_settings(folder, "parallel.data=2", "model", ""),
                   "train.optimizer");
}

static void test_weights_only(fx_job *job)
{
    tr_metrics metrics[3];
    fx_run fx;
    fx_open(job, &fx, "g",
            fx_settings(folder, "parallel.data=2 parallel.pipeline=2 train.precision=fp16",
                        "weights", ""),
            NULL, NULL);
    fx_steps(&fx, 3, metrics);
    save(&fx);
    fx_state saved = fx_state_take(&fx);
    fx_close(&fx);
    fx_open(job, &fx, "g",
            fx_settings(folder, "parallel.tensor=2 train.precision=fp16", "weights",
                        "checkpoint.weights_only=true"),
            NULL, NULL);
    fx_steps(&fx, 1, metrics); /* moments that must be gone */
    bool resumed = false;
    if (fx.run != NULL) {
        fx_need(job, tr_run_resume(fx.run, &resumed));
        fx_state got = fx_state_take(&fx);
        int64_t at = 0;
        bool same = true, zero = true;
        for (int i = 0; i < tr_run_num_params(fx.run); i++) {
            int64_t shape[2], count;
            tr_run_param_name(fx.run, i, shape);
            count = shape[0] * shape[1];
            same = same && memcmp(saved.values != NULL ? saved.values + at : got.values + at,
                                  got.values + at, (size_t)count * sizeof(float)) == 0;
            for (int64_t e = at + count; e < at + 3 * count; e++)
                zero = zero && got.values[e] == 0;
            at += 3 * count;
        }
        fx_check(job, resumed && same, "the weights are not those of the checkpoint");
        fx_check(job, zero, "the moments are not zero");
        const tr_step_state *state = fx.run->stage.decider.known;
        fx_check(job,
                 fx.run->step == 0 && fx.run->samples == 0 && state->updates == 0 &&
                     state->loss_scale == 65536,
                 "the run does not start anew");
        tr_free(got.values);
    }
    tr_free(saved.values);
    fx_close(&fx);
}

/* The configuration of a run on `ranks` ranks that goes on in a folder, as the command line makes it. Rank 0. */
static void resumed_config(fx_job *job, tr_config *cfg, const char *name, const char *word,
                           int64_t ranks)
{
    char dir[128], copy[64];
    tr_config_init(cfg);
    fx_need(job, tr_config_read_file(cfg, TRINE_CONFIG_DIR "/tiny-g.yaml"));
    snprintf(dir, sizeof dir, "checkpoint.dir=%s/%s", folder, name);
    snprintf(copy, sizeof copy, "%s", word);
    fx_need(job, tr_config_override(cfg, dir));
    if (copy[0] != '\0')
        fx_need(job, tr_config_override(cfg, copy));
    fx_need(job, tr_checkpoint_peek(cfg, ranks));
    fx_need(job, tr_config_resolve(cfg, ranks));
}

/* The reduction tree and the tensor slices come from the checkpoint unless the user says otherwise. Rank 0 alone. */
static void test_recorded_tree(fx_job *job)
{
    static const struct {
        const char *more;
        int64_t leaves; /* after resolving for one data rank */
        int64_t slices;
    } tries[] = {{"", 4, 2},
                 {"train.reduction_leaves=2", 2, 2},
                 {"train.tensor_slices=4", 4, 4},
                 {"checkpoint.resume=none", 1, 0},
                 {"checkpoint.weights_only=true", 1, 0},
                 {"train.global_batch=6", 1, 2}}; /* another batch, of which four is no divisor */
    tr_metrics metrics[1];
    fx_run fx;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=4", "tree", "train.tensor_slices=2"),
            NULL, NULL);
    fx_steps(&fx, 1, metrics);
    save(&fx);
    fx_close(&fx);
    for (size_t i = 0; i < sizeof tries / sizeof tries[0] && job->rank == 0; i++) {
        tr_config cfg;
        resumed_config(job, &cfg, "tree", tries[i].more, 1);
        fx_check(job, cfg.train.reduction_leaves == tries[i].leaves, "%s: %lld leaves",
                 tries[i].more, (long long)cfg.train.reduction_leaves);
        fx_check(job, cfg.train.tensor_slices == tries[i].slices, "%s: %lld slices", tries[i].more,
                 (long long)cfg.train.tensor_slices);
        tr_config_clear(&cfg);
    }
}

/* So does the order; a data size that would break the bits is told which would not. */
static void test_recorded_order(fx_job *job)
{
    tr_metrics metrics[1];
    fx_run fx;
    tr_config cfg;
    fx_open(job, &fx, "g", fx_settings(folder, "parallel.data=4 parallel.zero=2", "order", ""),
            NULL, NULL);
    fx_steps(&fx, 1, metrics);
    save(&fx);
    fx_close(&fx);
    if (job->rank != 0)
        return;
    resumed_config(job, &cfg, "order", "parallel.zero=1", 2);
    fx_check(job,
             cfg.train.reduction_order == TR_REDUCTION_ROUNDS && cfg.train.reduction_leaves == 4 &&
                 cfg.derived.warnings == NULL,
             "zero 1 does not go on in rounds");
    tr_config_clear(&cfg);
    resumed_config(job, &cfg, "order", "train.reduction_order=blocks", 2);
    fx_check(job, cfg.train.reduction_order == TR_REDUCTION_BLOCKS, "what is asked for is lost");
    tr_config_clear(&cfg);
    resumed_config(job, &cfg, "order", "parallel.shard_ranks=2", 2); /* fits no single rank */
    fx_check(job,
             cfg.train.reduction_order == TR_REDUCTION_ROUNDS && cfg.train.reduction_leaves == 4,
             "parallel.shard_ranks=2 on two ranks does not go on in rounds of 4 leaves");
    tr_config_clear(&cfg);
    resumed_config(job, &cfg, "order", "parallel.zero=2", 3);
    fx_check(job,
             cfg.derived.leaves == 3 && cfg.derived.warnings != NULL &&
                 strstr(cfg.derived.warnings, "in order rounds it covers 1, 2 and 4") != NULL,
             "three ranks: %s", cfg.derived.warnings ? cfg.derived.warnings : "no warning");
    tr_config_clear(&cfg);
}

/* native has leaves as its layout has data ranks, so that none are taken over. */
static void test_recorded_native(fx_job *job)
{
    tr_metrics metrics[1];
    fx_run fx;
    tr_config cfg;
    fx_open(job, &fx, "g",
            fx_settings(folder, "parallel.data=4 train.reduction_order=native", "native", ""), NULL,
            NULL);
    fx_steps(&fx, 1, metrics);
    save(&fx);
    fx_close(&fx);
    if (job->rank != 0)
        return;
    resumed_config(job, &cfg, "native", "", 2);
    fx_check(job,
             cfg.train.reduction_order == TR_REDUCTION_NATIVE && cfg.train.reduction_leaves == 2 &&
                 cfg.derived.warnings == NULL,
             "two ranks: %s", cfg.derived.warnings ? cfg.derived.warnings : "no warning");
    tr_config_clear(&cfg);
}

/* ---- */

int main(int argc, char **argv)
{
    static const fx_named_case cases[] = {
        {"same_layout", test_same_layout},
        {"other_layouts", test_other_layouts},
        {"damage", test_damage},
        {"unfinished", test_unfinished},
        {"disk_full", test_disk_full},
        {"not_finite", test_not_finite},
        {"another_model", test_another_model},
        {"weights_only", test_weights_only},
        {"recorded_tree", test_recorded_tree},
        {"recorded_order", test_recorded_order},
        {"recorded_native", test_recorded_native},
    };
    fx_job job = fx_begin(&argc, &argv);
    job.only = argc > 1 ? argv[1] : NULL;
    fx_folder_make(&job, folder);
    fx_cases_run(&job, cases, sizeof cases / sizeof cases[0]);
    fx_folder_remove(&job, folder);
    return fx_end(&job);
}
