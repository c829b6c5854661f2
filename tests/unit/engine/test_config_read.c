/* engine/config: files and overrides, and what each refusal says and where. */
#include "tests/unit/engine/config_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/config/nearest.h"

static void refuses_text(const char *yaml, const char *const *parts)
{
    tr_config cfg;
    if (fixture_read(&cfg, yaml) != TR_ERR_SETTINGS)
        fail_msg("accepted: %s", yaml);
    assert_message_parts(parts);
    tr_config_clear(&cfg);
}
#define refuses_text(yaml, ...) refuses_text(yaml, (const char *const[]){__VA_ARGS__, NULL})

static void refuses_override(const char *assignment, const char *const *parts)
{
    tr_config cfg;
    tr_config_init(&cfg);
    if (tr_config_override(&cfg, assignment) != TR_ERR_SETTINGS)
        fail_msg("accepted: %s", assignment);
    assert_message_parts(parts);
    tr_config_clear(&cfg);
}
#define refuses_override(text, ...) refuses_override(text, (const char *const[]){__VA_ARGS__, NULL})

static void test_reads_sections(void **state)
{
    (void)state;
    tr_config cfg;
    const char *yaml = "# a comment\n"
                       "model: {layers: 3, norm: layer}\n"
                       "train:\n"
                       "  lr: 6e-4\n"
                       "  precision: fp16\n"
                       "  seed: 18446744073709551615\n"
                       "parallel:\n"
                       "  stages: [2, 3, 3, 2]\n"
                       "  overlap: false\n"
                       "data:\n"
                       "  train: \"a b\"\n"
                       "  valid:\n"
                       "    - {path: v, weight: 1.5}\n"
                       "memory:\n"
                       "  limit_gb: 2.5\n";
    assert_int_equal(fixture_read(&cfg, yaml), TR_OK);
    assert_int_equal(cfg.model.layers, 3);
    assert_int_equal(cfg.model.norm, TR_NORM_LAYER);
    assert_true(cfg.train.lr == 6e-4);
    assert_int_equal(cfg.train.precision, TR_F16);
    assert_true(cfg.train.seed == UINT64_MAX);
    assert_string_equal(cfg.parallel.stages, "2,3,3,2");
    assert_false(cfg.parallel.overlap);
    assert_string_equal(cfg.data.train, "a b");
    assert_string_equal(cfg.data.valid, "v");
    assert_null(cfg.data.tokenizer);
    assert_true(cfg.memory.limit_gb == 2.5);
    assert_true(tr_config_is_set(&cfg, "train.lr"));
    assert_false(tr_config_is_set(&cfg, "train.beta1"));
    tr_config_clear(&cfg);
}

static void test_last_override_wins(void **state)
{
    (void)state;
    tr_config cfg;
    assert_int_equal(fixture_read(&cfg, fixture_yaml), TR_OK);
    assert_int_equal(tr_config_override(&cfg, "train.steps=7"), TR_OK);
    assert_int_equal(tr_config_override(&cfg, "train.steps=9"), TR_OK);
    assert_int_equal(tr_config_override(&cfg, "run.name=a=b"), TR_OK);
    assert_int_equal(cfg.train.steps, 9);
    assert_string_equal(cfg.run.name, "a=b");
    tr_config_clear(&cfg);
}

static void test_misspelt_key(void **state)
{
    (void)state;
    refuses_text("train:\n  steps: 5\n  micro_bacth: 4\n", "t.yaml:3:", "train.micro_bacth",
                 "did you mean train.micro_batch?");
    refuses_text("trian:\n  steps: 5\n", "t.yaml:2:", "did you mean train.steps?");
    refuses_text("steps: 5\n", "t.yaml:1:", "did you mean train.steps?");
    refuses_text("train:\n  xylophone: 5\n", "t.yaml:2:", "train.xylophone", "trine config");
    refuses_override("train.micro_bacth=4", "command line", "did you mean train.micro_batch?");
    refuses_override("lr=1", "did you mean train.lr?");
    refuses_override("parallel.fsdp=true", "parallel.fsdp; `trine config` lists all settings");
    refuses_override("model.num_layers=2", "did you mean model.layers?");
    refuses_override("checkpoint.save_dir=x", "did you mean checkpoint.dir?");
    refuses_override("model.hidden_size=8", "did you mean model.hidden?");
    refuses_override("model.multilayers=2", "model.multilayers; `trine config` lists all settings");
    refuses_override("parallel.expert=2", "parallel.expert is not in this version");
    refuses_override("train.tensor=2", "did you mean parallel.tensor?");
}

static void test_key_twice(void **state)
{
    (void)state;
    refuses_text("train:\n  steps: 5\n  lr: 1\n  steps: 6\n", "t.yaml:4:3", "train.steps",
                 "first in line 2");
    refuses_text("train:\n  steps: 5\ntrain:\n  lr: 1\n", "t.yaml:3:1", "train", "line 1");
}

static void test_wrong_type(void **state)
{
    (void)state;
    refuses_text("model:\n  layers: twelve\n", "t.yaml:2:11", "model.layers = twelve",
                 "whole number");
    refuses_text("model:\n  layers: 2.5\n", "whole number");
    refuses_text("model:\n  layers: 1e3\n", "whole number");
    refuses_text("model:\n  layers: 1_000\n", "underscores");
    refuses_text("model:\n  layers:\n", "t.yaml:2:", "no value");
    refuses_text("model:\n  layers: [1, 2]\n", "not a list");
    refuses_text("model: 3\n", "t.yaml:1:", "model is a section");
    refuses_text("model:\n  tied: yes\n", "model.tied = yes", "true or false");
    refuses_text("model:\n  norm: rsm\n", "model.norm = rsm", "did you mean rms?");
    refuses_text("model:\n  norm: batch\n", "rms, layer");
    refuses_override("device.kind=gpu", "did you mean cuda? (auto, cpu, cuda)");
    refuses_text("train:\n  lr: fast\n", "expected a number");
    refuses_text("train:\n  lr: .nan\n", "expected a number");
    refuses_text("train:\n  lr: 0x10\n", "train.lr = 0x10");
    refuses_text("train:\n  seed: -1\n", "train.seed = -1");
    refuses_text("parallel:\n  stages: 2,,3\n", "parallel.stages", "auto");
    refuses_text("parallel:\n  stages: [2, 0]\n", "parallel.stages");
    refuses_text("data:\n  train: [a, b]\n", "t.yaml:2:", "not in this version");
    refuses_text("data:\n  train: [{path: a, wieght: 1}]\n", "data.train.0.wieght");
    refuses_override("train.steps", "section.key=value");
    refuses_override("run.name=", "no value");
}

static void test_steps_to_trace(void **state)
{
    (void)state;
    static const char *const good[][2] = {
        {"log: {trace: 3}\n", "3"},
        {"log:\n  trace: [2, 5-8, 9-9]\n", "2,5-8,9-9"},
        {"log: {trace: none}\n", "none"},
        {"log: {every: 2}\n", "none"},
    };
    static const char *const bad[] = {
        "log.trace=0",    "log.trace=5-3", "log.trace=3-",    "log.trace=-3",
        "log.trace=3,,4", "log.trace=all", "log.trace=1-2-3", "log.trace=1234567890",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tr_config cfg;
        assert_int_equal(fixture_read(&cfg, good[i][0]), TR_OK);
        assert_string_equal(cfg.log.trace, good[i][1]);
        tr_config_clear(&cfg);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses_override(bad[i], "log.trace", "3,10-12");
    refuses_override("parallel.stages=2-3", "parallel.stages", "2,3,3,2");
}

static void test_unit_suffix(void **state)
{
    (void)state;
    refuses_text("train:\n  steps: 4k\n", "t.yaml:2:", "train.steps = 4k", "unit suffixes",
                 "steps");
    refuses_override("memory.limit_gb=16GB", "unit suffixes", "GB (1e9 bytes)");
    refuses_override("train.warmup_steps=10 %", "unit suffixes");
    refuses_override("parallel.timeout_s=5min", "unit suffixes", "seconds");
}

static void test_ranges(void **state)
{
    (void)state;
    refuses_override("train.micro_batch=0", "train.micro_batch = 0", "1 to");
    refuses_override("train.micro_batch=-4", "train.micro_batch = -4", "1 to");
    refuses_override("train.global_batch=0", "train.global_batch = 0");
    refuses_override("train.global_batch=99999999999999999999", "train.global_batch");
    refuses_override("model.dropout=1", "model.dropout = 1", "below 1");
    refuses_override("model.dropout=-0.1", "at least 0");
    refuses_override("train.beta2=1", "below 1");
    refuses_override("train.eps=0", "more than 0");
    refuses_override("parallel.zero=4", "parallel.zero = 4", "0 to 3");
    refuses_override("checkpoint.level=20", "0 to 19");
    refuses_override("parallel.data=-1", "parallel.data = -1");
    refuses_override("train.loss_scale=1000", "512 or 1024", "dynamic");
}

static void test_not_in_this_version(void **state)
{
    (void)state;
    static const char *const assignments[] = {
        "model.preset=mistral",    "model.preset=qwen2",  "model.preset=qwen3",
        "model.qk_norm=true",      "model.z_loss=0.001",  "model.rope_scaling=linear",
        "data.document_mask=true", "parallel.inside=ucx", "parallel.across=ucx",
        "log.tensorboard=true",
    };
    for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++)
        refuses_override(assignments[i], "not in this version", "command line");
}

static void test_yaml_errors(void **state)
{
    (void)state;
    refuses_text("train:\n  steps: [5\n", "t.yaml:", "not YAML");
    refuses_text("- 1\n- 2\n", "t.yaml:1:1", "sections");
    refuses_text("just words\n", "t.yaml:1:1", "sections");
    refuses_text("train:\n  lr: &a 1\n  min_lr: *a\n", "t.yaml:3:", "aliases");
    refuses_text("train: {}\n---\ntrain: {}\n", "second document");
}

static void test_file_not_found(void **state)
{
    (void)state;
    tr_config cfg;
    assert_int_equal(tr_config_load(&cfg, "/nowhere/x.yaml", 0, NULL, 1), TR_ERR_SETTINGS);
    assert_message("/nowhere/x.yaml", "No such file");
    assert_int_equal(tr_status_exit_code(TR_ERR_SETTINGS), 2);
    assert_int_equal(tr_config_load(&cfg, "/", 0, NULL, 1), TR_ERR_SETTINGS);
    assert_message("configuration /");
}

static void test_run_is_named_after_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/trine-config-XXXXXX.yaml";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, fixture_yaml, strlen(fixture_yaml)), strlen(fixture_yaml));
    close(fd);
    tr_config cfg;
    char *overrides[] = {(char *)"train.steps=3", (char *)"train.steps=4"};
    assert_int_equal(tr_config_load(&cfg, path, 2, overrides, 1), TR_OK);
    assert_int_equal(cfg.train.steps, 4);
    assert_string_equal(cfg.file, path);
    char expected[64], dir[128];
    snprintf(expected, sizeof expected, "%.*s", (int)strlen(path) - 10, path + 5);
    assert_string_equal(cfg.run.name, expected);
    snprintf(dir, sizeof dir, "runs/%s", expected);
    assert_string_equal(cfg.run.dir, dir);
    strcat(dir, "/checkpoints");
    assert_string_equal(cfg.checkpoint.dir, dir);
    tr_config_clear(&cfg);
    unlink(path);
}

static void test_edit_distance(void **state)
{
    (void)state;
    assert_int_equal(tr_edit_distance("", "abc"), 3);
    assert_int_equal(tr_edit_distance("abc", "abc"), 0);
    assert_int_equal(tr_edit_distance("bacth", "batch"), 1); /* neighbours swapped */
    assert_int_equal(tr_edit_distance("kitten", "sitting"), 3);
}

static void test_nearest_numbers(void **state)
{
    (void)state;
    static const struct {
        int64_t n, of;
        const char *multiples, *divisors;
    } cases[] = {
        {10, 8, "8 or 16", "8"}, {3, 8, "8", "2 or 4"}, {16, 8, "16", "8"},
        {5, 24, "24", "4 or 6"}, {6, 24, "24", "6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *multiples = tr_nearest_multiples(cases[i].n, cases[i].of);
        char *divisors = tr_nearest_divisors(cases[i].n, cases[i].of);
        assert_string_equal(multiples, cases[i].multiples);
        assert_string_equal(divisors, cases[i].divisors);
        tr_free(multiples);
        tr_free(divisors);
    }
}

/* Kernels take them in fp32. */
static void test_numbers_keep_their_range_in_fp32(void **state)
{
    (void)state;
    refuses_override("train.eps=1e-50", "train.eps = 1e-50 comes to 0 in fp32", "more than 0");
    refuses_override("model.norm_eps=1e-60", "comes to 0 in fp32");
    refuses_override("model.dropout=0.99999999", "comes to 1 in fp32", "below 1");
    refuses_override("train.beta2=0.9999999999", "train.beta2 = 0.9999999999 comes to 1 in fp32");
    refuses_override("train.beta1=0.99999999", "comes to 1 in fp32");
    tr_config cfg;
    tr_config_init(&cfg);
    assert_int_equal(tr_config_override(&cfg, "train.beta2=0.9999999"), TR_OK);
    assert_int_equal(tr_config_override(&cfg, "train.eps=1e-30"), TR_OK);
    assert_int_equal(tr_config_override(&cfg, "model.rope_theta=1e200"), TR_OK);
    tr_config_clear(&cfg);
}

/* A dump is read back whatever the file was called. */
static void test_a_file_name_ends_no_comment(void **state)
{
    (void)state;
    tr_config cfg, again;
    tr_config_init(&cfg);
    assert_int_equal(
        tr_config_read_text(&cfg, "a\nmodel: {layers: 7}\n#", fixture_yaml, strlen(fixture_yaml)),
        TR_OK);
    assert_int_equal(tr_config_resolve(&cfg, 1), TR_OK);
    char *text = tr_config_dump(&cfg);
    assert_int_equal(fixture_read(&again, text), TR_OK);
    assert_int_equal(again.model.layers, 4);
    tr_free(text);
    tr_config_clear(&again);
    tr_config_clear(&cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_keep_their_range_in_fp32),
        cmocka_unit_test(test_a_file_name_ends_no_comment),
        cmocka_unit_test(test_reads_sections),
        cmocka_unit_test(test_last_override_wins),
        cmocka_unit_test(test_misspelt_key),
        cmocka_unit_test(test_key_twice),
        cmocka_unit_test(test_wrong_type),
        cmocka_unit_test(test_steps_to_trace),
        cmocka_unit_test(test_unit_suffix),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_not_in_this_version),
        cmocka_unit_test(test_yaml_errors),
        cmocka_unit_test(test_file_not_found),
        cmocka_unit_test(test_run_is_named_after_the_file),
        cmocka_unit_test(test_edit_distance),
        cmocka_unit_test(test_nearest_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
