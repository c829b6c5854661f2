/* Models G and L against PyTorch (make_golden.py): logits, loss and every gradient of one batch in fp32 and bf16, and the losses and norms of 20 AdamW steps with
 * clipping in fp32. One rank, through libtrine, with hand-made batches; TRINE_CONFIG_DIR holds the two configurations. Made for
 * each kind of device: TRINE_GOLDEN_DEVICE, with TRINE_GOLDEN_STEPS of the 20. */
#include <math.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "engine/trine.h"
#include "tests/golden/golden_data.h"

enum { SEQ_LEN = 32, VOCAB = 257, GRADIENT_BATCH = 2, TRAIN_BATCH = 8, NUM_STEPS = 20 };

typedef struct hand_batch {
    int first_step; /* golden step of the run's first */
    int32_t tokens[TRAIN_BATCH * SEQ_LEN], labels[TRAIN_BATCH * SEQ_LEN];
    uint64_t samples[TRAIN_BATCH];
} hand_batch;

static tr_status batch_get(void *context, int64_t step, uint64_t first_sample,
                           const int *microbatches, int num_microbatches, tr_run_batch *batch)
{
    hand_batch *hand = context;
    int32_t raw[TRAIN_BATCH * (SEQ_LEN + 1)];
    (void)microbatches;
    (void)num_microbatches;
    tr_golden_tokens_fill(hand->first_step + (int)step, TRAIN_BATCH * (SEQ_LEN + 1), raw);
    for (int b = 0; b < TRAIN_BATCH; b++) {
        hand->samples[b] = first_sample + (uint64_t)b;
        for (int t = 0; t < SEQ_LEN; t++) {
            hand->tokens[b * SEQ_LEN + t] = raw[b * (SEQ_LEN + 1) + t];
            hand->labels[b * SEQ_LEN + t] = raw[b * (SEQ_LEN + 1) + t + 1];
        }
    }
    *batch = (tr_run_batch){hand->tokens, hand->labels, hand->samples};
    return TR_OK;
}

static void ok(tr_status status)
{
    if (status != TR_OK)
        print_error("%s\n", tr_error_message());
    assert_int_equal(status, TR_OK);
}

/* A run of one model with the golden weights. */
static tr_run *run_open(char model, const char *precision, int batch, hand_batch *hand)
{
    tr_config cfg;
    char *path = tr_format("%s/tiny-%c.yaml", TRINE_CONFIG_DIR, model);
    char *overrides[] = {tr_format("train.precision=%s", precision),
                         tr_format("train.global_batch=%d", batch),
                         tr_format("train.micro_batch=%d", batch),
                         tr_strdup("train.lr=1e-3"),
                         tr_strdup("train.schedule=constant"),
                         tr_strdup("train.weight_decay=0.1"),
                         tr_strdup("train.clip=1.0"),
                         tr_strdup("device.kind=" TRINE_GOLDEN_DEVICE)};
    int count = sizeof overrides / sizeof overrides[0];
    ok(tr_config_load(&cfg, path, count, overrides, 1));
    const tr_run_callbacks callbacks = {.context = hand, .batch = batch_get};
    tr_run *run;
    ok(tr_run_open(&run, &cfg, MPI_COMM_WORLD, &callbacks));
    for (int i = 0; i < tr_run_num_params(run); i++) {
        int64_t shape[2];
        const char *name = tr_run_param_name(run, i, shape);
        float *values = TR_NEW_ARRAY(float, (size_t)(shape[0] * shape[1]));
        tr_golden_weight_fill(name, shape[1] == 1 ? 1 : 2, 0, shape[0] * shape[1], values);
        ok(tr_run_param_set(run, i, TR_TENSOR_MASTER, values));
        tr_free(values);
    }
    ok(tr_run_params_changed(run));
    for (int i = 0; i < count; i++)
        tr_free(overrides[i]);
    tr_free(path);
    tr_config_clear(&cfg);
    return run;
}

static tr_golden_file golden_open(char model)
{
    tr_golden_file file;
    char *path = tr_format("%s/golden_%c.safetensors", TRINE_GOLDEN_DIR, model);
    ok(tr_golden_file_open(path, &file));
    tr_free(path);
    return file;
}

static double scalar(const tr_golden_file *file, const char *prefix, const char *name)
{
    const double *value;
    char *whole = tr_format("%s%s", prefix, name);
    ok(tr_golden_file_f64(file, whole, 1, &value));
    tr_free(whole);
    return *value;
}

static void check(const char *what, const char *name, double error, double limit)
{
    if (!(error <= limit))
        print_error("%s %s: %g, at most %g\n", what, name, error, limit);
    assert_true(error <= limit);
}

/* The batch's inputs, for logits. */
static void tokens_get(hand_batch *hand)
{
    tr_run_batch batch;
    ok(batch_get(hand, 0, 0, 0, 1, &batch));
}

static void logits_check(tr_run *run, const tr_golden_file *file, bool bf16, hand_batch *hand)
{
    enum { COUNT = GRADIENT_BATCH * SEQ_LEN * VOCAB };
    const float *want;
    float *got = TR_NEW_ARRAY(float, COUNT);
    tokens_get(hand);
    ok(tr_run_logits(run, hand->tokens, got));
    ok(tr_golden_file_f32(file, "logits", COUNT, &want));
    double distance = tr_golden_distance(got, want, COUNT);
    if (bf16)
        check("bf16", "logits", distance, 1.5 * scalar(file, "bf16_error.", "logits"));
    else
        check("fp32", "logits", distance, 1e-5 * tr_golden_norm(want, COUNT));
    tr_free(got);
}

static void gradients_check(tr_run *run, const tr_golden_file *file, bool bf16)
{
    int num_checked = 0;
    for (int i = 0; i < tr_run_num_params(run); i++) {
        int64_t shape[2];
        double error;
        const char *name = tr_run_param_name(run, i, shape);
        int64_t count = shape[0] * shape[1];
        float *got = TR_NEW_ARRAY(float, (size_t)count);
        ok(tr_run_param_get(run, i, TR_TENSOR_GRAD, got));
        if (bf16) {
            const float *want;
            char *key = tr_format("grad.%s", name);
            ok(tr_golden_file_f32(file, key, count, &want));
            check("bf16 gradient", name, tr_golden_distance(got, want, count),
                  1.5 * scalar(file, "bf16_error.", name));
            tr_free(key);
        } else {
            ok(tr_golden_gradient_error(file, name, got, count, &error));
            check("fp32 gradient", name, error, 1e-5);
        }
        num_checked++;
        tr_free(got);
    }
    int num_golden = 0;
    for (int t = 0; t < file->num_tensors; t++)
        num_golden += tr_golden_tensor_parameter(&file->tensors[t]) != NULL;
    assert_int_equal(num_checked, num_golden);
}

static void one_batch_check(char model, bool bf16)
{
    hand_batch hand = {.first_step = 0};
    tr_metrics metrics;
    tr_golden_file file = golden_open(model);
    tr_run *run = run_open(model, bf16 ? "bf16" : "fp32", GRADIENT_BATCH, &hand);
    logits_check(run, &file, bf16, &hand);
    ok(tr_run_step(run, &metrics));
    double loss = scalar(&file, "", "loss");
    if (bf16) {
        /* One number's error may be luck: the error of its terms bounds it fairly. */
        double own = scalar(&file, "bf16_error.", "loss");
        double terms = scalar(&file, "bf16_error.", "token_loss") / sqrt(GRADIENT_BATCH * SEQ_LEN);
        check("bf16", "loss", fabs(metrics.loss - loss), 1.5 * fmax(own, terms));
    } else {
        check("fp32", "loss", fabs(metrics.loss - loss) / loss, 1e-5);
    }
    gradients_check(run, &file, bf16);
    tr_run_close(run);
    tr_golden_file_close(&file);
}

static void training_check(char model)
{
    hand_batch hand = {.first_step = 1};
    const double *losses, *norms;
    tr_golden_file file = golden_open(model);
    tr_run *run = run_open(model, "fp32", TRAIN_BATCH, &hand);
    ok(tr_golden_file_f64(&file, "train.loss", NUM_STEPS, &losses));
    ok(tr_golden_file_f64(&file, "train.grad_norm", NUM_STEPS, &norms));
    for (int s = 0; s < TRINE_GOLDEN_STEPS; s++) {
        tr_metrics metrics;
        ok(tr_run_step(run, &metrics));
        check("training", "loss", fabs(metrics.loss - losses[s]) / losses[s], 1e-5);
        check("training", "gradient norm", fabs(metrics.grad_norm - norms[s]) / norms[s], 1e-4);
    }
    tr_run_close(run);
    tr_golden_file_close(&file);
}

static void test_g_fp32(void **state)
{
    (void)state;
    one_batch_check('g', false);
}

static void test_l_fp32(void **state)
{
    (void)state;
    one_batch_check('l', false);
}

static void test_g_bf16(void **state)
{
    (void)state;
    one_batch_check('g', true);
}

static void test_l_bf16(void **state)
{
    (void)state;
    one_batch_check('l', true);
}

static void test_g_training(void **state)
{
    (void)state;
    training_check('g');
}

static void test_l_training(void **state)
{
    (void)state;
    training_check('l');
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_g_fp32),     cmocka_unit_test(test_l_fp32),
        cmocka_unit_test(test_g_bf16),     cmocka_unit_test(test_l_bf16),
        cmocka_unit_test(test_g_training), cmocka_unit_test(test_l_training),
    };
    MPI_Init(&argc, &argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
